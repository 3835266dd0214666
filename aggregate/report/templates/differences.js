// Which words of two texts differ: the longest common subsequence, on lines where words would be too many.

const MOST_STEPS = 4_000_000;

function pieces(text, size) {
  if (size === "words") return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
  return text.match(/[^\n]*\n|[^\n]+$/g) || [];
}

// Returns, for both texts, a list of [piece, differs] in order.
function differences(before, after) {
  for (const size of ["words", "lines"]) {
    const found = compare(pieces(before, size), pieces(after, size));
    if (found) return found;
  }
  return [[[before, true]], [[after, true]]];
}

function compare(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (
    end < before.length - start &&
    end < after.length - start &&
    before[before.length - 1 - end] === after[after.length - 1 - end]
  ) end += 1;
  const left = before.slice(start, before.length - end);
  const right = after.slice(start, after.length - end);
  if (left.length * right.length > MOST_STEPS) return null;
  const [kept, alsoKept] = common(left, right);
  return [runs(before, start, end, kept), runs(after, start, end, alsoKept)];
}

function common(left, right) {
  const width = right.length + 1;
  const lengths = new Uint32Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] =
        left[i] === right[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const kept = new Set();
  const alsoKept = new Set();
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    if (left[i] === right[j]) {
      kept.add(i++);
      alsoKept.add(j++);
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return [kept, alsoKept];
}

function runs(all, start, end, kept) {
  const made = [];
  all.forEach((piece, place) => {
    const inside = place >= start && place < all.length - end;
    const differs = inside && !kept.has(place - start);
    const last = made[made.length - 1];
    if (last && last[1] === differs) last[0] += piece;
    else made.push([piece, differs]);
  });
  return joined(made);
}

// A lone comma or space that two different sentences share is no common text: what surrounds it is one change.
function joined(made) {
  const merged = [];
  made.forEach(([text, differs], place) => {
    const between = place > 0 && place < made.length - 1 && !/[\p{L}\p{N}].*[\p{L}\p{N}]/su.test(text);
    const last = merged[merged.length - 1];
    if (last && last[1] === (differs || between)) last[0] += text;
    else merged.push([text, differs || between]);
  });
  return merged;
}

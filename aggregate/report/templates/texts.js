// Texts are compressed; a block is unpacked when something in it is looked at.

const index = JSON.parse(document.getElementById("index").textContent);

const texts = (() => {
  const unpacked = new Map();
  const KEPT = 24;

  function blockOf(entry) {
    let low = 0;
    let high = index.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (index.starts[middle] <= entry) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  async function unpack(packed) {
    const raw = atob(packed);
    const bytes = Uint8Array.from(raw, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  function fromFrame(number) {
    return new Promise((resolve, reject) => {
      const frame = make("iframe", { sandbox: "allow-scripts", title: `Texts, part ${number}` });
      const late = setTimeout(() => end(() => reject(new Error("no answer"))), 15000);
      const end = (how) => {
        clearTimeout(late);
        removeEventListener("message", hear);
        frame.remove();
        how();
      };
      const hear = (event) => {
        if (event.source !== frame.contentWindow || event.data.number !== number) return;
        end(() => resolve(String(event.data.packed)));
      };
      addEventListener("message", hear);
      frame.src = `${index.folder}/${number}.html`;
      document.getElementById("frames").append(frame);
    });
  }

  async function load(number) {
    const inside = document.getElementById(`block-${number}`);
    return unpack(inside ? inside.textContent : await fromFrame(number));
  }

  return {
    async entry(wanted) {
      if (!known(wanted)) return null;
      const number = blockOf(wanted);
      if (!unpacked.has(number)) {
        if (unpacked.size >= KEPT) unpacked.delete(unpacked.keys().next().value);
        unpacked.set(number, load(number));
      }
      try {
        return (await unpacked.get(number))[wanted - index.starts[number]];
      } catch (problem) {
        unpacked.delete(number);
        throw problem;
      }
    },
  };
})();

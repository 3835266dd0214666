// The list of tasks: a forest plot and a matrix of attempts in one, drawn only where it is looked at.

const FILTERS = [
  ["all", "All"],
  ["failed", "Failed"],
  ["changed", "Changed"],
  ["flaky", "Flaky"],
  ["errors", "Errors"],
];
const DRAWN_AT_ONCE = 250;
const MOST_DOTS = 12;
const MOST_PRINTED = 2000;
const several = Object.keys(index.models).length > 1; // names for people, by model

index.rows.forEach((row, number) => {
  row.number = number;
  row.words = [row.task, row.about, row.tier, row.judge, row.model, index.models[row.model], ...row.tags, ...row.flags]
    .filter(Boolean)
    .join("\n")
    .toLowerCase();
});

const ORDERS = {
  best: (row) => (known(row.difference) ? -row.difference : 2),
  worst: (row) => (known(row.difference) ? row.difference : 2),
  name: () => 0,
  cost: (row) => (row.arms[1] && known(row.arms[1].cost) ? -row.arms[1].cost : 1),
};

function chosen(state) {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = index.rows.filter(
    (row) =>
      row.candidate === Number(state.candidate) &&
      (state.filter === "all" || row.flags.includes(state.filter)) && words.every((word) => row.words.includes(word)),
  );
  const order = ORDERS[state.sort];
  return rows.sort((one, other) => order(one) - order(other) || one.number - other.number);
}

const place = (value) => `${(6 + 44 * (Math.min(1, Math.max(-1, value)) + 1)).toFixed(2)}%`;

function forest(row) {
  const shapes = [draw("line", { x1: "50%", x2: "50%", y1: 0, y2: "100%", class: "zero" })];
  if (known(row.difference)) {
    // Green or red only where the interval leaves no doubt.
    const look = row.low > 0 ? "better" : row.high < 0 ? "worse" : "same";
    shapes.push(
      draw("line", { x1: place(row.low), x2: place(row.high), y1: "50%", y2: "50%", class: `whisker ${look}` }),
      draw("circle", { cx: place(row.difference), cy: "50%", r: 5, class: `estimate ${look}` }),
    );
  }
  const said = known(row.difference)
    ? `${points(row.difference)} points, between ${points(row.low)} and ${points(row.high)}`
    : "no difference known";
  return draw("svg", { class: "chart forest", width: "100%", height: "100%", role: "img", "aria-label": said }, shapes);
}

function dots(row, arm) {
  const side = row.arms[arm];
  const outcomes = (side ? side.outcomes : "").padEnd(index.pass_k, "s");
  const shown = [...outcomes].slice(0, MOST_DOTS).map((letter, attempt) => {
    if (letter === "s") return make("span", { class: "dot s" });
    const said = `${ARMS[arm]}, attempt ${side.numbers[attempt]}: ${OUTCOMES[letter]}`;
    return make("button", {
      type: "button",
      class: `dot ${letter}`,
      tabindex: -1,
      title: said,
      "aria-label": said,
      "data-arm": arm,
      "data-attempt": attempt,
    });
  });
  if (outcomes.length > MOST_DOTS) shown.push(make("span", { class: "more" }, `+${outcomes.length - MOST_DOTS}`));
  return make("span", { class: `dots ${ARMS[arm]}` }, shown);
}

const rowList = (() => {
  const list = document.getElementById("rows") ?? make("ul"); // a run that ran nothing has no list
  let rows = [];
  let first = -1;
  let last = -1;
  let active = 0;

  function item(row, position) {
    const link = make(
      "a",
      { class: "open", href: `#${fragment({ ...state, task: row.task, model: several ? row.model : "" })}` },
      row.task,
    );
    const notes = [several && index.models[row.model], row.tier, ...row.flags.filter((flag) => flag !== "changed")].filter(Boolean);
    return make(
      "li",
      { class: "row", "data-position": position, "aria-setsize": rows.length, "aria-posinset": position + 1 },
      make("span", { class: "task" }, link, notes.length ? make("span", { class: "notes" }, notes.join(" · ")) : null),
      index.baseline ? forest(row) : null,
      index.baseline ? make("span", { class: "by" }, points(row.difference)) : null,
      index.baseline ? dots(row, 0) : null,
      dots(row, 1),
    );
  }

  const height = () => parseFloat(getComputedStyle(list).getPropertyValue("--row")) || 44;

  function redraw(force, all) {
    const each = height();
    let from = 0;
    let to = all ? Math.min(rows.length, MOST_PRINTED) : rows.length;
    if (!all && rows.length > DRAWN_AT_ONCE) {
      const above = -list.getBoundingClientRect().top;
      from = Math.max(0, Math.min(rows.length - 1, Math.floor(above / each) - 20));
      to = Math.min(rows.length, from + Math.ceil(innerHeight / each) + 40);
    }
    if (!force && from <= first && to >= last && first !== -1 && Math.abs(from - first) < 10) return;
    const focused = list.contains(document.activeElement) ? active : -1;
    [first, last] = [from, to];
    list.replaceChildren(...rows.slice(from, to).map((row, offset) => item(row, from + offset)));
    list.style.paddingTop = `${from * each}px`;
    list.style.paddingBottom = `${(rows.length - to) * each}px`;
    if (focused >= from && focused < to) link(focused).focus({ preventScroll: true });
  }

  const link = (position) => list.children[position - first]?.querySelector("a.open");

  addEventListener("scroll", () => requestAnimationFrame(() => redraw(false)), { passive: true });
  addEventListener("resize", () => redraw(true));
  addEventListener("beforeprint", () => redraw(true, true));
  addEventListener("afterprint", () => redraw(true));
  list.addEventListener("focusin", (event) => {
    const row = event.target.closest("li");
    if (row) active = Number(row.dataset.position);
  });

  return {
    element: list,
    show(state) {
      rows = chosen(state);
      active = 0;
      first = -1;
      redraw(true);
      return rows;
    },
    at: (position) => rows[position],
    position: (row) => rows.indexOf(row),
    get length() {
      return rows.length;
    },
    get active() {
      return active;
    },
    focus(position) {
      if (!rows.length) return;
      active = Math.max(0, Math.min(rows.length - 1, position));
      if (active < first || active >= last) {
        scrollTo({ top: scrollY + list.getBoundingClientRect().top + active * height() - innerHeight / 3 });
        redraw(true);
      }
      link(active)?.focus();
      link(active)?.closest("li").scrollIntoView({ block: "nearest" });
    },
  };
})();

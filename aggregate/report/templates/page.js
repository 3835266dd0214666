// The page's state lives in the address after #, so that a view can be shared and gone back to.

const DEFAULTS = { filter: "all", q: "", sort: "worst", candidate: "0", task: "", model: "", b: "", c: "" };
let state = { ...DEFAULTS };

function fragment(wanted) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(wanted)) if (value !== DEFAULTS[name]) said.set(name, value);
  return said.toString();
}

function read() {
  const said = new URLSearchParams(location.hash.slice(1));
  const found = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, said.get(name) ?? DEFAULTS[name]]));
  if (!FILTERS.some(([name]) => name === found.filter)) found.filter = "all";
  if (!Object.hasOwn(ORDERS, found.sort)) found.sort = "worst";
  if (!document.querySelector(`[data-candidate="${Number(found.candidate)}"]`)) found.candidate = "0";
  return found;
}

function go(change, replace = false) {
  const wanted = `#${fragment({ ...state, ...change })}`;
  if (replace) {
    history.replaceState(null, "", wanted);
    render();
  } else location.hash = wanted;
}

let listed = null;

function render() {
  state = read();
  for (const part of document.querySelectorAll("[data-candidate]")) part.hidden = part.dataset.candidate !== state.candidate;
  for (const tab of document.querySelectorAll("[data-goes-to]"))
    tab.setAttribute("aria-current", String(tab.dataset.goesTo === state.candidate));
  if (!document.getElementById("tasks")) return;
  const key = [state.filter, state.q, state.sort, state.candidate].join("\n");
  if (key !== listed) {
    listed = key;
    const rows = rowList.show(state);
    const mine = index.rows.filter((row) => row.candidate === Number(state.candidate));
    const total = mine.length;
    for (const button of document.querySelectorAll("#filters button"))
      button.querySelector(".n").textContent = matching(mine, button.dataset.filter).toLocaleString("en");
    const noun = several ? "pair of task and model" : "task";
    document.getElementById("count").textContent =
      rows.length === total ? count(total, noun).replace("pair of task and models", "pairs of task and model") : `${rows.length.toLocaleString("en")} of ${total.toLocaleString("en")} shown`;
  }
  const search = document.getElementById("search");
  if (search.value !== state.q && document.activeElement !== search) search.value = state.q;
  document.getElementById("sort").value = state.sort;
  for (const button of document.querySelectorAll("#filters button"))
    button.setAttribute("aria-pressed", String(button.dataset.filter === state.filter));
  const row =
    state.task &&
    index.rows.find(
      (one) =>
        one.candidate === Number(state.candidate) && one.task === state.task && (!state.model || one.model === state.model),
    );
  if (row) details.show(row, state.b, state.c);
  else if (details.isOpen) details.hide();
}

const matching = (rows, name) => (name === "all" ? rows : rows.filter((row) => row.flags.includes(name))).length;

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  remember(document.documentElement.dataset.theme);
}

function remember(wanted) {
  try {
    localStorage.setItem("uplift-theme", wanted);
  } catch {
    // A page without storage, such as one in a private window, forgets; that is all.
  }
}

function recall() {
  try {
    const wanted = localStorage.getItem("uplift-theme");
    if (wanted === "light" || wanted === "dark") document.documentElement.dataset.theme = wanted;
  } catch {
    // As above.
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.getElementById("search");
  if (event.target === search) {
    if (event.key === "Escape") search.blur();
    if (event.key === "ArrowDown") rowList.focus(0);
    if (event.key === "Escape" || event.key === "ArrowDown") event.preventDefault();
    return;
  }
  if (event.key === "t") return theme();
  if (details.isOpen || event.target.matches("select, input, textarea")) return;
  const filter = FILTERS[Number(event.key) - 1];
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  const inList = rowList.element.contains(document.activeElement);
  if (event.key === "/") search.focus();
  else if (filter) go({ filter: filter[0] }, true);
  else if (step && (inList || event.key === "j" || event.key === "k"))
    rowList.focus(inList ? rowList.active + step : 0);
  else if (inList && (event.key === "ArrowRight" || event.key === "ArrowLeft")) along(event.key === "ArrowRight" ? 1 : -1);
  else return;
  event.preventDefault();
}

// Left and right walk over the dots of a row; its link comes first.
function along(by) {
  const row = document.activeElement.closest("li");
  const stops = [...row.querySelectorAll("a.open, button.dot")];
  stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(document.activeElement) + by))].focus();
}

function start() {
  document.getElementById("theme").addEventListener("click", theme);
  recall();
  addEventListener("hashchange", render);
  addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => (one.open = true)));
  if (!document.getElementById("tasks")) return render();
  document.getElementById("filters").append(
    ...FILTERS.map(([name, label]) =>
      make("button", { type: "button", "data-filter": name, click: () => go({ filter: name }, true) }, label, make("span", { class: "n" })),
    ),
  );
  head();
  document.getElementById("controls").hidden = false;
  document.getElementById("search").addEventListener("input", (event) => go({ q: event.target.value }, true));
  document.getElementById("sort").addEventListener("change", (event) => go({ sort: event.target.value }, true));
  rowList.element.addEventListener("click", onPick);
  addEventListener("keydown", onKey);
  render();
}

function head() {
  const ticks = [-1, 0, 1].map((value) =>
    draw("text", { x: place(value), y: 14, class: "label", "text-anchor": "middle" }, value ? points(value) : "0"),
  );
  const box = document.getElementById("rows-box");
  box.classList.toggle("one", !index.baseline);
  const many = index.pass_k > 5;
  box.classList.toggle("many", many);
  box.style.setProperty("--dots", `${Math.max(4.5, (Math.min(index.pass_k, MOST_DOTS + 1.5) * (many ? 18 : 22)) / 16)}rem`);
  document.getElementById("rows-head").append(
    make("span", { class: "task" }, "Task"),
    ...(index.baseline
      ? [draw("svg", { class: "chart forest", width: "100%", height: 20 }, ticks), make("span", { class: "by" }, "points"), make("span", { class: "dots" }, "Baseline")]
      : []),
    make("span", { class: "dots" }, "Candidate"),
  );
}

function onPick(event) {
  const row = event.target.closest("li");
  if (!row || event.target.closest("a")) return;
  const dot = event.target.closest("button.dot");
  const { task, model } = rowList.at(Number(row.dataset.position));
  const attempt = dot ? String(Number(dot.dataset.attempt) + 1) : "";
  go({ task, model: several ? model : "", b: attempt, c: attempt });
}

start();

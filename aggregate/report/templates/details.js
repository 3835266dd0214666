// One task in full: what was asked, what both arms answered, and what the judges made of it.

const details = (() => {
  const dialog = document.getElementById("details");
  let open = null; // { row, picked: [attempt of baseline, attempt of candidate] }
  let marked = true;

  const facts = (pairs) =>
    make(
      "dl",
      { class: "facts small" },
      pairs.filter(([, value]) => known(value) && value !== MISSING).map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value)),
      ),
    );

  const chip = (outcome) => make("span", { class: `chip ${outcome}` }, outcome === "timeout" ? "timed out" : outcome);

  const list = (title, items, look) =>
    items && items.length
      ? make("div", { class: `items ${look}` }, make("h5", {}, title), make("ul", {}, items.map((one) => make("li", {}, one))))
      : null;

  function criteria(rows) {
    if (!rows || !rows.length) return null;
    const points = (one) => (known(one.achieved) ? `${one.achieved}` : MISSING);
    return make(
      "table",
      { class: "criteria" },
      make("caption", {}, "Criteria"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Criterion"), make("th", { scope: "col" }, "Points"))),
      make("tbody", {}, rows.map((one) =>
        make("tr", {}, make("th", { scope: "row" }, one.name), make("td", {}, `${points(one)} of ${one.max_points ?? MISSING}`)),
      )),
    );
  }

  function judgment(one) {
    const kind = one.judge_model ? `${one.judge}, ${one.judge_model}` : one.judge;
    const needed = one.required === false ? " (not required)" : "";
    const name = one.check && one.check !== kind ? `${one.check}: ${kind}${needed}` : kind + needed;
    const score = known(one.score) ? `score ${Number(one.score.toPrecision(3))}` : "no score";
    const tests = one.tests && `tests: ${one.tests.passed || 0} passed, ${one.tests.failed || 0} failed, ${one.tests.errored || 0} errored`;
    return make(
      "div",
      { class: "judgment" },
      make("h4", {}, name, make("span", { class: "score" }, score)),
      one.details ? make("p", { class: "reason" }, one.details) : null,
      one.error ? make("p", { class: "reason bad" }, one.error) : null,
      tests ? make("p", {}, tests) : null,
      one.saw_cut_text ? make("p", { class: "reason" }, "The judge saw the text cut.") : null,
      list("Met", one.matched, "met"),
      list("Missed", one.missed, "missed"),
      criteria(one.criteria),
      (one.benchmarks || []).map((bench) =>
        make("p", {}, `${bench.name}: original ${seconds(1000 * bench.nop_median)}, output ${seconds(known(bench.agent_median) ? 1000 * bench.agent_median : null)}`),
      ),
      (one.panel || []).map(judgment),
    );
  }

  function output(entry, runs, look) {
    const text = entry.completion?.text;
    if (!text) return make("p", { class: "reason" }, "No output.");
    const shown = runs
      ? runs.map(([piece, differs]) => (differs ? make("mark", { class: look }, piece) : piece))
      : [text];
    return make("pre", { class: "output", tabindex: 0, "aria-label": "Output" }, shown);
  }

  function column(arm, entry, runs) {
    const { row, picked } = open;
    const side = row.arms[arm];
    const title = make("h3", {}, arm ? "Candidate" : "Baseline");
    if (!side || !side.entries.length) return make("section", { class: "side" }, title, make("p", {}, "No attempt was run."));
    const choices = [...side.outcomes].map((letter, attempt) =>
      make("button", {
        type: "button",
        class: `dot ${letter}`,
        "aria-pressed": String(attempt === picked[arm]),
        "aria-label": `${ARMS[arm]}, attempt ${side.numbers[attempt]}: ${OUTCOMES[letter]}`,
        "data-arm": arm,
        "data-attempt": attempt,
      }),
    );
    const completion = entry.completion || {};
    const cached = known(completion.cache_read_tokens) ? `, ${completion.cache_read_tokens.toLocaleString("en")} cached` : "";
    return make(
      "section",
      { class: `side ${ARMS[arm]}`, "aria-label": ARMS[arm] },
      make("div", { class: "side-head" }, title, make("span", { class: "dots", role: "group", "aria-label": "Attempts" }, choices)),
      make("p", { class: "outcome" }, chip(entry.outcome), `attempt ${entry.attempt} of ${side.entries.length}`,
        known(entry.score) ? `, score ${Number(entry.score.toPrecision(3))}` : ""),
      entry.error ? make("p", { class: "reason bad" }, entry.error) : null,
      facts([
        ["Tokens", known(completion.input_tokens) || known(completion.output_tokens)
          ? `${(completion.input_tokens ?? 0).toLocaleString("en")} in, ${(completion.output_tokens ?? 0).toLocaleString("en")} out${cached}` : null],
        ["Cost", known(completion.cost_usd) ? dollars(completion.cost_usd) : "unknown"],
        ["Model time", seconds(entry.model_ms)],
        ["Judge time", seconds(entry.judge_ms)],
        ["Turns", completion.turns],
        ["From cache", entry.cached ? "yes" : null],
      ]),
      make("h4", { class: "part" }, "Output", completion.truncated ? " (cut)" : ""),
      output(entry, runs, ARMS[arm]),
      make("h4", { class: "part" }, "Judgment"),
      (entry.judgments || []).length ? entry.judgments.map(judgment) : make("p", { class: "reason" }, entry.details || "None was made."),
    );
  }

  function asked(task) {
    if (!task) return make("p", { class: "reason" }, "The prompt was not kept with this run.");
    return make(
      "details",
      { class: "asked", open: task.prompt.length < 1500 },
      make("summary", {}, "Prompt"),
      task.description ? make("p", { class: "about" }, task.description) : null,
      make("pre", { class: "output", tabindex: 0, "aria-label": "Prompt" }, task.prompt),
      judged(task.judge),
    );
  }

  function judged(settings) {
    const shown = ([name, value]) => {
      const items = Array.isArray(value) ? make("ul", {}, value.map((one) => make("li", {}, one))) : value;
      return make("div", { class: "items plain" }, make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, items));
    };
    return make("dl", { class: "settings" }, Object.entries(settings || {}).map(shown));
  }

  async function load() {
    const { row, picked } = open;
    const wanted = [0, 1].map((arm) => row.arms[arm]?.entries[picked[arm]] ?? null);
    return Promise.all([texts.entry(row.prompt), ...wanted.map((entry) => texts.entry(entry))]);
  }

  async function render() {
    const shown = open;
    let loaded;
    try {
      loaded = await load();
    } catch (problem) {
      body(make("p", { class: "notice" }, `The texts could not be read (${problem.message}). Is the folder beside this file in its place?`));
      return;
    }
    if (open !== shown) return;
    const [task, before, after] = loaded;
    const outputs = [before, after].map((entry) => entry?.completion?.text || "");
    const runs = marked && outputs[0] && outputs[1] ? differences(...outputs) : [null, null];
    body(
      asked(task),
      make("label", { class: "toggle" },
        make("input", { type: "checkbox", checked: marked, change: (event) => { marked = event.target.checked; render(); } }),
        "Mark what differs"),
      make("div", { class: index.baseline ? "sides" : "sides one" },
        index.baseline ? column(0, before, runs[0]) : null, column(1, after, runs[1])),
    );
  }

  function body(...parts) {
    const { row } = open;
    const held = dialog.contains(document.activeElement) ? document.activeElement : null;
    const notes = [several && index.models[row.model], row.tier, row.judge, ...row.tags].filter(Boolean).join(" · ");
    const step = (by, name) =>
      make("button", { type: "button", class: "step", "aria-label": `${name} task`, disabled: !neighbour(by), click: () => move(by) }, by < 0 ? "‹" : "›");
    dialog.replaceChildren(
      make("div", { class: "details-head" },
        make("div", {}, make("h2", { id: "details-heading", tabindex: -1, autofocus: true }, row.task), make("p", { class: "notes" }, notes),
          known(row.difference)
            ? make("p", { class: "notes" }, `Difference ${points(row.difference)} points, between ${points(row.low)} and ${points(row.high)}`)
            : null),
        make("div", { class: "steps" }, step(-1, "Previous"), step(1, "Next"),
          make("button", { type: "button", class: "step", "aria-label": "Close", click: close }, "×"))),
      make("div", { class: "details-body" }, parts),
    );
    if (dialog.open) (again(held) || dialog.querySelector("h2")).focus({ preventScroll: true });
  }

  // What had the keyboard's attention before everything was drawn anew.
  function again(held) {
    if (!held) return null;
    if (held.matches("input")) return dialog.querySelector("input");
    const said = held.getAttribute("aria-label");
    return [...dialog.querySelectorAll("button:not(:disabled)")].find((one) => said && one.getAttribute("aria-label") === said);
  }

  const neighbour = (by) => rowList.at(rowList.position(open.row) + by);

  function move(by) {
    const row = neighbour(by);
    if (row) go({ task: row.task, model: several ? row.model : "", b: "", c: "" });
  }

  function close() {
    go({ task: "", model: "", b: "", c: "" });
  }

  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    close();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close();
    const pick = event.target.closest("button.dot");
    if (pick) go({ [pick.dataset.arm === "0" ? "b" : "c"]: String(Number(pick.dataset.attempt) + 1) });
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.matches("input, pre") || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const step = { k: -1, j: 1 }[event.key];
    if (step) move(step);
    if (!by) return;
    event.preventDefault();
    const limit = Math.max(...open.row.arms.map((side) => side?.entries.length || 0));
    const to = Math.max(1, Math.min(limit, Math.max(...open.picked) + 1 + by));
    go({ b: String(to), c: String(to) });
  });

  return {
    show(row, b, c) {
      const named = { pass: /p/, fail: /[ft]/ }; // an example opens the first attempt that passed, or failed
      const clamp = (value, side) =>
        named[value]
          ? Math.max(0, (side?.outcomes || "").search(named[value]))
          : Math.max(0, Math.min((side?.entries.length || 1) - 1, (Number(value) || 1) - 1));
      open = { row, picked: [clamp(b, row.arms[0]), clamp(c, row.arms[1])] };
      render().then(() => {
        if (open && !dialog.open) {
          dialog.showModal();
          dialog.scrollTop = 0;
        }
      });
    },
    hide() {
      const row = open?.row;
      open = null;
      if (dialog.open) dialog.close();
      if (row) rowList.focus(Math.max(0, rowList.position(row)));
    },
    get isOpen() {
      return open !== null;
    },
  };
})();

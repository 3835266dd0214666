"""What runs there are and how one of them stands, from files in the state root and from servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aggregate.artifact.answer import answer_of, brief
from aggregate.artifact.model import Artifact
from aggregate.artifact.sentences import short_models
from aggregate.records.record import JUDGED
from aggregate.report.result_tables import candidate_text, line_text, next_of, ranked
from aggregate.text.files import exists
from aggregate.text.formats import plain
from judges.inside import remove_folder
from producer import server as servers
from producer.display.progress import clock, delta_words, paced, spending, usd
from producer.display.snapshot import Looker, RoughInterval, View
from producer.server import OUT_OF_REACH, NoTrace, Server, ServerNotRunning
from producer.state_root import Places, finished, run_of
from workers.store.redis_client import serving, versions
from workers.store.redis_client import workers as known_workers
from workers.store.run_store import OtherVersion, State, UnknownRun

_WIDE = 100
_FILE_WIDTH = 200


@dataclass(frozen=True)
class RunRow:
    """One run in a list; `done` and `total` count attempts. `answer` is its result in a few words.

    With several candidates the verdict is the worst one's, and each has its own numbers in `candidates`.
    """

    run_id: str
    state: str
    created_at: str | None
    suite: str | None
    done: int | None = None
    total: int | None = None
    verdict: str | None = None
    decision: str | None = None
    delta: float | None = None
    attempt_delta: float | None = None
    answer: str | None = None
    diagnosis: tuple[str, ...] = ()
    candidates: tuple[dict[str, Any], ...] = ()


def about_workers(broker: str | None) -> list[str]:
    """How many of a broker's workers are of which version, and how many serve what; nothing without any."""
    if broker is None:
        return []
    with closing(servers.open_server(broker)) as server:
        beats = known_workers(server.store.client)
    return [f"workers: {versions(beats)}", f"workers serve: {serving(beats)}"] if beats else []


def rows(places: Places, broker: str | None) -> list[RunRow]:
    """Newest first; a run that is at home and still on a server is listed once, as it ended, unless it goes on."""
    known = {row.run_id: row for row in _unfinished(places)}
    if broker is not None:
        with closing(servers.open_server(broker)) as server:
            on_server = (_server_row(server, run_id) for run_id in server.store.runs())
            known |= {row.run_id: row for row in on_server if row is not None}
    going_on = {run_id for run_id, row in known.items() if row.state == "running"}
    known |= {row.run_id: row for row in _at_home(places) if row.run_id not in going_on}
    return sorted(known.values(), key=lambda row: (row.created_at or "", row.run_id), reverse=True)


def _at_home(places: Places) -> Iterator[RunRow]:
    for run_id in places.run_ids("runs"):
        artifacts = finished(places, run_id)
        if not artifacts:
            continue
        first = next((one for one in artifacts if one.was_run), artifacts[0])
        yield RunRow(
            run_id=run_id,
            state=first.status,
            created_at=first.created_at,
            suite=first.task_suite,
            done=first.attempts.made if first.attempts else None,
            total=first.attempts.planned if first.attempts else None,
            **results(artifacts),
        )


def _unfinished(places: Places) -> Iterator[RunRow]:
    for run_id in places.run_ids("embedded"):
        row, state = None, "starting"
        try:
            with servers.joining(places, run_id, None) as server:
                row = _server_row(server, run_id)
        except ServerNotRunning:
            state = "interrupted"
            try:
                with servers.taking_over(places, run_id) as server:
                    row = _server_row(server, run_id)
            except NoTrace:
                continue
            except (UnknownRun, *OUT_OF_REACH):
                pass  # it is listed all the same
            row = replace(row, state=state) if row else None
        with suppress(FileNotFoundError):  # its owner has brought it home since
            yield row or RunRow(run_id, state, moment(places.embedded(run_id).stat().st_mtime), None)


def _server_row(server: Server, run_id: str) -> RunRow | None:
    store = server.store
    try:
        state = store.state(run_id)
        if state is None:
            return None
        run, done = store.run(run_id), store.progress(run_id).recorded
    except OtherVersion:
        return RunRow(run_id, "other version", None, None)
    return RunRow(
        run_id, state_word(state), moment(state.created), run.info.task_suite, done, run.grid.attempts
    )


def delete(places: Places, broker: str | None, run_id: str) -> None:
    """Remove a run everywhere it is; raises UnknownRun when it is nowhere."""
    embedded = places.embedded(run_id)
    known, artifacts = [places.run(run_id), embedded], finished(places, run_id)
    if not servers.is_left(embedded) if artifacts else servers.is_held(embedded):
        raise UnknownRun(f"run {run_id} is running; cancel it first: {places.command('cancel', run_id)}")
    on_server = False
    if broker is not None:
        with closing(servers.open_server(broker)) as server:
            on_server = run_id in server.store.runs()
            server.store.delete(run_id)
    if not artifacts and not on_server and not any(map(exists, known)):
        raise UnknownRun(f"no run {run_id!r} under {places.root}; `{places.command('runs')}` lists them")
    for path in known:
        if exists(path):
            remove_folder.remove(path)
            if path.exists():
                path.rmdir()  # raises, and says why not
    for kind in ("evaluations", "traces"):
        for path in (places.root / kind).glob(f"{run_id}*.json"):
            # The name of another run may begin with this one's; a damaged file goes by its name alone.
            if (run_of(path) or path.stem) == run_id:
                path.unlink()


def show(rows: list[RunRow]) -> None:
    """Print rows as a table on standard output; in a narrow terminal, and only there, without their suites."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a file or a pipe, which has no width
        console.width = max(console.width, _FILE_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = ["run", "state", "attempts", "verdict", "result", "suite"]
    if console.width < _WIDE:
        columns.pop()
    for column in columns:
        table.add_column(column, no_wrap=column != "suite")
    for row in rows:
        suite = Path(row.suite or "–")
        cells = (
            row.run_id,
            state_text(row.state),
            f"{row.done}/{row.total}" if row.total is not None else "–",
            row.verdict or "–",
            row.answer or "–",
            plain("/".join(suite.parts[-2:]), 60),
        )
        table.add_row(*cells[: len(columns)])
    console.print(table)


# How one run stands: facts for scripts, and a small table for people


def status(places: Places, broker: str | None, run_id: str) -> dict[str, Any]:
    """How a run stands; raises UnknownRun, also where a private server that is gone has left nothing."""
    artifacts = finished(places, run_id)
    if artifacts and artifacts[0].status in ("finished", "weak_baseline"):
        return _over(run_id, artifacts)
    try:
        with servers.joining(places, run_id, broker) as server:
            return _on_server(server, run_id, artifacts)
    except ServerNotRunning:
        if artifacts := finished(places, run_id):
            return _over(run_id, artifacts)
    facts: dict[str, Any] = {"run": run_id}
    with suppress(*OUT_OF_REACH), servers.taking_over(places, run_id) as server:
        facts = _on_server(server, run_id, [])
    return {**facts, "state": "interrupted", "next": places.command("resume", run_id)}


def moment(seconds: float) -> str:
    """A time of day in seconds since 1970, as runs tell when they were created."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def state_word(state: State) -> str:
    """What people call a run's state."""
    if state.trouble:
        return "interrupted"
    if state.sealed:
        return "finished" if state.halt in ("", "decided") else state.halt
    return state.halt or "running"


def state_text(state: str) -> str:
    """A state's name as people read it; programs read the name itself."""
    return "given up" if state == "hopeless" else state.replace("_", " ")


_ENDED = ("run", "state", "created_at", "suite", "answer", "next", "artifact")
_RESULTS = ("verdict", "decision", "delta", "attempt_delta")
_RATES = ("execution_pass_rate", "baseline_pass_rate")


def results(artifacts: list[Artifact]) -> dict[str, Any]:
    """The answer in a few words, and the numbers of a run's only candidate, or of each of several."""
    each = [
        {
            "candidate_id": artifact.candidate_id,
            **{name: getattr(artifact, name) for name in _RESULTS},
            "diagnosis": tuple(cause.code for cause in artifact.diagnosis),
        }
        for artifact in artifacts
    ]
    if len(each) > 1:
        worst = max(artifacts, key=Artifact.exit_code)
        return {"answer": brief(artifacts), "verdict": worst.verdict, "candidates": tuple(each)}
    return {"answer": brief(artifacts), **{name: each[0][name] for name in (*_RESULTS, "diagnosis")}}


def _over(run_id: str, artifacts: list[Artifact]) -> dict[str, Any]:
    first = artifacts[0]
    facts: dict[str, Any] = {
        "run": run_id,
        "state": first.status,
        "created_at": first.created_at,
        "suite": first.task_suite,
        **results(artifacts),
        "artifact": first.truth_anchor,
    }
    if len(artifacts) == 1:
        answer = answer_of(first)
        told = {line.kind: line_text(line) for line in answer.lines}
        facts |= {name: getattr(first, name) for name in (*_RATES, "reason")}
        facts |= {"answer": answer.headline, "lines": told, "next": answer.next.text}
    else:
        ordered = ranked(artifacts)
        rows = {one.candidate_id or one.arm: candidate_text(one) for one in ordered}
        facts |= {"lines": rows, "next": next_of(ordered).text}
    return facts


def _on_server(server: Server, run_id: str, artifacts: list[Artifact]) -> dict[str, Any]:
    """An artifact that is at home tells more, unless the run goes on since."""
    state = server.store.state(run_id)
    if artifacts and (state is None or state.sealed):
        return _over(run_id, artifacts)
    if state is None:
        raise UnknownRun(
            f"no run {run_id!r} on this server; `uplift runs`, with the same --broker, lists them"
        )
    store, word = server.store, state_word(state)
    looker, workers = Looker(store, store.manifest(run_id)), len(known_workers(store.client))
    view = looker.view(store.progress(run_id), workers)
    rate = sum(worker.rate or 0.0 for worker in view.inside.workers)
    view = replace(view, rate=rate or None, elapsed=time.time() - state.created)
    left = view.seconds_left if word == "running" else None
    return {
        "run": run_id,
        "state": word,
        "created_at": moment(state.created),
        "suite": store.info(run_id).task_suite,
        "done": view.progress.recorded,
        "total": view.total,
        "in_flight": view.progress.in_flight,
        "in_flight_by_model": view.inside.in_flight,
        "workers": view.workers,
        "attempts_per_second": view.rate,
        "seconds_left": None if left is None else round(left),
        "retries": view.inside.retries,
        "paced_by_provider": view.inside.paced,
        "unpriced": view.inside.unpriced,
        "spent_usd": None if view.spent is None else round(view.spent, 6),
        "assumed_usd": round(view.progress.assumed, 6),
        "projected_usd": None if view.projected is None else round(view.projected, 6),
        "budget_usd": view.budget_usd,
        "arms": {name: _arm(view, number) for number, name in enumerate(view.arms)},
        "slowest": [asdict(attempt) for attempt in view.inside.slowest],
        **({"why": why} if (why := state.trouble or state.why) else {}),
    }


def _arm(view: View, arm: int) -> dict[str, Any]:
    return {
        "done": view.done(arm),
        "total": view.total_per_arm,
        "passed": view.outcome(arm, "passed"),
        "judged": view.outcome(arm, *JUDGED),
        "timeouts": view.outcome(arm, "timeout"),
        "errors": view.outcome(arm, "error"),
        "pass_rate": _interval(view.passing(arm)),
        "attempt_delta": _interval(view.delta(arm)),
    }


def _interval(rough: RoughInterval | None) -> dict[str, float] | None:
    return None if rough is None else {name: round(value, 4) for name, value in rough._asdict().items()}


def show_status(facts: dict[str, Any]) -> None:
    """Print the facts on standard output, with a table of the arms while the run is under way."""
    console = Console(highlight=False, markup=False)
    for name, words in _running_lines(facts) if "arms" in facts else _ended_lines(facts):
        console.print(f"{name:<10}{plain(words)}", soft_wrap=True)
    if "arms" in facts:
        console.print()
        console.print(_table(facts["arms"]))


def _ended_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """How the run ended, in the words of its answer."""
    words = facts | {"state": state_text(facts["state"])}
    lines = [("created" if name == "created_at" else name, _text(words[name])) for name in _ENDED[:5]]
    several = "candidates" in facts
    lines += [("", f"{name}: {text}" if several else text) for name, text in facts.get("lines", {}).items()]
    return lines + [(name, _text(facts[name])) for name in _ENDED[5:] if facts.get(name)]


def _running_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rate, left = facts["attempts_per_second"], facts["seconds_left"]
    done, in_flight = f"{facts['done']:,} of {facts['total']:,}", f"{facts['in_flight']:,}"
    by_model = facts["in_flight_by_model"]
    short = short_models(by_model)
    models = ", ".join(f"{count:,} of {short[model]}" for model, count in by_model.items())
    lines = [
        ("run", facts["run"]),
        ("state", state_text(facts["state"]) + (f": {facts['why']}" if "why" in facts else "")),
        ("created", facts["created_at"]),
        ("suite", _text(facts["suite"])),
        ("attempts", f"{done}, about {clock(left)} left" if left else done),
        ("cost", _cost(facts)),
        # Parts and their sum come from the same heartbeats; the run's own count is newer.
        ("in flight", f"{sum(by_model.values()):,}: {models}" if len(by_model) > 1 else in_flight),
        ("workers", f"{facts['workers']}" + (f", {rate:.1f} attempts a second" if rate else "")),
        ("retries", f"{facts['retries']:,}"),
        *([("paced", paced(facts["paced_by_provider"]))] if facts["paced_by_provider"] else []),
        *([("next", facts["next"])] if "next" in facts else []),
    ]
    for attempt in facts["slowest"][:1]:
        where = f"{attempt['task']}, {attempt['arm']}, attempt {attempt['number']}"
        lines.append(("slowest", f"{where}: {attempt['seconds']:.0f} s"))
    return lines


def _cost(facts: dict[str, Any]) -> str:
    spent, projected, budget = facts["spent_usd"], facts["projected_usd"], facts["budget_usd"]
    if spent is None:
        return "unknown"
    words = spending(spent, facts["assumed_usd"], facts["unpriced"])
    if projected is not None and facts["seconds_left"]:
        words += f", about {usd(projected)} in all"
    return words + (f", budget {usd(budget)}" if budget is not None else "")


def _table(arms: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", no_wrap=True, overflow="ellipsis")
    for column in ("attempts", "passed so far", "points of attempts", "time-outs", "errors"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, arm in arms.items():
        table.add_row(
            plain(name, 24),
            f"{arm['done']:,}/{arm['total']:,}",
            _percent(arm["pass_rate"]),
            "–" if arm["attempt_delta"] is None else delta_words(arm["attempt_delta"].values()),
            f"{arm['timeouts']:,}",
            f"{arm['errors']:,}",
        )
    return table


def _percent(rate: dict[str, float] | None) -> str:
    if rate is None:
        return "–"
    return f"{100 * rate['estimate']:.0f} % ({100 * rate['low']:.0f}–{100 * rate['high']:.0f})"


def _text(value: Any) -> str:
    return "–" if value is None else str(value)

"""What runs there are and how they stand, from files in the state root and from servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from aggregate.artifact.sentences import short_models
from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord
from aggregate.text.files import exists
from aggregate.text.formats import plain, safe_line
from judges.inside import remove_folder
from judges.judgment import Judgment
from judges.safe_text import did_you_mean
from producer.display.run_status import moment, results, state_text, state_word
from producer.server import connect, private_server
from producer.server.connect import OUT_OF_REACH, NoTrace, Server, ServerNotRunning, open_server
from producer.state_root import Places, check_run_id, finished, run_of
from workers.store.redis_client import versions
from workers.store.redis_client import workers as known_workers
from workers.store.run_store import OtherVersion, UnknownRun

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


def worker_versions(broker: str | None) -> str:
    """How many of a broker's workers are of which version; empty without any."""
    if broker is None:
        return ""
    with closing(open_server(broker)) as server:
        return versions(known_workers(server.store.client))


def rows(places: Places, broker: str | None) -> list[RunRow]:
    """Newest first; a run that is at home and still on a server is listed once, as it ended, unless it goes on."""
    known = {row.run_id: row for row in _unfinished(places)}
    if broker is not None:
        with closing(open_server(broker)) as server:
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
            with connect.joining(places, run_id, None) as server:
                row = _server_row(server, run_id)
        except ServerNotRunning:
            state = "interrupted"
            try:
                with connect.taking_over(places, run_id) as server:
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


def attempts(places: Places, broker: str | None, run_id: str, task: str) -> list[AttemptRecord]:
    """All attempts of a task, from the records at home or on the server; raises UnknownRun."""
    records = _records(places, broker, run_id)
    chosen = [record for record in records if record.task == task]
    if not chosen:
        names = sorted({record.task for record in records})
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        hint = did_you_mean(task, names)
        raise UnknownRun(f"run {run_id} has no attempt of task {task!r}; it has {listed}{hint}")
    return sorted(chosen, key=lambda record: (record.attempt, record.arm, record.model or ""))


def _records(places: Places, broker: str | None, run_id: str) -> list[AttemptRecord]:
    path = places.records(run_id)

    def read(server: Server) -> list[AttemptRecord]:
        server.store.manifest(run_id)
        return list(server.store.records(run_id))

    ended = [] if exists(path) else finished(places, run_id)
    if ended and not any(one.was_run for one in ended):
        raise UnknownRun(f"run {run_id} made no attempt: {ended[0].reason}")
    try:
        if not exists(path):
            with connect.joining(places, run_id, broker) as server:
                return read(server)
    except ServerNotRunning:
        if not exists(path):  # else its owner has brought them home since
            with connect.taking_over(places, run_id) as server:
                return read(server)
    return list(read_jsonl(path))


def attempt_texts(records: list[AttemptRecord]) -> str:
    """Attempts as text for a terminal; nothing that a model said can move the cursor or set colours."""
    parts = []
    models = short_models(dict.fromkeys(record.model for record in records if record.model))
    for record in records:
        score = "–" if record.score is None else f"{record.score:.2f}"
        model = models.get(record.model or "", record.model)
        head = f"attempt {record.attempt}, {record.arm}, {model}: {record.outcome}, score {score}"
        lines = [plain(head), *(plain(text) for text in (record.details, record.error) if text)]
        lines += [f"  {_check_text(one)}" for one in record.judgments if one.check]
        text = record.completion.text if record.completion else ""
        lines += [f"  | {safe_line(line.expandtabs(4))}".rstrip() for line in text.splitlines()]
        parts.append("\n".join(lines) + "\n")
    parts += [f"{name} is {plain(model)}\n" for model, name in models.items() if name != model]
    return "\n".join(parts)


def _check_text(judgment: Judgment) -> str:
    """A line for one of a task's checks: how it ended, and why."""
    word = "missing" if judgment.passed is None else "passed" if judgment.passed else "failed"
    score = "" if judgment.score is None else f", score {judgment.score:.2f}"
    optional = "" if judgment.required else " (not required)"
    return plain(f"{judgment.check}{optional}: {word}{score}: {judgment.details or judgment.judge}")


def failures(places: Places, broker: str | None, run_id: str) -> list[AttemptRecord]:
    """The attempts of a run that did not pass, by task; raises UnknownRun."""
    failed = [record for record in _records(places, broker, run_id) if record.outcome != "passed"]
    return sorted(failed, key=lambda record: (record.task, record.arm, record.model or "", record.attempt))


def failure_texts(failed: list[AttemptRecord], command: str) -> str:
    """One line for each task and arm with attempts that did not pass: how many, and why the first did not."""
    if not failed:
        return "every attempt passed\n"
    lines = []
    for (task, arm), group in groupby(failed, key=lambda record: (record.task, record.arm)):
        records = list(group)
        why = plain(records[0].error or records[0].details or records[0].outcome, 100)
        lines.append(f"{plain(task)}, {plain(arm)}: {len(records)} not passed: {why}\n")
    return "".join([*lines, f"\nall attempts of a task: {command} TASK\n"])


def delete(places: Places, broker: str | None, run_id: str) -> None:
    """Remove a run everywhere it is; raises UnknownRun when it is nowhere."""
    check_run_id(run_id)
    known = [places.run(run_id), places.embedded(run_id)]
    artifacts = finished(places, run_id)
    embedded = places.embedded(run_id)
    if not private_server.is_left(embedded) if artifacts else private_server.is_held(embedded):
        raise UnknownRun(f"run {run_id} is running; cancel it first: {places.command('cancel', run_id)}")
    on_server = False
    if broker is not None:
        with closing(open_server(broker)) as server:
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
    from rich.console import Console
    from rich.table import Table

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

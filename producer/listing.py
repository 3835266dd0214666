"""What runs there are and how they stand, from files in the state root and from servers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from aggregate.plain_text import plain
from aggregate.reading import read_jsonl
from aggregate.records import AttemptRecord
from producer import local, session
from producer.collect import finished
from producer.names import check_run_id
from producer.places import Places
from producer.session import NotServed, Session
from producer.standing import state_word
from producer.submit import Server, open_server
from workers.finish import grid_of
from workers.store import UnknownRun

_WIDE = 100


@dataclass(frozen=True)
class Row:
    """One run in a list; `done` and `total` count attempts."""

    run_id: str
    state: str
    created_at: str | None
    suite: str | None
    done: int | None = None
    total: int | None = None
    verdict: str | None = None
    decision: str | None = None
    delta: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows(places: Places, broker: str | None) -> list[Row]:
    """Newest first; a run that is at home and still on a server is listed once, as it ended, unless it goes on."""
    found = {row.run_id: row for row in _unfinished(places)}
    if broker is not None:
        with closing(open_server(broker)) as server:
            on_server = (_server_row(server, run_id) for run_id in server.store.runs())
            found |= {row.run_id: row for row in on_server if row is not None}
    going_on = {run_id for run_id, row in found.items() if row.state == "running"}
    found |= {row.run_id: row for row in _at_home(places) if row.run_id not in going_on}
    return sorted(found.values(), key=lambda row: (row.created_at or "", row.run_id), reverse=True)


def _at_home(places: Places) -> Iterator[Row]:
    for run_id in places.run_ids("runs"):
        for artifact in finished(places, run_id):
            yield Row(
                run_id=artifact["run_id"],
                state=artifact["status"],
                created_at=artifact["created_at"],
                suite=artifact["task_suite"],
                done=artifact["attempts"]["run"],
                total=artifact["attempts"]["planned"],
                verdict=artifact["verdict"],
                decision=artifact["decision"],
                delta=artifact["delta"],
            )


def _unfinished(places: Places) -> Iterator[Row]:
    for run_id in places.run_ids("embedded"):
        row, state = None, "starting"
        try:
            with session.joining(places, run_id, None) as opened:
                row = _server_row(opened.server, run_id)
        except NotServed:
            state = "interrupted"
            if not local.has_data(places.embedded(run_id)):
                continue
        with suppress(FileNotFoundError):  # its owner has brought it home since
            yield row or Row(run_id, state, _moment(places.embedded(run_id).stat().st_mtime), None)


def _server_row(server: Server, run_id: str) -> Row | None:
    store = server.store
    state = store.state(run_id)
    if state is None:
        return None
    manifest, progress = store.manifest(run_id), store.progress(run_id)
    suite, total = store.info(run_id).task_suite, grid_of(manifest).attempts
    return Row(run_id, state_word(state), _moment(state.created), suite, progress.recorded, total)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def attempts(places: Places, broker: str | None, run_id: str, task: str) -> list[AttemptRecord]:
    """All attempts of a task, from the records at home or on the server; raises UnknownRun."""
    path = places.records(run_id)
    if path.exists():
        records: list[AttemptRecord] = list(read_jsonl(path))
    else:
        records = _records_on_server(places, broker, run_id)
    chosen = [record for record in records if record.task == task]
    if not chosen:
        names = sorted({record.task for record in records})
        close = get_close_matches(task, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names[:8])}"
        raise UnknownRun(f"run {run_id} has no attempt of task {task!r}; {hint}")
    return sorted(chosen, key=lambda record: (record.attempt, record.arm, record.model or ""))


def _records_on_server(places: Places, broker: str | None, run_id: str) -> list[AttemptRecord]:
    def read(opened: Session) -> list[AttemptRecord]:
        opened.server.store.manifest(run_id)
        return list(opened.server.store.records(run_id))

    try:
        with session.joining(places, run_id, broker) as opened:
            return read(opened)
    except NotServed:
        if places.records(run_id).exists():  # its owner has brought them home since
            return list(read_jsonl(places.records(run_id)))
        with session.taking_over(places, run_id) as opened:
            return read(opened)


def attempt_texts(records: list[AttemptRecord]) -> str:
    """Attempts as text for a terminal; nothing that a model said can move the cursor or set colours."""
    parts = []
    for record in records:
        score = "–" if record.score is None else f"{record.score:.2f}"
        head = f"attempt {record.attempt}, {record.arm}, {record.model}: {record.outcome}, score {score}"
        lines = [plain(head), *(plain(text) for text in (record.details, record.error) if text)]
        text = record.completion.text if record.completion else ""
        lines += [f"  | {plain(line)}" for line in text.splitlines()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def delete(places: Places, broker: str | None, run_id: str) -> None:
    """Remove a run everywhere it is; raises UnknownRun when it is nowhere."""
    check_run_id(run_id)
    known = [places.run(run_id), places.embedded(run_id)]
    made = finished(places, run_id)
    if local.is_held(places.embedded(run_id)):
        raise UnknownRun(f"run {run_id} is running; cancel it first: {places.command('cancel', run_id)}")
    on_server = False
    if broker is not None:
        with closing(open_server(broker)) as server:
            on_server = run_id in server.store.runs()
            server.store.delete(run_id)
    if not made and not on_server and not any(path.exists() for path in known):
        raise UnknownRun(f"no run {run_id!r} under {places.root}; `uplift runs` lists them")
    for path in known:
        if path.exists():
            shutil.rmtree(path)
    for kind in ("evaluations", "traces"):
        for path in (places.root / kind).glob(f"{run_id}*.json"):
            if json.loads(path.read_bytes()).get("run_id") == run_id:
                path.unlink()


def show(found: list[Row]) -> None:
    """Print rows as a table on standard output; where the terminal is narrow, without their suites."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = ["run", "state", "attempts", "verdict", "decision", "delta", "suite"]
    if console.width < _WIDE:
        columns.pop()
    for column in columns:
        table.add_column(column, no_wrap=column != "suite", justify="right" if column == "delta" else "left")
    for row in found:
        suite = Path(row.suite or "–")
        cells = (
            row.run_id,
            row.state,
            f"{row.done}/{row.total}" if row.total is not None else "–",
            row.verdict or "–",
            row.decision or "–",
            "–" if row.delta is None else f"{100 * row.delta:+.1f}",
            plain("/".join(suite.parts[-2:]), 60),
        )
        table.add_row(*cells[: len(columns)])
    console.print(table)

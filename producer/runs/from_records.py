"""Aggregate or compare records that lie in files, whoever wrote them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from aggregate.artifact import build, comparison
from aggregate.artifact.model import Artifact, RunsCompared
from aggregate.records import frames
from aggregate.records.jsonl import RecordsError, read_jsonl
from aggregate.records.run_info import Observer
from aggregate.report import csv_tables
from aggregate.text.files import exists, is_file, is_folder
from producer import state_root
from producer.runs.collect import write
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Notes, Places, check_run_id, file_name, finished, run_of
from workers.store.run_store import UnknownRun


def aggregate_file(path: Path, places: Places, options: RunSettings) -> list[Artifact]:
    """Artifacts, summary and tables from a JSONL file, which is read once and never held in memory.

    Records that name no run are named by their file. An earlier result of that name is never written over.
    """
    output = options.output
    places.check_writable()
    observer = Observer()
    collected = frames.collect(observer.watch(read_jsonl(path, pipes=True)))
    asked = options.model_dump(include={"margin", "gate", "gate_cost", "weak_baseline", "unloaded"})
    info = observer.info().model_copy(update=asked)
    if not observer.run_ids:
        info = info.model_copy(update={"run_id": _run_id_of(path)})
    if places.has_notes(info.run_id):
        raise InvalidOption(
            f"{info.run_id} is a run of {places.root} and has its artifact there; give another --state-root"
        )
    folder = places.root / "runs" / file_name(info.run_id)
    if exists(folder):
        raise InvalidOption(
            f"{folder} holds an earlier result; give another --state-root, or remove that: "
            f"rm -r {shlex.quote(str(folder))}"
        )
    state_root.check_output(output, several=len(info.candidates) > 1)
    artifacts = build.from_frames(info, collected)
    for artifact in artifacts if output is None else ():
        path = places.artifact(info.run_id, None, artifact.candidate_id if len(artifacts) > 1 else None)
        # Run `x` with candidate `y` and run `x-y` share a name.
        if exists(path) and run_of(path) != info.run_id:
            raise InvalidOption(f"{path} is the result of another run; give another --state-root")
    notes = Notes(run_id=info.run_id, output=str(output) if output else None)
    written = write(artifacts, notes, places)
    csv_tables.write_exports(info, collected, folder)
    return written


def _run_id_of(path: Path) -> str:
    """A run id from a file's name; a pipe has none that says anything."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl") if is_file(path) else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[: state_root.LONGEST_REMAINS] or "records"


def compare_runs(first: str, second: str, places: Places, *, margin: float) -> RunsCompared:
    """The second run's candidate against the first's; each is a run id of the state root or a file of records."""
    one, other = (read_jsonl(_records(name, places), pipes=True) for name in (first, second))
    for name in (first, second):
        _check_whole(name, places)
    try:
        return comparison.compare(one, other, margin=margin)
    except ValueError as problem:
        raise InvalidOption(str(problem)) from None


def _check_whole(name: str, places: Places) -> None:
    """Refuse a run of version 0.1.0 whose tasks ended at their first pass: its rates are too high."""
    folder = _records(name, places).resolve().parent
    artifacts = finished(Places(folder.parent.parent), folder.name) if folder.parent.name == "runs" else []
    if artifacts and artifacts[0].stop_early == "verdict":
        raise InvalidOption(
            f"run {folder.name} was stopped by `--stop-early verdict` of version 0.1.0, which left out attempts "
            "after a pass; run it again to compare it"
        )


def _records(name: str, places: Places) -> Path:
    given = Path(name)
    if len(given.parts) == 1 and file_name(name) == name and is_file(path := places.records(name)):
        return path
    if exists(given) and not is_folder(given):
        return given
    if len(given.parts) > 1 or given.suffix in (".jsonl", ".gz"):
        raise RecordsError([f"{name}: records not found"])
    check_run_id(name)
    raise UnknownRun(
        f"no records of run {name!r} under {places.root}; `{places.command('runs')}` lists what is there"
    )

"""Find what a run left in the state root, or on a broker, and write reports from it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from producer.names import file_name
from producer.places import Places

if TYPE_CHECKING:
    from aggregate.records import AttemptRecord
    from aggregate.report.material import Material

Format = Literal["html", "md", "junit", "csv", "benchmark-json"]
NAMES: dict[Format, str] = {
    "html": "report.html",
    "md": "report.md",
    "junit": "junit.xml",
    "csv": "tables",
    "benchmark-json": "benchmark",
}
_WRITERS: dict[Format, str] = {
    "html": "html",
    "md": "markdown",
    "junit": "junit",
    "csv": "csv_tables",
    "benchmark-json": "benchmark_json",
}
APART_TASKS = 2000


class NoReport(Exception):
    """A report cannot be made: the run is not over, or its records are not where they should be."""


def page(places: Places, artifact: Mapping[str, Any], *, several: bool) -> Path:
    """Where a candidate's HTML page is, whether it has been written or not."""
    return _path(places.root / "runs" / file_name(artifact["run_id"]), artifact, "html", several=several)


def write_pages(places: Places, run_id: str, artifacts: list[dict[str, Any]]) -> list[Path]:
    """The HTML page of every candidate of a run that has just come home.

    The page of a large run is made in a process of its own, so that the command that waited for it stays small.
    """
    if sum(len(artifact["candidate_results"]) for artifact in artifacts) <= APART_TASKS:
        return write(artifacts, places, "html", records=places.records(run_id))
    command = [sys.executable, "-P", "-m", "producer.reports", str(places.root), run_id]
    child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["no message"]
        raise NoReport(f"the page of run {run_id} could not be written: {lines[-1]}")
    return [page(places, artifact, several=len(artifacts) > 1) for artifact in artifacts]


def write(
    artifacts: list[dict[str, Any]],
    places: Places,
    form: Format,
    *,
    records: Path | None = None,
    output: Path | None = None,
) -> list[Path]:
    """Write one format for every candidate and return the paths.

    `output` is the file or folder of a lone candidate; with several, the folder that theirs go to.
    """
    several = len(artifacts) > 1
    written = []
    for artifact in artifacts:
        folder = places.root / "runs" / file_name(artifact["run_id"])
        path = _path(output or folder, artifact, form, several=several)
        if output is not None and not several:
            path = output
        try:
            written.append(_writer(form)(_material(artifact, folder, records), path))
        except FileExistsError as problem:
            raise NoReport(f"{problem.filename} {problem.strerror}") from None
    return written


def text(artifact: dict[str, Any], places: Places, form: Format, records: Path | None) -> str:
    """A one-file format as text, for standard output."""
    from aggregate.report import junit, markdown

    made = _material(artifact, places.root / "runs" / file_name(artifact["run_id"]), records)
    match form:
        case "md":
            return markdown.text(made)
        case "junit":
            return junit.text(made)
        case _:
            raise NoReport(f"--output - prints text; {form} writes files: give it a path")


def find(places: Places, run_id: str, broker: str | None) -> list[dict[str, Any]]:
    """The artifacts of a run that is over; one that ended on a broker is brought home first."""
    from producer import session
    from producer.collect import collect, finished
    from workers.store import UnknownRun

    if made := finished(places, run_id):
        return made
    if broker is None:
        raise UnknownRun(f"no finished run {run_id!r} under {places.root}; `uplift runs` lists them")
    with session.joining(places, run_id, broker) as opened:
        store = opened.server.store
        store.manifest(run_id)
        ended = store.artifacts(run_id)
        if ended is None:
            follow = places.command("watch", run_id)
            raise NoReport(f"run {run_id} is not over; follow it with: {follow}")
        return collect(store, run_id, ended, places)


def _path(folder: Path, artifact: Mapping[str, Any], form: Format, *, several: bool) -> Path:
    name = Path(NAMES[form])
    if not several:
        return folder / name
    return folder / f"{name.stem}-{file_name(artifact['candidate_id'] or artifact['arm'])}{name.suffix}"


def _material(artifact: dict[str, Any], folder: Path, records: Path | None) -> Material:
    from aggregate.reading import read_jsonl
    from aggregate.report.material import Material, read_tasks

    path = records or folder / "records.jsonl.gz"
    if artifact["verdict"] != "skipped" and not path.exists():
        raise NoReport(f"{path}: the run's records are not there; say where they are with --records")

    def read() -> Iterable[AttemptRecord]:
        return read_jsonl(path) if artifact["verdict"] != "skipped" else []

    return Material(artifact, read, read_tasks(folder / "tasks.jsonl.gz"))


def _writer(form: Format) -> Callable[[Material, Path], Path]:
    # Each by itself: the page needs no pandas, the tables do.
    module = import_module(f"aggregate.report.{_WRITERS[form]}")
    return cast("Callable[[Material, Path], Path]", module.write)


if __name__ == "__main__":
    home, run = Places(Path(sys.argv[1])), sys.argv[2]
    write(find(home, run, None), home, "html", records=home.records(run))

"""Bring a finished run home, find it there, and write its reports: artifact, trace, records, page, cached baselines.

The files that agents left are kept beside the records, so that judges can look at them again.
"""

from __future__ import annotations

import gzip
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aggregate.artifact import file
from aggregate.artifact.answer import answer_of
from aggregate.artifact.model import Artifact, NotAnArtifact
from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE
from aggregate.report.result_tables import Material, read_tasks
from aggregate.text import files
from aggregate.text.files import exists, write_bytes, writing
from aggregate.text.formats import counted, plain
from judges.errors import UpliftError
from producer import state_root
from producer.baselines.cache import BaselineCache
from producer.server import joining
from producer.state_root import MAX_STATE_BYTES, Notes, Places, check_run_id, file_name, finished
from workers.store.bundles import is_digest
from workers.store.run_store import KEEP_DAYS, Store, StoredRun, UnknownRun

if TYPE_CHECKING:
    from aggregate.report.html import Page

MAX_BYTES = 256 * 1024 * 1024
Format = Literal["html", "md", "junit", "csv", "benchmark-json"]
# A format's file or folder, and its module in `aggregate.report`.
FORMATS: dict[Format, tuple[str, str]] = {
    "html": ("report.html", "html"),
    "md": ("report.md", "markdown"),
    "junit": ("junit.xml", "junit"),
    "csv": ("tables", "csv_tables"),
    "benchmark-json": ("benchmark", "skill_creator"),
}


class NoReport(UpliftError):
    """A report cannot be made: the run is not over, or its records are not where they should be."""


class Workspaces:
    """Bundles in a folder by digest; equal workspaces are kept once, and all together have a limit."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._attempts: Counter[str] = Counter()

    def note(self, record: AttemptRecord) -> None:
        """Note the workspace that a record names, which `save` will keep."""
        if record.workspace is not None and is_digest(record.workspace):
            self._attempts[record.workspace] += 1

    def save(self, store: Store) -> str | None:
        """Bring the noted workspaces home; says how many attempts lose theirs, to the limit or to time."""
        room, lost = self.max_bytes, 0
        for digest in sorted(self._attempts):
            path = self.folder / digest
            try:
                data = files.read(path, self.max_bytes) if path.is_file() else store.bundle(digest)
            except UnknownRun:
                data = b""
            if not data or len(data) > room:
                lost += self._attempts[digest]
                continue
            room -= len(data)
            if not path.is_file():
                write_bytes(data, path)
        if not lost:
            return None
        return (
            f"the files that agents left in {lost} attempts are not kept (limit {self.max_bytes >> 20} MiB a run); "
            "pytest judges cannot be repeated on them"
        )

    def read(self, digest: str) -> bytes | None:
        """A kept bundle, compressed as it travels; None where it was not kept."""
        try:
            return files.read(self.folder / digest, self.max_bytes) if is_digest(digest) else None
        except OSError:
            return None


def collect(
    store: Store, run: StoredRun, artifacts: list[Artifact], places: Places, broker: str | None = None
) -> list[Artifact]:
    """Write everything that a finished run leaves on a broker, or on its private server; returns the artifacts.

    Every file appears whole or not at all, and the server keeps the run: where the disk is full, it can be done
    again later.
    """
    from aggregate.report.html import Page

    artifacts = [placed(artifact, places, broker) for artifact in artifacts]
    arms = {artifact.arm for artifact in artifacts if artifact.was_run}
    try:
        page = Page(places.report(artifacts[0], several=False), arms and {BASELINE, *arms})
        try:
            return _in_one_pass(store, run, artifacts, places, page)
        finally:
            page.discard()  # what is left of one that was not written
    except OSError as problem:
        # A write that failed knows no file name, and without one nobody knows where there is no room.
        where = problem.filename or str(places.root)
        go_on = places.command("resume", run.run_id, broker)
        words = f"all records are kept: mend that, then go on with: {go_on}"
        raise OSError(problem.errno, f"{problem.strerror}; {words}", where) from problem


def placed(artifact: Artifact, places: Places, broker: str | None = None) -> Artifact:
    """The artifact with an answer whose command can be typed where we are."""
    answer = answer_of(artifact)
    if answer.next.command:
        verb, run_id, *more = answer.next.command
        # All but going on is done with what is at home.
        typed = places.command(verb, run_id, broker if verb == "resume" else None, *more)
        answer = answer.model_copy(update={"next": answer.next.typed(typed)})
    return artifact.model_copy(update={"answer": answer})


def _in_one_pass(
    store: Store, run: StoredRun, artifacts: list[Artifact], places: Places, page: Page
) -> list[Artifact]:
    """Read each record once: into the records' file, the page and, a baseline's, the cache where the run has one.

    A page that breaks loses no record: it can be made again, by a version that knows how.
    """
    run_id, now = run.run_id, time.time()
    notes = places.notes(run_id)
    cache = BaselineCache(Path(notes.baseline_cache_dir)) if notes.baseline_cache_dir else None
    workspaces, steps = Workspaces(places.workspaces(run_id)), set[str]()
    broken: list[Exception] = []

    def records() -> Iterator[AttemptRecord]:
        for index, record in store.indexed_records(run_id):
            if cache is not None and index in notes.cache_keys:
                cache.put(notes.cache_keys[index], record, now, notes.answer_keys.get(index))
            workspaces.note(record)
            steps.update(filter(None, [record.trajectory]))
            try:
                if not broken:
                    page.add(record)
            except OSError:
                raise
            except Exception as problem:
                broken.append(problem)
            yield record

    write_records(places.records(run_id), records())
    for lost in filter(None, (workspaces.save(store), _save_steps(store, run, steps, places))):
        artifacts = [artifact.with_warning(lost) for artifact in artifacts]
    write_lines(places.tasks(run_id), (task.model_dump_json(by_alias=True) for task in store.tasks(run)))
    written = write(artifacts, notes, places)
    try:
        for problem in broken:
            raise problem
        page.write(Material(written[0], list, read_tasks(places.tasks(run_id)), tuple(written[1:])))
    except OSError:
        raise
    # The verdict was paid for and stands without a page.
    except Exception as problem:
        why = f"{type(problem).__name__}: {plain(str(problem), 300)}"
        lost = (
            f"the report page could not be made ({why}); try again with: {places.command('report', run_id)}"
        )
        written = write([artifact.with_warning(lost) for artifact in written], notes, places)
    store.touch(run_id, KEEP_DAYS)
    return written


def _save_steps(store: Store, run: StoredRun, digests: set[str], places: Places) -> str | None:
    """Bring the steps of all attempts home, as one archive; says of how many the server had no room for them."""
    if digests:
        with writing(places.steps(run.run_id)) as raw, zipfile.ZipFile(raw, "w") as archive:
            for digest, data in store.steps(run.run_id, digests):
                archive.writestr(zipfile.ZipInfo(f"{digest}.gz"), data)
    if not (lost := store.steps_left_out(run.run_id)):
        return None
    limit = f"{run.manifest.trajectory_mb:g} MB"
    return f"the steps of {counted(lost, 'attempt')} are not kept: limit {limit} a run (trajectory_mb)"


def find(places: Places, run_id: str, broker: str | None) -> list[Artifact]:
    """The artifacts of a run that is over; one that ended on a broker is brought home first."""
    check_run_id(run_id)  # the latest of a broker is called as somebody there liked
    if artifacts := finished(places, run_id):
        return artifacts
    if broker is None:
        try:
            for path in state_root.artifact_paths(places, run_id):
                with suppress(OSError):
                    file.load(path, MAX_STATE_BYTES)
        except NotAnArtifact as problem:
            raise NoReport(str(problem)) from None
        raise UnknownRun(
            f"no finished run {run_id!r} under {places.root}; `{places.command('runs')}` lists them"
        )
    with joining(places, run_id, broker) as server:
        run = server.store.run(run_id)
        ended = server.store.artifacts(run_id)
        if ended is None:
            follow = places.command("watch", run_id, broker)
            raise NoReport(f"run {run_id} is not over; follow it with: {follow}")
        return collect(server.store, run, ended, places, broker)


def write(artifacts: list[Artifact], notes: Notes, places: Places) -> list[Artifact]:
    """Write a run's artifacts, and a trace beside each that failed; an earlier ending's trace goes."""
    several, written = len(artifacts) > 1, []
    for artifact in artifacts:
        run_id, candidate = artifact.run_id, artifact.candidate_id if several else None
        path = places.artifact(run_id, artifact.source_run_id, candidate)
        if notes.output is not None:
            path = Path(notes.output) / path.name if several else Path(notes.output)
        written.append(artifact.model_copy(update={"truth_anchor": str(file.write(artifact, path))}))
        trace, path = file.trace(written[-1]), places.trace(run_id, candidate)
        if trace is not None:
            file.write_json(trace, path)
        else:
            path.unlink(missing_ok=True)
    return written


def write_records(path: Path, records: Iterable[AttemptRecord]) -> None:
    """Records as JSON lines, compressed."""
    write_lines(path, (record.model_dump_json(exclude_none=True) for record in records))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One JSON object a line, compressed; the file appears whole or not at all."""
    with writing(path) as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as file:
        for line in lines:
            file.write(line.encode() + b"\n")


def write_report(
    artifacts: list[Artifact],
    places: Places,
    form: Format,
    *,
    records: Path | None = None,
    output: Path | None = None,
) -> list[Path]:
    """Write one format for every candidate and return the paths; page and Markdown hold all of them.

    `output` is the file or folder of a lone report; of several candidates, the folder that theirs go to.
    """
    several = len(artifacts) > 1
    written = []
    # Each by itself: the page needs no pandas, the tables do.
    writer = import_module(f"aggregate.report.{FORMATS[form][1]}")
    for material in _materials(artifacts, places, form, records):
        path = places.report(material.artifact, FORMATS[form][0], several=several and not material.others)
        if output is not None:
            path = output / path.name if several else output
        try:
            written.append(writer.write(material, path))
        except FileExistsError as problem:
            raise NoReport(f"{problem.filename} {problem.strerror}") from None
    return written


def report_text(artifacts: list[Artifact], places: Places, form: Format, records: Path | None) -> str:
    """A one-file format as text, for standard output."""
    if form not in ("md", "junit"):
        raise NoReport(f"--output - prints text; {form} writes files: give it a path")
    writer = import_module(f"aggregate.report.{FORMATS[form][1]}")
    return "".join(str(writer.text(material)) for material in _materials(artifacts, places, form, records))


def _materials(
    artifacts: list[Artifact], places: Places, form: Format, records: Path | None
) -> Iterator[Material]:
    """What each report is made of: page and Markdown hold all candidates."""
    together = form in ("html", "md")
    for artifact in artifacts[:1] if together else artifacts:
        folder = places.root / "runs" / file_name(artifact.run_id)
        path = records or folder / "records.jsonl.gz"
        others = tuple(artifacts[1:]) if together else ()
        was_run = any(one.was_run for one in (artifact, *others))
        if was_run and not exists(path):
            raise NoReport(f"{path}: the run's records are not there; say where they are with --records")
        read = partial(read_jsonl, path) if was_run else list
        yield Material(artifact, read, read_tasks(folder / "tasks.jsonl.gz"), others)

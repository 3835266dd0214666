"""Write reports of a run that is over, and print what it ended in: a table, JSON and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, cast

import typer

from aggregate.formulas.verdict import Gate
from aggregate.text.files import exists
from judges.errors import UpliftError
from producer.state_root import Places, file_name

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from aggregate.records.record import AttemptRecord
    from aggregate.report.source import Material

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
    "benchmark-json": "skill_creator",
}


class NoReport(UpliftError):
    """A report cannot be made: the run is not over, or its records are not where they should be."""


def page_path(places: Places, artifact: Artifact, *, several: bool) -> Path:
    """Where a candidate's HTML page is, whether it has been written or not."""
    return _path(places.root / "runs" / file_name(artifact.run_id), artifact, "html", several=several)


class Pages:
    """The HTML pages of a run that is coming home: they take its records as these go by, one page a candidate.

    A page that breaks must not lose a record: `write` raises what went wrong.
    """

    def __init__(self, places: Places, artifacts: list[Artifact]) -> None:
        from aggregate.records.run_info import BASELINE
        from aggregate.report.html import Page

        paths = [page_path(places, one, several=len(artifacts) > 1) for one in artifacts]
        self._pages = [Page(path, (BASELINE, one.arm)) for path, one in zip(paths, artifacts, strict=True)]
        self._filled = [page for page, one in zip(self._pages, artifacts, strict=True) if one.was_run]
        self._broken: Exception | None = None

    def noting(self, records: Iterable[AttemptRecord]) -> Iterator[AttemptRecord]:
        """The same records, each added to the pages that show it."""
        for record in records:
            try:
                for page in self._filled if self._broken is None else ():
                    page.add(record)
            except OSError:
                raise
            except Exception as problem:
                self._broken = problem
            yield record

    def write(self, artifacts: list[Artifact], tasks: Path) -> list[Path]:
        """Write the pages, once all records have gone by; `tasks` is the file with what the tasks asked."""
        from aggregate.report.source import Material, read_tasks

        if self._broken is not None:
            raise self._broken
        texts = read_tasks(tasks)
        return [
            page.write(Material(artifact, list, texts))
            for page, artifact in zip(self._pages, artifacts, strict=True)
        ]

    def close(self) -> None:
        """Leave nothing behind of pages that were not written."""
        for page in self._pages:
            page.discard()


def write(
    artifacts: list[Artifact],
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
        folder = places.root / "runs" / file_name(artifact.run_id)
        path = _path(output or folder, artifact, form, several=several)
        if output is not None and not several:
            path = output
        try:
            written.append(_writer(form)(_material(artifact, folder, records), path))
        except FileExistsError as problem:
            raise NoReport(f"{problem.filename} {problem.strerror}") from None
    return written


def text(artifact: Artifact, places: Places, form: Format, records: Path | None) -> str:
    """A one-file format as text, for standard output."""
    from aggregate.report import junit, markdown

    made = _material(artifact, places.root / "runs" / file_name(artifact.run_id), records)
    match form:
        case "md":
            return markdown.text(made)
        case "junit":
            return junit.text(made)
        case _:
            raise NoReport(f"--output - prints text; {form} writes files: give it a path")


def _path(folder: Path, artifact: Artifact, form: Format, *, several: bool) -> Path:
    name = Path(NAMES[form])
    if not several:
        return folder / name
    return folder / f"{name.stem}-{file_name(artifact.candidate_id or artifact.arm)}{name.suffix}"


def _material(artifact: Artifact, folder: Path, records: Path | None) -> Material:
    from aggregate.records.jsonl import read_jsonl
    from aggregate.report.source import Material, read_tasks

    path = records or folder / "records.jsonl.gz"
    if artifact.was_run and not exists(path):
        raise NoReport(f"{path}: the run's records are not there; say where they are with --records")

    def read() -> Iterable[AttemptRecord]:
        return read_jsonl(path) if artifact.was_run else []

    return Material(artifact, read, read_tasks(folder / "tasks.jsonl.gz"))


def _writer(form: Format) -> Callable[[Material, Path], Path]:
    # Each by itself: the page needs no pandas, the tables do.
    module = import_module(f"aggregate.report.{_WRITERS[form]}")
    return cast("Callable[[Material, Path], Path]", module.write)


def report_and_exit(
    artifacts: Sequence[Artifact],
    places: Places,
    *,
    gate: Gate,
    quiet: bool,
    as_json: bool,
    only_paths: bool = False,
) -> NoReturn:
    """Print all artifacts of a run and leave with the worst exit code.

    With `only_paths` whoever called reads the verdict in the artifact, so the code says only that there is one.
    """
    from aggregate.artifact import sentences
    from aggregate.artifact.file import stdout_line
    from aggregate.text.formats import dumps, plain

    if not quiet:
        show_table(artifacts)
        for artifact in artifacts:
            sys.stderr.write(f"artifact: {artifact.truth_anchor}\n")
            page = page_path(places, artifact, several=len(artifacts) > 1)
            if page.exists():
                sys.stderr.write(f"report: {page.absolute()}\n")
    elif why := [
        *(sentences.reason(one) for one in artifacts if one.verdict == "error"),
        *(sentences.cost_gated(one) for one in artifacts if one.was_run and one.cost_code),
    ]:
        sys.stderr.write("".join(f"uplift: {plain(reason, 600)}\n" for reason in dict.fromkeys(why)))
    with printing():
        for artifact in artifacts:
            if only_paths:
                typer.echo(artifact.truth_anchor)
            else:
                typer.echo(
                    dumps(artifact.model_dump(exclude_unset=True)) if as_json else stdout_line(artifact)
                )
    if only_paths:
        raise typer.Exit(0)
    raise typer.Exit(max(one.exit_code(gate) for one in artifacts))


@contextmanager
def printing() -> Iterator[None]:
    """Standard output may be closed or full by now; what was paid for is in the artifact, and the gate stands."""
    try:
        yield
        sys.stdout.flush()
    except OSError as problem:
        # Python flushes what is left once more at its end, and would end with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(problem, BrokenPipeError):
            raise OSError(problem.errno, problem.strerror, "standard output") from None


def show_table(artifacts: Sequence[Artifact]) -> None:
    """The result table, on standard error."""
    from rich.console import Console

    from aggregate.report.terminal import result_table

    console = Console(stderr=True, highlight=False)
    console.print(result_table(artifacts))

"""Write reports of a run that is over: a page, Markdown, JUnit, tables, a benchmark folder."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aggregate.text.files import exists
from judges.errors import UpliftError
from producer.state_root import Places, file_name

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from aggregate.report.source import Material

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
    # Each by itself: the page needs no pandas, the tables do.
    writer = import_module(f"aggregate.report.{FORMATS[form][1]}")
    for artifact in artifacts:
        path = places.report(artifact, FORMATS[form][0], several=several)
        if output is not None:
            path = output / path.name if several else output
        try:
            written.append(writer.write(_material(artifact, places, records), path))
        except FileExistsError as problem:
            raise NoReport(f"{problem.filename} {problem.strerror}") from None
    return written


def text(artifact: Artifact, places: Places, form: Format, records: Path | None) -> str:
    """A one-file format as text, for standard output."""
    material = _material(artifact, places, records)
    if form not in ("md", "junit"):
        raise NoReport(f"--output - prints text; {form} writes files: give it a path")
    writer = import_module(f"aggregate.report.{FORMATS[form][1]}")
    return str(writer.text(material))


def _material(artifact: Artifact, places: Places, records: Path | None) -> Material:
    from aggregate.records.jsonl import read_jsonl
    from aggregate.report.source import Material, read_tasks

    folder = places.root / "runs" / file_name(artifact.run_id)
    path = records or folder / "records.jsonl.gz"
    if artifact.was_run and not exists(path):
        raise NoReport(f"{path}: the run's records are not there; say where they are with --records")
    read = partial(read_jsonl, path) if artifact.was_run else list
    return Material(artifact, read, read_tasks(folder / "tasks.jsonl.gz"))

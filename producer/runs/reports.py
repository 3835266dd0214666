"""Write reports of a run that is over: a page, Markdown, JUnit, tables, a benchmark folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aggregate.text.files import exists
from judges.errors import UpliftError
from producer.state_root import Places, file_name

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from aggregate.report.result_tables import Material

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


def text(artifacts: list[Artifact], places: Places, form: Format, records: Path | None) -> str:
    """A one-file format as text, for standard output."""
    if form not in ("md", "junit"):
        raise NoReport(f"--output - prints text; {form} writes files: give it a path")
    writer = import_module(f"aggregate.report.{FORMATS[form][1]}")
    return "".join(str(writer.text(material)) for material in _materials(artifacts, places, form, records))


def _materials(
    artifacts: list[Artifact], places: Places, form: Format, records: Path | None
) -> Iterator[Material]:
    """What each report is made of: page and Markdown hold all candidates."""
    from aggregate.records.jsonl import read_jsonl
    from aggregate.report.result_tables import Material, read_tasks

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

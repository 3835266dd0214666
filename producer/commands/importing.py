"""`uplift import`: make a suite of what other tools left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from producer.commands.flags import Json

if TYPE_CHECKING:
    from producer.importers.found import Found


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="An evals.json, a promptfooconfig.yaml or a folder of tasks."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="A new folder for the suite. [default: <name>-suite, here]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a suite from evals.json, a promptfoo configuration or Harbor tasks.

    Every task says where it came from. Every assertion that has no equivalent is listed with its place, here and
    at the top of the suite. The folder is written whole or not at all, and never over an existing one.

    Example: uplift import evals/evals.json --output my-suite
    """
    from producer.importers import writing

    found = _convert(source)
    folder = output or Path(f"{_folder_name(found.skill_id)}-suite")
    suite = writing.write(found, folder)
    if as_json:
        _print_json(found, suite)
    else:
        _print(found, suite)


def _convert(source: Path) -> Found:
    from producer.importers import evals_json, harbor, promptfoo

    if source.is_dir():
        return harbor.convert(source)
    if source.suffix in (".yaml", ".yml") or promptfoo.is_configuration(source):
        return promptfoo.convert(source)
    return evals_json.convert(source)


def _folder_name(skill_id: str) -> str:
    from producer.importers.found import slug

    return slug(skill_id) or "imported"


def _counts(found: Found) -> list[tuple[str, int, int]]:
    return [
        ("task", found.task_count, found.tasks_left_out),
        ("assertion", found.assertion_count, found.assertions_left_out),
    ]


def _print(found: Found, suite: Path) -> None:
    for kind, count, left in _counts(found):
        if count:
            typer.echo(f"{count} {kind}{'s' * (count != 1)} found, {count - left} imported, {left} left out")
    for item in found.left_out:
        typer.echo(f"left out: {item}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote {suite} with {len(found.tasks)} {'task' if len(found.tasks) == 1 else 'tasks'}")
    typer.echo(
        f"\nTry it now, without a model and without a key:\n\n"
        f"  uplift evaluate --standalone --task-suite {suite} --skill-path SKILL --mock"
    )


def _print_json(found: Found, suite: Path) -> None:
    import dataclasses
    import json

    counts = {
        f"{kind}s": {"found": count, "imported": count - left, "left_out": left}
        for kind, count, left in _counts(found)
    }
    left_out = [dataclasses.asdict(item) for item in found.left_out]
    value = {"suite": str(suite), "written": len(found.tasks), **counts, "left_out": left_out}
    typer.echo(json.dumps({**value, "notes": found.notes}))

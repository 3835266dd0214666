"""`uplift validate`: check suites without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import Json


def validate(
    suites: Annotated[list[Path], typer.Argument(metavar="SUITE...", help="Suite files to check.")],
    as_json: Json = False,
) -> None:
    """Check suites and print every problem as path:line:column.

    Exits 0 when all suites are valid, 2 otherwise.

    Example: uplift validate suites/*.yaml
    """
    from producer import suite

    problems = suite.validate(suites)
    if as_json:
        import dataclasses
        import json

        typer.echo(json.dumps([dataclasses.asdict(problem) for problem in problems], default=str))
    else:
        for problem in problems:
            typer.echo(str(problem))
        if not problems:
            typer.echo(f"{len(suites)} {'suite' if len(suites) == 1 else 'suites'} valid", err=True)
    if problems:
        raise typer.Exit(2)

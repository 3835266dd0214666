"""`uplift validate`: check suites without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import Json


def validate(
    suites: Annotated[
        list[Path] | None, typer.Argument(metavar="SUITE", help="Suite files to check.")
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of suites, for editors, and check nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check suites and print every problem as path:line:column.

    Exits 0 when all suites are valid, 2 otherwise.

    Example: uplift validate suites/*.yaml
    """
    if schema:
        from producer.schema import text

        typer.echo(text(), nl=False)
        return
    if not suites:
        raise typer.BadParameter("give the suites to check, for example uplift validate suite.yaml")
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

"""`uplift init`: a first suite for the skill in this folder."""

from __future__ import annotations

from pathlib import Path

import typer

from producer.commands.flags import Json


def init(as_json: Json = False) -> None:
    """Write a commented suite, fixtures and a CI workflow for the skill in the current folder.

    Nothing is asked and nothing is overwritten: the skill's name and purpose come from its SKILL.md (a draft is
    written where there is none), and files that exist stay as they are.

    Example: cd my-skill && uplift init
    """
    from producer import init as starting

    started = starting.start(Path())
    if as_json:
        import dataclasses
        import json

        typer.echo(json.dumps(dataclasses.asdict(started), default=str))
        return
    for path in started.made:
        typer.echo(f"wrote {path}")
    for path in started.kept:
        typer.echo(f"kept {path}, which was there already")
    if started.repository is not None:
        typer.echo(
            f"\nGitHub reads workflows at the top of a repository only: move {starting.WORKFLOW} to\n"
            f"{started.repository}, and mend its paths."
        )
    typer.echo(f"\nTry it now, without a model and without a key:\n\n  {started.command}\n")
    typer.echo(f"Then write real tasks into {starting.SUITE}, and leave --mock out to ask Claude Code.")

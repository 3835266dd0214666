"""Print what a run ended in: a table for people on standard error, JSON on standard output, an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import typer

from producer import reports
from producer.places import Places

Gate = Literal["verdict", "decision"]


def report_and_exit(
    artifacts: Sequence[dict[str, Any]], places: Places, *, gate: Gate, quiet: bool, as_json: bool
) -> NoReturn:
    """Print all artifacts of a run and leave with the worst exit code."""
    from aggregate.artifact_file import stdout_line
    from aggregate.plain_text import plain
    from aggregate.standard_json import dumps
    from aggregate.verdict import exit_code

    if not quiet:
        show_table(artifacts)
        for artifact in artifacts:
            sys.stderr.write(f"artifact: {artifact['truth_anchor']}\n")
            page = reports.page(places, artifact, several=len(artifacts) > 1)
            if page.exists():
                sys.stderr.write(f"report: {page.absolute()}\n")
    elif why := [one["reason"] for one in artifacts if one["verdict"] == "error"]:
        sys.stderr.write("".join(f"uplift: {plain(reason, 600)}\n" for reason in dict.fromkeys(why)))
    with printing():
        for artifact in artifacts:
            typer.echo(dumps(artifact) if as_json else stdout_line(artifact))
    raise typer.Exit(max(exit_code(one["verdict"], one["decision"], gate) for one in artifacts))


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


def show_table(artifacts: Sequence[dict[str, Any]]) -> None:
    """The result table, on standard error."""
    from rich.console import Console

    from aggregate.tables import result_table

    console = Console(stderr=True, highlight=False)
    console.print(result_table(artifacts))

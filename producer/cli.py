"""The `uplift` command: read flags, call what does the work, print. Heavy imports wait for their command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from producer.commands import (
    bless,
    doctor,
    evaluate,
    importing,
    init,
    inspect,
    monitor,
    records,
    rejudge,
    report,
    steer,
    validate,
    worker,
)

app = typer.Typer(
    name="uplift",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Does this skill make the model better, by how much, at what cost, and how sure can we be?\n\n"
    "Example: uplift evaluate --standalone --task-suite suite.yaml --skill-path ./skill --mock",
)

app.command("init")(init.init)
app.command("import")(importing.import_)
app.command("evaluate")(evaluate.evaluate)
app.command("validate")(validate.validate)
app.command("worker")(worker.worker)
app.command("monitor")(monitor.monitor)
app.command("runs")(inspect.runs)
app.command("status")(inspect.status)
app.command("show")(inspect.show)
app.command("watch")(steer.watch)
app.command("cancel")(steer.cancel)
app.command("resume")(steer.resume)
app.command("aggregate")(records.aggregate)
app.command("report")(report.report)
app.command("rejudge")(rejudge.rejudge)
app.command("bless")(bless.bless)
app.command("compare")(records.compare)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"uplift {version('skill-uplift')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Flags that every command shares."""


def main() -> None:
    """Run the command line; whatever goes wrong becomes one line on standard error and an exit code."""
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("uplift: interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        # Whoever read our output has left; there is nobody to complain to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as problem:
        from producer.errors import explain

        explained = explain(problem)
        if explained is None or os.environ.get("UPLIFT_DEBUG"):
            raise
        text, code = explained
        sys.stderr.write(f"uplift: {text}\n" if "\n" not in text else f"{text}\n")
        raise SystemExit(code) from None


if __name__ == "__main__":
    main()

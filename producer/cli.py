"""The `uplift` command: read flags, call what does the work, print; what goes wrong is one line and an exit code.

Heavy imports wait for their command.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from judges.errors import INFRASTRUCTURE, UpliftError
from producer.commands import doctor, evaluate, results, runs, suites, workers
from producer.commands.flags import Grouped
from workers.rounds.child_process import tune_interpreter


def explain(problem: BaseException) -> tuple[str, int] | None:
    """The line to print and the exit code; None for what nobody foresaw, which deserves its traceback."""
    import redis

    match problem:
        case UpliftError():
            return str(problem), problem.exit_code
        case redis.AuthenticationError():
            text = f"the broker refuses the password ({problem}); check the one in --broker or UPLIFT_BROKER"
        case redis.ConnectionError() | redis.TimeoutError():
            text = f"the broker cannot be reached ({problem}); is it running, and is its address right?"
        case redis.RedisError():
            text = f"the broker refused a command ({problem})"
        case OSError() if problem.filename is not None:
            text = f"{problem.filename}: {problem.strerror}"
        case _:
            return None
    return text, INFRASTRUCTURE


app = typer.Typer(
    name="uplift",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Does this skill make the model better, by how much, at what cost, and how sure can we be?\n\n"
    "First steps, in your skill's folder:\n\n"
    "\b\n"
    "  uplift init\n"
    "  uplift evaluate --mock",
    epilog="`uplift COMMAND --help` explains a command. Colours are left out in pipes and when NO_COLOR is set.",
)

app.command("init", short_help="Write a first suite for the skill in this folder.")(suites.init)
app.command("import", short_help="Make a suite from evals.json, promptfoo or Harbor tasks.")(suites.import_)
app.command(
    "evaluate",
    cls=Grouped,
    short_help="Run a suite with and without the skill, and compare.",
    context_settings={"allow_extra_args": True},  # it tells more about them than that they are too many
)(evaluate.evaluate)
app.command("validate", short_help="Check suites; print every problem with its place.")(suites.validate)
app.command("worker", short_help="Take work from a shared broker.")(workers.worker)
app.command("queue", short_help="Count attempts waiting and under way on a broker.")(workers.queue)
app.command("monitor", short_help="Watch workers and batches in a browser (Flower).")(workers.monitor)
app.command("runs", short_help="List runs, or delete some.")(runs.runs)
app.command("status", short_help="Say how a run stands.")(runs.status)
app.command("show", short_help="Show a task's outputs and what the judge made of them.")(runs.show)
app.command("watch", short_help="Follow a run to its end.")(runs.watch)
app.command("export", short_help="Write the steps of attempts for other tools.")(runs.export)
app.command("cancel", short_help="End a run.")(runs.cancel)
app.command("resume", short_help="Go on with a run that was interrupted.")(runs.resume)
app.command("aggregate", short_help="Turn records from anywhere into an artifact.")(results.aggregate)
app.command("report", short_help="Write a run as HTML, Markdown, JUnit, CSV or benchmark.json.")(
    results.report
)
app.command("rejudge", short_help="Judge a run's stored answers again.")(results.rejudge)
app.command("bless", short_help="Keep a run's candidate as the baseline of later runs.")(results.bless)
app.command("compare", short_help="Compare the candidates of two runs.")(results.compare)
app.command("doctor", short_help="Show what is set, what is missing, and how to mend it.")(doctor.doctor)


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
    tune_interpreter()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no dash still gets the numbers
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
        explained = explain(problem)
        if explained is None or os.environ.get("UPLIFT_DEBUG"):
            raise
        text, code = explained
        sys.stderr.write(f"uplift: {text}\n" if "\n" not in text else f"{text}\n")
        raise SystemExit(code) from None


if __name__ == "__main__":
    main()

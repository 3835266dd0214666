"""`uplift evaluate`: run a suite with the candidate skill and with the baseline, and say which is better.

Most of its flags are settings of a run: `producer/settings/run_settings.py` has them or names where they stand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from producer.commands.flags import Details, Quiet, WholeArtifact, flag, print_json, takes_settings, typed
from producer.settings.run_settings import described

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from producer.plan import Plan
    from producer.runs.evaluate import RunContext
    from producer.settings.run_settings import RunSettings
    from producer.state_root import Places


@takes_settings(*(name for name, setting in described().items() if setting.in_evaluate))
def evaluate(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A skill's folder or its SKILL.md. [default: this folder]"),
    ] = None,
    mock: Annotated[
        bool, flag("--mock", "Models", "Fixed replies, no model, no key: tries the wiring.")
    ] = False,
    detach: Annotated[
        bool,
        flag("--detach", "Where it runs", "Submit, print the run id and return; `uplift watch` follows it."),
    ] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Output", "Show the plan with calls and cost; run nothing.")
    ] = False,
    quiet: Quiet = False,
    details: Details = False,
    as_json: WholeArtifact = False,
    printed: Annotated[
        str,
        flag(
            "--print",
            "Output",
            "summary (a line of JSON), or path: only the artifact's path, and exit code 0 whatever the verdict.",
            "WHAT",
        ),
    ] = "summary",
    run_id: Annotated[str | None, typer.Option("--run-id", hidden=True)] = None,
    **flags: Any,
) -> None:
    """Run every task with the candidate skill and with the baseline, and compare.

    In a skill's folder it needs no flags: skill and suite (evals/suite.yaml, or evals/evals.json) are found there, and
    one line says what was taken from where.

    Prints one JSON line with pass rates, delta and verdict on standard output, for each candidate that was asked for;
    progress and the result table go to standard error. Exit codes: 0 pass or skipped, 1 fail, 2 invalid input,
    3 verdict error or infrastructure, 130 interrupted (resume with `uplift resume RUN`); of several candidates, the
    worst one's.

    Examples:

      uplift evaluate --mock

      uplift evaluate skills/pdf --baseline git:merge-base

    \b
      uplift evaluate --task-suite suite.yaml --skill-path ./skill \\
        --baseline ./old --model anthropic:claude-sonnet-4-5 \\
        --pass-k 5 --gate decision

    \b
      uplift evaluate --input ranking.json --candidate-id all \\
        --task-suite suite.yaml
    """
    from aggregate.records.settings import HOW_TO_STOP_EARLY, OLD_STOP_EARLY
    from producer.runs import evaluate as evaluation
    from producer.settings.config_file import Config
    from producer.settings.run_settings import InvalidOption
    from producer.setup import skill_folder
    from producer.state_root import check_run_id

    given = typed(context, flags)
    was_word = "stop_early" in given and str(path) in OLD_STOP_EARLY
    if was_word or context.args:
        words = (
            f"--stop-early takes no word: {HOW_TO_STOP_EARLY}" if was_word else "it takes one PATH and flags"
        )
        raise typer.BadParameter(f"{' '.join([str(path), *context.args])}: {words}")
    if mock and "models" in given:
        raise typer.BadParameter("--mock and --model exclude each other")
    if printed not in ("summary", "path"):
        raise InvalidOption(f"--print is {printed!r}; allowed: summary, path")
    only_paths = printed == "path"
    if only_paths and (as_json or detach or dry_run):
        raise typer.BadParameter("--print path excludes --json, --detach and --dry-run")
    settings: Config = context.obj
    mocked = {"models": ("mock",)} if mock else {}
    # The skill of a config is for runs without a ranking, which names skills of its own.
    options = settings.with_flags({**given, **mocked}, without=("skill_path",) if "ranking" in given else ())
    options, told = skill_folder.complete(options, settings, {*given, *mocked}, path)
    if told and not quiet:
        typer.echo(f"uplift: {told}", err=True)
    plan = evaluation.planned(options, run_id=check_run_id(run_id) if run_id else None)
    if dry_run:
        _show_plan(plan, private=options.broker is None, as_json=as_json)
        return
    where = run_context(options, quiet=quiet)
    if detach and plan.arms:
        evaluation.detach(plan, where, [word for word in sys.argv[1:] if word != "--detach"])
        typer.echo(plan.run_id)
        follow = where.places.command("watch", plan.run_id, where.broker)
        typer.echo(f"uplift: follow it with: {follow}", err=True)
        return
    artifacts = evaluation.evaluate(plan, where)
    report_and_exit(
        artifacts, where.places, quiet=quiet, details=details, as_json=as_json, only_paths=only_paths
    )


def run_context(options: RunSettings, *, quiet: bool = True) -> RunContext:
    """Where a command's run takes place: state root, server, display, and the variables of a private worker."""
    from producer.display import progress
    from producer.runs.evaluate import RunContext
    from producer.server import broker_url
    from producer.state_root import Places

    url = broker_url(options.broker, insecure=options.insecure)
    return RunContext(Places(options.state_root), url, progress.choose(quiet=quiet), options.private_worker)


def _show_plan(plan: Plan, *, private: bool, as_json: bool) -> None:
    from aggregate.text.formats import plain
    from producer.runs.submit import estimate

    facts: dict[str, Any] = estimate(plan, private=private)
    if as_json:
        print_json({**facts, "warnings": plan.warnings})
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<18} {'–' if value is None else value}")
    for remark in plan.remarks:
        typer.echo(f"uplift: {plain(remark)}", err=True)


def report_and_exit(
    artifacts: Sequence[Artifact],
    places: Places,
    *,
    quiet: bool,
    as_json: bool,
    details: bool = False,
    only_paths: bool = False,
) -> NoReturn:
    """Print all artifacts of a run, the answer last, and leave with the worst exit code.

    With `only_paths` whoever called reads the verdict in the artifact, so the code says only that there is one.
    """
    from aggregate.artifact.file import stdout_line
    from aggregate.text.formats import dumps

    try:
        with printing():
            for artifact in artifacts:
                if only_paths:
                    typer.echo(artifact.truth_anchor)
                elif as_json:
                    typer.echo(dumps(artifact.model_dump(exclude_unset=True)))
                else:
                    typer.echo(stdout_line(artifact))
    finally:
        if quiet:
            _say_why(artifacts)
        else:
            _show(artifacts, places, details=details)
    raise typer.Exit(0 if only_paths else max(artifact.exit_code() for artifact in artifacts))


def _show(artifacts: Sequence[Artifact], places: Places, *, details: bool) -> None:
    """The tables where they are asked for, then the answer."""
    from rich.console import Console

    from aggregate.report.terminal import answer_block, result_table
    from producer.runs.collect import placed

    console = Console(stderr=True, highlight=False)
    answered = [one if one.answer is not None else placed(one, places) for one in artifacts]
    if details:
        console.print(result_table(answered))
        for artifact in answered:
            sys.stderr.write(f"artifact: {artifact.truth_anchor}\n")
    page = places.report(answered[0], several=False)
    place = f"page: {page}" if page.exists() else f"artifact: {answered[0].truth_anchor}"
    console.print(answer_block(answered, console.width, place), soft_wrap=True)


def _say_why(artifacts: Sequence[Artifact]) -> None:
    """Of a quiet run, only what keeps it from a result, and why a cost gate closed."""
    from aggregate.artifact import sentences
    from aggregate.text.formats import plain

    why = [sentences.reason(artifact) for artifact in artifacts if artifact.verdict == "error"]
    why += [sentences.cost_gated(one) for one in artifacts if one.was_run and one.cost_code]
    sys.stderr.write("".join(f"uplift: {plain(reason, 600)}\n" for reason in dict.fromkeys(why)))


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

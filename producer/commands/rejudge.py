"""`uplift rejudge`: judge a finished run's completions again, without asking the model again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import (
    DEFAULT_STATE_ROOT,
    Broker,
    ConfigFile,
    InFlight,
    Insecure,
    Quiet,
    RunId,
    StateRoot,
)


def rejudge(
    context: typer.Context,
    run_id: RunId,
    task_suite: Annotated[
        Path | None,
        typer.Option(
            "--task-suite", help="A suite of the same tasks with other judges. [default: the run's own]"
        ),
    ] = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            "--judge-model", metavar="SPEC", help="Model for llm-rubric judges. [default: as in the run]"
        ),
    ] = None,
    sandbox: Annotated[
        str,
        typer.Option(
            "--sandbox",
            metavar="WHEN",
            help="Confine code that judges run: auto (where it works), required or off.",
        ),
    ] = "auto",
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate",
            metavar="WHAT",
            help="What the exit code follows: verdict or decision. [default: as in the run]",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="SHARE",
            help="How much worse still counts as no worse. [default: as in the run]",
        ),
    ] = None,
    weak_baseline: Annotated[
        str,
        typer.Option(
            "--weak-baseline", metavar="WHAT", help="error or warn, when the baseline passes less than 20 %."
        ),
    ] = "error",
    output: Annotated[
        Path | None, typer.Option("--output", help="The artifact's path; a folder with several candidates.")
    ] = None,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: Broker = None,
    insecure: Insecure = False,
    in_flight: InFlight = None,
    config: ConfigFile = None,
    quiet: Quiet = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole artifact on standard output, not only the summary line."
        ),
    ] = False,
) -> None:
    """Judge a finished run's completions again: new judges, a new rubric, another judge's model.

    The model is not asked and not paid again; a model that judges is. Makes a new run whose artifact names the old
    one in `rejudged_from`, and prints and exits as `evaluate` does. Tasks that the run did not have are left out.

    Examples:

      uplift rejudge 20260101-120000-abc123 --task-suite stricter.yaml

    \b
      uplift rejudge 20260101-120000-abc123 \\
        --judge-model anthropic:claude-opus-4-5
    """
    from producer import display, rejudging, reports
    from producer.config import Config
    from producer.evaluation import Surroundings
    from producer.names import check_run_id
    from producer.options import one_of
    from producer.places import Places
    from producer.results import report_and_exit
    from producer.session import broker_url

    places, url = Places(state_root), broker_url(broker, insecure=insecure)
    found: Config = context.obj
    wishes = rejudging.Wishes(
        task_suite=task_suite,
        judge_model=judge_model,
        sandbox=one_of("--sandbox", sandbox, ("auto", "required", "off")),
        gate=one_of("--gate", gate, ("verdict", "decision", None)),
        margin=margin,
        weak_baseline=one_of("--weak-baseline", weak_baseline, ("error", "warn")),
        output=output,
        settings=found.model_settings(),
    )
    earlier = reports.find(places, check_run_id(run_id), url)
    plan = rejudging.plan(earlier, places, wishes)
    where = Surroundings(places, url, display.choose(quiet=quiet), in_flight)
    artifacts = rejudging.rejudge(plan, where)
    report_and_exit(artifacts, places, gate=plan.options.gate, quiet=quiet, as_json=as_json)

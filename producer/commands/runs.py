"""`uplift runs`, `status`, `show`, `watch`, `cancel` and `resume`: list, follow, end and continue runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from producer.commands.evaluate import report_and_exit, run_context
from producer.commands.flags import Details, Json, Quiet, RunId, option, options, print_json, takes_place


@takes_place
def runs(
    context: typer.Context,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete", metavar="RUN", help="Delete a run's artifact, records and server data; may repeat."
        ),
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """List runs: finished ones in the state root, and those on the broker or on a private server.

    Examples:

      uplift runs

      uplift runs --broker redis://127.0.0.1:6379/0 --json

      uplift runs --delete 20260101-120000-abc123
    """
    from producer.display import run_list
    from producer.runs import evaluate as evaluation

    where = run_context(options(context, flags))
    if delete:
        for run_id in [evaluation.named(where, given) for given in delete]:
            run_list.delete(where.places, where.broker, run_id)
            typer.echo(f"uplift: deleted {run_id}", err=True)
        return
    rows = run_list.rows(where.places, where.broker)
    for line in [] if as_json else run_list.about_workers(where.broker):
        typer.echo(f"uplift: {line}", err=True)
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo(f"uplift: no runs under {where.places.root}", err=True)
    else:
        run_list.show(rows)


@takes_place
def status(context: typer.Context, run_id: RunId = None, as_json: Json = False, **flags: Any) -> None:
    """Say how a run stands: attempts done and left, pass rates so far for each arm, cost, workers.

    Example: uplift status 20260101-120000-abc123 --json
    """
    from producer.display import run_list
    from producer.runs import evaluate as evaluation

    where = run_context(options(context, flags))
    facts = run_list.status(where.places, where.broker, evaluation.named(where, run_id))
    if as_json:
        print_json(facts)
    else:
        run_list.show_status(facts)


@takes_place
def show(
    context: typer.Context,
    run_id: RunId = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", show_default=False, help="A task id of the suite. [default: all that failed]"
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="What was done step by step: tool calls, results, tokens.")
    ] = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Show every attempt of a task: what the model said and what the judge made of it.

    Without a task it lists what failed, and with --steps all attempts.

    Examples:

      uplift show

      uplift show last names-the-platform
    """
    from producer.display import attempts
    from producer.runs import evaluate as evaluation

    where = run_context(options(context, flags))
    run_id = evaluation.named(where, run_id)
    if task is not None:
        records = attempts.of_task(where.places, where.broker, run_id, task)
    elif steps:
        records = attempts.of_run(where.places, where.broker, run_id)
    else:
        records = attempts.failures(where.places, where.broker, run_id)
    if as_json:
        for record in records:
            typer.echo(record.model_dump_json())
    elif steps:
        width = shutil.get_terminal_size((120, 24)).columns
        typer.echo(attempts.step_texts(records, where.places, run_id, width), nl=False)
    elif task is not None:
        typer.echo(attempts.attempt_texts(records), nl=False)
    else:
        typer.echo(
            attempts.failure_texts(records, where.places.command("show", run_id, where.broker)), nl=False
        )


@takes_place
def export(
    context: typer.Context,
    run_id: RunId = None,
    folder: Annotated[
        Path, typer.Option("--atif", metavar="DIR", help="The folder to write them to; a file an attempt.")
    ] = Path("atif"),
    **flags: Any,
) -> None:
    """Write the steps of a run's attempts for other tools, in Harbor's format ATIF 1.8.

    Example: uplift export last --atif steps
    """
    from producer.display import attempts
    from producer.runs.evaluate import named

    where = run_context(options(context, flags))
    run_id = named(where, run_id)
    records = attempts.of_run(where.places, where.broker, run_id)
    written = attempts.export(records, where.places, run_id, folder)
    typer.echo(f"uplift: wrote the steps of {written} of {len(records)} attempts to {folder}", err=True)


@takes_place
def watch(
    context: typer.Context,
    run_id: RunId = None,
    quiet: Quiet = False,
    details: Details = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Follow a run to its end, write its artifact, and exit as `evaluate` would.

    Ctrl-C stops watching and leaves the run alone. For a run that is over, its result is shown again.

    Example: uplift watch
    """
    from producer.runs import evaluate as evaluation

    where = run_context(options(context, flags), quiet=quiet)
    artifacts = evaluation.watch(evaluation.named(where, run_id), where)
    report_and_exit(artifacts, where.places, quiet=quiet, details=details, as_json=as_json)


@takes_place
def cancel(
    context: typer.Context,
    run_id: RunId = None,
    quiet: Quiet = False,
    details: Details = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """End a run: no new attempts, those in flight finish, and the artifact says that it was cancelled.

    Example: uplift cancel 20260101-120000-abc123
    """
    from producer.runs import evaluate as evaluation

    where = run_context(options(context, flags), quiet=quiet)
    artifacts = evaluation.cancel(evaluation.named(where, run_id), where)
    report_and_exit(artifacts, where.places, quiet=quiet, details=details, as_json=as_json)


@takes_place
def resume(
    context: typer.Context,
    run_id: RunId = None,
    # Under other names than the settings': a config is for runs that start.
    new_in_flight: Annotated[int | None, option("in_flight", "as in the run")] = None,
    new_budget: Annotated[
        float | None,
        typer.Option("--budget-usd", metavar="SUM", help="Another budget, in USD, for a run that has one."),
    ] = None,
    quiet: Quiet = False,
    details: Details = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Go on with a run that was interrupted, cancelled or lost: only what has no record is run.

    A run whose budget is spent goes on with a larger one. Of a finished run, attempts that ended in an error are tried
    again, up to three times.

    Examples:

      uplift resume

      uplift resume 20260101-120000-abc123 --budget-usd 10
    """
    from producer.runs import evaluate as evaluation
    from producer.settings.run_settings import RunSettings

    changed = RunSettings.checked({"in_flight": new_in_flight, "budget_usd": new_budget})
    where = run_context(options(context, flags), quiet=quiet)
    where = replace(where, worker=changed.private_worker)
    artifacts = evaluation.resume(evaluation.named(where, run_id), where, new_budget)
    report_and_exit(artifacts, where.places, quiet=quiet, details=details, as_json=as_json)

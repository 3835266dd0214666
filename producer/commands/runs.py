"""`uplift runs`, `status`, `show`, `watch`, `cancel` and `resume`: list, follow, end and continue runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from producer.commands.evaluate import report_and_exit, run_context
from producer.commands.flags import (
    Broker,
    BrokerOfRun,
    ConfigFile,
    InFlightOfRun,
    Insecure,
    Json,
    Quiet,
    RunId,
    StateRoot,
)
from producer.state_root import DEFAULT_STATE_ROOT

if TYPE_CHECKING:
    pass


def runs(
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete", metavar="RUN", help="Delete a run's artifact, records and server data; may repeat."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List runs: finished ones in the state root, and those on the broker or on a private server.

    Examples:

      uplift runs

      uplift runs --broker redis://127.0.0.1:6379/0 --json

      uplift runs --delete 20260101-120000-abc123
    """
    import json

    from producer.display import run_list
    from producer.server.connect import broker_url
    from producer.state_root import Places

    places, url = Places(state_root), broker_url(broker, insecure=insecure)
    if delete:
        for run_id in delete:
            run_list.delete(places, url, run_id)
            typer.echo(f"uplift: deleted {run_id}", err=True)
        return
    rows = run_list.rows(places, url)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
    elif not rows:
        typer.echo(f"uplift: no runs under {state_root}", err=True)
    else:
        run_list.show(rows)


def status(
    run_id: RunId,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Say how a run stands: attempts done and left, pass rates so far for each arm, cost, workers.

    Example: uplift status 20260101-120000-abc123 --json
    """
    import json

    from producer.display import run_status
    from producer.server.connect import broker_url
    from producer.state_root import Places, check_run_id

    facts = run_status.status(Places(state_root), broker_url(broker, insecure=insecure), check_run_id(run_id))
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        run_status.show(facts)


def show(
    run_id: RunId,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task id of the suite.")],
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show every attempt of a task: what the model said and what the judge made of it.

    Example: uplift show 20260101-120000-abc123 names-the-platform
    """
    from producer.display import run_list
    from producer.server.connect import broker_url
    from producer.state_root import Places, check_run_id

    places, url = Places(state_root), broker_url(broker, insecure=insecure)
    records = run_list.attempts(places, url, check_run_id(run_id), task)
    if as_json:
        for record in records:
            typer.echo(record.model_dump_json())
        return
    typer.echo(run_list.attempt_texts(records), nl=False)


def watch(
    run_id: RunId,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Follow a run to its end, write its artifact, and exit as `evaluate` would.

    Ctrl-C stops watching and leaves the run alone. For a run that is over, its result is shown again.

    Example: uplift watch 20260101-120000-abc123
    """
    from producer.runs import rejoin
    from producer.settings.run_settings import RunSettings

    options = RunSettings(state_root=state_root, broker=broker, insecure=insecure)
    where = run_context(options, quiet=quiet)
    artifacts = rejoin.watch(run_id, where)
    report_and_exit(artifacts, where.places, quiet=quiet, as_json=as_json)


def cancel(
    run_id: RunId,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """End a run: no new attempts, those in flight finish, and the artifact says that it was cancelled.

    Example: uplift cancel 20260101-120000-abc123
    """
    from producer.runs import rejoin
    from producer.settings.run_settings import RunSettings

    options = RunSettings(state_root=state_root, broker=broker, insecure=insecure)
    where = run_context(options, quiet=quiet)
    artifacts = rejoin.cancel(run_id, where)
    report_and_exit(artifacts, where.places, quiet=quiet, as_json=as_json)


def resume(
    run_id: RunId,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: Broker = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    # Under other names than the settings': a config is for runs that start.
    new_in_flight: InFlightOfRun = None,
    new_budget: Annotated[
        float | None,
        typer.Option("--budget-usd", metavar="SUM", help="Another budget, in USD, for a run that has one."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted, cancelled or lost: only what has no record is run.

    A run whose budget is spent goes on with a larger one.

    Examples:

      uplift resume 20260101-120000-abc123

      uplift resume 20260101-120000-abc123 --budget-usd 10
    """
    from producer.runs import rejoin
    from producer.settings.run_settings import RunSettings

    changed = {"in_flight": new_in_flight, "budget_usd": new_budget}
    options = RunSettings.checked(
        {**changed, "state_root": state_root, "broker": broker, "insecure": insecure}
    )
    where = run_context(options, quiet=quiet)
    artifacts = rejoin.resume(run_id, where, new_budget)
    report_and_exit(artifacts, where.places, quiet=quiet, as_json=as_json)

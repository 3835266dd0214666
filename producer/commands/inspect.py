"""`uplift runs`, `status` and `show`: what there is, how it stands, and what was said in an attempt."""

from __future__ import annotations

from typing import Annotated

import typer

from producer.commands.flags import (
    DEFAULT_STATE_ROOT,
    BrokerOfRun,
    ConfigFile,
    Insecure,
    Json,
    RunId,
    StateRoot,
)


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

    from producer import listing
    from producer.places import Places
    from producer.session import broker_url

    places, url = Places(state_root), broker_url(broker, insecure=insecure)
    if delete:
        for run_id in delete:
            listing.delete(places, url, run_id)
            typer.echo(f"uplift: deleted {run_id}", err=True)
        return
    rows = listing.rows(places, url)
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows]))
    elif not rows:
        typer.echo(f"uplift: no runs under {state_root}", err=True)
    else:
        listing.show(rows)


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

    from producer import standing
    from producer.names import check_run_id
    from producer.places import Places
    from producer.session import broker_url

    facts = standing.status(Places(state_root), broker_url(broker, insecure=insecure), check_run_id(run_id))
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        standing.show(facts)


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
    from producer import listing
    from producer.names import check_run_id
    from producer.places import Places
    from producer.session import broker_url

    places, url = Places(state_root), broker_url(broker, insecure=insecure)
    records = listing.attempts(places, url, check_run_id(run_id), task)
    if as_json:
        for record in records:
            typer.echo(record.model_dump_json())
        return
    typer.echo(listing.attempt_texts(records), nl=False)

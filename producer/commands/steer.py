"""`uplift watch`, `cancel` and `resume`: follow a run, end it, or go on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from producer.commands.flags import (
    DEFAULT_STATE_ROOT,
    Broker,
    BrokerOfRun,
    ConfigFile,
    InFlight,
    Insecure,
    Json,
    Quiet,
    RunId,
    StateRoot,
)

if TYPE_CHECKING:
    from producer.evaluation import Surroundings


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
    from producer import following

    following.watch(
        run_id, _surroundings(state_root, broker, insecure, quiet=quiet), quiet=quiet, as_json=as_json
    )


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
    from producer import following

    following.cancel(
        run_id, _surroundings(state_root, broker, insecure, quiet=quiet), quiet=quiet, as_json=as_json
    )


def resume(
    run_id: RunId,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: Broker = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    in_flight: InFlight = None,
    # Under another name than the setting's: a config is for runs that start.
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
    from producer import following

    where = _surroundings(state_root, broker, insecure, quiet=quiet, in_flight=in_flight)
    following.resume(run_id, where, quiet=quiet, as_json=as_json, budget_usd=new_budget)


def _surroundings(
    state_root: StateRoot, broker: str | None, insecure: bool, *, quiet: bool, in_flight: int | None = None
) -> Surroundings:
    from producer import display
    from producer.evaluation import Surroundings
    from producer.places import Places
    from producer.session import broker_url

    return Surroundings(
        Places(state_root), broker_url(broker, insecure=insecure), display.choose(quiet=quiet), in_flight
    )

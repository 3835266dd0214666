"""Join a run that was started before: watch it, end it, or go on with it, from any terminal."""

from __future__ import annotations

from typing import Any

from producer import evaluation, local, session
from producer.collect import finished
from producer.evaluation import Surroundings
from producer.names import check_run_id
from producer.options import InvalidOption, check_budget
from producer.places import Places
from producer.results import report_and_exit
from producer.session import NoTrace, NotServed, Session
from producer.submit import INSIST_SECONDS, go_on
from producer.watch import Interrupted, Watch
from workers.store import Store, UnknownRun

CANCEL_SECONDS = 1.0


def watch(run_id: str, where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    """Follow a run; its owner, if it has one, writes the artifact, else we do."""
    check_run_id(run_id)
    made: list[dict[str, Any]] | None = None
    while made is None:
        try:
            with session.joining(where.places, run_id, where.broker) as opened:
                made = _followed(run_id, opened, where)
        except NotServed:
            # Its owner has finished it, or has died and another process has taken it over.
            if local.settled_address(where.places.embedded(run_id)) is None:
                made = _at_home(run_id, where.places)
    _report(made, where, quiet=quiet, as_json=as_json)


def cancel(run_id: str, where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    """Stop new attempts for good and wait for the artifact that says so."""
    check_run_id(run_id)
    halted = False
    try:
        with session.joining(where.places, run_id, where.broker) as opened:
            _halt(opened, run_id)
            halted = True
            made = _followed(run_id, opened, where, CANCEL_SECONDS)
    except NotServed:
        made = finished(where.places, run_id)
        if made and not halted:
            raise UnknownRun(f"run {run_id!r} is over already; nothing to cancel") from None
        if not made:
            with session.taking_over(where.places, run_id) as opened:
                _halt(opened, run_id)
                made = _followed(run_id, opened, where, CANCEL_SECONDS)
    _report(made, where, quiet=quiet, as_json=as_json)


def _halt(opened: Session, run_id: str) -> None:
    opened.server.store.manifest(run_id)
    opened.server.store.halt(run_id, "cancelled")


def _followed(
    run_id: str, opened: Session, where: Surroundings, finish_seconds: float | None = None
) -> list[dict[str, Any]]:
    display = where.display
    opened.server.store.manifest(run_id)
    follower = Watch(
        opened.server, run_id, display.show, display.say, opened.check, finish_seconds=finish_seconds
    )
    try:
        with display:
            made = follower.follow()
    except Interrupted:
        raise Interrupted(run_id, where.places.command("resume", run_id)) from None
    return evaluation.bring_home(run_id, opened, made, where.places)


def _at_home(run_id: str, places: Places) -> list[dict[str, Any]]:
    """What the owner of a private server has left there; raises Interrupted or UnknownRun."""
    made = finished(places, run_id)
    if not made and local.has_data(places.embedded(run_id)):
        raise Interrupted(run_id, places.command("resume", run_id))
    if not made:
        raise UnknownRun(f"no run {run_id!r} under {places.root}; `uplift runs` lists them")
    return made


def resume(
    run_id: str, where: Surroundings, *, quiet: bool, as_json: bool, budget_usd: float | None = None
) -> None:
    """Publish what has no final record and follow the run to its end."""
    check_run_id(run_id)
    if budget_usd is not None:
        check_budget(budget_usd)
    where.places.check_writable()
    try:
        with session.joining(where.places, run_id, where.broker) as opened:
            made = _go_on(run_id, opened, where, budget_usd)
    except NotServed:
        made = _taken_over(run_id, where, budget_usd)
    _report(made, where, quiet=quiet, as_json=as_json)


def _taken_over(run_id: str, where: Surroundings, budget_usd: float | None) -> list[dict[str, Any]]:
    try:
        with session.taking_over(where.places, run_id, worker=True, in_flight=where.in_flight) as opened:
            return _go_on(run_id, opened, where, budget_usd)
    except NoTrace:
        if made := finished(where.places, run_id):  # nothing is left to do
            return made
        raise


def _go_on(
    run_id: str, opened: Session, where: Surroundings, budget_usd: float | None
) -> list[dict[str, Any]]:
    opened.server.store.manifest(run_id)
    if budget_usd is not None:
        _set_budget(opened.server.store, run_id, budget_usd)
    # A private server that goes away does not come back; its owner's run is taken over.
    insist = 0.0 if opened.joined else INSIST_SECONDS
    left = go_on(opened.server, run_id, insist_seconds=insist)
    where.display.say(f"{left} attempts left to run")
    return evaluation.follow(run_id, opened, where)


def _set_budget(store: Store, run_id: str, usd: float) -> None:
    if store.manifest(run_id).budget_usd is None:
        raise InvalidOption(f"run {run_id} has no budget that --budget-usd could change")
    state = store.state(run_id)
    spent = state.spent + state.assumed if state else 0.0
    if usd <= spent:
        raise InvalidOption(
            f"--budget-usd is {usd:g}, but run {run_id} has spent {spent:.6g} already; give more"
        )
    store.set_budget(run_id, usd)


def _report(made: list[dict[str, Any]], where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    gate = made[0].get("gate", "verdict")
    report_and_exit(made, where.places, gate=gate, quiet=quiet, as_json=as_json)

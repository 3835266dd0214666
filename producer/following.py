"""Join a run that was started before: watch it, end it, or go on with it, from any terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import redis

from producer import evaluation, local, session
from producer.collect import collect
from producer.evaluation import Surroundings
from producer.names import check_run_id
from producer.options import InvalidOption, check_budget
from producer.places import Places
from producer.results import report_and_exit
from producer.submit import go_on
from producer.watch import Interrupted, Watch
from workers.store import Halt, Store, UnknownRun


class _Home(Exception):
    """The run's private server is gone: its owner has finished it, or died."""


def watch(run_id: str, where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    """Follow a run; its owner, if it has one, writes the artifact, else we do."""
    check_run_id(run_id)
    if where.broker is None and local.address(where.places.embedded(run_id)) is None:
        made = _at_home(run_id, where.places)
    else:
        made = _to_the_end(run_id, where)
    _report(made, where, quiet=quiet, as_json=as_json)


def cancel(run_id: str, where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    """Stop new attempts for good and wait for the artifact that says so."""
    check_run_id(run_id)
    if where.broker is None and finished(where.places, run_id):
        raise UnknownRun(f"run {run_id!r} is over already; nothing to cancel")
    made = _to_the_end(run_id, where, halt="cancelled", finish_seconds=1.0)
    _report(made, where, quiet=quiet, as_json=as_json)


def _to_the_end(
    run_id: str, where: Surroundings, *, halt: Halt = "", finish_seconds: float | None = None
) -> list[dict[str, Any]]:
    """Follow a run, halted first where asked for. Whoever owns its private server may finish it before we look."""
    private = where.places.embedded(run_id)
    owned = where.broker is None and local.address(private) is not None

    def check() -> None:
        if owned and local.address(private) is None:
            raise _Home

    try:
        with session.for_known_run(where.places, run_id, where.broker) as opened:
            store = opened.server.store
            store.manifest(run_id)
            if halt:
                store.halt(run_id, halt)
            show, say = where.display.show, where.display.say
            follower = Watch(opened.server, run_id, show, say, check, finish_seconds=finish_seconds)
            with where.display:
                made = follower.follow()
            return collect(store, run_id, made, where.places)
    except _Home:
        return _at_home(run_id, where.places)
    except redis.ConnectionError:
        if not owned or local.address(private) is not None:
            raise
        return _at_home(run_id, where.places)


def _at_home(run_id: str, places: Places) -> list[dict[str, Any]]:
    """What the owner of a private server has left there; raises Interrupted or UnknownRun."""
    made = finished(places, run_id)
    if not made and places.embedded(run_id).is_dir():
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
    with session.for_known_run(
        where.places, run_id, where.broker, worker=True, in_flight=where.in_flight
    ) as opened:
        opened.server.store.manifest(run_id)
        if budget_usd is not None:
            _set_budget(opened.server.store, run_id, budget_usd)
        left = go_on(opened.server, run_id)
        where.display.say(f"{left} attempts left to run")
        made = evaluation.follow(run_id, opened, where)
    evaluation.forget_private_server(where.places, run_id, made)
    _report(made, where, quiet=quiet, as_json=as_json)


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


def finished(places: Places, run_id: str) -> list[dict[str, Any]]:
    """The artifacts of a run that are in the state root, or where --output put them."""
    output = places.notes(run_id).output
    place = Path(output) if output is not None else places.artifact(run_id).parent
    paths = sorted(place.glob(f"{run_id}*.json")) if place.is_dir() else [place]
    found = []
    for path in paths:
        try:
            artifact = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if artifact.get("run_id") == run_id:
            found.append(artifact)
    return found


def _report(made: list[dict[str, Any]], where: Surroundings, *, quiet: bool, as_json: bool) -> None:
    gate = made[0].get("gate", "verdict")
    report_and_exit(made, where.places, gate=gate, quiet=quiet, as_json=as_json)

"""Join a run that was started before: watch it, end it, or go on with it, from any terminal."""

from __future__ import annotations

import re
from contextlib import closing

from aggregate.artifact.model import Artifact
from producer.runs import evaluate
from producer.runs.evaluate import RunContext
from producer.runs.submit import INSIST_SECONDS, check_here, check_there, go_on, is_anything_left
from producer.runs.watch import Interrupted
from producer.server import connect, private_server
from producer.server.connect import NoTrace, Server, ServerNotRunning
from producer.settings.run_settings import InvalidOption
from producer.state_root import Places, check_run_id, finished
from workers.models.choose import asked
from workers.store.run_store import Store, StoredRun, UnknownRun

_LAST = re.compile(r"last(?:~(\d{1,6}))?")
_SHOWN = 5


def named(where: RunContext, text: str | None) -> str:
    """The id of the run that is meant: `last`, `last~1`, how it begins, or nothing for the latest.

    The latest is the latest of this state root, and of the broker where nothing was run here: that may be used by
    many. An id that nobody knows stays what it is, for whoever looks for the run to say so. Raises UnknownRun.
    """
    wanted, known = text or "last", where.places.latest_first()
    if wanted in known:
        return wanted
    last = _LAST.fullmatch(wanted)
    if where.broker is not None and (not known or not last):
        with closing(connect.open_server(where.broker)) as server:
            known = list(dict.fromkeys([*known, *sorted(server.store.runs(), reverse=True)]))
    if last:
        number = int(last[1] or 0)
        if number < len(known):
            return known[number]
        there = f"there are only {len(known)}" if known else "there is none; start one: uplift evaluate"
        raise UnknownRun(f"no run {wanted} under {where.places.root}: {there}")
    if wanted in known or not (begin := [run_id for run_id in known if run_id.startswith(wanted)]):
        return check_run_id(wanted)
    if len(begin) > 1:
        listed = ", ".join(begin[:_SHOWN]) + (", …" if len(begin) > _SHOWN else "")
        raise UnknownRun(f"{len(begin)} runs begin with {wanted!r}: {listed}; type more of the id")
    return begin[0]


def watch(run_id: str, where: RunContext) -> list[Artifact]:
    """Follow a run; its owner, if it has one, writes the artifact, else we do."""
    check_run_id(run_id)
    while True:
        try:
            with connect.joining(where.places, run_id, where.broker) as server:
                return evaluate.watch(server.store.run(run_id), server, where)
        except ServerNotRunning:
            # Its owner has finished it, or has died and another process has taken it over.
            if private_server.settled_address(where.places.embedded(run_id)) is None:
                return _at_home(run_id, where.places)


def _at_home(run_id: str, places: Places) -> list[Artifact]:
    """What the owner of a private server has left there; raises Interrupted or UnknownRun."""
    artifacts = finished(places, run_id)
    if not artifacts and private_server.has_data(places.embedded(run_id)):
        raise Interrupted(places.command("resume", run_id))
    if not artifacts:
        raise UnknownRun(f"no run {run_id!r} under {places.root}; `{places.command('runs')}` lists them")
    return artifacts


def cancel(run_id: str, where: RunContext) -> list[Artifact]:
    """Stop new attempts for good and wait for the artifact that says so."""
    check_run_id(run_id)
    halted = False

    def halt_and_watch(server: Server) -> list[Artifact]:
        nonlocal halted
        run = server.store.run(run_id)
        server.store.halt(run_id, "cancelled")
        halted = True
        return evaluate.watch(run, server, where)

    try:
        with connect.joining(where.places, run_id, where.broker) as server:
            return halt_and_watch(server)
    except ServerNotRunning:
        artifacts = finished(where.places, run_id)
        if artifacts and not halted:
            raise UnknownRun(f"run {run_id!r} is over already; nothing to cancel") from None
    if artifacts:
        return artifacts
    with connect.taking_over(where.places, run_id) as server:
        return halt_and_watch(server)


def resume(run_id: str, where: RunContext, budget_usd: float | None = None) -> list[Artifact]:
    """Publish what has no final record and follow the run to its end.

    Of a run whose result is at home, what ended in `error` is tried again: somebody has seen why, and mended that.
    """
    check_run_id(run_id)
    where.places.check_writable()
    try:
        with connect.joining(where.places, run_id, where.broker) as server:
            return _go_on(server.store.run(run_id), server, where, budget_usd)
    except ServerNotRunning:
        worker = {**where.places.notes(run_id).worker, **where.worker}
    try:
        with connect.taking_over(where.places, run_id, worker=worker) as server:
            return _go_on(server.store.run(run_id), server, where, budget_usd)
    except NoTrace:
        if artifacts := finished(where.places, run_id):  # nothing is left to do
            return artifacts
        raise


def _go_on(run: StoredRun, server: Server, where: RunContext, budget_usd: float | None) -> list[Artifact]:
    if finished(where.places, run.run_id):
        server.store.try_errors_again(run.run_id)
    _check_models(run, server)
    if budget_usd is not None:
        run = _with_budget(server.store, run, budget_usd)
    # A private server that goes away does not come back; its owner's run is taken over.
    insist = 0.0 if server.joined else INSIST_SECONDS
    left = go_on(server, run, resume=where.resume(run.run_id), insist_seconds=insist)
    where.display.say(f"{left} attempts left to run")
    return evaluate.follow(run, server, where)


def _check_models(run: StoredRun, server: Server) -> None:
    """Raise CannotAsk where attempts are left and nobody could make them; what is recorded stays."""
    store, manifest = server.store, run.manifest
    if not is_anything_left(store, run):
        return
    rejudged = manifest.rejudged_from is not None
    specs = asked(manifest.models, store.tasks(run), manifest.judge_model, rejudged=rejudged)
    if server.local is not None:
        check_here(specs, manifest.settings)
    else:
        check_there(specs, manifest.settings, store.client)


def _with_budget(store: Store, run: StoredRun, usd: float) -> StoredRun:
    if run.manifest.budget_usd is None:
        raise InvalidOption(f"run {run.run_id} has no budget that --budget-usd could change")
    state = store.state(run.run_id)
    spent = state.spent + state.assumed if state else 0.0
    if usd <= spent:
        raise InvalidOption(
            f"--budget-usd is {usd:g}, but run {run.run_id} has spent {spent:.6g} already; give more"
        )
    return store.set_budget(run, usd)

"""End a round of a run: try its errors again, or seal it and aggregate it into artifacts. Safe to run twice."""

from __future__ import annotations

import json

import redis
from celery import Celery

from workers.rounds.child_process import TRY_AGAIN, run_module
from workers.rounds.publish import next_end, publish_round, waves
from workers.store.redis_client import connect
from workers.store.run_store import Store, StoredRun
from workers.store.settings import ProcessSettings

MOST_ROUNDS = 12


class ServerAway(redis.ConnectionError):
    """The server went away while a run was aggregated."""


def finish(app: Celery, settings: ProcessSettings, run_id: str, generation: int, number: int) -> str:
    """What to do when all batches of round `number` have returned; the answer says what was done.

    A callback of an earlier generation does nothing: whoever resumed the run has published everything anew.
    """
    client = connect(settings.broker)
    try:
        store = Store(client)
        state = store.state(run_id)
        if state is None:
            return "gone"
        if state.generation != generation or state.halt == "paused":
            return "not now"
        if store.artifacts(run_id) is not None:
            return "done already"
        if not state.halt and _another_round(app, settings, store, store.run(run_id), generation, number):
            return "another round"
        if store.seal(run_id, generation) is None:
            return "not now"
        aggregate(settings, store, run_id, generation)
        return "finished"
    finally:
        client.close()


def _another_round(
    app: Celery, settings: ProcessSettings, store: Store, run: StoredRun, generation: int, number: int
) -> bool:
    """Publish what is to be tried again or, when that is done, the next wave; False when nothing is left to do."""
    if number >= MOST_ROUNDS + waves(run):
        return False
    end = store.published(run.run_id)
    unfinished = store.unfinished(run, end)
    while not unfinished and end < run.grid.attempts:
        if end and may_stop(settings, store, run):
            return False
        end = next_end(run, end)
        unfinished = store.unfinished(run, end)
    store.set_published(run.run_id, end)
    if unfinished:
        number += 1
        indexes = store.begin_round(run.run_id, generation, number, unfinished)
        alone = store.deadly(run.run_id)
        publish_round(app, run, generation=generation, number=number, indexes=indexes, alone=alone)
    return bool(unfinished)


def may_stop(settings: ProcessSettings, store: Store, run: StoredRun) -> bool:
    """Look at what there is; a run that may stop is halted as decided, and what is in flight may end.

    A run without a baseline never stops early: there is no difference to be sure of.
    """
    if not run.manifest.stop_early or run.info.baseline == "none":
        return False
    looked = run_module(settings, "workers.rounds.look", run.run_id)
    stop = bool(json.loads(looked.stdout or "{}").get("stop"))
    if stop:
        store.halt(run.run_id, "decided")
    return stop


def aggregate(settings: ProcessSettings, store: Store, run_id: str, generation: int) -> None:
    """Aggregate a sealed run; what goes wrong is written into its state, for whoever watches.

    In a child process: pandas must not hold up this one's attempts.
    Raises ServerAway when only the server was to blame: whoever asked tries again.
    """
    child = run_module(settings, "workers.rounds.aggregate_run", run_id, str(generation))
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"its process ended with {child.returncode}"]
        if child.returncode == TRY_AGAIN:
            raise ServerAway(lines[-1])
        store.set_trouble(run_id, f"aggregating failed: {lines[-1][:500]}")

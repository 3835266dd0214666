"""End a round of a run: try its errors again, or seal it and aggregate it into artifacts. Safe to run twice."""

from __future__ import annotations

import json

import redis
from celery import Celery

from workers.children import run_module
from workers.grid import Grid
from workers.look import verdict_settled
from workers.messages import Manifest
from workers.publish import publish_round
from workers.server import connect
from workers.settings import Settings
from workers.store import Store
from workers.waves import next_end, waves

MOST_ROUNDS = 12
# What aggregate_run leaves with when only the server was to blame; importing it would import pandas.
TRY_AGAIN = 75


class ServerAway(redis.ConnectionError):
    """The server went away while a run was aggregated."""


def grid_of(manifest: Manifest) -> Grid:
    return Grid(manifest.task_count, len(manifest.models), len(manifest.arms), manifest.pass_k)


def finish(app: Celery, settings: Settings, run_id: str, generation: int, number: int) -> str:
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
        if not state.halt and _another_round(app, settings, store, run_id, generation, number):
            return "another round"
        if store.seal(run_id, generation) is None:
            return "not now"
        aggregate(settings, store, run_id, generation)
        return "finished"
    finally:
        client.close()


def _another_round(
    app: Celery, settings: Settings, store: Store, run_id: str, generation: int, number: int
) -> bool:
    """Publish what is to be tried again or, when that is done, the next wave; False when nothing is left to do."""
    manifest = store.manifest(run_id)
    grid = grid_of(manifest)
    if number >= MOST_ROUNDS + waves(manifest, grid):
        return False
    end = store.published(run_id)
    unfinished = store.unfinished(run_id, grid, end)
    while not unfinished and end < grid.attempts:
        if end and may_stop(settings, store, manifest):
            return False
        end = next_end(manifest, grid, end)
        unfinished = store.unfinished(run_id, grid, end)
    store.set_published(run_id, end)
    if unfinished:
        indexes = store.begin_round(run_id, generation, number + 1, unfinished)
        publish(app, store, manifest, generation, number + 1, indexes)
    return bool(unfinished)


def publish(
    app: Celery, store: Store, manifest: Manifest, generation: int, number: int, indexes: list[int]
) -> None:
    """Send attempts of a run as one round."""
    grid = grid_of(manifest)
    tasks = [task.id for task in store.info(manifest.run_id).tasks]
    publish_round(
        app,
        manifest.run_id,
        lane=manifest.lane,
        generation=generation,
        number=number,
        indexes=indexes,
        priority=manifest.priority,
        alone=store.deadly(manifest.run_id),
        task_of=lambda index: tasks[grid.cell(index).task],
    )


def may_stop(settings: Settings, store: Store, manifest: Manifest) -> bool:
    """Look at what there is; a run that may stop is halted as decided, and what is in flight may end.

    A run without a baseline never stops early: there is no difference to be sure of.
    """
    info = store.info(manifest.run_id)
    if manifest.stop_early is None or info.baseline == "none":
        return False
    if manifest.stop_early == "verdict":
        stop = verdict_settled(store, manifest, info, grid_of(manifest))
    else:
        looked = run_module(settings, "workers.look", manifest.run_id)
        stop = bool(json.loads(looked.stdout or "{}").get("stop"))
    if stop:
        store.halt(manifest.run_id, "decided")
    return stop


def aggregate(settings: Settings, store: Store, run_id: str, generation: int) -> None:
    """Aggregate a sealed run; what goes wrong is written into its state, for whoever watches.

    In a child process: pandas must not hold up this one's attempts.
    Raises ServerAway when only the server was to blame: whoever asked tries again.
    """
    child = run_module(settings, "workers.aggregate_run", run_id, str(generation))
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["no message"]
        if child.returncode == TRY_AGAIN:
            raise ServerAway(lines[-1])
        store.set_trouble(run_id, f"aggregating failed: {lines[-1][:500]}")

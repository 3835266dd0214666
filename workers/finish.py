"""End a round of a run: try its errors again, or seal it and aggregate it into artifacts. Safe to run twice."""

from __future__ import annotations

import os
import subprocess
import sys

from celery import Celery

from workers.grid import Grid
from workers.messages import Manifest
from workers.publish import publish_round
from workers.server import connect
from workers.settings import Settings
from workers.store import Store

MOST_ROUNDS = 12
AGGREGATE_SECONDS = 3600


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
        if not state.halt and _another_round(app, store, run_id, generation, number):
            return "another round"
        store.seal(run_id)
        aggregate(settings, store, run_id)
        return "finished"
    finally:
        client.close()


def _another_round(app: Celery, store: Store, run_id: str, generation: int, number: int) -> bool:
    manifest = store.manifest(run_id)
    grid = grid_of(manifest)
    unfinished = store.unfinished(run_id, grid)
    if not unfinished or number >= MOST_ROUNDS:
        return False
    tasks = [task.id for task in store.info(run_id).tasks]
    publish_round(
        app,
        run_id,
        lane=manifest.lane,
        generation=generation,
        number=number + 1,
        indexes=store.begin_round(run_id, generation, number + 1, unfinished),
        alone=store.deadly(run_id),
        task_of=lambda index: tasks[grid.cell(index).task],
    )
    return True


def aggregate(settings: Settings, store: Store, run_id: str) -> None:
    """Aggregate a sealed run in a child process: pandas must not hold up this one's attempts."""
    child = subprocess.run(
        [sys.executable, "-m", "workers.aggregate_run", run_id],
        env={**os.environ, "UPLIFT_BROKER": settings.broker},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=AGGREGATE_SECONDS,
        check=False,
    )
    if child.returncode:
        lines = child.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        store.set_trouble(run_id, f"aggregating failed: {lines[-1][:500]}")

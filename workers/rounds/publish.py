"""Publish a round of a run's attempts: one chord whose header is the batches and whose callback finishes the run.

A run that may stop early is published in waves, with a look at its records after each; others are one wave.
Attempts are numbered breadth first, so a wave is a range of numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from workers.store.keys import QUARANTINE
from workers.store.run_store import StoredRun

if TYPE_CHECKING:
    from celery import Celery, Signature

NAMED_TASKS = 3
LARGEST_BATCH = 50

# 0 is the highest that Redis transports know; workers take the higher ones of all lanes first.
PRIORITIES = {"high": 0, "normal": 3, "low": 6}


def publish_round(
    app: Celery,
    run: StoredRun,
    *,
    generation: int,
    number: int,
    indexes: list[int],
    alone: Collection[int] = (),
) -> None:
    """Send the attempts `indexes` as round `number`; those in `alone` go one by one to the quarantine lane."""
    from celery import chord  # not above: the child that aggregates never publishes, and must start quickly

    header = _signatures(app, run, number, indexes, alone)
    callback = app.tasks["uplift.finish_run"].si(run.run_id, generation, number)
    with app.together():
        chord(header, app=app)(callback.set(argsrepr=f"run {run.run_id} round {number}", kwargsrepr=""))


def publish_batches(
    app: Celery, run: StoredRun, *, number: int, indexes: list[int], alone: Collection[int] = ()
) -> None:
    """Send attempts of round `number` once more, without a callback: whoever mends sees when they are done."""
    with app.together():
        for signature in _signatures(app, run, number, indexes, alone):
            signature.apply_async()


def send_finish(app: Celery, run_id: str, generation: int, number: int) -> None:
    """Ask for what a round's callback asks for."""
    app.tasks["uplift.finish_run"].apply_async(
        (run_id, generation, number), argsrepr=f"run {run_id} round {number}", kwargsrepr=""
    )


def _signatures(
    app: Celery, run: StoredRun, number: int, indexes: list[int], alone: Collection[int]
) -> list[Signature]:
    together = batches_of([index for index in indexes if index not in alone])
    batches = [*together, *([index] for index in indexes if index in alone)]
    signatures = []
    for position, batch in enumerate(batches, start=1):
        quarantine = position > len(together)
        signatures.append(
            app.tasks["uplift.run_batch"]
            .s(run.run_id, number, batch, quarantine)
            .set(
                queue=QUARANTINE if quarantine else run.manifest.lane,
                priority=PRIORITIES[run.manifest.priority],
                argsrepr=f"run {run.run_id} batch {position}/{len(batches)}: {_tasks(batch, run)}",
                kwargsrepr="",
            )
        )
    return signatures


def batch_size(attempts: int) -> int:
    """Small runs spread over workers one attempt at a time; large ones save messages."""
    return max(1, min(LARGEST_BATCH, attempts // 200))


def batches_of(indexes: list[int]) -> list[list[int]]:
    size = batch_size(len(indexes))
    return [indexes[start : start + size] for start in range(0, len(indexes), size)]


def _tasks(batch: list[int], run: StoredRun) -> str:
    grid = run.grid
    task_ids = list(dict.fromkeys(run.info.tasks[grid.cell(index).task].id for index in batch))
    more = len(task_ids) - NAMED_TASKS
    return "tasks " + ", ".join(task_ids[:NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")


def next_end(run: StoredRun, end: int) -> int:
    """The index at which the wave after `end` ends.

    A run that may stop early is looked at after each round of attempts, as its statistics demand.
    """
    if not run.manifest.stop_early:
        return run.grid.attempts
    return min(run.grid.attempts, (end // run.grid.units + 1) * run.grid.units)


def waves(run: StoredRun) -> int:
    """How many waves the run has if it never stops."""
    return run.grid.pass_k if run.manifest.stop_early else 1

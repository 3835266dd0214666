"""Publish a round of a run's attempts: one chord whose header is the batches and whose callback finishes the run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from celery import Celery, chord

from workers import grid
from workers.settings import FINISH, QUARANTINE

NAMED_TASKS = 3

Priority = Literal["high", "normal", "low"]
# 0 is the highest that Redis transports know; workers take the higher ones of all lanes first.
PRIORITIES: dict[Priority, int] = {"high": 0, "normal": 3, "low": 6}


def waiting_keys(lane: str) -> list[str]:
    """The lists in which a lane's messages wait, one for each of the transport's priority steps."""
    return [f"{lane}\x06\x16{step}" if step else lane for step in (0, 3, 6, 9)]


def publish_round(
    app: Celery,
    run_id: str,
    *,
    lane: str,
    generation: int,
    number: int,
    indexes: list[int],
    task_of: Callable[[int], str],
    priority: Priority = "normal",
    alone: Collection[int] = (),
) -> int:
    """Send the attempts `indexes`; those in `alone` go one by one to the quarantine lane. Returns the messages."""
    together = [index for index in indexes if index not in alone]
    cut = grid.batches(together)
    lonely = [[index] for index in indexes if index in alone]
    run_batch, finish_run = app.tasks["uplift.run_batch"], app.tasks["uplift.finish_run"]
    header = []
    for position, batch in enumerate([*cut, *lonely], start=1):
        quarantine = position > len(cut)
        text = f"run {run_id} batch {position}/{len(cut) + len(lonely)}: {_tasks(batch, task_of)}"
        header.append(
            run_batch.s(run_id, number, batch, quarantine).set(
                queue=QUARANTINE if quarantine else lane,
                priority=PRIORITIES[priority],
                argsrepr=text,
                kwargsrepr="",
            )
        )
    callback = finish_run.si(run_id, generation, number).set(
        argsrepr=f"run {run_id} round {number}", kwargsrepr=""
    )
    _declare_finish(app)
    chord(header, app=app)(callback)
    return len(header)


def _declare_finish(app: Celery) -> None:
    """Make sure that the callback finds its queue: workers declare it when they connect, and FLUSHALL forgets it."""
    from workers.app import queue

    with app.connection_or_acquire() as connection:
        queue(FINISH).bind(connection.default_channel).declare()


def _tasks(batch: list[int], task_of: Callable[[int], str]) -> str:
    found = list(dict.fromkeys(map(task_of, batch)))
    more = len(found) - NAMED_TASKS
    return "tasks " + ", ".join(found[:NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")

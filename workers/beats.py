"""What a worker tells those who watch a run, once a second: what is in flight, what takes longest, how fast it goes.

A beat is forgotten after a few seconds, so that a dead worker's attempts do not stay in anybody's view; its counts
stay for as long as the run does. Nothing but displays depends on either.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, cast

import redis
from celery import bootsteps

from workers.grid import Grid
from workers.server import connect
from workers.settings import from_environment
from workers.store import WORKING_DAYS, Keys
from workers.tally import RunTally, Tally
from workers.tasks import engine

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
FORGOTTEN_SECONDS = 6
RATE_SECONDS = 30.0
SLOWEST = 8


@dataclass(frozen=True)
class Beat:
    """One worker at one run. `in_flight` counts by the model's position, `slowest` are (index, seconds) pairs.

    The first three are None where the worker has not been heard of lately; the counts are those of its lifetime.
    """

    worker: str
    in_flight: dict[int, int] | None = None
    slowest: tuple[tuple[int, float], ...] = ()
    rate: float | None = None
    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0


def read(client: redis.Redis, run_id: str) -> list[Beat]:
    """Everything that workers have told about a run, by name."""
    totals = cast("dict[bytes, bytes]", client.hgetall(Keys(run_id).tallies))
    names = sorted(totals)
    if not names:
        return []
    fresh = cast("list[bytes | None]", client.mget([_key(run_id, name.decode()) for name in names]))
    return [_beat(name.decode(), totals[name], data) for name, data in zip(names, fresh, strict=True)]


def _beat(worker: str, total: bytes, data: bytes | None) -> Beat:
    done, retries, unpriced, spent = map(float, total.split())
    counts: tuple[Any, ...] = (int(done), int(retries), int(unpriced), spent)
    if data is None:
        return Beat(worker, None, (), None, *counts)
    said = json.loads(data)
    in_flight = {int(model): int(count) for model, count in said["in_flight"].items()}
    slowest = tuple((int(index), float(seconds)) for index, seconds in said["slowest"])
    return Beat(worker, in_flight, slowest, float(said["rate"]), *counts)


@dataclass
class Pace:
    """How many a second, over the last RATE_SECONDS or as long as there is something to count."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now: float, count: int) -> float:
        self._seen.append((now, count))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        begun, first = self._seen[0]
        return (count - first) / (now - begun) if now > begun else 0.0


class Teller:
    """Knows since when each attempt of this process has been in flight, and puts beats into a pipeline."""

    def __init__(self, worker: str, tally: Tally) -> None:
        self._worker = worker
        self._tally = tally
        self._since: dict[str, dict[tuple[int, int], float]] = {}
        self._paces: dict[str, Pace] = {}
        self._told: dict[str, RunTally] = {}

    def tell(self, pipe: Any, grids: dict[str, Grid], held: dict[str, dict[int, int]], now: float) -> None:
        """Add a beat for every run that has something in flight or news; `now` is a monotonic time."""
        for run_id, claims in held.items():
            total = self._tally.runs.get(run_id) or RunTally()
            rate = self._paces.setdefault(run_id, Pace()).rate(now, total.done)
            known = self._since.get(run_id, {})
            since = {claim: known.get(claim, now) for claim in claims.items()}
            self._since[run_id] = since
            if not since and self._told.get(run_id) == total:
                continue
            self._told[run_id] = replace(total)
            self._put(pipe, run_id, self._said(grids[run_id], since, rate, now), total)
        for gone in self._since.keys() - held.keys():
            for memory in (self._since, self._paces, self._told):
                memory.pop(gone, None)

    def _said(
        self, grid: Grid, since: dict[tuple[int, int], float], rate: float, now: float
    ) -> dict[str, Any]:
        models = Counter(grid.cell(index).model for index, _ in since)
        longest = heapq.nsmallest(SLOWEST, since.items(), key=lambda item: item[1])
        slowest = [(index, round(now - begun, 1)) for (index, _), begun in longest]
        return {"in_flight": models, "slowest": slowest, "rate": round(rate, 3)}

    def _put(self, pipe: Any, run_id: str, said: dict[str, Any], total: RunTally) -> None:
        totals = Keys(run_id).tallies
        pipe.set(_key(run_id, self._worker), json.dumps(said), ex=FORGOTTEN_SECONDS)
        counts = f"{total.done} {total.retries} {total.unpriced} {total.spent!r}"
        pipe.hset(totals, self._worker, counts)
        pipe.expire(totals, WORKING_DAYS * 86_400)


class Beats(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """The thread of a worker process that tells."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopped = threading.Event()

    def start(self, worker: Any) -> None:
        threading.Thread(target=self._tell, name="uplift-beats", daemon=True).start()

    def stop(self, worker: Any) -> None:
        self._stopped.set()

    terminate = stop

    def _tell(self) -> None:
        settings = from_environment()
        ours = engine(settings)
        teller = Teller(ours.name, ours.tally)
        client = connect(settings.broker, timeout_seconds=5, retries=0)
        while not self._stopped.wait(BEAT_SECONDS):
            grids = {run.manifest.run_id: run.grid for run in ours.runs.known()}
            held = {run: claims for run, claims in ours.held().items() if run in grids}
            pipe = client.pipeline(transaction=False)
            teller.tell(pipe, grids, held, time.monotonic())
            try:
                pipe.execute()
            # The next beat tells more than this one would have; who keeps the leases says what is wrong.
            except redis.RedisError as problem:
                log.debug("beat not told: %s", problem)
        client.close()


def _key(run_id: str, worker: str) -> str:
    return f"uplift:{run_id}:beat:{worker}"

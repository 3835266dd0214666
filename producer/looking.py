"""Make views of a run from what the server knows; dear questions are asked once a second, however often one looks."""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import cast

from producer.view import InFlight, Inside, View, Worker
from workers import beats
from workers.finish import grid_of
from workers.messages import Manifest
from workers.store import Keys, Progress, Store

INSIDE_SECONDS = 1.0
RATE_SECONDS = 60.0
SHOWN_SLOWEST = 8


class Looker:
    """Looks at one run again and again; remembers names of tasks and how fast the run has been going."""

    def __init__(self, store: Store, manifest: Manifest, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._manifest = manifest
        self._grid = grid_of(manifest)
        self._clock = clock
        self._begun = clock()
        self._told = float("-inf")
        self._inside = Inside()
        self._seen: deque[tuple[float, int]] = deque()
        self._tasks: dict[int, str] = {}

    def view(self, progress: Progress, workers: int, *, stopping: bool = False) -> View:
        """The run as it is now; what is inside it may be a second old."""
        now = self._clock()
        if now - self._told >= INSIDE_SECONDS:
            self._told, self._inside = now, self._look_inside()
        return View(
            run_id=self._manifest.run_id,
            arms=tuple(arm.name for arm in self._manifest.arms),
            total_per_arm=self._grid.attempts // self._grid.arms,
            progress=progress,
            workers=workers,
            elapsed=now - self._begun,
            rate=self._rate(now, progress.recorded),
            stopping=stopping,
            units=self._grid.tasks * self._grid.models,
            budget_usd=self._manifest.budget_usd,
            may_stop=self._manifest.stop_early is not None,
            inside=self._inside,
        )

    def _rate(self, now: float, recorded: int) -> float | None:
        """Attempts a second over the last minute; None before anything can be said."""
        if not self._seen or now - self._seen[-1][0] >= INSIDE_SECONDS:
            self._seen.append((now, recorded))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        begun, first = self._seen[0]
        return (recorded - first) / (now - begun) if recorded > first and now - begun > 1 else None

    def _look_inside(self) -> Inside:
        told = beats.read(self._store.client, self._manifest.run_id)
        in_flight: Counter[int] = Counter()
        for beat in told:
            in_flight.update(beat.in_flight or {})
        longest = sorted((pair for beat in told for pair in beat.slowest), key=lambda pair: -pair[1])
        return Inside(
            in_flight={self._manifest.models[model]: count for model, count in sorted(in_flight.items())},
            slowest=tuple(self._named(*pair) for pair in longest[:SHOWN_SLOWEST]),
            workers=tuple(
                Worker(beat.worker, sum(beat.in_flight.values()), beat.rate, beat.done)
                for beat in told
                if beat.in_flight is not None
            ),
            done=sum(beat.done for beat in told),
            retries=sum(beat.retries for beat in told),
            unpriced=sum(beat.unpriced for beat in told),
            spent=sum(beat.spent for beat in told),
        )

    def _named(self, index: int, seconds: float) -> InFlight:
        cell = self._grid.cell(index)
        model, arm = self._manifest.models[cell.model], self._manifest.arms[cell.arm].name
        return InFlight(self._task(cell.task), arm, model, cell.number, seconds)

    def _task(self, number: int) -> str:
        if number not in self._tasks:
            key = Keys(self._manifest.run_id).tasks
            data = cast("bytes | None", self._store.client.hget(key, str(number)))
            self._tasks[number] = str(json.loads(zlib.decompress(data))["id"]) if data else f"task {number}"
        return self._tasks[number]

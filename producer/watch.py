"""Follow a run to its end by looking at its state, and mend what got lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from producer.submit import Server, go_on
from workers.finish import finish, grid_of
from workers.messages import Manifest
from workers.server import workers as known_workers
from workers.settings import QUARANTINE
from workers.store import Progress, State

LOOK_SECONDS = 0.25
LOST_SECONDS = 60.0
LONELY_SECONDS = 8.0
FINISH_SECONDS = 20.0


class RunLost(Exception):
    """The run is no longer on the server, or can go no further; the reason tells what to do."""


class Interrupted(Exception):
    """Somebody asked to stop, here or elsewhere; the run can be resumed."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"stopped; go on with: uplift resume {run_id}")


@dataclass(frozen=True)
class View:
    """What a display shows of a run at one moment. `totals` and `outcomes` are in the order of `arms`."""

    run_id: str
    arms: tuple[str, ...]
    total_per_arm: int
    progress: Progress
    workers: int
    elapsed: float
    rate: float | None = None
    stopping: bool = False

    @property
    def total(self) -> int:
        return self.total_per_arm * len(self.arms)

    @property
    def seconds_left(self) -> float | None:
        left = self.total - self.progress.recorded
        return left / self.rate if self.rate else None

    def outcome(self, arm: int, *names: str) -> int:
        counts = self.progress.outcomes.get(arm, {})
        return sum(counts.get(name, 0) for name in names)


@dataclass
class Watch:
    """Follows one run. `check` raises when what the run depends on here has died; `stop` asks for an end."""

    server: Server
    run_id: str
    show: Callable[[View], None] = lambda view: None
    say: Callable[[str], None] = lambda text: None
    check: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False
    finish_seconds: float = FINISH_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _said: set[str] = field(default_factory=set)

    def follow(self) -> list[dict[str, Any]]:
        """Return the run's artifacts when it is over; raises Interrupted or RunLost."""
        manifest = self.server.store.manifest(self.run_id)
        self._grid = grid_of(manifest)
        self._begun = self._moved = self._met = self.clock()
        self._first: int | None = None
        self._recorded = -1
        while True:
            self.check()
            try:
                artifacts = self._look(manifest)
            except (redis.ConnectionError, redis.TimeoutError) as problem:
                self._say_once(f"the server does not answer ({problem}); waiting for it")
                artifacts = None
            if artifacts is not None:
                return artifacts
            self.sleep(LOOK_SECONDS)

    def _look(self, manifest: Manifest) -> list[dict[str, Any]] | None:
        store = self.server.store
        state = store.state(self.run_id)
        if state is None:
            raise RunLost(
                f"run {self.run_id} vanished from the server: it was deleted, flushed, or restarted without persistence"
            )
        if state.trouble:
            raise RunLost(f"{state.trouble}; `uplift resume {self.run_id}` tries again")
        progress = store.progress(self.run_id)
        if progress.recorded != self._recorded:
            self._recorded, self._moved = progress.recorded, self.clock()
        stopping = self.stop()
        self._show(manifest, progress, stopping)
        if stopping:
            self._stop(state, progress)
        artifacts = store.artifacts(self.run_id)
        if artifacts is None and not stopping:
            self._mend(manifest, state, progress)
        return artifacts

    def _show(self, manifest: Manifest, progress: Progress, stopping: bool) -> None:
        now = self.clock()
        workers = len(known_workers(self.server.store.client))
        if workers:
            self._met = now
        elif now - self._met > LONELY_SECONDS:
            self._say_once("no worker answers; start one with: uplift worker --broker URL")
        if self._first is None:
            self._first = progress.recorded
        done, elapsed = progress.recorded - self._first, now - self._begun
        self.show(
            View(
                run_id=self.run_id,
                arms=tuple(arm.name for arm in manifest.arms),
                total_per_arm=self._grid.attempts // self._grid.arms,
                progress=progress,
                workers=workers,
                elapsed=elapsed,
                rate=done / elapsed if done and elapsed > 1 else None,
                stopping=stopping,
            )
        )

    def _stop(self, state: State, progress: Progress) -> None:
        """No new attempts; over when nothing is in flight any more."""
        if state.halt != "paused" and not state.sealed:
            self.server.store.halt(self.run_id, "paused")
        if not progress.in_flight or state.sealed:
            raise Interrupted(self.run_id)

    def _mend(self, manifest: Manifest, state: State, progress: Progress) -> None:
        """Finish a run whose callback got lost, and publish again what no queue and no worker has."""
        quiet = self.clock() - self._moved
        if state.halt == "paused":
            raise Interrupted(self.run_id)
        done = state.halt or progress.recorded == self._grid.attempts
        if done and not progress.in_flight and quiet > self.finish_seconds and not self._queued(manifest):
            self._moved = self.clock()
            finish(self.server.app, self.server.settings, self.run_id, state.generation, 1)
        elif quiet > LOST_SECONDS and not progress.in_flight:
            self._moved = self.clock()
            if not self._queued(manifest):
                self.say("some batches got lost; publishing them again")
                go_on(self.server, self.run_id)

    def _queued(self, manifest: Manifest) -> bool:
        """Whether the server still holds a message of this run, waiting or taken."""
        client, name = self.server.store.client, self.run_id.encode()
        for queue in (manifest.lane, QUARANTINE):
            for step in ("", "\x06\x163", "\x06\x166", "\x06\x169"):
                for start in range(0, int(client.llen(queue + step)), 500):
                    if any(name in message for message in client.lrange(queue + step, start, start + 499)):
                        return True
        return any(name in message for _, message in client.hscan_iter("unacked"))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

"""Follow a run to its end by looking at its state, and mend what got lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis
from kombu.exceptions import OperationalError

from producer.looking import Looker
from producer.submit import Server, go_on
from producer.view import View
from workers.finish import finish, grid_of
from workers.messages import Manifest
from workers.publish import waiting_keys
from workers.server import refuses_writes
from workers.server import workers as known_workers
from workers.settings import QUARANTINE
from workers.store import Progress, State, UnknownRun

LOOK_SECONDS = 0.25
LONELY_SECONDS = 8.0
PROBE_SECONDS = 5.0
# In leases: how long a run without a sign of life is left to its workers before the watcher steps in.
FINISH_LEASES = 2 / 3
LOST_LEASES = 2.0


class RunLost(Exception):
    """The run is no longer on the server, or can go no further; the reason tells what to do."""


class Interrupted(Exception):
    """Somebody asked to stop, here or elsewhere; the run can be resumed."""

    def __init__(self, run_id: str, go_on: str | None = None) -> None:
        super().__init__(f"stopped; go on with: {go_on or f'uplift resume {run_id}'}")


@dataclass
class Watch:
    """Follows one run. `check` raises when what the run depends on here has died; `stop` asks for an end.

    `finish_seconds` is how long a run that is done may wait for its callback.
    """

    server: Server
    run_id: str
    show: Callable[[View], None] = lambda view: None
    say: Callable[[str], None] = lambda text: None
    check: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False
    finish_seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _said: set[str] = field(default_factory=set)

    def follow(self) -> list[dict[str, Any]]:
        """Return the run's artifacts when it is over; raises Interrupted or RunLost."""
        manifest = self.server.store.manifest(self.run_id)
        self._grid = grid_of(manifest)
        lease = self.server.settings.visibility_seconds
        self._lost_seconds = LOST_LEASES * lease
        self._finish_seconds = FINISH_LEASES * lease if self.finish_seconds is None else self.finish_seconds
        self._looker = Looker(self.server.store, manifest, self.clock)
        self._moved = self._mended = self._met = self._wrote = self._probed = self.clock()
        self._refused: str | None = None
        self._recorded = -1
        while True:
            self.check()
            try:
                artifacts = self._look(manifest)
            except UnknownRun:  # gone between two questions of one look
                raise self._vanished() from None
            except (redis.ConnectionError, redis.TimeoutError, OperationalError) as problem:
                self.check()
                self._say_once(f"the server does not answer ({problem}); waiting for it")
                artifacts = None
            if artifacts is not None:
                return artifacts
            self.sleep(LOOK_SECONDS)

    def _look(self, manifest: Manifest) -> list[dict[str, Any]] | None:
        store = self.server.store
        state = store.state(self.run_id)
        if state is None:
            raise self._vanished()
        if state.trouble:
            raise RunLost(f"{state.trouble}; `uplift resume {self.run_id}` tries again")
        progress = store.progress(self.run_id)
        if progress.recorded != self._recorded:
            self._recorded, self._moved = progress.recorded, self.clock()
        stopping = self.stop()
        self._show(progress, stopping)
        if stopping:
            self._stop(state, progress)
        artifacts = store.artifacts(self.run_id)
        pausing = stopping and state.halt in ("", "paused")
        if artifacts is None and not pausing and self._takes_writes():
            self._mend(manifest, state, progress)
        return artifacts

    def _vanished(self) -> RunLost:
        return RunLost(
            f"run {self.run_id} vanished from the server: it was deleted, flushed, or restarted without persistence"
        )

    def _takes_writes(self) -> bool:
        """Ask a quiet run's server whether it can keep records at all; raises RunLost when it has not for long."""
        now = self.clock()
        if now - max(self._moved, self._probed) > PROBE_SECONDS:
            self._probed, self._refused = now, refuses_writes(self.server.store.client)
        if self._refused is None:
            self._wrote = now
            return True
        self._say_once(f"{self._refused}; the run waits")
        if now - self._wrote > self._lost_seconds:
            raise RunLost(f"{self._refused}; mend that, then go on with: uplift resume {self.run_id}")
        return False

    def _show(self, progress: Progress, stopping: bool) -> None:
        now = self.clock()
        workers = len(known_workers(self.server.store.client))
        if workers:
            self._met = now
        elif now - self._met > LONELY_SECONDS:
            self._say_once("no worker answers; start one with: uplift worker --broker URL")
        self.show(self._looker.view(progress, workers, stopping=stopping))

    def _stop(self, state: State, progress: Progress) -> None:
        """No new attempts; over when nothing is in flight any more. A run that ends anyway is not paused."""
        if state.halt not in ("", "paused"):
            return
        if not state.halt and not state.sealed:
            self.server.store.halt(self.run_id, "paused")
        if not progress.in_flight or state.sealed:
            raise Interrupted(self.run_id)

    def _mend(self, manifest: Manifest, state: State, progress: Progress) -> None:
        """Finish a run whose callback got lost, and publish again what no queue and no worker has."""
        quiet = self.clock() - max(self._moved, self._mended)
        if state.halt == "paused":
            raise Interrupted(self.run_id)
        if progress.in_flight:
            return
        # Batches of a halted run that still wait will start nothing, even if no worker ever comes to take them.
        over = bool(state.halt) or progress.recorded == self._grid.attempts
        # A sealed run's callback is at work, or has died with its worker and waits for ever.
        dead = state.sealed and self.clock() - self._met > LONELY_SECONDS
        alone = bool(state.halt) or dead or not self._queued(manifest)
        if over and quiet > self._finish_seconds and alone:
            self._mended = self.clock()
            finish(self.server.app, self.server.settings, self.run_id, state.generation, 1)
        elif quiet > self._lost_seconds:
            self._mended = self.clock()
            if not self._queued(manifest):
                self.say("some batches got lost; publishing them again")
                go_on(self.server, self.run_id, insist_seconds=0)

    def _queued(self, manifest: Manifest) -> bool:
        """Whether the server still holds a message of this run, waiting or taken."""
        client, name = self.server.store.client, self.run_id.encode()
        for key in (*waiting_keys(manifest.lane), *waiting_keys(QUARANTINE)):
            for start in range(0, int(client.llen(key)), 500):
                if any(name in message for message in client.lrange(key, start, start + 499)):
                    return True
        return any(name in message for _, message in client.hscan_iter("unacked"))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

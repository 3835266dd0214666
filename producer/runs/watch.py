"""Follow a run to its end by looking at its state, and mend what got lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from judges.errors import INFRASTRUCTURE, INTERRUPTED, UpliftError
from producer.display.snapshot import Looker, View
from producer.runs.submit import go_on
from producer.server.connect import Server
from producer.state_root import on_broker
from workers.rounds.finish import finish
from workers.store.keys import QUARANTINE, waiting_keys
from workers.store.redis_client import AWAY, refuses_writes
from workers.store.redis_client import workers as known_workers
from workers.store.run_store import Progress, State, StoredRun, UnknownRun

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact

LOOK_SECONDS = 0.25
LONELY_SECONDS = 8.0
PROBE_SECONDS = 5.0
# In leases: how long a run without a sign of life is left to its workers before the watcher steps in.
FINISH_LEASES = 2 / 3
LOST_LEASES = 2.0


class RunLost(UpliftError):
    """The run is no longer on the server, or can go no further; the reason tells what to do."""

    exit_code = INFRASTRUCTURE


class Interrupted(UpliftError):
    """Somebody asked to stop, here or elsewhere; the run can be resumed."""

    exit_code = INTERRUPTED

    def __init__(self, resume: str) -> None:
        super().__init__(f"stopped; go on with: {resume}")


@dataclass
class Watch:
    """Follows one run. `stop` asks for an end.

    `finish_seconds` is how long a run that is done may wait for its callback.
    `resume` is what to type to go on with the run, where that is more than its id.
    """

    server: Server
    run: StoredRun
    show: Callable[[View], None] | None = None
    say: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False
    finish_seconds: float | None = None
    resume: str = ""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _said: set[str] = field(default_factory=set)

    def follow(self) -> list[Artifact]:
        """Return the run's artifacts when it is over; raises Interrupted or RunLost."""
        self.resume = self.resume or f"uplift resume {self.run.run_id}"
        lease = self.server.settings.visibility_seconds
        self._lost_seconds = LOST_LEASES * lease
        self._finish_seconds = FINISH_LEASES * lease if self.finish_seconds is None else self.finish_seconds
        self._looker = Looker(self.server.store, self.run.manifest, self.clock) if self.show else None
        self._worker_seen_at = self._progressed_at = self._writable_at = self.clock()
        self._mended_at = self._probed_at = self.clock()
        self._refused: str | None = None
        self._recorded = -1
        while True:
            self.server.check()
            try:
                artifacts = self._look()
            except UnknownRun:  # gone between two questions of one look
                raise self._vanished() from None
            except (*AWAY, OperationalError) as problem:
                self.server.check()
                self._say_once(f"the server does not answer ({problem}); waiting for it")
                artifacts = None
            if artifacts is not None:
                return artifacts
            self.sleep(LOOK_SECONDS)

    def _look(self) -> list[Artifact] | None:
        store = self.server.store
        state = store.state(self.run.run_id)
        if state is None:
            raise self._vanished()
        if state.trouble:
            raise RunLost(
                f"{state.trouble}; all records are kept: when that is mended, by an upgrade for example, "
                f"go on without asking the model again, with: {self.resume}"
            )
        progress = store.progress(self.run.run_id)
        if progress.recorded != self._recorded:
            self._recorded, self._progressed_at = progress.recorded, self.clock()
        stopping = self.stop()
        self._show(progress, stopping)
        if stopping:
            self._stop(state, progress)
        artifacts = store.artifacts(self.run.run_id)
        pausing = stopping and state.halt in ("", "paused")
        if artifacts is None and not pausing and self._takes_writes():
            self._mend(state, progress)
        return artifacts

    def _vanished(self) -> RunLost:
        return RunLost(
            f"run {self.run.run_id} vanished from the server: it was deleted, flushed, or restarted without persistence"
        )

    def _takes_writes(self) -> bool:
        """Ask a quiet run's server whether it can keep records at all; raises RunLost when it has not for long."""
        now = self.clock()
        if now - max(self._progressed_at, self._probed_at) > PROBE_SECONDS:
            self._probed_at, self._refused = now, refuses_writes(self.server.store.client)
        if self._refused is None:
            self._writable_at = now
            return True
        self._say_once(f"{self._refused}; the run waits")
        if now - self._writable_at > self._lost_seconds:
            raise RunLost(f"{self._refused}; mend that, then go on with: {self.resume}")
        return False

    def _show(self, progress: Progress, stopping: bool) -> None:
        now = self.clock()
        workers = len(known_workers(self.server.store.client))
        if workers:
            self._worker_seen_at = now
        elif now - self._worker_seen_at > LONELY_SECONDS:
            start = on_broker("uplift worker", self.server.settings.broker)
            self._say_once(f"no worker answers; start one with: {start}")
        if self.show is not None and self._looker is not None:
            self.show(self._looker.view(progress, workers, stopping=stopping))

    def _stop(self, state: State, progress: Progress) -> None:
        """No new attempts; over when nothing is in flight any more. A run that ends anyway is not paused."""
        if state.halt not in ("", "paused"):
            return
        if not state.halt and not state.sealed:
            self.server.store.halt(self.run.run_id, "paused")
        if not progress.in_flight or state.sealed:
            raise Interrupted(self.resume)

    def _mend(self, state: State, progress: Progress) -> None:
        """Finish a run whose callback got lost, and publish again what no queue and no worker has."""
        quiet = self.clock() - max(self._progressed_at, self._mended_at)
        if state.halt == "paused":
            raise Interrupted(self.resume)
        if progress.in_flight:
            return
        # Batches of a halted run that still wait will start nothing, even if no worker ever comes to take them.
        over = bool(state.halt) or progress.recorded == self.run.grid.attempts
        # A sealed run's callback is at work, or has died with its worker and waits for ever.
        dead = state.sealed and self.clock() - self._worker_seen_at > LONELY_SECONDS
        alone = bool(state.halt) or dead or not self._queued()
        if over and quiet > self._finish_seconds and alone:
            self._mended_at = self.clock()
            finish(self.server.app, self.server.settings, self.run.run_id, state.generation, 1)
        elif quiet > self._lost_seconds:
            self._mended_at = self.clock()
            if not self._queued():
                self.say("some batches got lost; publishing them again")
                go_on(self.server, self.run, resume=self.resume, insist_seconds=0)

    def _queued(self) -> bool:
        """Whether the server still holds a message of this run, waiting or taken."""
        client, name = self.server.store.client, self.run.run_id.encode()
        for key in (*waiting_keys(self.run.manifest.lane), *waiting_keys(QUARANTINE)):
            for start in range(0, int(client.llen(key)), 500):
                if any(name in message for message in client.lrange(key, start, start + 499)):
                    return True
        return any(name in message for _, message in client.hscan_iter("unacked"))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

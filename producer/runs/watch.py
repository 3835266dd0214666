"""Follow a run to its end by looking at its state; its workers mend what gets lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis
from kombu.exceptions import OperationalError

from judges.errors import INTERRUPTED, InfrastructureError, UpliftError
from producer.display.snapshot import Looker, View
from producer.server import Server
from producer.state_root import on_broker
from workers.rounds.finish import finish
from workers.store.redis_client import AWAY, INSIST_SECONDS, refuses_writes
from workers.store.redis_client import workers as known_workers
from workers.store.run_store import Progress, State, StoredRun, UnknownRun

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact

LOOK_SECONDS = 0.25
LONELY_SECONDS = 8.0
PROBE_SECONDS = 5.0
REFUSED_SECONDS = float(INSIST_SECONDS)  # as long as workers hold on to what they want to write


class RunLost(InfrastructureError):
    """The run is no longer on the server, or can go no further; the reason tells what to do."""


def vanished(run_id: str) -> RunLost:
    """The error of a run that was on the server, and is no more."""
    return RunLost(
        f"run {run_id} vanished from the server: it was deleted, flushed, or restarted without persistence"
    )


class Interrupted(UpliftError):
    """Somebody asked to stop, here or elsewhere; the run can be resumed."""

    exit_code = INTERRUPTED

    def __init__(self, resume: str) -> None:
        super().__init__(f"stopped; go on with: {resume}")


@dataclass
class Watch:
    """Follows one run. `stop` asks for an end.

    `resume` is what to type to go on with the run, where that is more than its id.
    """

    server: Server
    run: StoredRun
    show: Callable[[View], None] | None = None
    say: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False
    resume: str = ""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _said: set[str] = field(default_factory=set)

    def follow(self) -> list[Artifact]:
        """Return the run's artifacts when it is over; raises Interrupted or RunLost."""
        self.resume = self.resume or f"uplift resume {self.run.run_id}"
        self._looker = Looker(self.server.store, self.run.manifest, self.clock) if self.show else None
        self._worker_seen_at = self._progressed_at = self._writable_at = self.clock()
        self._probed_at = self.clock()
        self._refused: str | None = None
        self._recorded, self._workers = -1, 0
        while True:
            self.server.check()
            try:
                artifacts = self._look()
            except UnknownRun:  # gone between two questions of one look
                raise vanished(self.run.run_id) from None
            except (*AWAY, OperationalError) as problem:
                self.server.check()
                self._say_once(f"the server does not answer ({problem}); waiting for it")
                artifacts = None
            except redis.ResponseError:  # a write of ours, refused before we asked; reading goes on
                self._refused = refuses_writes(self.server.store.client)
                if self._refused is None:
                    raise
                artifacts = None
            if artifacts is not None:
                return artifacts
            self.sleep(LOOK_SECONDS)

    def _look(self) -> list[Artifact] | None:
        store = self.server.store
        state = store.state(self.run.run_id)
        if state is None:
            raise vanished(self.run.run_id)
        artifacts = store.artifacts(self.run.run_id)
        if state.trouble and artifacts is None:
            raise RunLost(
                f"{state.trouble}; all records are kept: when that is mended, by an upgrade for example, "
                f"go on without asking the model again, with: {self.resume}"
            )
        progress = store.progress(self.run.run_id)
        if progress.recorded != self._recorded:
            self._recorded, self._progressed_at = progress.recorded, self.clock()
        writable = artifacts is not None or self._takes_writes()
        stopping = self.stop()
        self._show(progress, stopping)
        if stopping and writable:
            self._stop(state, progress)
        pausing = stopping and state.halt in ("", "paused")
        if artifacts is None and writable and not pausing:
            self._end(state, progress)
        return artifacts

    def _takes_writes(self) -> bool:
        """Ask the server of a run that is quiet, or whose workers are, whether it can keep records at all.

        Raises RunLost when it has not for long.
        """
        now, refused = self.clock(), self._refused
        if now - max(min(self._progressed_at, self._worker_seen_at), self._probed_at) > PROBE_SECONDS:
            self._probed_at, self._refused = now, refuses_writes(self.server.store.client)
        if self._refused is None:
            self._writable_at = now
            if refused is not None:
                self._say_once("the server takes writes again; the run goes on")
            return True
        self._say_once(f"{self._refused}; the run waits")
        if now - self._writable_at > REFUSED_SECONDS:
            raise RunLost(f"{self._refused}; all records are kept: mend that, then go on with: {self.resume}")
        return False

    def _show(self, progress: Progress, stopping: bool) -> None:
        now, alive = self.clock(), len(known_workers(self.server.store.client))
        if alive or self._refused is None:
            self._workers = alive
        if alive or self._refused is not None:  # where they cannot give signs of life, nobody knows them gone
            self._worker_seen_at = now
        elif now - self._worker_seen_at > LONELY_SECONDS:
            start = on_broker("uplift worker", self.server.settings.broker)
            self._say_once(f"no worker answers; start one with: {start}")
        if self.show is not None and self._looker is not None:
            self.show(self._looker.view(progress, self._workers, stopping=stopping))

    def _stop(self, state: State, progress: Progress) -> None:
        """No new attempts; over when nothing is in flight any more. A run that ends anyway is not paused."""
        if state.halt not in ("", "paused"):
            return
        if not state.halt and not state.sealed:
            self.server.store.halt(self.run.run_id, "paused")
        if not progress.in_flight or state.sealed:
            raise Interrupted(self.resume)

    def _end(self, state: State, progress: Progress) -> None:
        """Raise Interrupted for a run that was paused elsewhere; end one that is over where no worker can."""
        if state.halt == "paused":
            raise Interrupted(self.resume)
        # One that nobody is to go on with need not wait for a worker that may be about to start.
        patience = 0.0 if state.halt else LONELY_SECONDS
        if progress.in_flight or self.clock() - self._worker_seen_at <= patience:
            return
        # Batches of a halted run that still wait will start nothing, even if no worker ever comes to take them.
        over = bool(state.halt) or state.sealed
        if over or not self.server.store.unfinished(self.run, self.run.grid.attempts):
            finish(self.server.app, self.server.settings, self.run.run_id, state.generation, 1)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

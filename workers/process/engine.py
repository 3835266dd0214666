"""The asyncio loop of a worker process, on which all its attempts run; Celery's threads only wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import redis
import redis.asyncio

from aggregate.records.record import AttemptRecord
from workers.attempts.attempt import Attempt
from workers.attempts.permits import Turns
from workers.attempts.run_context import Bill, Question, Run, RunGone, Runs
from workers.models.choose import absent
from workers.models.model import kill_programs
from workers.models.policy import serves
from workers.process.heartbeat import BEAT_SECONDS, Heartbeat, Tally, Teller
from workers.process.logs import at_work
from workers.rounds.publish import LARGEST_BATCH
from workers.store.claims import StoreResult, drop_all
from workers.store.keys import PROTOCOL, QUARANTINE
from workers.store.process_settings import ProcessSettings
from workers.store.redis_client import connect, connect_insisting, tell_held
from workers.store.run_store import NotServed, Store

log = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
MOST_HAND_BACKS = 3
MOST_SHARE = 1.5
MOST_ALONE = os.cpu_count() or 1
MOST_AT_FIRST = 4  # batches: the next run's may be far larger than the last one's


class Drained(Exception):
    """The worker is shutting down and hands this batch back."""


@dataclass(frozen=True)
class Batch:
    """Attempts that travel in one message; `round` counts the tries that a run gives its errors."""

    run_id: str
    round: int
    indexes: tuple[int, ...]
    quarantine: bool = False


def read_batch(run_id: str, number: int, indexes: list[int], quarantine: bool = False) -> Batch:
    """What a message asks for; raises ValueError or TypeError where no producer can have written it."""
    batch = Batch(run_id, number, tuple(indexes), bool(quarantine))
    if (
        type(run_id) is not str
        or {type(one) for one in (number, *indexes)} != {int}
        or len(indexes) > LARGEST_BATCH
    ):
        raise ValueError("no batch")
    return batch


class Load:
    """How much of its capacity this process has promised: 1.0 is as much as can be in flight.

    What waits for a limit over all workers, for the budget or for another worker needs no capacity yet, and must not
    keep other runs from it. Once as much of one lane waits, the lane is closed here: the rest of such a run is for
    other workers, and memory has a bound. What runs alone in a process of its own takes nothing of the capacity, and
    the quarantine is closed while as much as may run at once has been taken from it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches = 0
        self.share = 0.0
        self.last_share = 0.0
        self.alone = 0
        self.waiting = defaultdict[str, float](float)

    def add(self, share: float) -> None:
        with self._lock:
            self.batches += 1
            self.share += share
            self.last_share = share

    def remove(self, share: float) -> None:
        with self._lock:
            self.batches -= 1
            self.share = self.share - share if self.batches else 0.0

    @contextmanager
    def waits(self, lane: str, share: float) -> Iterator[None]:
        """Let so much of what was promised wait in this block."""
        with self._lock:
            self.waiting[lane] += share
        try:
            yield
        finally:
            with self._lock:
                self.waiting[lane] -= share

    @contextmanager
    def runs_alone(self) -> Iterator[None]:
        """Hold a batch in this block that runs in a process of its own."""
        with self._lock:
            self.alone += 1
        try:
            yield
        finally:
            with self._lock:
                self.alone -= 1

    def closed(self) -> frozenset[str]:
        """Lanes of which so much waits here already that no more is to be taken from them."""
        with self._lock:
            full = {lane for lane, share in self.waiting.items() if share > MOST_SHARE - 1e-6}
            return frozenset(full | {QUARANTINE} if self.alone >= MOST_ALONE else full)

    def room(self) -> int:
        """Prefetch count: the batches held, plus as many of the last size as fit into MOST_SHARE of the capacity.

        Hoarding would leave nothing to workers that join late.
        """
        with self._lock:
            if not self.batches:
                fit = max(1, math.ceil(MOST_SHARE / self.last_share)) if self.last_share else 1
                return self.alone + min(MOST_AT_FIRST, fit)
            left = MOST_SHARE - self.share + sum(self.waiting.values())
            more = max(0, math.ceil((left - 1e-6) / max(self.last_share, 1e-6)))
            return self.alone + self.batches + more


class Engine:
    """One per process: the loop, its Redis connection, the slots and the runs that are known here."""

    def __init__(self, settings: ProcessSettings, *, public: bool = True) -> None:
        self.settings = settings
        # Containers may share a host's name, and count their processes alike.
        self.name = f"{socket.gethostname()}:{os.getpid()}-{os.urandom(4).hex()}"
        self.taken: list[str] = []
        self._told: tuple[list[str], float] = ([], -math.inf)
        self.ended: set[str] = set()
        self._left_to_others: set[str] = set()
        self._serves = serves(settings.policy)
        self.load = Load()
        self.done = 0
        self._progress = (0, time.monotonic())
        self._loop = asyncio.new_event_loop()
        # For threads, which share its connections: one that asks a lot must not keep the heartbeat from its turn.
        patience = max(1.0, settings.lease_seconds / 4)
        self.client = connect(settings.broker, timeout_seconds=patience, retries=1, connections=3)
        self._client = connect_insisting(settings.broker)
        self.tally = Tally()
        self.turns = Turns(self._client, settings, self.tally.retried, self.waits)
        self.runs = Runs(
            self._client, self.name, lease_seconds=settings.lease_seconds, policy=settings.policy
        )
        self._tasks: set[asyncio.Task[int]] = set()
        self.draining = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="uplift-loop", daemon=True)
        self._thread.start()
        self._teller = Teller(self.name, self.tally)
        self.heartbeat = Heartbeat(self, self._loop, public=public)
        if public:
            self.heartbeat.add(self._tell, BEAT_SECONDS)
            self.heartbeat.add(self._tell_held, BEAT_SECONDS)
        self.heartbeat.start()

    @property
    def in_flight(self) -> int:
        return self.turns.used

    @property
    def active(self) -> bool:
        """Whether any batch is under way here."""
        return bool(self._tasks or self.load.alone)

    def held(self) -> dict[str, dict[int, int]]:
        """The claims of this process that are to be renewed, by run, as index and token; none while it drains."""
        if self.draining:
            return {}
        return {run.manifest.run_id: dict(run.claims.held) for run in self.runs.known()}

    def about(self) -> dict[str, Any]:
        """What the heartbeat tells of this worker. `stalled`: seconds since an attempt ended, 0 with none under way."""
        now = time.monotonic()
        if not self.active or self.done != self._progress[0]:
            self._progress = (self.done, now)
        return {
            "name": self.name,
            "protocol": PROTOCOL,
            "version": version("skill-uplift"),
            "in_flight": self.in_flight,
            "slots": self.settings.in_flight,
            "done": self.done,
            "stalled": round(now - self._progress[1], 1),
            "lacks": absent(os.environ),
            "serves": self._serves,
        }

    def waits(self, run: Run) -> AbstractContextManager[None]:
        """Let an attempt of a run wait in the block without keeping others from their turn."""
        return self.load.waits(run.manifest.lane, self._share(run, 1))

    def count(self, run_id: str, record: AttemptRecord, bill: Bill, result: StoreResult) -> None:
        """Note that an attempt has ended here."""
        self.done += 1
        self.tally.add(run_id, record, bill, result)

    def _tell(self, client: redis.Redis) -> None:
        """Write for those who watch a run what is in flight here."""
        grids = {run.manifest.run_id: run.grid for run in self.runs.known()}
        held = {run_id: claims for run_id, claims in self.held().items() if run_id in grids}
        pipe = client.pipeline(transaction=False)
        self._teller.tell(pipe, grids, held, time.monotonic())
        try:
            pipe.execute()
        # The next second tells more than this one would have; renewing the claims says what is wrong.
        except redis.RedisError as problem:
            log.debug("watchers not told: %s", problem)

    def _tell_held(self, client: redis.Redis) -> None:
        """Say which messages this worker has taken; what it does not say is put back for others."""
        taken, now = self.taken, time.monotonic()
        if not self.draining and (taken != self._told[0] or now - self._told[1] >= self.heartbeat.seconds):
            tell_held(client, self.name, taken, self.settings.lease_seconds)
            self._told = taken, now

    def run_batch(self, batch: Batch, *, give_up: str | None = None) -> int:
        """Run a batch and wait; returns how many records it stored. Raises Drained when the worker must stop.

        With `give_up`, no attempt is made: those that are still wanted get this text as the error of their record.
        """
        return int(self._wait(self._tracked(batch, give_up)))

    def leave_to_others(self, run_id: str, why: NotServed) -> bool:
        """Note that this worker leaves a run, with one line; False where the run is over."""
        if run_id not in self._left_to_others:
            self._left_to_others.add(run_id)
            log.warning("%s; its batches are left to other workers", why, extra={"run": run_id})
        return Store(self.client).refuse(run_id, self.name, why)

    def drain(self) -> None:
        """Give back everything that is still running: cancel, drop the claims, let the batches be requeued.

        What does not end within CANCEL_SECONDS loses its claims all the same: somebody else starts it.
        """
        self.draining = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(CANCEL_SECONDS)
        kill_programs()
        # Whoever stopped us will not wait for long; claims that cannot be dropped now run out by themselves.
        with suppress(redis.RedisError):
            for run in self.runs.known():
                drop_all(self.client, run.manifest.run_id, self.name, run.claims.asked)

    def close(self) -> None:
        self.heartbeat.stop()
        if self._thread.is_alive():
            self._wait(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
        if not self._thread.is_alive() and not self._loop.is_closed():
            self._loop.close()
        self.client.close()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _close(self) -> None:
        await self.turns.close()
        await self.runs.close()
        await self._client.aclose()

    async def _cancel_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A claim that was on its way when its attempt was cancelled still reaches the server.
        if runs := self.runs.known():
            await asyncio.wait([asyncio.ensure_future(run.claims.settle()) for run in runs], timeout=1)

    async def _tracked(self, batch: Batch, give_up: str | None) -> int:
        if self.draining:
            raise Drained
        task = asyncio.create_task(self._batch(batch, give_up))
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            raise Drained from None
        finally:
            self._tasks.discard(task)

    async def _batch(self, batch: Batch, give_up: str | None) -> int:
        at_work.set((batch.run_id, None))
        try:
            async with self.runs.use(batch.run_id) as run:
                if not all(0 <= index < run.grid.attempts for index in batch.indexes):
                    log.warning("a batch of attempts that run %s does not have is thrown away", batch.run_id)
                    return 0
                questions = await run.questions(batch.indexes)
                self.check_draining()
                for model in {question.model for question in questions}:
                    run.prepare(model)
                share = self._share(run, len(batch.indexes))
                self.load.add(share)
                try:
                    return await self._all(run, batch, questions, give_up)
                finally:
                    self.load.remove(share)
        except RunGone as problem:
            log.warning("batch of run %s is left out: %s", batch.run_id, problem)
            return 0

    async def _all(self, run: Run, batch: Batch, questions: list[Question], give_up: str | None) -> int:
        """Run all attempts of a batch to their end, even when one of them cannot reach the store any more."""

        async def one(question: Question, index: int) -> int:
            at_work.set((batch.run_id, question))  # this attempt's alone: each has a task of its own
            attempt = Attempt(self, run, question, index, batch.round, quarantine=batch.quarantine)
            return await (attempt.make() if give_up is None else attempt.give_up(give_up))

        ended = await asyncio.gather(
            *(one(question, index) for question, index in zip(questions, batch.indexes, strict=True)),
            return_exceptions=True,
        )
        for problem in ended:
            if isinstance(problem, BaseException):
                raise problem
        return sum(cast("list[int]", ended))

    def _share(self, run: Run, attempts: int) -> float:
        models = run.manifest.models
        agents = sum(run.terms(model).is_agent for model in models) / len(models)
        per_attempt = agents / self.settings.agent_in_flight + (1 - agents) / self.settings.in_flight
        return attempts * per_attempt

    def check_draining(self) -> None:
        """Python 3.11's `asyncio.wait_for`, which redis calls, can lose a cancellation that comes as it ends."""
        if self.draining:
            raise asyncio.CancelledError


def too_often(engine: Engine, run_id: str, name: str, problem: Exception) -> bool:
    """Count that a message is about to be handed back; whether this was the last time.

    The type of the problem is the reason: its words may name a time or a place that is never the same. While the
    server takes no note, nothing is given up.
    """
    try:
        times = Store(engine.client).count_hand_back(run_id, name, type(problem).__name__)
    except redis.RedisError:
        return False
    return times >= MOST_HAND_BACKS

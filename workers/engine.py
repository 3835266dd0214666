"""The asyncio loop of a worker process, on which all its attempts run; Celery's threads only wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import redis
import redis.asyncio

from aggregate.records import AttemptRecord
from workers import attempt as attempts
from workers import recording
from workers.attempt import Answer, Attempt
from workers.bundles import BundleError
from workers.claims import Claim, Finished, Wanted, drop_all
from workers.lease import Keeper
from workers.runs import Run, RunGone, Runs
from workers.server import connect, connect_insisting
from workers.settings import Settings
from workers.store import WORKING_DAYS, pack
from workers.stored import Stored
from workers.tally import Tally
from workers.turns import Halted, Turns, estimate, note, note_cost
from workers.workspace import Workspace

log = logging.getLogger(__name__)

LONGEST_WAIT = 2.0
BUDGET_SECONDS = (0.1, 0.3)


class Drained(Exception):
    """The worker is shutting down and hands this batch back."""


@dataclass(frozen=True)
class Batch:
    """Attempts that travel in one message; `round` counts the tries that a run gives its errors."""

    run_id: str
    round: int
    indexes: tuple[int, ...]
    quarantine: bool = False


class Load:
    """How much of its capacity this process has promised: 1.0 is as much as can be in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches = 0
        self.share = 0.0
        self.last_share = 0.0

    def add(self, share: float) -> None:
        with self._lock:
            self.batches += 1
            self.share += share
            self.last_share = share

    def remove(self, share: float) -> None:
        with self._lock:
            self.batches -= 1
            self.share = self.share - share if self.batches else 0.0

    def room(self, most: float = 1.5) -> int:
        """How many messages a worker may hold: what it has, and as many like the last as fit below `most`.

        Hoarding would leave nothing to workers that join late.
        """
        with self._lock:
            if not self.batches:
                return max(1, math.ceil(most / self.last_share)) if self.last_share else 1
            return self.batches + max(0, math.ceil((most - self.share) / max(self.last_share, 1e-6)))


class Engine:
    """One per process: the loop, its Redis connection, the slots and the runs that are known here."""

    def __init__(self, settings: Settings, *, public: bool = True) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.load = Load()
        self.done = 0
        self._loop = asyncio.new_event_loop()
        self._client = connect_insisting(settings.broker)
        self.tally = Tally()
        self._turns = Turns(self._client, settings, self.tally)
        self.runs = Runs(self._client, self.name, lease_seconds=settings.lease_seconds)
        self._tasks: set[asyncio.Task[int]] = set()
        self.draining = False
        self.alone = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="uplift-loop", daemon=True)
        self._thread.start()
        self.keeper = Keeper(self, self._loop, public=public)
        self.keeper.start()

    @property
    def in_flight(self) -> int:
        return self._turns.used

    @property
    def active(self) -> bool:
        """Whether any batch is under way here."""
        return bool(self._tasks or self.alone)

    def held(self) -> dict[str, dict[int, int]]:
        """The claims of this process, by run, as index and token."""
        return {run.manifest.run_id: dict(run.claims.held) for run in self.runs.known()}

    def about(self) -> dict[str, Any]:
        """What this worker says of itself to whoever counts workers."""
        slots = self.settings.in_flight
        return {"name": self.name, "in_flight": self.in_flight, "slots": slots, "done": self.done}

    def run_batch(self, batch: Batch) -> int:
        """Run a batch and wait; returns how many records it stored. Raises Drained when the worker must stop."""
        return int(self._wait(self._tracked(batch)))

    def drain(self) -> None:
        """Give back everything that is still running: cancel, drop the claims, let the batches be requeued."""
        self.draining = True
        self._wait(self._cancel_all())
        # Whoever stopped us will not wait for long; claims that cannot be dropped now run out by themselves.
        client = connect(self.settings.broker, timeout_seconds=5, retries=1)
        with suppress(redis.RedisError):
            for run in self.runs.known():
                drop_all(client, run.manifest.run_id, self.name)
        client.close()

    def close(self) -> None:
        self.keeper.stop()
        if self._thread.is_alive():
            self._wait(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
        if not self._thread.is_alive() and not self._loop.is_closed():
            self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _close(self) -> None:
        await self._turns.close()
        await self.runs.close()
        await self._client.aclose()

    async def _cancel_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A claim that was on its way when its attempt was cancelled still reaches the server.
        if runs := self.runs.known():
            await asyncio.wait([asyncio.ensure_future(run.claims.settle()) for run in runs], timeout=1)

    async def _tracked(self, batch: Batch) -> int:
        if self.draining:
            raise Drained
        task = asyncio.create_task(self._batch(batch))
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            raise Drained from None
        finally:
            self._tasks.discard(task)

    async def _batch(self, batch: Batch) -> int:
        try:
            run = await self.runs.get(batch.run_id)
            cells = [run.grid.cell(index) for index in batch.indexes]
            await run.fetch_tasks({cell.task for cell in cells})
            self._check_draining()
        except (RunGone, BundleError) as problem:
            log.warning("batch of run %s is left out: %s", batch.run_id, problem)
            return 0
        share = self._share(run, batch)
        self.load.add(share)
        try:
            return await self._all(run, batch)
        finally:
            self.load.remove(share)

    async def _all(self, run: Run, batch: Batch) -> int:
        """Run all attempts of a batch to their end, even when one of them cannot reach the store any more."""
        attempts_of = (self._attempt(run, batch, index) for index in batch.indexes)
        ended = await asyncio.gather(*attempts_of, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, BaseException):
                raise problem
        return sum(cast("list[int]", ended))

    def _share(self, run: Run, batch: Batch) -> float:
        agents = sum(map(run.is_agent, run.manifest.models)) / len(run.manifest.models)
        per_attempt = agents / self.settings.agent_in_flight + (1 - agents) / self.settings.in_flight
        return len(batch.indexes) * per_attempt

    async def _attempt(self, run: Run, batch: Batch, index: int) -> int:
        cell = run.grid.cell(index)
        attempt = Attempt.at(run, cell, await run.task(cell.task))
        run.prepare(attempt.model)
        workspace: Workspace | Stored | None = None
        if run.manifest.rejudged_from is not None:
            workspace = Stored(run, index)
        elif run.is_agent(attempt.model):
            workspace = Workspace(attempt.task, run.fixtures)
        try:
            while True:
                claim, answer = await self._asked(run, batch, index, attempt, workspace)
                if claim.code != "held":
                    break
                # Somebody else has it: its record will make this delivery idle, or its lease will run out.
                await asyncio.sleep(min(claim.wait_seconds + 0.05, LONGEST_WAIT))
            if claim.code == "poison":
                record = recording.poisoned(attempt, run, claim, self.name)
            elif answer is not None:
                record = await self._judged_safely(run, attempt, claim, answer, workspace)
            else:
                return 0
            note_cost(run, attempt, _cost(record))
            return await self._store(run, batch, index, claim, record)
        finally:
            if workspace is not None:
                await asyncio.to_thread(workspace.close)

    async def _asked(
        self, run: Run, batch: Batch, index: int, attempt: Attempt, workspace: Workspace | Stored | None
    ) -> tuple[Claim, Answer | None]:
        """Wait for a turn, claim, ask; without an answer where the claim was refused."""
        try:
            async with self._turns.turn(run, attempt) as turn:
                wanted = Wanted(index, batch.round, batch.quarantine, estimate(run, attempt))
                # The server is what changes, so there is no event to wait for.
                while (claim := await run.claims.claim(wanted)).code == "full":  # noqa: ASYNC110
                    await asyncio.sleep(random.uniform(*BUDGET_SECONDS))
                if claim.code in ("halted", "budget"):
                    run.halted.set()
                self._check_draining()
                if claim.code == "go" and isinstance(workspace, Stored):
                    turn.answer = await workspace.answer(attempt)
                elif claim.code == "go":
                    folder = workspace.folder if workspace else None
                    turn.answer = await attempts.ask(attempt, run, claim, turn.again, folder)
        except Halted:
            return Claim("halted"), None
        if turn.answer is not None:
            await note(run, attempt, turn.answer)
        return claim, turn.answer

    def _check_draining(self) -> None:
        """Python 3.11's `asyncio.wait_for`, which redis calls, can lose a cancellation that comes as it ends."""
        if self.draining:
            raise asyncio.CancelledError

    async def _judged_safely(
        self, run: Run, attempt: Attempt, claim: Claim, answer: Answer, workspace: Workspace | Stored | None
    ) -> AttemptRecord:
        """Whatever breaks once an answer is paid for becomes its record: handing it back would pay again, for ever."""
        try:
            return await self._judged(run, attempt, claim, answer, workspace)
        except redis.RedisError:
            raise
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"[: attempts.MAX_ERROR_CHARACTERS]
            broken = replace(answer, outcome="error", error=text)
            return recording.record(attempt, run, claim, broken, None, self.name)

    async def _judged(
        self, run: Run, attempt: Attempt, claim: Claim, answer: Answer, workspace: Workspace | Stored | None
    ) -> AttemptRecord:
        left, kept = None, None
        if workspace is not None and answer.outcome is None:
            left, bundle = await asyncio.to_thread(workspace.left)
            if bundle is not None:
                kept = bundle.digest
                await run.client.set(f"uplift:bundle:{kept}", bundle.data, ex=WORKING_DAYS * 86_400)
        judged = None
        if answer.outcome is None:
            judged = await attempts.judge(attempt, run, answer, self._turns.judging, left)
        return recording.record(attempt, run, claim, answer, judged, self.name, kept)

    async def _store(self, run: Run, batch: Batch, index: int, claim: Claim, record: AttemptRecord) -> int:
        finished = Finished(
            index=index,
            token=claim.token,
            round=batch.round,
            outcome=record.outcome,
            cost=_cost(record),
            arm=index % run.grid.arms,
            payload=pack(record),
        )
        stored = await run.claims.store(finished)
        self.tally.add(run.manifest.run_id, record, finished.cost, stored)
        self.done += 1
        return int(stored in ("stored", "replaced"))


def _cost(record: AttemptRecord) -> float | None:
    """All that an attempt cost, its judges included; None where nothing is known."""
    known = [judgment.cost_usd for judgment in record.judgments if judgment.cost_usd is not None]
    said = record.completion
    if said is not None and said.cost_source == "replay":
        known.append(0.0)  # that was paid before
    elif said is not None and said.cost_usd is not None:
        known.append(said.cost_usd)
    return sum(known) if known else None

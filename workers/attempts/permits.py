"""Permission to call a model: a slot of this process first, then the model's limits over all workers.

Slots are given to runs in turn, so that a small run need not wait for a big one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import redis.asyncio

from workers.attempts.run_context import Question, Run
from workers.attempts.shared_limits import ModelLimits, Permit, estimated_tokens, limits_for
from workers.attempts.tally import Bill, Tally
from workers.models.model import ModelFailed
from workers.store.keys import Keys
from workers.store.messages import NO_LIMITS, Limits
from workers.store.settings import ProcessSettings


class FairSlots:
    """A semaphore whose free slots go to the runs that wait in turn, and within a run to whoever came first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, run_id: str) -> AsyncIterator[None]:
        await self._acquire(run_id)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, run_id: str) -> None:
        if self.used < self.slots:
            self.used += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            # The slot may have been handed over in the very moment of the cancellation.
            if future.done() and not future.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        self.used -= 1
        while self._waiting:
            run_id, queue = next(iter(self._waiting.items()))
            self._waiting.move_to_end(run_id)
            future = queue.popleft()
            if not queue:
                del self._waiting[run_id]
            if not future.done():
                self.used += 1
                future.set_result(None)
                return


LOOK_SECONDS = 2.0


class Halted(Exception):
    """The run takes no new attempts."""


class Turn:
    """One attempt's leave to ask; `again` is for asking the same thing once more."""

    def __init__(self, shared: ModelLimits, permit: Permit, run: Run, retried: Callable[[], None]) -> None:
        self._shared = shared
        self._run = run
        self._retried = retried
        self._slot = permit
        self._last: Permit | None = permit
        self._told = Bill()
        self.bill: Bill | None = None

    async def again(self) -> float:
        """Wait for leave to repeat the call, in the slot that is ours already; returns the seconds waited."""
        self._retried()
        await self._tell_used()
        pace = Limits(rpm=self._slot.limits.rpm, tpm=self._slot.limits.tpm)
        slot = self._slot
        try:
            permit = await _unless_halted(self._run, self._shared, slot.model, pace, slot.estimated_tokens)
        except Halted:
            raise ModelFailed("the run was stopped before the call could be repeated") from None
        self._last = permit
        return permit.waited

    async def end(self) -> None:
        """Give everything back, and correct the pace by what was used."""
        try:
            await self._tell_used()
        finally:
            await self._shared.release(self._slot)

    async def _tell_used(self) -> None:
        """Say what the last call used; one of which nobody knows used what was set aside for it."""
        if self._last is None:  # told already: whoever waits for the next call has none to tell of
            return
        now, before = self.bill or Bill(), self._told
        if now.calls == before.calls:
            await self._shared.used(self._last, None)
        elif now.uncounted == before.uncounted:
            await self._shared.used(self._last, now.tokens - before.tokens)
        self._told, self._last = replace(now), None


class Turns:
    """Gives leave to ask, in this process; `used` counts what is in flight."""

    def __init__(self, client: redis.asyncio.Redis, settings: ProcessSettings, tally: Tally) -> None:
        self._tally = tally
        self._slots = FairSlots(settings.in_flight)
        self._agent_slots = FairSlots(settings.agent_in_flight)
        self._lines: dict[str, FairSlots] = {}
        self._limits = ModelLimits(client, lease_seconds=settings.lease_seconds)

    @property
    def used(self) -> int:
        return self._slots.used + self._agent_slots.used

    async def close(self) -> None:
        await self._limits.close()

    @asynccontextmanager
    async def turn(self, run: Run, question: Question) -> AsyncIterator[Turn]:
        """Wait for a slot and then for the model's limit; both are given back when the block ends.

        Whoever waits for a limit holds a slot, so only one attempt of a model does: the others stand in line
        without one, and leave the slots to other models. Raises Halted when the run is halted while we wait.
        """
        spec, settings, run_id = question.model, run.settings, run.manifest.run_id
        # A stored answer is not asked for again, so the model's limit does not hold it up.
        limits = limits_for(spec, settings) if run.source_of_answers(spec) is None else NO_LIMITS
        tokens = estimated_tokens(run.prompt_and_skill(question)[0], settings) if limits.tpm else 0
        slots = self._agent_slots if run.is_agent(spec) else self._slots
        async with AsyncExitStack() as held:
            async with AsyncExitStack() as line:
                if not limits.none:
                    first = self._lines.setdefault(spec, FairSlots(1))
                    await line.enter_async_context(first.slot(run_id))
                await held.enter_async_context(slots.slot(run_id))
                await self._check(run)
                permit = await _unless_halted(run, self._limits, spec, limits, tokens)
            turn = Turn(self._limits, permit, run, self._retried(run, spec))
            held.push_async_callback(turn.end)
            yield turn

    @asynccontextmanager
    async def judging(self, run: Run, spec: str, prompt: str) -> AsyncIterator[Turn]:
        """Wait for the limit of a model that judges. No slot: the answer is there and wants to be judged."""
        limits = limits_for(spec, run.settings)
        tokens = estimated_tokens(prompt, run.settings) if limits.tpm else 0
        permit = await self._limits.acquire(spec, limits, tokens)
        turn = Turn(self._limits, permit, run, self._retried(run, spec))
        try:
            yield turn
        finally:
            await turn.end()

    def _retried(self, run: Run, spec: str) -> Callable[[], None]:
        return lambda: self._tally.retried(run.manifest.run_id, spec)

    async def _check(self, run: Run) -> None:
        if run.halted.is_set():
            if await is_halted(run):
                raise Halted
            run.halted.clear()  # it was resumed


async def is_halted(run: Run) -> bool:
    """Ask the store whether the run takes no new attempts."""
    halt, sealed = await run.client.hmget(Keys(run.manifest.run_id).state, ["halt", "sealed"])
    return bool(halt) or sealed != b"0"


async def _unless_halted(run: Run, shared: ModelLimits, model: str, limits: Limits, tokens: int) -> Permit:
    """Wait for a model's limit; raises Halted when the run is halted meanwhile."""
    acquire = shared.acquire(model, limits, tokens)
    if limits.none:
        return await acquire
    waiting = asyncio.ensure_future(acquire)
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=LOOK_SECONDS)
            if not waiting.done() and await is_halted(run):
                run.halted.set()
                raise Halted
        return waiting.result()
    except BaseException:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # Given while we looked, and wanted by nobody: it would be renewed for ever.
        if not waiting.cancelled() and waiting.exception() is None:
            await shared.used(waiting.result(), None)
            await shared.release(waiting.result())
        raise

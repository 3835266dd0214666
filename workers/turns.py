"""Leave to ask a model: its limits over all workers first, then a slot of this process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio

from workers.attempt import Answer, Attempt, prompt_and_skill
from workers.limits import ModelLimits, Permit, estimated_tokens, limits_for
from workers.messages import NO_LIMITS, Limits
from workers.models.choose import graders, is_simulated
from workers.models.prices import attempt_estimate
from workers.runs import Run
from workers.settings import Settings
from workers.slots import FairSlots
from workers.store import Keys
from workers.tally import Tally

LOOK_SECONDS = 2.0


class Halted(Exception):
    """The run takes no new attempts."""


class Turn:
    """One attempt's leave to ask; `again` is for asking the same thing once more."""

    def __init__(
        self, shared: ModelLimits, model: str, limits: Limits, tokens: int, retried: Callable[[], None]
    ) -> None:
        self._shared = shared
        self._retried = retried
        self._model = model
        self._limits = limits
        self._tokens = tokens
        self.answer: Answer | None = None

    async def again(self) -> float:
        """Wait for leave to repeat the call, in the slot that is ours already; returns the seconds waited."""
        self._retried()
        pace = Limits(rpm=self._limits.rpm, tpm=self._limits.tpm)
        return (await self._shared.acquire(self._model, pace, self._tokens)).waited

    def used_tokens(self) -> int | None:
        """What the call used; 0 where none was made, None where nobody knows."""
        if self.answer is None:
            return 0
        said = self.answer.completion
        if said is None or said.input_tokens is None or said.output_tokens is None:
            return None
        return said.input_tokens + said.output_tokens


class Turns:
    """Gives leave to ask, in this process; `used` counts what is in flight."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings, tally: Tally) -> None:
        self._tally = tally
        self._slots = FairSlots(settings.in_flight)
        self._agent_slots = FairSlots(settings.agent_in_flight)
        self._limits = ModelLimits(client, lease_seconds=settings.lease_seconds)

    @property
    def used(self) -> int:
        return self._slots.used + self._agent_slots.used

    async def close(self) -> None:
        await self._limits.close()

    @asynccontextmanager
    async def turn(self, run: Run, attempt: Attempt) -> AsyncIterator[Turn]:
        """Wait for the model's limit and then for a slot; both are given back when the block ends.

        Raises Halted when the run is halted while we wait: a limit can mean waiting for hours.
        """
        spec, settings = attempt.model, run.settings
        # A stored answer is not asked for again, so the model's limit does not hold it up.
        limits = limits_for(spec, settings) if run.manifest.rejudged_from is None else NO_LIMITS
        tokens = estimated_tokens(attempt.task.prompt, settings) if limits.tpm else 0
        await self._check(run)
        permit = await _unless_halted(run, self._limits.acquire(spec, limits, tokens), limits)
        turn = Turn(self._limits, spec, limits, tokens, self._retried(run, spec))
        slots = self._agent_slots if run.is_agent(spec) else self._slots
        try:
            async with slots.slot(run.manifest.run_id):
                yield turn
        finally:
            await self._limits.release(permit, turn.used_tokens())

    @asynccontextmanager
    async def judging(self, run: Run, spec: str, prompt: str) -> AsyncIterator[Turn]:
        """Wait for the limit of a model that judges. No slot: the answer is there and wants to be judged."""
        limits = limits_for(spec, run.settings)
        tokens = estimated_tokens(prompt, run.settings) if limits.tpm else 0
        permit = await self._limits.acquire(spec, limits, tokens)
        try:
            yield Turn(self._limits, spec, limits, tokens, self._retried(run, spec))
        finally:
            await self._limits.release(permit)

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


async def _unless_halted(run: Run, acquire: Coroutine[Any, Any, Permit], limits: Limits) -> Permit:
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
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


def estimate(run: Run, attempt: Attempt) -> float:
    """What an attempt may cost, to be reserved: the largest seen here, at first the longest answer's price.

    Rounded up to two digits: equal estimates are claimed together.
    """
    if run.manifest.budget_usd is None:
        return 0.0
    seen = run.largest_costs.get(attempt.model)
    if seen is not None:
        return _rounded_up(seen)
    prompt, _ = prompt_and_skill(attempt, run)
    judging = graders(attempt.task, attempt.model, run.manifest.judge_model)
    # A model without a price is refused before the run starts.
    return _rounded_up(attempt_estimate(attempt.model, len(prompt), judging, run.settings) or 0.0)


def _rounded_up(amount: float) -> float:
    if amount <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return math.ceil(amount / digit) * digit


def note_cost(run: Run, attempt: Attempt, cost: float | None) -> None:
    """Remember the dearest attempt of a model: the next ones reserve as much."""
    if cost is not None:
        run.largest_costs[attempt.model] = max(cost, run.largest_costs.get(attempt.model, 0.0))


async def note(run: Run, attempt: Attempt, answer: Answer) -> None:
    """End the run when its model cannot answer anybody."""
    if answer.hopeless:
        why = await run.breaker.failed(attempt.model, answer.error or "")
        if why is not None:
            run.halted.set()
            await run.client.hset(Keys(run.manifest.run_id).state, mapping={"halt": "hopeless", "why": why})
    elif answer.outcome is None and not is_simulated(attempt.model):
        await run.breaker.answered(attempt.model)

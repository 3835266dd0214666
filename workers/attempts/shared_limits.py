"""Hold a model's limits over all workers together, and give up on a model that cannot answer.

Rates are paced, not bucketed: calls are spread evenly, so that no sixty seconds hold more than `rpm` of them or
more than `tpm` tokens, whichever workers they come from. A call's leave is taken when it starts, never ahead. In-flight
slots are leases; those of a dead worker come back by themselves.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import redis.asyncio

from workers.store.keys import WORKING_SECONDS, script
from workers.store.keys import limits as limit_keys
from workers.store.messages import Limits, ModelSettings

# A second more than a minute: a call reaches the model a little after its leave, the first one later than others.
MINUTE_SECONDS = 61.0
# Somebody else's call may use less than was set aside for it, so that we may start sooner than we were told.
_LOOK_SECONDS = 1.0
_POLL_SECONDS = (0.02, 0.06)
_TELL_SECONDS = 1.0
_LIKELY_ANSWER = 1000

Sleep = Callable[[float], Awaitable[None]]


def limits_for(model: str, settings: ModelSettings) -> Limits:
    """A model's own limits, or the run's default ones."""
    return settings.limits.get(model, settings.default_limits)


def estimated_tokens(prompt: str, settings: ModelSettings) -> int:
    """What a call may use, before it is made: its prompt at four characters a token, and its longest answer."""
    longest = settings.params.get("max_tokens")
    return len(prompt) // 4 + (longest if isinstance(longest, int) else _LIKELY_ANSWER)


@dataclass(frozen=True)
class Permit:
    """Leave to make one call, with `aside` tokens for it; no deadline should count the `waited` seconds."""

    model: str
    token: str
    estimated_tokens: int
    waited: float
    limits: Limits
    aside: int = 0


class ModelLimits:
    """The limits as one worker process sees them; use it on one event loop and close it at the end.

    Tests may shorten the minute, or bring a clock of their own (in seconds) that their `sleep` moves on.
    """

    def __init__(
        self,
        server: redis.asyncio.Redis,
        *,
        lease_seconds: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] | None = None,
        minute_seconds: float = MINUTE_SECONDS,
    ) -> None:
        self._server = server
        self._lease = lease_seconds
        self._sleep = sleep
        self._clock = clock
        self._minute = round(minute_seconds * 1_000_000)
        self._script = server.register_script(script("limit"))
        self._used = server.register_script(script("used"))
        self._held: dict[str, str] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._keeper: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def permit(self, model: str, limits: Limits, estimated_tokens: int = 0) -> AsyncIterator[Permit]:
        """Wait for leave to call, and give the slot back when the call is over."""
        permit = await self.acquire(model, limits, estimated_tokens)
        try:
            yield permit
        finally:
            await self.release(permit)

    async def acquire(self, model: str, limits: Limits, estimated_tokens: int = 0) -> Permit:
        """Wait until one more call of the model may start; without limits, at once and without asking Redis.

        One waiter per process asks, the others queue behind it.
        """
        if limits.none:
            return Permit(model, "", estimated_tokens, 0.0, limits)
        started = time.monotonic()
        token = uuid4().hex
        arguments: list[Any] = [token, round(self._lease * 1000), limits.max_in_flight or 0, limits.rpm or 0]
        arguments += [limits.tpm or 0, estimated_tokens, self._minute]
        keys = limit_keys(model)
        async with self._turns.setdefault(model, asyncio.Lock()):
            while True:
                now = round(self._clock() * 1_000_000) if self._clock is not None else 0
                wait, aside = await _sent(self._script(keys=keys, args=[*arguments, now]))
                if wait == 0:
                    break
                pause = random.uniform(*_POLL_SECONDS) if wait < 0 else min(wait / 1_000_000, _LOOK_SECONDS)
                await self._sleep(pause)
        if limits.max_in_flight:
            self._held[token] = model
            if self._keeper is None:
                self._keeper = asyncio.create_task(self._keep())
        return Permit(model, token, estimated_tokens, time.monotonic() - started, limits, aside)

    async def release(self, permit: Permit) -> None:
        """Give the slot back."""
        await self._drop(permit.model, permit.token)

    async def used(self, permit: Permit, tokens: int | None) -> None:
        """Replace what was set aside by what the call used; None where it was not made at all."""
        rpm, tpm = permit.limits.rpm or 0, permit.limits.tpm or 0
        if tpm or (rpm and tokens is None):
            _, *keys = limit_keys(permit.model)
            told: list[Any] = [permit.token, permit.aside, -1 if tokens is None else tokens]
            told += [permit.estimated_tokens, tpm, rpm, self._minute]
            await _sent(self._used(keys=keys, args=told))

    async def close(self) -> None:
        """Stop refreshing, and give back every slot that is still held."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for token, model in list(self._held.items()):
            await self._drop(model, token)

    async def _drop(self, model: str, token: str) -> None:
        if self._held.pop(token, None) is not None:
            await _sent(self._server.zrem(limit_keys(model)[0], token))

    async def _keep(self) -> None:
        """Refresh the leases of what is held; a worker that dies stops doing so."""
        while True:
            await asyncio.sleep(self._lease / 3)
            # A server that is away for a moment must not end the refreshing for good.
            with suppress(redis.RedisError):
                seconds, micros = cast(tuple[int, int], await _sent(self._server.time()))
                until = seconds * 1_000_000 + micros + round(self._lease * 1_000_000)
                pipeline = self._server.pipeline(transaction=False)
                for token, model in self._held.items():
                    slots, *_ = limit_keys(model)
                    pipeline.zadd(slots, {token: until}, xx=True)
                    pipeline.pexpire(slots, round(self._lease * 2000))
                await pipeline.execute()


class Breaker:
    """Ends a run whose model cannot answer, after a few attempts instead of all of them."""

    BEFORE_ANY_ANSWER = 5
    AFTER_AN_ANSWER = 50

    def __init__(self, server: redis.asyncio.Redis, key: str) -> None:
        self._server = server
        self._key = key
        self._script = server.register_script(script("breaker"))
        self._told: dict[str, float] = {}

    async def failed(self, model: str, message: str) -> str | None:
        """Count a hopeless failure; the one clear message if the run should end now, else None."""
        words = f"{model} cannot answer: {message}"
        arguments: list[Any] = [
            model,
            words,
            self.BEFORE_ANY_ANSWER,
            self.AFTER_AN_ANSWER,
            WORKING_SECONDS,
        ]
        opened = await _sent(self._script(keys=[self._key], args=arguments))
        return (opened.decode() if isinstance(opened, bytes) else str(opened)) or None

    async def answered(self, model: str) -> None:
        """Note that the model does answer; the server is told at most once a second."""
        now = time.monotonic()
        if model in self._told and now - self._told[model] < _TELL_SECONDS:
            return
        self._told[model] = now
        values = {f"answered {model}": 1, f"failures {model}": 0}
        await _sent(self._server.hset(self._key, mapping=cast(Any, values)))
        await _sent(self._server.expire(self._key, WORKING_SECONDS))


async def _sent(reply: Any) -> Any:
    # redis-py types its commands for both its clients at once.
    return await cast(Awaitable[Any], reply)

"""Hold a model's limits over all workers together, and give up on a model that cannot answer.

Rates are paced, not bucketed: calls are spread evenly, so that no sixty seconds hold more than `rpm` of them,
whichever workers they come from. In-flight slots are leases; those of a dead worker come back by themselves.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast
from uuid import uuid4

import redis.asyncio

from workers.messages import Limits, ModelSettings

_MINUTE = 60_000_000
# A hair more than the even share, or a window of exactly a minute could hold one call too many.
_MARGIN = 1.001
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
    """Leave to make one call; `waited` seconds passed until it was given, which no deadline should count."""

    model: str
    token: str
    estimated_tokens: int
    waited: float
    limits: Limits


class ModelLimits:
    """The limits as one worker process sees them; use it on one event loop and close it at the end."""

    def __init__(
        self, server: redis.asyncio.Redis, *, lease_seconds: float = 30.0, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._server = server
        self._lease = lease_seconds
        self._sleep = sleep
        self._script = server.register_script(_lua("limit"))
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
        """Wait until one more call of the model may start; without limits, at once and without asking Redis."""
        if limits.none:
            return Permit(model, "", estimated_tokens, 0.0, limits)
        started = time.monotonic()
        token = uuid4().hex
        wait = await self._turn(model, limits, token, estimated_tokens)
        try:
            if wait > 0:
                await self._sleep(wait)
        except asyncio.CancelledError:
            await self._drop(model, token)
            raise
        return Permit(model, token, estimated_tokens, time.monotonic() - started, limits)

    async def release(self, permit: Permit, used_tokens: int | None = None) -> None:
        """Give the slot back; `used_tokens`, where known, replace the estimate in the pace."""
        await self._drop(permit.model, permit.token)
        if permit.limits.tpm and used_tokens is not None and used_tokens != permit.estimated_tokens:
            correction = (used_tokens - permit.estimated_tokens) * _MINUTE / permit.limits.tpm
            await _sent(self._server.hincrby(_pace(permit.model), "tokens", round(correction)))

    async def close(self) -> None:
        """Stop refreshing, and give back every slot that is still held."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for token, model in list(self._held.items()):
            await self._drop(model, token)

    async def _turn(self, model: str, limits: Limits, token: str, tokens: int) -> float:
        """Seconds to wait for our turn. One waiter per process asks for a slot, the others queue behind it."""
        arguments = [
            token,
            round(self._lease * 1000),
            limits.max_in_flight or 0,
            round(_MINUTE / limits.rpm * _MARGIN) if limits.rpm else 0,
            round(tokens * _MINUTE / limits.tpm) if limits.tpm else 0,
        ]
        async with self._turns.setdefault(model, asyncio.Lock()):
            while (wait := int(await self._run([_slots(model), _pace(model)], arguments))) < 0:
                await self._sleep(random.uniform(*_POLL_SECONDS))
        if limits.max_in_flight:
            self._held[token] = model
            if self._keeper is None:
                self._keeper = asyncio.create_task(self._keep())
        return wait / 1_000_000

    async def _run(self, keys: list[str], arguments: list[Any]) -> Any:
        return await _sent(self._script(keys=keys, args=arguments))

    async def _drop(self, model: str, token: str) -> None:
        if self._held.pop(token, None) is not None:
            await _sent(self._server.zrem(_slots(model), token))

    async def _keep(self) -> None:
        """Refresh the leases of what is held; a worker that dies stops doing so."""
        while True:
            await asyncio.sleep(self._lease / 3)
            seconds, micros = cast(tuple[int, int], await _sent(self._server.time()))
            until = seconds * 1_000_000 + micros + round(self._lease * 1_000_000)
            pipeline = self._server.pipeline(transaction=False)
            for token, model in self._held.items():
                pipeline.zadd(_slots(model), {token: until}, xx=True)
                pipeline.pexpire(_slots(model), round(self._lease * 2000))
            # A server that is away for a moment must not end the refreshing for good.
            with suppress(redis.RedisError):
                await pipeline.execute()


class Breaker:
    """Ends a run whose model cannot answer, after a few attempts instead of all of them."""

    BEFORE_ANY_ANSWER = 5
    AFTER_AN_ANSWER = 50
    _FORGET_SECONDS = 7 * 86_400

    def __init__(self, server: redis.asyncio.Redis, key: str) -> None:
        self._server = server
        self._key = key
        self._script = server.register_script(_lua("breaker"))
        self._told: dict[str, float] = {}

    async def failed(self, model: str, message: str) -> str | None:
        """Count a hopeless failure; the one clear message if the run should end now, else None."""
        words = f"{model} cannot answer: {message}"
        arguments: list[Any] = [
            model,
            words,
            self.BEFORE_ANY_ANSWER,
            self.AFTER_AN_ANSWER,
            self._FORGET_SECONDS,
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
        await _sent(self._server.expire(self._key, self._FORGET_SECONDS))


async def _sent(reply: Any) -> Any:
    # redis-py types its commands for both its clients at once.
    return await cast(Awaitable[Any], reply)


def _slots(model: str) -> str:
    return f"uplift:limits:{model}:slots"


def _pace(model: str) -> str:
    return f"uplift:limits:{model}:pace"


def _lua(name: str) -> str:
    return resources.files("workers").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")

"""End a run early whose model cannot answer: a wrong key or an unknown model fails every attempt alike."""

from __future__ import annotations

import time
from typing import Any, cast

import redis.asyncio

from workers.store.keys import WORKING_SECONDS, script

TELL_SECONDS = 1.0


class Breaker:
    """Ends a run whose model cannot answer, after a few attempts instead of all of them."""

    BEFORE_ANY_ANSWER = 5
    AFTER_AN_ANSWER = 50

    def __init__(self, server: redis.asyncio.Redis, key: str) -> None:
        self._server = server
        self._key = key
        self._script = server.register_script(script("breaker"))
        self._noted_at: dict[str, float] = {}

    async def failed(self, model: str, message: str) -> str | None:
        """Count a hopeless failure; the one clear message if the run should end now, else None."""
        words = f"{model} cannot answer: {message}"
        arguments: list[str | int] = [
            model,
            words,
            self.BEFORE_ANY_ANSWER,
            self.AFTER_AN_ANSWER,
            WORKING_SECONDS,
        ]
        opened = await self._script(keys=[self._key], args=arguments)
        return (opened.decode() if isinstance(opened, bytes) else str(opened)) or None

    async def answered(self, model: str) -> None:
        """Note that the model does answer; the server is told at most once a second."""
        now = time.monotonic()
        if model in self._noted_at and now - self._noted_at[model] < TELL_SECONDS:
            return
        self._noted_at[model] = now
        values = {f"answered {model}": 1, f"failures {model}": 0}
        await self._server.hset(self._key, mapping=cast("dict[Any, Any]", values))
        await self._server.expire(self._key, WORKING_SECONDS)

"""A model whose limits nobody told: it is asked slowly at first, less once it refuses, and more when it recovers.

Time is simulated; the provider counts for itself and knows nothing of our limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio
from standing_in import Clock

from workers.attempts.permits import ModelLimits
from workers.store.messages import Limits

MODEL = "openai:some-model"
Refusal = tuple[float | None]  # its Retry-After
Minutes = list[tuple[int, int]]  # answers and refusals of each


@dataclass
class SlidingWindow:
    """So many calls in any sixty seconds; says exactly when the next one is due, or nothing."""

    allowed: int
    tells: bool
    passed: list[float] = field(default_factory=list)

    def __call__(self, now: float) -> Refusal | None:
        self.passed = [at for at in self.passed if at > now - 60]
        if len(self.passed) >= self.allowed:
            return (self.passed[0] + 60 - now if self.tells else None,)
        self.passed.append(now)
        return None


@dataclass
class Bucket:
    """One call a second, and as many more at once as were saved up."""

    most: float
    tells: bool
    left: float = 0.0
    at: float = 0.0

    def __call__(self, now: float) -> Refusal | None:
        self.left, self.at = min(self.most, self.left + now - self.at), now
        if self.left < 1:
            return (1 - self.left if self.tells else None,)
        self.left -= 1
        return None


Provider = Callable[[float], Refusal | None]
Trial = Callable[..., Awaitable[Minutes]]


@pytest.fixture
async def trial(valkey: str) -> AsyncIterator[Trial]:
    """Ask a provider through so many workers for so many simulated minutes, as often as it is permitted."""
    clock, made = Clock(), []

    async def run(provider: Provider, workers: int, minutes: int, limits: Limits = Limits()) -> Minutes:  # noqa: B008 # frozen
        while len(made) < workers:
            made.append(ModelLimits(redis.asyncio.Redis.from_url(valkey), sleep=clock.sleep, clock=clock))
        begun, number = clock.seconds, 0
        counts = [[0, 0] for _ in range(minutes)]
        under_way: list[tuple[float, ModelLimits, Any, Refusal]] = []
        while (minute := int((clock.seconds - begun) // 60)) < minutes:
            while under_way and under_way[0][0] <= clock.seconds:
                _, worker, permit, (retry_after,) = under_way.pop(0)
                await worker.refused(permit, retry_after or 0.0)
            worker = made[number % workers]
            permit = await worker.acquire(MODEL, limits)
            await asyncio.gather(*worker._notes)
            clock.seconds += 0.004 / workers  # what a call costs here
            refusal = provider(clock.seconds)
            counts[minute][refusal is not None] += 1
            if refusal is not None:  # that takes a moment to arrive
                under_way.append((clock.seconds + 0.05, worker, permit, refusal))
            number += 1
        return [(answers, refused) for answers, refused in counts]

    yield run
    for limits in made:
        await limits.close()
        await limits._server.aclose()


@pytest.mark.parametrize(("most", "tells", "workers"), [(None, False, 3), (60.0, False, 1), (1.0, True, 3)])
async def test_a_provider_of_sixty_a_minute_is_used_well_and_seldom_refuses(
    trial: Trial, most: float | None, tells: bool, workers: int
) -> None:
    provider = Bucket(most, tells, left=most) if most else SlidingWindow(60, tells)
    minutes = await trial(provider, workers, 10)
    assert min(answers for answers, _ in minutes[2:]) >= 48, minutes
    answers, refused = map(sum, zip(*minutes, strict=True))
    assert refused < 0.1 * (answers + refused), minutes


async def test_a_provider_that_recovers_is_asked_more_again(trial: Trial) -> None:
    provider = SlidingWindow(60, tells=True)
    await trial(provider, 2, 2)
    provider.allowed = 180
    minutes = await trial(provider, 2, 6)
    assert max(answers for answers, _ in minutes) >= 120, minutes


async def test_the_providers_pace_holds_where_a_run_has_a_higher_limit_too(trial: Trial) -> None:
    minutes = await trial(SlidingWindow(60, tells=True), 2, 4, Limits(rpm=6000))
    assert min(answers for answers, _ in minutes[2:]) >= 48, minutes
    assert sum(refused for _, refused in minutes) < 0.1 * 240, minutes

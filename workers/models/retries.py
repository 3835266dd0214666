"""Ask a busy model again: at most five times, after exponential waits with full jitter.

Never sooner than the server's Retry-After.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from judges.judgment import Completion
from workers.models.model import ModelBusy

RETRIES = 5
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


async def with_retries(
    call: Callable[[], Awaitable[Completion]],
    *,
    retries: int = RETRIES,
    seconds_left: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> tuple[Completion, int]:
    """The completion and how many retries it took; raises what the last try raised.

    A wait longer than `seconds_left` is not begun, so that the attempt ends with the model's own words.
    """
    for tried in range(retries + 1):
        try:
            return await call(), tried
        except ModelBusy as busy:
            wait = wait_before(tried, busy.retry_after, uniform)
            if tried == retries or (seconds_left is not None and wait >= seconds_left()):
                busy.args = (f"{busy} (after {tried + 1} {'try' if tried == 0 else 'tries'})",)
                raise
        await sleep(wait)
    raise AssertionError("the last try returns or raises")


def wait_before(tried: int, retry_after: float | None, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait after `tried` + 1 failures; jitter on top of Retry-After, or all return at once."""
    backoff = uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2.0**tried))
    return backoff if retry_after is None else retry_after + backoff

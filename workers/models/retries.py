"""Which errors of a model are worth another try, and when: at most five, after exponential waits with full jitter.

Never sooner than the server's Retry-After. Its headers also tell how much of a limit is left.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import urlsplit

from judges.judgment import Completion
from workers.models.model import UNBILLED, ModelBusy, ModelError, ModelFailed, Room, message

RETRIES = 5
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
HOPELESS = (401, 402, 403, 404)
BUSY = frozenset({408, 409, 425, 429})
TOO_OFTEN = (429, 529)
_OUT_OF_MONEY = ("insufficient_quota", "credit balance is too low")


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
            in_vain = seconds_left is not None and wait >= seconds_left()
            busy.hopeless = busy.refused and (in_vain or tried == RETRIES)
            if tried == retries or in_vain:
                busy.args = (f"{busy} (after {tried + 1} {'try' if tried == 0 else 'tries'})",)
                raise
        await sleep(wait)
    raise AssertionError("the last try returns or raises")


def wait_before(tried: int, retry_after: float | None, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait after `tried` + 1 failures; jitter on top of Retry-After, or all return at once."""
    backoff = uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2.0**tried))
    return backoff if retry_after is None else retry_after + backoff


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (`retry-after-ms`, `Retry-After`); None if it does not."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1000
        elif (value := headers.get("retry-after")) is None:
            return None
        elif value.strip().replace(".", "", 1).isdigit():
            seconds = float(value)
        else:
            seconds = max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


# The headers of both vendors: what is left of which limit, the limit, and when it is whole again.
_ROOMS = tuple(
    (name.format("remaining"), name.format("limit"), name.format("reset"), is_calls)
    for prefix in ("anthropic-ratelimit-{}-{{}}", "x-ratelimit-{{}}-{}")
    for what, is_calls in {"requests": 1, "tokens": 0, "input-tokens": 0, "output-tokens": 0}.items()
    for name in (prefix.format(what),)
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def room(headers: Mapping[str, str]) -> Room | None:
    """What the tightest of a provider's limits has left; None where none is told."""
    rooms = []
    for remaining, limit, reset, is_calls in _ROOMS:
        try:
            most, left = float(headers[limit]), float(headers[remaining])
            seconds = _until(headers[reset])
        except (KeyError, ValueError, OverflowError):
            continue
        if 0 <= left <= most < float("inf") and most > 0 and 0 <= seconds < float("inf"):
            rooms.append(Room(left / most, most * is_calls, seconds))
    return min(rooms, key=lambda room: room.share, default=None)


def _until(text: str) -> float:
    """Seconds from a length such as 1m30.5s or 20, or to a moment such as 2026-01-31T00:00:00Z."""
    if re.fullmatch(r"(?:[0-9.]+(?:ms|[smhd]))+", text):
        return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9.]+)(ms|[smhd])", text))
    if "T" in text:
        return max(0.0, datetime.fromisoformat(text).timestamp() - time())
    return float(text)


def status_error(status: int, text: str, headers: Mapping[str, str]) -> ModelError:
    """Turn an HTTP error into ModelBusy (retry later) or ModelFailed (do not); providers bill nothing for either."""
    if 300 <= status < 400:
        where = f"HTTP {status}: the provider redirects to {_host(headers.get('location', ''))}"
        remedy = "redirects are not followed; set base_url to the address that answers"
        return ModelFailed(message(f"{where}; {remedy}"), hopeless=True, completion=UNBILLED)
    words = message(f"HTTP {status}: {text}")
    if any(sign in text for sign in _OUT_OF_MONEY):
        return ModelFailed(words, hopeless=True)
    if status in BUSY or status >= 500:
        seconds = retry_after(headers)
        refused = status in TOO_OFTEN or (status == 503 and seconds is not None)
        return ModelBusy(words, retry_after=seconds, completion=UNBILLED, refused=refused)
    return ModelFailed(words, hopeless=status in HOPELESS, completion=UNBILLED)


def _host(location: str) -> str:
    """Host and port of a redirect's goal, and no more: the rest may hold names and passwords."""
    try:
        goal = urlsplit(location)
        host, port = goal.hostname, goal.port
    except ValueError:
        return "an address that cannot be read"
    if not host:
        return "another path of the same host" if location else "nowhere"
    return f"{host}:{port}" if port else host

"""What the vendors' SDK clients share: bounded bodies and one way to name parameters.

The SDKs build requests, sign them and keep connections; retries, deadlines and limits are ours.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx2

from aggregate.ranges import COUNT
from workers.messages import ModelSettings
from workers.models import MAX_OUTPUT_BYTES, ModelFailed, Request
from workers.models.output import message

Transport = Literal["aiohttp", "httpx"]

# Escaped as JSON, a text of emoji is three times as long; the envelope around it is small.
MAX_BODY_BYTES = 3 * MAX_OUTPUT_BYTES + 65536
CONNECT_SECONDS = 15.0

# The attempt's deadline bounds an answer; only a connection that nobody accepts is given up before it.
TIMEOUT = httpx2.Timeout(None, connect=CONNECT_SECONDS)
LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=200)
HEADERS = {"Accept-Encoding": "identity"}


class _CappedStream(httpx2.AsyncByteStream):
    """Hands on at most MAX_BODY_BYTES of an answer; closing it then ends the connection."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self.inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_BODY_BYTES
        async for chunk in self.inner:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self.inner.aclose()


async def cap(response: httpx2.Response) -> None:
    """Bound an answer before its body is read; a hook for the SDK's HTTP client, errors included."""
    if response.headers.get("content-encoding", "identity") != "identity":
        # A small compressed body can unpack to gigabytes, and we asked for a plain one.
        raise httpx2.DecodingError("compressed answer, though none was asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _CappedStream(response.stream)


HOOKS = {"response": [cap]}


def read(body: bytes) -> tuple[dict[str, Any], bool]:
    """A body as JSON, and whether it was cut; of a cut body, as much as can be read."""
    import jiter

    cut = len(body) >= MAX_BODY_BYTES
    try:
        parsed = jiter.from_json(body, partial_mode="trailing-strings") if cut else json.loads(body)
    except (ValueError, RecursionError):
        raise ModelFailed(f"unreadable answer: {message(body[:200].decode('utf-8', 'replace'))}") from None
    if not isinstance(parsed, dict):
        raise ModelFailed(f"unreadable answer: a JSON {type(parsed).__name__} instead of an object")
    return parsed, cut


def parameters(settings: ModelSettings, request: Request) -> dict[str, Any]:
    """The run's parameters with the request's own on top; `system` is the request's where it has one."""
    params = {**settings.params, **request.params}
    if request.system:
        params["system"] = request.system
    return {name: value for name, value in params.items() if value is not None}


def count(value: Any) -> int | None:
    """A token count as the provider gave it, or None where it gave none that can be."""
    low, high = COUNT
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None

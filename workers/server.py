"""The Redis server itself: connecting to it, whether it can be trusted with a run, and which workers it sees."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

WORKERS = "uplift:workers"
SEEN_SECONDS = 30
FORGOTTEN_SECONDS = 3600
INSIST_SECONDS = 300
RETRIES = 6


class UnusableServer(Exception):
    """The server cannot hold a run safely, for the reason given."""


def connect(url: str, *, timeout_seconds: float = 30, retries: int = RETRIES) -> redis.Redis:
    """A client that tries again on a broken connection; every write of ours may be sent twice."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=5,
        retry=Retry(ExponentialBackoff(cap=2, base=0.05), retries),
        health_check_interval=30,
    )


def connect_insisting(url: str) -> redis.asyncio.Redis:
    """A client for attempts: a paid answer must not get lost because the server restarts or is full for a while.

    After INSIST_SECONDS it gives up, and the batch is handed back.
    """
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=30,
        socket_connect_timeout=5,
        retry=AsyncRetry(ExponentialBackoff(cap=2, base=0.05), INSIST_SECONDS // 2),
        retry_on_error=[redis.BusyLoadingError, redis.OutOfMemoryError, redis.ReadOnlyError],
        health_check_interval=30,
    )


def check(client: redis.Redis) -> list[str]:
    """Warnings about this server; an evicting one is refused, because it loses records without a word."""
    policy = _setting(client, "maxmemory-policy", "noeviction")
    if policy != "noeviction":
        raise UnusableServer(
            f"the server may evict keys (maxmemory-policy {policy}); set maxmemory-policy noeviction"
        )
    if _setting(client, "appendonly", "yes") != "yes":
        return ["the server keeps nothing over a restart (appendonly no); a run would be lost with it"]
    return []


def _setting(client: redis.Redis, name: str, unknown: str) -> str:
    try:
        answer = cast("dict[bytes | str, bytes | str]", client.config_get(name))
    except redis.ResponseError:  # managed servers forbid CONFIG; they say in their own console what is set
        return unknown
    found = next(iter(answer.values()), unknown)
    return found.decode() if isinstance(found, bytes) else found


def refuses_writes(client: redis.Redis) -> str | None:
    """Why the server takes no writes at the moment, or None when it does."""
    try:
        client.set("uplift:probe", b"", ex=60)
    except redis.OutOfMemoryError:
        return "the server is out of memory (maxmemory is reached); delete runs or give it more"
    except redis.ReadOnlyError:
        return "the server is a read-only replica; give the primary's address"
    except redis.ResponseError as problem:
        return f"the server refuses to write ({problem})"
    return None


def workers(client: redis.Redis) -> list[dict[str, Any]]:
    """What the workers say of themselves that gave a sign of life lately."""
    names = cast("list[bytes]", client.zrangebyscore(WORKERS, time.time() - SEEN_SECONDS, "+inf"))
    if not names:
        return []
    found = cast("list[bytes | None]", client.mget([b"uplift:worker:" + name for name in names]))
    return [json.loads(data) for data in found if data]


def sign_of_life(client: redis.Redis, name: str, about: dict[str, Any]) -> None:
    pipe = client.pipeline()
    pipe.set(f"uplift:worker:{name}", json.dumps(about), ex=2 * SEEN_SECONDS)
    pipe.zadd(WORKERS, {name: time.time()})
    pipe.zremrangebyscore(WORKERS, 0, time.time() - FORGOTTEN_SECONDS)
    pipe.execute()


def forget_worker(client: redis.Redis, name: str) -> None:
    client.zrem(WORKERS, name)

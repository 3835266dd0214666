"""The Redis server itself: connecting to it, whether it can be trusted with a run, and which workers it sees."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.connection import HiredisRespSerializer
from redis.retry import Retry

from aggregate.text.formats import plain
from judges.errors import InfrastructureError
from workers.store.keys import HELD, PROBE, PROTOCOL, WORKER, WORKERS, with_authority

SEEN_SECONDS = 30
FORGOTTEN_SECONDS = 3600
INSIST_SECONDS = 300
RETRIES = 6
MOST_CONNECTIONS = 100
LEAST_ROOM = 256 * 1024
# What only says that the server is away: it comes back, and whoever waits for it loses nothing.
AWAY = (redis.ConnectionError, redis.TimeoutError)
# Refusals that pass: a disk that is full, memory that is used up, a primary that is being replaced. Inside a script
# old servers put them in the middle of their message, where the client does not recognize them.
_FOR_A_WHILE = re.compile(r"\b(MISCONF|OOM|READONLY|NOREPLICAS|MASTERDOWN|BUSY)\b")
_FULL_OR_REPLACED = (redis.OutOfMemoryError, redis.ReadOnlyError, redis.exceptions.MasterDownError)
_REFUSED_SECONDS = 2.0
OLDEST = (6, 2)  # an older one refuses commands that workers send again and again: a run would never begin
WANTED = "6.2 or later"


def is_away(problem: BaseException | None) -> bool:
    """Whether this, or what caused it, only says that the server is away or refuses for a while: nobody's fault."""
    if problem is None:
        return False
    refused = isinstance(problem, redis.ResponseError) and _FOR_A_WHILE.search(str(problem))
    return bool(refused) or isinstance(problem, (*AWAY, *_FULL_OR_REPLACED)) or is_away(problem.__cause__)


class UnusableServer(InfrastructureError):
    """The server cannot hold a run safely, for the reason given."""


def connect(
    url: str, *, timeout_seconds: float = 30, retries: int = RETRIES, connections: int = 50
) -> redis.Redis:
    """A client that tries again on a broken connection; every write of ours may be sent twice."""
    pool = redis.BlockingConnectionPool.from_url(
        with_authority(url),
        max_connections=connections,
        timeout=timeout_seconds,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=5,
        retry=Retry(ExponentialBackoff(cap=2, base=0.05), retries),
        health_check_interval=30,
        driver_info=None,  # to tell the server our library's name takes two round trips a connection
    )
    return redis.Redis.from_pool(pool)


class _Insisting(redis.asyncio.Redis):
    """Sends every command, scripts included, again while the server refuses it for a reason that passes.

    Whoever finds no connection free waits; in redis-py's own pool that does so a command costs a third more CPU.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        pipe = super().pipeline(*args, **options)
        execute = pipe.execute

        async def when_free(raise_on_error: bool = True) -> list[Any]:
            async with self._free:
                return await execute(raise_on_error)

        pipe.execute = when_free  # type: ignore[method-assign]  # a class for it would have to repeat how one is made
        return pipe

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + INSIST_SECONDS
        while True:
            try:
                async with self._free:
                    return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis has no hints here
            except redis.ResponseError as problem:
                if not _FOR_A_WHILE.search(str(problem)) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_REFUSED_SECONDS)


def connect_insisting(url: str) -> redis.asyncio.Redis:
    """A client for attempts: a paid answer must not get lost because the server restarts or is full for a while.

    After INSIST_SECONDS it gives up, and the batch is handed back.
    """
    client = _Insisting.from_url(
        with_authority(url),
        max_connections=MOST_CONNECTIONS,
        socket_timeout=30,
        socket_connect_timeout=5,
        retry=AsyncRetry(ExponentialBackoff(cap=2, base=0.05), INSIST_SECONDS // 2),
        retry_on_error=[redis.BusyLoadingError, redis.OutOfMemoryError, redis.ReadOnlyError],
        health_check_interval=30,
        driver_info=None,
    )
    pool = client.connection_pool
    # Records are packed in C, as on connections that block: redis-py takes a tenth of a worker's time for it here.
    packing = {"pack_command": staticmethod(HiredisRespSerializer().pack)}
    pool.connection_class = type("Connection", (pool.connection_class,), packing)
    return client


def check(client: redis.Redis) -> list[str]:
    """Warnings about this server; one that is too old, or that may lose records without a word, is refused."""
    try:
        info: dict[str, Any] = client.info()
    except redis.ResponseError:  # managed servers may forbid INFO; they say in their own console what is set
        info = {}
    if is_too_old(version := str(info.get("redis_version", "unknown"))):
        raise UnusableServer(f"the server is Redis {version}; use Redis {WANTED}, or Valkey")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise UnusableServer(
            f"the server may evict keys (maxmemory-policy {policy}); set maxmemory-policy noeviction"
        )
    if not info.get("aof_enabled", 1):
        return ["the server keeps nothing over a restart (appendonly no); a run would be lost with it"]
    return []


def is_too_old(version: str) -> bool:
    """Whether a server of this version (Valkey tells the version of Redis that it equals) cannot hold a run."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return numbers != () and numbers < OLDEST


def memory(client: redis.Redis) -> tuple[int, int] | None:
    """Bytes that are in use, and maxmemory; None where there is no limit, or the server does not tell."""
    try:
        info = client.info("memory")
    except redis.ResponseError:  # managed servers may forbid INFO
        return None
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    most = int(info.get("maxmemory", 0))
    return (used, most) if most else None


def refuses_writes(client: redis.Redis) -> str | None:
    """Why the server takes no writes at the moment, or None when it does.

    One with less than LEAST_ROOM is full: what is in use goes up and down with every command under way, so that a
    small write passes now and then, and the workers' do not.
    """
    full = "the server is out of memory (maxmemory is reached); delete runs or give it more"
    try:
        client.set(PROBE, b"", ex=60)
        used, most = memory(client) or (0, LEAST_ROOM)
        return full if most - used < LEAST_ROOM else None
    except redis.OutOfMemoryError:
        return full
    except redis.ReadOnlyError:
        return "the server is a read-only replica; give the primary's address"
    except redis.ResponseError as problem:
        return f"the server refuses to write ({problem})"


def workers(client: redis.Redis) -> list[dict[str, Any]]:
    """The heartbeats of all workers that were alive within SEEN_SECONDS."""
    names = _seen(client, SEEN_SECONDS)
    if not names:
        return []
    beats = cast("list[bytes | None]", client.mget([WORKER.encode() + name for name in names]))
    return [beat for data in beats if data and (beat := _beat(data)) is not None]


def _beat(data: bytes) -> dict[str, Any] | None:
    """A worker's sign of life; None for what no worker has written."""
    with suppress(ValueError, RecursionError):
        beat = json.loads(data)
        if isinstance(beat, dict) and isinstance(beat.get("name"), str):
            return beat
    return None


def versions(beats: list[dict[str, Any]]) -> str:
    """How many workers are of which version of Uplift, and which of them cannot serve this version's runs."""
    counts = Counter(
        (str(beat.get("version", "0.1.0")), beat.get("protocol", 1) == PROTOCOL) for beat in beats
    )
    return ", ".join(
        f"{count} of Uplift {version}{'' if serves else ', which cannot serve runs of this version'}"
        for (version, serves), count in sorted(counts.items())
    )


def serving(beats: list[dict[str, Any]]) -> str:
    """How many workers serve what."""
    counts = Counter(plain(str(beat.get("serves", "whatever is asked")), 300) for beat in beats)
    return ", ".join(f"{count} for {what}" for what, count in sorted(counts.items()))


def _seen(client: redis.Redis, seconds: float) -> list[bytes]:
    """Names of workers that gave a sign of life within so many seconds, by the server's clock."""
    since = _server_time(client) - seconds
    return cast("list[bytes]", client.zrangebyscore(WORKERS, since, "+inf"))


def _server_time(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def sign_of_life(client: redis.Redis, name: str, about: dict[str, Any]) -> None:
    now = _server_time(client)
    pipe = client.pipeline(transaction=False)
    pipe.set(f"{WORKER}{name}", json.dumps(about), ex=2 * SEEN_SECONDS)
    pipe.zadd(WORKERS, {name: now})
    pipe.zremrangebyscore(WORKERS, 0, now - FORGOTTEN_SECONDS)
    pipe.execute()


def tell_held(client: redis.Redis, name: str, tags: list[str], lease_seconds: float) -> None:
    """Say which messages a worker has taken; one that says nothing for a lease has none any more."""
    client.set(f"{HELD}{name}", json.dumps(tags), px=int(lease_seconds * 1000))


def held_messages(client: redis.Redis) -> set[str]:
    """The tags of all messages that workers say to have taken."""
    names = _seen(client, FORGOTTEN_SECONDS)
    told = cast("list[bytes | None]", client.mget([HELD.encode() + name for name in names])) if names else []
    held = set[str]()
    for data in filter(None, told):
        with suppress(ValueError, TypeError):  # no worker has written that
            held.update(map(str, json.loads(data)))
    return held


def forget_worker(client: redis.Redis, name: str) -> None:
    client.zrem(WORKERS, name)
    client.delete(f"{HELD}{name}")

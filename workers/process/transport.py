"""kombu's transport over Redis for a server that is far away: messages are taken and acknowledged several at a time.

kombu asks for each message, notes each and acknowledges each in a round trip of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

import kombu
import redis
from kombu.asynchronous import get_event_loop
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from workers.store.keys import LANES, QUARANTINE, UNACKED, UNACKED_INDEX, WORKERS, script, waiting_keys
from workers.store.redis_client import SEEN_SECONDS

log = logging.getLogger(__name__)

MOST_AT_ONCE = 500
# Whoever finds no connection free waits for one; the pools of kombu and Celery would raise.
blocking_pool = partial(redis.BlockingConnectionPool, timeout=30)
CLOSED_SECONDS = 0.1
JOB, FINISH_JOB = "uplift.run_batch", "uplift.finish_run"
_TEXTS = ("group", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin")
_UNUSED = ("eta", "expires", "retries", "shadow", "stamps", "stamped_headers", "replaced_task_nesting")
_CALLS = ("callbacks", "errbacks", "chain")
_OURS = frozenset((*LANES, QUARANTINE))


class Together:
    """Hand what threads bring to `send` in lists: one call at a time, and what comes meanwhile goes into the next."""

    def __init__(self, send: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._send = send
        self._waiting: deque[tuple[Any, Future[Any]]] = deque()
        self._sending = threading.Lock()

    def __call__(self, item: Any) -> Any:
        """What `send` answers to this item, or raises."""
        future: Future[Any] = Future()
        self._waiting.append((item, future))
        with self._sending:
            while not future.done():
                self._send_some()
        return future.result()

    def _send_some(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        try:
            answers = self._send([item for item, _ in some])
        except Exception as problem:
            for _, future in some:
                future.set_exception(problem)
        else:
            for (_, future), answer in zip(some, answers, strict=True):
                future.set_result(answer)


class QoS(kombu_redis.QoS):  # type: ignore[misc]  # kombu has no hints
    """The messages that this process has taken; `noted` while those are delivered that `take.lua` has noted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: list[str] = []
        self.noted = False

    def append(self, message: Any, delivery_tag: str) -> None:
        (virtual.QoS if self.noted else kombu_redis.QoS).append(self, message, delivery_tag)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Leave to `workers.rounds.mend` what got stuck: kombu would go by the clocks of clients."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message, soon: Celery asks for that on the consumer's loop, which waits for every answer."""
        virtual.QoS.ack(self, delivery_tag)
        self._ended.append(delivery_tag)
        if (hub := get_event_loop()) is None:
            self.send_ended()
        elif len(self._ended) == 1:
            hub.call_soon(self.send_ended)

    def send_ended(self) -> None:
        """Forget on the server what has been acknowledged."""
        tags, self._ended = self._ended, []
        if not tags:
            return
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()
        except self.channel.connection_errors as problem:  # they come again, and find their records
            log.warning("%d batches could not be acknowledged: %s", len(tags), problem)


class _Channels(kombu_redis.PrefixedRedisPubSub):  # type: ignore[misc]  # as above
    """Subscribes to channels by name: rights to `uplift:*` are none to any other pattern."""

    psubscribe = kombu_redis.PrefixedRedisPubSub.subscribe
    punsubscribe = kombu_redis.PrefixedRedisPubSub.unsubscribe


class _Client(kombu_redis.PrefixedStrictRedis):  # type: ignore[misc]  # as above
    """Puts the prefix before a queue's keys also where kombu forgets it: when it asks whether there are any."""

    PREFIXED_SIMPLE_COMMANDS = frozenset(
        (*kombu_redis.GlobalKeyPrefixMixin.PREFIXED_SIMPLE_COMMANDS, "EXISTS")
    )

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        made = super().pipeline(*args, **kwargs)
        made.PREFIXED_SIMPLE_COMMANDS = self.PREFIXED_SIMPLE_COMMANDS
        return made

    def pubsub(self, **kwargs: Any) -> Any:
        return _Channels(self.connection_pool, global_keyprefix=self.global_keyprefix, **kwargs)


class Channel(kombu_redis.Channel):  # type: ignore[misc]  # as above
    """Takes as many messages as there is room for in one round trip, from all lanes in turn.

    Its commands share the connections of all channels of its app. kombu has some for each channel, and makes a client
    for every command, a tenth of a worker's time.
    """

    QoS = QoS
    keyprefix_fanout: str
    closed_lanes: Set[str] = frozenset()  # lanes from which nothing is to be taken at the moment

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.async_pool.disconnect(inuse_connections=False)  # kombu has looked whether the server answers

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # these wait for messages on a connection of their own
            return super()._create_client(asynchronous=True)
        shared = self.connection.client.shared
        if not shared:
            shared.append(self.Client(connection_pool=self._get_pool()))
        return shared[0]

    @property
    def pool(self) -> Any:
        return self._create_client().connection_pool

    def _get_pool(self, asynchronous: bool = False) -> Any:
        options = self._connparams(asynchronous=asynchronous)
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=options["db"])
        return blocking_pool(**options, driver_info=None)

    def _get_client(self) -> Any:
        return partial(_Client, global_keyprefix=self.global_keyprefix)

    def close(self) -> None:
        self.qos.send_ended()
        super().close()

    def _open_lanes(self) -> list[str]:
        lanes = self._queue_cycle.consume(len(self.active_queues))
        return [lane for lane in lanes if lane not in self.closed_lanes]

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for the next message; not for long while lanes are closed: one that opens waits for the answer."""
        keys = [self._q_for_pri(lane, step) for step in self.priority_steps for lane in self._open_lanes()]
        if keys:
            self._in_poll = self.client.connection
            self._brpop_sent_at = time.monotonic()
            seconds = CLOSED_SECONDS if self.closed_lanes else timeout or self.brpop_timeout
            words = self.client._prefix_args(["BRPOP", *keys, seconds])
            self.client.connection.send_command(*words)

    def _brpop_read(self, **options: Any) -> bool:
        connection = self.client.connection
        try:
            answer = self.client.parse_response(connection, "BRPOP", **options)
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None
        if not answer:
            raise kombu_redis.Empty
        lane = bytes_to_str(answer[0]).rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(lane)
        taken = self._taken(answer[1], lane)
        self.qos.noted = lane in _OURS
        try:
            for text, name, tag in taken:
                message = self._read(text, tag) if name else None
                if message is not None:
                    self.connection._deliver(message, name)
                else:
                    log.warning("a message that nobody can read is thrown away")
        finally:
            self.qos.noted = False
        return True

    def _taken(self, first: bytes, lane: str) -> list[tuple[bytes, str, bytes]]:
        """The message at hand, noted as taken, and more of what waits; each with lane and tag, if it can be read."""
        if lane not in _OURS:  # an answer to `celery inspect`, which nobody acknowledges
            return [(first, lane, b"")]
        lanes = self._open_lanes()
        lists = zip(*map(waiting_keys, lanes), strict=True)
        taken = self._take(
            keys=[UNACKED, UNACKED_INDEX, WORKERS, *(key for step in lists for key in step)],
            args=[time.time(), self.qos.can_consume_max_estimate() or 1, SEEN_SECONDS, first, lane, *lanes],
        )
        parts = zip(taken[::3], taken[1::3], taken[2::3], strict=True)
        return [(text, name.decode(), tag) for text, name, tag in parts]

    def _read(self, text: bytes, tag: bytes) -> Any:
        """A message as kombu delivers it; None for one that nobody can read, which is forgotten on the server too."""
        try:
            message = loads(bytes_to_str(text))
            self.Message(message, channel=self)
            if self.qos.noted and not _is_job(message):
                raise ValueError("no job of ours")
        # What the server's reader takes for JSON, ours may not; kombu makes Decimals and more of it.
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            self._create_client().pipeline().zrem(self.unacked_index_key, tag).hdel(
                self.unacked_key, tag
            ).execute()
            return None
        return message

    @cached_property
    def _take(self) -> Any:
        # Our names have the prefix already, which kombu's client would put before them once more.
        return redis.Redis(connection_pool=self._create_client().connection_pool).register_script(
            script("take")
        )


def _is_job(message: dict[str, Any]) -> bool:
    """Whether a message is what Celery makes of a batch.

    Celery takes it for granted: a type that is wrong ends the worker, or costs it the room for a batch for ever.
    """
    headers, (args, named, about) = message["headers"], loads(b64decode(message["body"], validate=True))
    chord = about.get("chord") or {"task": FINISH_JOB, "args": [], "kwargs": {}, "options": {}}
    forms = (headers["task"], message["content-type"], message["content-encoding"], chord["task"])
    given = (headers["id"], headers.get("group_index") or 0, args, named, chord["args"])
    texts = (*map(headers.get, _TEXTS), *chord["options"].values())
    unused = (*map(headers.get, _UNUSED), *map(about.get, _CALLS), *(headers.get("timelimit") or ()))
    return (
        forms == (JOB, "application/json", "utf-8", FINISH_JOB)
        and tuple(map(type, given)) == (str, int, list, dict, list)
        and not any((*unused, chord["kwargs"], chord.get("subtask_type")))
        and all(isinstance(text, str | None) for text in texts)
    )


class Transport(kombu_redis.Transport):  # type: ignore[misc]  # as above
    Channel = Channel


class Connection(kombu.Connection):  # type: ignore[misc]  # as above
    """A connection to Redis; its URL's scheme would choose kombu's own transport."""

    shared: list[Any]

    def get_transport_cls(self) -> type[Transport]:
        return Transport

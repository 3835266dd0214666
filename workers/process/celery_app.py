"""The Celery app of producers and workers: measured settings and the two jobs.

A job is as thin as can be: a batch waits for the process's engine, and the callback finishes the run.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import redis
from celery import Celery
from celery.backends.redis import CHORD_PART_RETURN_LUA
from celery.exceptions import Reject
from kombu.exceptions import BatchPublishError
from kombu.pools import ProducerPool

from judges.safe_text import storable
from workers.process.transport import FINISH_JOB, JOB, MOST_AT_ONCE, Connection, Together, blocking_pool
from workers.store.keys import (
    FINISH,
    LANES,
    PREFIX,
    QUARANTINE,
    UNACKED,
    UNACKED_INDEX,
    queue,
    with_authority,
)
from workers.store.process_settings import ProcessSettings, from_environment
from workers.store.redis_client import is_away
from workers.store.run_store import NotServed

if TYPE_CHECKING:
    from workers.process.engine import Batch, Engine

log = logging.getLogger(__name__)

_COUNT = sha1(CHORD_PART_RETURN_LUA.encode(), usedforsecurity=False).hexdigest()
MAX_WHY = 2000
# Never the same twice: consumers ask once a second, and a wait in step with that would always find the same one first.
OTHERS_SECONDS = (0.5, 2.5)


def _ran(batch: Batch, engine: Engine) -> int:
    """Run a batch. One that is handed back for the same reason again and again becomes errors, never a loop."""
    from workers.process.engine import MOST_HAND_BACKS, Drained, too_often
    from workers.process.quarantine import run_alone

    try:
        return run_alone(batch, engine) if batch.quarantine else engine.run_batch(batch)
    except (Drained, NotServed):
        raise
    except Exception as problem:
        name = f"batch {batch.round} {batch.indexes[0]}"
        if is_away(problem) or not too_often(engine, batch.run_id, name, problem):
            raise
        why = storable(
            f"given up after {MOST_HAND_BACKS} tries: {type(problem).__name__}: {problem}"[:MAX_WHY]
        )
    log.error("batch of run %s is %s", batch.run_id, why, extra={"run": batch.run_id})
    try:
        return engine.run_batch(batch, give_up=why)
    except Drained:
        raise
    except Exception as problem:  # the next round tries what has no record, and there are only so many rounds
        if is_away(problem):
            raise
        log.exception("batch of run %s is left out", batch.run_id, extra={"run": batch.run_id})
        return 0


def _add_jobs(app: App) -> None:

    @app.task(name=JOB, shared=False, bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no hints
    def run_batch(job: Any, *told: Any, **named: Any) -> int:
        """Run attempts and store their records; returns how many. A chord counts jobs without their results."""
        from workers.process.engine import Drained, read_batch

        try:
            batch = read_batch(*told, **named)
        except (TypeError, ValueError):
            log.warning("a batch that nobody can read is thrown away")
            return 0
        run_id = batch.run_id
        app.engine.ended.discard(job.request.id)
        try:
            return _ran(batch, app.engine)
        except Drained:
            raise Reject("the worker is shutting down", requeue=True) from None
        except NotServed as problem:
            if not app.engine.leave_to_others(run_id, problem):
                return 0
            threading.Event().wait(random.uniform(*OTHERS_SECONDS))
            raise Reject(str(problem), requeue=True) from None
        # Raising anything else would cancel the chord's callback; a batch that is handed back loses nothing.
        except Exception as problem:
            log.exception("batch of run %s is handed back", run_id, extra={"run": run_id})
            threading.Event().wait(1)
            raise Reject(str(problem), requeue=True) from problem
        finally:
            app.engine.ended.add(job.request.id)

    @app.task(name=FINISH_JOB, shared=False, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no hints
    def finish_run(run_id: str, generation: int, number: int) -> None:
        """Give errors another round, or seal the run and aggregate it."""
        from workers.rounds.finish import finish

        finish(app, app.settings, run_id, generation, number)


def celery_url(url: str) -> str:
    """The broker's address as Celery spells it: unix sockets its own way, and TLS with the order to verify."""
    parts = urlsplit(with_authority(url))
    if parts.scheme == "rediss" and "ssl_cert_reqs=" not in parts.query:
        return parts._replace(query="&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))).geturl()
    if parts.scheme != "unix":
        return parts.geturl()
    path, database = quote(unquote(parts.path), safe="/"), parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.netloc}{path}?virtual_host={database}"


def configuration(settings: ProcessSettings) -> dict[str, Any]:
    """Celery's settings for this server; docs/ARCHITECTURE.md tells what each of them prevents."""
    connections = 6 * settings.in_flight + 60
    return {
        "broker_url": celery_url(settings.broker),
        "result_backend": celery_url(settings.broker),
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": settings.threads,
        "worker_pool": "threads",
        "worker_send_task_events": False,  # `Deliveries` sends them while somebody listens
        "worker_hijack_root_logger": False,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [queue(name) for name in (*LANES, QUARANTINE)],
        "task_default_queue": LANES[0],
        "task_routes": {"uplift.finish_run": {"queue": queue(FINISH)}},
        "task_create_missing_queues": False,
        "result_expires": 3600,
        "result_chord_expires": 604_800,
        "result_backend_thread_safe": True,
        "redis_socket_timeout": 30,
        "redis_max_connections": connections,
        "broker_connection_retry_on_startup": True,
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            "global_keyprefix": PREFIX,
            "fanout_patterns": False,
            "unacked_key": UNACKED.removeprefix(PREFIX),
            "unacked_index_key": UNACKED_INDEX.removeprefix(PREFIX),
            # Without these, acknowledging on a connection that died silently waits for hours.
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "max_connections": connections,
            "socket_keepalive": True,
        },
        "result_backend_transport_options": {"max_connections": connections, "global_keyprefix": PREFIX},
    }


class App(Celery):  # type: ignore[misc]  # Celery has no hints
    """An app for one server; a producer makes one to publish, a worker one to consume."""

    def __init__(self, settings: ProcessSettings) -> None:
        super().__init__("workers", set_as_current=False)
        self.settings = settings
        self.conf.update(configuration(settings))
        self.amqp.Connection = type("Connection", (Connection,), {"shared": []})
        # Pools of its own: kombu's are one for a server and a process, and a run that ends would close another's.
        self._pool = self.connection_for_write().Pool(limit=self.conf.broker_pool_limit)
        self.amqp._producer_pool = ProducerPool(self._pool, limit=self.conf.broker_pool_limit)
        _add_jobs(self)
        # Nobody waits for a single job's result: subscribing to each of them would cost more than publishing it.
        self.backend.on_task_call = lambda *_: None
        self.backend.add_pending_result = lambda result, **_: result
        self.backend.remove_pending_result = lambda result: result
        self.backend._ConnectionPool = blocking_pool
        self._together = threading.local()
        count = Together(self._counted)
        self.backend._chord_part_return_script = lambda keys, args, client: count((*keys, *args))

    def disconnect(self) -> None:
        """Give back every connection."""
        self.backend.client.connection_pool.disconnect()
        self._pool.force_close_all()
        for client in self.amqp.Connection.shared:
            client.connection_pool.disconnect()

    def producer_or_acquire(self, producer: Any = None) -> Any:
        return super().producer_or_acquire(producer or getattr(self._together, "producer", None))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what this thread publishes in the block with few round trips, the last of it at the block's end."""
        with self.producer_or_acquire() as producer:
            self._together.producer = producer
            try:
                with producer.batch(MOST_AT_ONCE):
                    yield
            except BatchPublishError as problem:  # what went wrong is known by its own name
                raise problem.__cause__ or problem from None
            finally:
                del self._together.producer

    def _counted(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        """Count batches of chords that have ended, which Celery does one by one; each call has six keys."""
        client = self.backend.client
        while True:
            pipe = client.pipeline(transaction=False)
            for call in calls:
                pipe.evalsha(_COUNT, 6, *call)
            try:
                return list(pipe.execute())
            except redis.exceptions.NoScriptError:
                client.script_load(CHORD_PART_RETURN_LUA)

    @cached_property
    def engine(self) -> Engine:
        """The engine of this worker process; a worker's first bootstep makes it, before any batch can ask for it."""
        from workers.process.engine import Engine

        return Engine(self.settings)


def _is_news(line: logging.LogRecord) -> bool:
    """Whether Celery tells of something else than a batch that is handed back: that has been said, if it is odd."""
    return not (line.exc_info and isinstance(line.exc_info[1], Reject))


@lru_cache(maxsize=1)
def worker_app() -> App:
    """The app of this worker process, made from its environment, which is read here and nowhere else."""
    from workers.process import bootsteps

    app = App(from_environment())
    logging.getLogger("celery.app.trace").addFilter(_is_news)
    app.steps["worker"].add(bootsteps.Finisher)
    app.steps["worker"].add(bootsteps.Mending)
    if os.environ.get("UPLIFT_METRICS_PORT"):
        from workers.process import metrics

        app.steps["worker"].add(metrics.Metrics)
    app.steps["worker"].add(bootsteps.Watchdog)
    app.steps["consumer"].add(bootsteps.Deliveries)
    app.set_current()
    return app

"""The Celery app of producers and workers: measured settings, the two jobs, and a transport that keeps its clients.

A job is as thin as can be: a batch waits for the process's engine, and the callback finishes the run.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import kombu
from celery import Celery
from celery.exceptions import Reject
from kombu.pools import ProducerPool
from kombu.transport import redis as kombu_redis

from judges.safe_text import storable
from workers.store.keys import FINISH, LANES, QUARANTINE, UNACKED, UNACKED_INDEX, UNACKED_MUTEX, queue
from workers.store.process_settings import ProcessSettings, from_environment
from workers.store.redis_client import AWAY
from workers.store.run_store import OtherVersion

if TYPE_CHECKING:
    from workers.process.engine import Batch, Engine

log = logging.getLogger(__name__)

MAX_WHY = 2000
OTHERS_SECONDS = 3.0


def _ran(batch: Batch, engine: Engine) -> int:
    """Run a batch. One that is handed back for the same reason again and again becomes errors, never a loop."""
    from workers.process.engine import MOST_HAND_BACKS, Drained, too_often
    from workers.process.quarantine import run_alone

    try:
        return run_alone(batch, engine) if batch.quarantine else engine.run_batch(batch)
    except (Drained, OtherVersion, *AWAY):
        raise
    except Exception as problem:
        name = f"batch {batch.round} {batch.indexes[0]}"
        if not too_often(engine.settings, batch.run_id, name, problem):
            raise
        why = storable(
            f"given up after {MOST_HAND_BACKS} tries: {type(problem).__name__}: {problem}"[:MAX_WHY]
        )
    log.error("batch of run %s is %s", batch.run_id, why)
    try:
        return engine.run_batch(batch, give_up=why)
    except (Drained, *AWAY):
        raise
    except Exception:  # the next round tries what has no record, and there are only so many rounds
        log.exception("batch of run %s is left out", batch.run_id)
        return 0


def _add_jobs(app: App) -> None:

    @app.task(name="uplift.run_batch", shared=False, bind=True)  # type: ignore[untyped-decorator]  # Celery has no hints
    def run_batch(job: Any, run_id: str, number: int, indexes: list[int], quarantine: bool = False) -> int:
        """Run attempts and store their records; the number of stored ones is all that travels back."""
        from workers.process.engine import Batch, Drained

        batch = Batch(run_id, number, tuple(indexes), quarantine)
        app.engine.ended.discard(job.request.id)
        try:
            return _ran(batch, app.engine)
        except Drained:
            raise Reject("the worker is shutting down", requeue=True) from None
        except OtherVersion as problem:
            if not app.engine.leave_to_others(run_id, problem):
                return 0
            threading.Event().wait(OTHERS_SECONDS)
            raise Reject(str(problem), requeue=True) from None
        # Raising anything else would cancel the chord's callback; a batch that is handed back loses nothing.
        except Exception as problem:
            log.exception("batch of run %s is handed back", run_id)
            threading.Event().wait(1)
            raise Reject(str(problem), requeue=True) from problem
        finally:
            app.engine.ended.add(job.request.id)

    @app.task(name="uplift.finish_run", shared=False, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no hints
    def finish_run(run_id: str, generation: int, number: int) -> None:
        """Give errors another round, or seal the run and aggregate it."""
        from workers.rounds.finish import finish

        finish(app, app.settings, run_id, generation, number)


class Channel(kombu_redis.Channel):  # type: ignore[misc]  # kombu has no hints
    """Keeps the client that takes its connections from the pool, for as long as the channel keeps that pool.

    kombu makes one for every command, a tenth of a worker's time.
    """

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # these hold a connection of their own, and kombu keeps them itself
            return super()._create_client(asynchronous=True)
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()
        return self._kept


class Transport(kombu_redis.Transport):  # type: ignore[misc]  # as above
    Channel = Channel


class Connection(kombu.Connection):  # type: ignore[misc]  # as above
    """A connection to Redis; its URL's scheme would choose kombu's own transport."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport


def celery_url(url: str) -> str:
    """The broker's address as Celery spells it: unix sockets its own way, and TLS with the order to verify."""
    parts = urlsplit(url)
    if parts.scheme == "rediss" and "ssl_cert_reqs=" not in parts.query:
        return parts._replace(query="&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))).geturl()
    if parts.scheme != "unix":
        return url
    path = quote(unquote(parts.path), safe="/")
    return f"redis+socket://{path}"


def configuration(settings: ProcessSettings) -> dict[str, Any]:
    """Celery's settings for this server; docs/ARCHITECTURE.md tells what each of them prevents."""
    connections = 4 * settings.threads + 50
    return {
        "broker_url": celery_url(settings.broker),
        "result_backend": celery_url(settings.broker),
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": settings.threads,
        "worker_pool": "threads",
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [queue(name) for name in (*LANES, QUARANTINE)],
        "task_default_queue": LANES[0],
        "task_routes": {"uplift.finish_run": {"exchange": "uplift", "routing_key": FINISH}},
        "task_create_missing_queues": False,
        "result_expires": 3600,
        "result_chord_expires": 604_800,
        "result_backend_thread_safe": True,
        "redis_socket_timeout": 30,
        "redis_max_connections": connections,
        "broker_connection_retry_on_startup": True,
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            # By the clocks of clients, which may be wrong by hours: `workers.rounds.mend` puts back what got stuck.
            "visibility_timeout": 7 * 86_400,
            "unacked_key": UNACKED,
            "unacked_index_key": UNACKED_INDEX,
            "unacked_mutex_key": UNACKED_MUTEX,
            # Without these, acknowledging on a connection that died silently waits for hours.
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "max_connections": connections,
            "socket_keepalive": True,
        },
        "result_backend_transport_options": {"max_connections": connections},
    }


class App(Celery):  # type: ignore[misc]  # Celery has no hints
    """An app for one server; a producer makes one to publish, a worker one to consume."""

    def __init__(self, settings: ProcessSettings) -> None:
        super().__init__("workers", set_as_current=False)
        self.settings = settings
        self.conf.update(configuration(settings))
        self.amqp.Connection = Connection
        # Pools of its own: kombu's are one for a server and a process, and a run that ends would close another's.
        self._pool = self.connection_for_write().Pool(limit=self.conf.broker_pool_limit)
        self.amqp._producer_pool = ProducerPool(self._pool, limit=self.conf.broker_pool_limit)
        _add_jobs(self)
        # Nobody waits for a single job's result: subscribing to each of them would cost more than publishing it.
        self.backend.on_task_call = lambda *_: None
        self.backend.remove_pending_result = lambda result: result

    @cached_property
    def engine(self) -> Engine:
        """The engine of this worker process; a worker's first bootstep makes it, before any batch can ask for it."""
        from workers.process.engine import Engine

        return Engine(self.settings)


@lru_cache(maxsize=1)
def worker_app() -> App:
    """The app of this worker process, made from its environment, which is read here and nowhere else."""
    from workers.process import bootsteps

    app = App(from_environment())
    app.steps["worker"].add(bootsteps.Finisher)
    app.steps["worker"].add(bootsteps.Mending)
    if os.environ.get("UPLIFT_METRICS_PORT"):
        from workers.process import metrics

        app.steps["worker"].add(metrics.Metrics)
    app.steps["worker"].add(bootsteps.Watchdog)
    app.steps["consumer"].add(bootsteps.Deliveries)
    app.set_current()
    return app

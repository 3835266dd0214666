"""The Celery app: settings that were measured, the lanes, and the steps that a worker process adds to Celery's own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from workers.settings import FINISH, LANES, QUARANTINE, Settings, celery_url, from_environment
from workers.transport import Connection


def configuration(settings: Settings) -> dict[str, Any]:
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
            "visibility_timeout": settings.visibility_seconds,
            "unacked_restore_interval": min(5, settings.visibility_seconds / 4),
            "unacked_restore_throttle": 1,
            # A worker that dies while it looks for lost messages leaves its lock behind: nobody else looks meanwhile.
            "unacked_mutex_expire": settings.visibility_seconds / 6,
            # Without these, acknowledging on a connection that died silently waits for hours.
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "max_connections": connections,
            "socket_keepalive": True,
        },
        "result_backend_transport_options": {"max_connections": connections},
    }


def queue(name: str) -> Queue:
    return Queue(name, Exchange("uplift", type="direct"), routing_key=name)


def build(settings: Settings) -> Celery:
    """An app for this server; a producer builds one to publish, a worker one to consume."""
    made = Celery("workers", set_as_current=False)
    made.conf.update(configuration(settings))
    made.amqp.Connection = Connection
    from workers import tasks

    tasks.register(made, settings)
    # Nobody waits for a single job's result: subscribing to each of them would cost more than publishing it.
    made.backend.on_task_call = lambda *_: None
    made.backend.remove_pending_result = lambda result: result
    return made


@lru_cache(maxsize=1)
def worker_app() -> Celery:
    """The app of this worker process, made from its environment."""
    from workers import beats, metrics, steps

    app = build(from_environment())
    app.steps["worker"].add(steps.Finisher)
    app.steps["worker"].add(beats.Beats)
    app.steps["worker"].add(metrics.Metrics)
    app.steps["worker"].add(steps.Watchdog)
    app.steps["consumer"].add(steps.Credit)
    app.steps["consumer"].add(steps.Lease)
    app.set_current()
    return app

"""Run a worker process: `python -m workers`, which is what `uplift worker` does too."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from workers.server import connect, forget_worker
from workers.thrift import be_thrifty

if TYPE_CHECKING:
    from workers.engine import Engine
    from workers.settings import Settings


def main(log_level: str = "warning") -> None:
    """Consume until told to stop; SIGTERM finishes or hands back what is under way within `drain_seconds`."""
    be_thrifty()
    from celery import signals
    from celery.exceptions import SecurityWarning
    from celery.utils.nodenames import gethostname, nodename

    from workers.app import worker_app
    from workers.lease import start_again
    from workers.settings import from_environment
    from workers.steps import Watchdog
    from workers.tasks import engine

    settings = from_environment()
    # Containers and CI run as root; which user a worker runs as is not Celery's to say in the middle of a log.
    warnings.filterwarnings("ignore", category=SecurityWarning)

    asked = threading.Event()

    @signals.worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]  # Celery has no hints
    def hand_back(**_: object) -> None:
        asked.set()
        timer = threading.Timer(settings.drain_seconds, lambda: engine(settings).drain())
        timer.daemon = True
        timer.start()

    try:
        # Not `worker_main`: Celery's command line loads Flower and a shell, a quarter of the time a start takes.
        worker = worker_app().Worker(
            # Without the process id, two workers on one machine would be one to Flower and to `celery inspect`.
            hostname=nodename(f"uplift-{os.getpid()}", gethostname()),
            loglevel=log_level,
            task_events=True,
            without_gossip=True,
            without_mingle=True,
            quiet=True,
        )
        worker.start()
    finally:
        current = engine()
        if current is not None:
            _leave(settings, current)
    if Watchdog.broke_down and not asked.is_set():
        start_again("the worker broke down; starting it anew", worked=bool(current and current.done))


def _leave(settings: Settings, engine: Engine) -> None:
    """Hand back what is left, so that nobody waits for a lease to run out, and be forgotten."""
    engine.drain()
    with suppress(redis.RedisError):
        forget_worker(connect(settings.broker, timeout_seconds=5, retries=1), engine.name)
    engine.close()


if __name__ == "__main__":
    main()

"""Run a worker process: `python -m workers`, which is what `uplift worker` does too."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from workers.rounds.child_process import tune_interpreter
from workers.store.redis_client import forget_worker

LEAVE_SECONDS = 5.0

if TYPE_CHECKING:
    from workers.process.celery_app import App
    from workers.process.engine import Engine


def main(log_level: str = "warning") -> None:
    """Take batches until a signal says stop; SIGTERM ends or hands back what is under way within `drain_seconds`."""
    tune_interpreter()
    from celery import signals
    from celery.exceptions import SecurityWarning

    from workers.process.bootsteps import Watchdog
    from workers.process.celery_app import worker_app
    from workers.process.heartbeat import start_again
    from workers.process.logs import JsonLines

    app = worker_app()
    # Containers and CI run as root; which user a worker runs as is not Celery's to say in the middle of a log.
    warnings.filterwarnings("ignore", category=SecurityWarning)

    asked = threading.Event()

    @signals.worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]  # Celery has no hints
    def hand_back(**_: object) -> None:
        asked.set()
        threading.Thread(target=_leave_in_time, args=(app,), name="uplift-leave", daemon=True).start()

    try:
        # Not `worker_main`: Celery's command line loads Flower and a shell, a quarter of the time a start takes.
        worker = app.Worker(
            hostname=node_name(app.engine.name),
            loglevel=log_level,
            heartbeat_interval=5,
            without_gossip=True,
            without_mingle=True,
            quiet=True,
        )
        JsonLines.worker = app.engine.name
        worker.start()
    finally:
        engine = vars(app).get("engine")  # it may have ended before it made one
        if engine is not None:
            _leave(engine)
    if Watchdog.broke_down and not asked.is_set():
        start_again("the worker broke down; starting it anew", worked=bool(engine and engine.done))


def node_name(engine: str) -> str:
    """What Flower and `celery inspect` call a worker; two of one name would be one to them."""
    from celery.utils.nodenames import gethostname, nodename

    return str(nodename(f"uplift-{engine.rpartition(':')[2]}", gethostname()))


def _leave_in_time(app: App) -> None:
    """Let what is under way end, then hand it back, and end this process if it is still there after that."""
    from workers.process.heartbeat import hang_up

    time.sleep(app.settings.drain_seconds)
    with suppress(Exception):  # whatever breaks here, the end below must come
        app.engine.drain()
    # As long again, because a run that is being finished may take that long.
    time.sleep(app.settings.drain_seconds + LEAVE_SECONDS)
    hang_up("this worker was told to stop and did not; what it had is given to somebody else")


def _leave(engine: Engine) -> None:
    """Hand back what is left, so that nobody waits for a lease to run out, and be forgotten."""
    engine.drain()
    with suppress(redis.RedisError):
        forget_worker(engine.client, engine.name)
    engine.close()


if __name__ == "__main__":
    main()

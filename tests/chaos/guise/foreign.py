"""Somebody else's Celery app, on the same database: each task writes its name into a file when it runs."""

import sys
import time
from pathlib import Path

from celery import Celery

app = Celery("foreign", broker=sys.argv[1], backend=sys.argv[1])
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)


@app.task(name="foreign.write")
def write(name: str) -> None:
    time.sleep(0.3)
    with Path(sys.argv[2]).open("a") as file:
        file.write(f"{name}\n")


app.worker_main(["worker", "--pool", "threads", "--concurrency", "1", "--loglevel", "error"])

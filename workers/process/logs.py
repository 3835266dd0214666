"""A worker's log as JSON lines, which tell of which run, attempt and worker they are."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from celery import signals

from workers.attempts.run_context import Question

# What this thread or task is at: a run, and one of its attempts.
at_work: ContextVar[tuple[str, Question | None] | None] = ContextVar("at_work", default=None)


class JsonLines(logging.Formatter):
    """One object a line, whatever a message holds; what is not known of a line is left out."""

    worker: str | None = None

    def format(self, record: logging.LogRecord) -> str:
        run, question = at_work.get() or (_run_of(record), None)
        then = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {"time": then, "level": record.levelname.lower(), "logger": record.name}
        told |= {"message": record.getMessage(), "worker": self.worker, "run": run}
        if question is not None:  # named as in its record
            told |= {"task": question.task.id, "arm": question.arm}
            told |= {"model": question.model, "attempt": question.number}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in told.items() if value is not None})


def _run_of(record: logging.LogRecord) -> str | None:
    """The run that a line was told (`extra`), or that of the message that Celery tells of."""
    message = getattr(record, "data", None)
    named = re.match(r"['\"]?run (\S+)", str(message.get("args"))) if isinstance(message, dict) else None
    return getattr(record, "run", None) or (named[1] if named else None)


def is_json() -> bool:
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def write_json(level: str) -> None:
    """Write every line of this process to standard error as JSON from now on, Celery's and libraries' included."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Celery makes no handlers of its own while somebody listens, and tells on stdout that it was told to stop.
    signals.setup_logging.connect(lambda **_: None, weak=False)
    # What nobody catches, and warnings, would be text otherwise.
    logging.captureWarnings(True)
    sys.excepthook = lambda *problem: logging.critical("this process ends", exc_info=problem)
    sys.unraisablehook = lambda lost: logging.error("nobody could catch this", exc_info=lost.exc_value)
    threading.excepthook = _tell_of_thread
    sys.__stdout__ = None  # type: ignore[misc]  # Python allows it


def _tell_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread is not None else "?"
        logging.critical("the thread %s ended", name, exc_info=ended.exc_value)


def tell(text: str) -> None:
    """Say what is to be read at any level: that this worker starts, and how."""
    if is_json():
        record = {"name": "uplift", "levelno": logging.INFO, "levelname": "INFO", "msg": text}
        logging.getLogger().handle(logging.makeLogRecord(record))
    else:  # not sys.stderr, which is Celery's log by now
        print(f"uplift: {text}", file=sys.__stderr__, flush=True)

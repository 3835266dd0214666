"""Celery workers that ask models and judge their answers; `celery -A workers worker` finds the app here."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Celery looks for an attribute `celery`; building the app costs half a second that nobody else should pay.
    if name == "celery":
        from workers.process.celery_app import worker_app

        return worker_app()
    raise AttributeError(f"module 'workers' has no attribute {name!r}")

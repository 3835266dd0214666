"""Celery workers that ask models and judge their answers; `celery -A workers worker` finds the app here."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Celery looks for `workers.app`; building it costs half a second that `uplift --help` should not pay.
    if name in {"app", "celery"}:
        from workers.app import app

        return app
    raise AttributeError(name)

"""The two Celery jobs, as thin as can be: a batch waits for the engine, and the callback finishes the run."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from workers.settings import Settings

log = logging.getLogger(__name__)

_engine: Any = None
_lock = threading.Lock()


def engine(settings: Settings | None = None) -> Any:
    """This process's engine, made by the first caller that gives settings; None while there is none."""
    global _engine
    with _lock:
        if _engine is None and settings is not None:
            from workers.engine import Engine

            _engine = Engine(settings)
        return _engine


def register(app: Celery, settings: Settings) -> None:
    """Add the jobs to an app."""

    @app.task(name="uplift.run_batch", shared=False)  # type: ignore[untyped-decorator]  # Celery has no hints
    def run_batch(run_id: str, number: int, indexes: list[int], quarantine: bool = False) -> int:
        """Run attempts and store their records; the number of stored ones is all that travels back."""
        from workers.engine import Batch, Drained
        from workers.quarantine import run_alone

        batch = Batch(run_id, number, tuple(indexes), quarantine)
        try:
            return run_alone(batch, settings) if quarantine else int(engine(settings).run_batch(batch))
        except Drained:
            raise Reject("the worker is shutting down", requeue=True) from None
        # Raising anything else would cancel the chord's callback; a batch that is handed back loses nothing.
        except Exception as problem:
            log.exception("batch of run %s is handed back", run_id)
            threading.Event().wait(1)
            raise Reject(str(problem), requeue=True) from problem

    @app.task(name="uplift.finish_run", shared=False, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no hints
    def finish_run(run_id: str, generation: int, number: int) -> None:
        """Give errors another round, or seal the run and aggregate it."""
        from workers.finish import finish

        finish(app, settings, run_id, generation, number)

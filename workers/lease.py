"""Says "still at it" for a worker process, and notices when that is no longer true.

The keeper is a thread of its own, so that neither a busy loop nor Celery's reconnecting lets leases run out.
A killed process stops saying so at once, and a process whose loop hangs is made to leave.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import redis

from workers.claims import lease
from workers.server import connect, sign_of_life
from workers.settings import Settings

log = logging.getLogger(__name__)

SILENT_BEATS = 8
SHORTEST_SILENCE = 20.0
HUNG_EXIT = 76
STUCK_EXIT = 75
MOST_RESTARTS = 3
_RESTARTS = "UPLIFT_RESTARTS"


class Holder(Protocol):
    """Whatever has claims to keep: an engine."""

    name: str
    settings: Settings

    def held(self) -> dict[str, dict[int, int]]: ...

    def about(self) -> dict[str, Any]: ...


def beat_seconds(settings: Settings) -> float:
    """Four beats in a lease: three may get lost."""
    return min(settings.visibility_seconds, settings.lease_seconds) / 4


def silent_beats(every: float) -> int:
    """How many beats without progress are a hang. Beats are counted, not seconds: a laptop may sleep for hours."""
    return max(SILENT_BEATS, math.ceil(SHORTEST_SILENCE / every))


class Keeper:
    """Refreshes a process's claims until it is stopped; `public` also tells the server that a worker is here."""

    def __init__(self, holder: Holder, loop: asyncio.AbstractEventLoop, *, public: bool) -> None:
        self._holder = holder
        self._loop = loop
        self._public = public
        self._stopped = threading.Event()
        self._unanswered = 0
        self._thread = threading.Thread(target=self._run, name="uplift-lease", daemon=True)
        self.leave: Callable[[str], None] = hang_up

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        every = beat_seconds(self._holder.settings)
        most = silent_beats(every)
        client = connect(self._holder.settings.broker, timeout_seconds=max(1.0, every), retries=1)
        while not self._stopped.is_set():
            self._ask_loop(most)
            try:
                self._beat(client)
            # A missed beat is mended by the next one; a dead keeper would be mended by nobody.
            except Exception as problem:
                log.warning("lease not refreshed: %s", problem)
            self._stopped.wait(every)
        client.close()

    def _beat(self, client: redis.Redis) -> None:
        for run_id, held in self._holder.held().items():
            lease(client, run_id, held, self._holder.settings.lease_seconds)
        if self._public:
            sign_of_life(client, self._holder.name, self._holder.about())

    def _ask_loop(self, most: int) -> None:
        if self._unanswered > most and not self._stopped.is_set():
            self.leave("the loop of this worker hangs; its attempts will be given to somebody else")
        self._unanswered += 1
        with suppress(RuntimeError):  # the loop was closed in this very moment: we are leaving
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._unanswered = 0


def hang_up(why: str) -> None:
    """End this process at once: it holds attempts that it will never finish."""
    log.critical("%s", why)
    os._exit(HUNG_EXIT)


def start_again(why: str, *, worked: bool) -> None:
    """Replace this process by a fresh one with the same id, so that no supervisor is needed.

    One that has never done anything between three such restarts leaves instead, with an exit code for whoever
    supervises it.
    """
    restarts = 1 if worked else int(os.environ.get(_RESTARTS, "0")) + 1
    log.critical("%s", why)
    if restarts > MOST_RESTARTS:
        os._exit(STUCK_EXIT)
    os.environ[_RESTARTS] = str(restarts)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

"""Renew this process's claims from a thread, over one connection; end the process when its event loop hangs.

It is a thread of its own, so that neither a busy event loop nor Celery's reconnecting lets leases run out. A killed
process stops renewing at once.

Once a second it tells those who watch a run what is in flight, what takes longest and how fast it goes. That is
forgotten after a few seconds, so that a dead worker's attempts do not stay in anybody's view; its counts stay for as
long as the run does. Nothing but displays depends on either.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import math
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import redis
from pydantic import BaseModel

from workers.store.claims import lease
from workers.store.keys import WORKING_SECONDS, Keys
from workers.store.messages import Grid
from workers.store.redis_client import AWAY, SEEN_SECONDS, sign_of_life

if TYPE_CHECKING:
    from aggregate.records.record import AttemptRecord
    from workers.attempts.run_context import Bill
    from workers.process.engine import Engine
    from workers.store.claims import StoreResult

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
SILENT_BEATS = 8
SHORTEST_SILENCE = 20.0
HUNG_EXIT = 76
STUCK_EXIT = 75
MOST_RESTARTS = 3
_RESTARTS = "UPLIFT_RESTARTS"


def silent_beats(every: float) -> int:
    """How many beats without progress are a hang. Beats are counted, not seconds: a laptop may sleep for hours."""
    return max(SILENT_BEATS, math.ceil(SHORTEST_SILENCE / every))


Duty = Callable[[redis.Redis], None]


@dataclass
class _Schedule:
    seconds: float
    due: float


class Heartbeat:
    """Renews a process's claims until it is stopped, and does what is added to it.

    `public` also tells the server that a worker is here.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, *, public: bool) -> None:
        # Four beats in a lease: three may get lost. And some while a worker counts as alive, long as its lease may be.
        self.seconds = min(engine.settings.lease_seconds / 4, SEEN_SECONDS / 3)
        self._engine = engine
        self._loop = loop
        self._public = public
        self._stopped = threading.Event()
        # Who else asks the server now and then takes it, so that both can do with one connection.
        self.turn = threading.Lock()
        self._unanswered = 0
        # What was added first is done first; a monotonic time of 0 is long past.
        self._duties: dict[Duty, _Schedule] = {
            self._ask_loop: _Schedule(self.seconds, 0.0),
            self._renew: _Schedule(self.seconds, 0.0),
        }
        self._thread = threading.Thread(target=self._run, name="uplift-heartbeat", daemon=True)
        self.leave: Callable[[str], None] = hang_up

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def add(self, duty: Duty, seconds: float | None = None) -> None:
        """Do this from now on, at every beat or every so many seconds."""
        seconds = self.seconds if seconds is None else seconds
        self._duties[duty] = _Schedule(seconds, time.monotonic() + seconds)

    def remove(self, duty: Duty) -> None:
        self._duties.pop(duty, None)

    def _run(self) -> None:
        while not self._stopped.is_set():
            has_turn = self.turn.acquire(timeout=BEAT_SECONDS)
            self._do_what_is_due(self._engine.client)
            if has_turn:
                self.turn.release()
            next_due = min(schedule.due for schedule in list(self._duties.values()))
            # At most so long, because somebody may add what is due earlier.
            self._stopped.wait(min(BEAT_SECONDS, max(0.0, next_due - time.monotonic())))

    def _do_what_is_due(self, client: redis.Redis) -> None:
        for duty, schedule in list(self._duties.items()):
            now = time.monotonic()
            if schedule.due > now:
                continue
            schedule.due = now + schedule.seconds
            try:
                duty(client)
            # A missed beat is tried again soon: claims must be renewed before others find that they ran out.
            except Exception as problem:
                log.warning("missed a beat: %s", problem)
                schedule.due = min(schedule.due, time.monotonic() + BEAT_SECONDS)
                if isinstance(problem, AWAY):
                    return  # the claims come first again, before anything else waits for this server

    def _renew(self, client: redis.Redis) -> None:
        refused: redis.ResponseError | None = None
        for run_id, held in self._engine.held().items():
            try:
                lease(client, run_id, held, self._engine.settings.lease_seconds)
            except (
                redis.ResponseError
            ) as problem:  # of this run, perhaps; the others' claims are renewed all the same
                refused = problem
        if self._public:
            sign_of_life(client, self._engine.name, self._engine.about())
        if refused is not None:
            raise refused

    def _ask_loop(self, _: redis.Redis) -> None:
        if self._unanswered > silent_beats(self.seconds) and not self._stopped.is_set():
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


RUNS_KEPT = 64
# Seconds; a judge takes milliseconds, an agent many minutes.
BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


class Histogram:
    """How many values fell below each of BOUNDS, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


@dataclass
class RunTally:
    """One run's share: attempts that ended here, repeated calls, those with calls of unknown cost, and USD."""

    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0


@dataclass
class Tally:
    """Counts of a process since it started: by model, and by run for those who watch one.

    The event loop adds, other threads read: a reader may see a number one attempt before its neighbour, and computes
    nothing from two of them that would mind.
    `wasted_attempts` were paid for and did not count, because another delivery or a later try did. Of errors that a
    later try replaced, the cost is not known here and not in `wasted_usd`.
    """

    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    unpriced: Counter[str] = field(default_factory=Counter)
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    model_seconds: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    judge_seconds: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    wasted_attempts: int = 0
    wasted_usd: float = 0.0
    runs: OrderedDict[str, RunTally] = field(default_factory=OrderedDict)

    def run(self, run_id: str) -> RunTally:
        """A run's own tally; those of runs long past are forgotten."""
        if run_id not in self.runs:
            self.runs[run_id] = RunTally()
            if len(self.runs) > RUNS_KEPT:
                self.runs.popitem(last=False)
        return self.runs[run_id]

    def retried(self, run_id: str, model: str) -> None:
        """Count a call that is repeated because the model was busy."""
        self.retries[model] += 1
        self.run(run_id).retries += 1

    def add(self, run_id: str, record: AttemptRecord, bill: Bill, result: StoreResult) -> None:
        """Count an attempt that has ended; `result` says what became of its record."""
        model, mine = record.model or "", self.run(run_id)
        mine.done += 1
        self.attempts[model, record.outcome] += 1
        mine.spent += bill.usd
        self.spent[model] += bill.usd
        if bill.unpriced:
            mine.unpriced += 1
            self.unpriced[model] += 1
        if record.model_ms is not None and bill.calls:  # an answer that is only judged again took no time
            self.model_seconds[model].add(record.model_ms / 1000)
        if record.judge_ms is not None and record.judgments:
            self.judge_seconds[record.judgments[0].kind].add(record.judge_ms / 1000)
        if result != "stored":
            self.wasted_attempts += 1
            self.wasted_usd += bill.usd if result != "replaced" else 0.0


FORGOTTEN_SECONDS = 6
RATE_SECONDS = 30.0
SLOWEST = 8


class Beat(BaseModel, frozen=True):
    """One worker at one run. `in_flight` counts by the model's position, `slowest` are (index, seconds) pairs.

    The first three are None where the worker has not been heard of lately; the counts are those of its lifetime.
    """

    worker: str
    in_flight: dict[int, int] | None = None
    slowest: tuple[tuple[int, float], ...] = ()
    rate: float | None = None
    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0


def read(client: redis.Redis, run_id: str) -> list[Beat]:
    """The last beat of every worker that took part in a run, by name."""
    keys = Keys(run_id)
    totals = cast("dict[bytes, bytes]", client.hgetall(keys.tallies))
    names = sorted(totals)
    if not names:
        return []
    fresh = cast("list[bytes | None]", client.mget([keys.beat(name.decode()) for name in names]))
    return [
        Beat.model_validate({"worker": name, **json.loads(totals[name]), **json.loads(beat or b"{}")})
        for name, beat in zip(names, fresh, strict=True)
    ]


@dataclass
class Pace:
    """How many a second, over the last `seconds` or as long as there is something to count."""

    seconds: float = RATE_SECONDS
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now: float, count: int) -> float:
        self._seen.append((now, count))
        while now - self._seen[0][0] > self.seconds:
            self._seen.popleft()
        begun, first = self._seen[0]
        return (count - first) / (now - begun) if now > begun else 0.0


class Teller:
    """Knows since when each attempt of this process has been in flight, and puts beats into a pipeline."""

    def __init__(self, worker: str, tally: Tally) -> None:
        self._worker = worker
        self._tally = tally
        self._since: dict[str, dict[tuple[int, int], float]] = {}
        self._paces: dict[str, Pace] = {}
        self._last_counts: dict[str, RunTally] = {}

    def tell(self, pipe: Any, grids: dict[str, Grid], held: dict[str, dict[int, int]], now: float) -> None:
        """Add a beat for every run that has something in flight or news; `now` is a monotonic time."""
        for run_id, claims in held.items():
            total = self._tally.runs.get(run_id) or RunTally()
            rate = self._paces.setdefault(run_id, Pace()).rate(now, total.done)
            known = self._since.get(run_id, {})
            since = {claim: known.get(claim, now) for claim in claims.items()}
            self._since[run_id] = since
            if not since and self._last_counts.get(run_id) == total:
                continue
            self._last_counts[run_id] = replace(total)
            keys = Keys(run_id)
            beat = _beat(grids[run_id], since, rate, now)
            pipe.set(keys.beat(self._worker), json.dumps(beat), ex=FORGOTTEN_SECONDS)
            pipe.hset(keys.tallies, self._worker, json.dumps(vars(total)))
            pipe.expire(keys.tallies, WORKING_SECONDS)
        for gone in self._since.keys() - held.keys():
            for memory in (self._since, self._paces, self._last_counts):
                memory.pop(gone, None)


def _beat(grid: Grid, since: dict[tuple[int, int], float], rate: float, now: float) -> dict[str, Any]:
    models = Counter(grid.cell(index).model for index, _ in since)
    longest = heapq.nsmallest(SLOWEST, since.items(), key=lambda item: item[1])
    slowest = [(index, round(now - begun, 1)) for (index, _), begun in longest]
    return {"in_flight": models, "slowest": slowest, "rate": round(rate, 3)}

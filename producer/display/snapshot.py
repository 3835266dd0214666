"""A run at one moment, as displays show it: counts, what is in flight, who works on it, and rough intervals.

A snapshot is built from Redis, per-worker details at most once a second. The rough intervals come from counts alone:
they ignore that both arms have the same tasks. The result's own intervals (aggregate/formulas/intervals.py) do not,
and also say what holds for other tasks.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple, cast

from aggregate.artifact.sentences import short_models
from aggregate.records.run_info import BASELINE, ORACLE
from workers.process import heartbeat
from workers.store.keys import Keys, limits
from workers.store.messages import Manifest
from workers.store.run_store import Progress, Store

_Z = 1.959963984540054  # of a normal distribution's 97.5 %


class RoughInterval(NamedTuple):
    """An estimate with the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


def share(passed: float, judged: float) -> RoughInterval:
    """Wilson's score interval (1927) of passed / judged; needs judged > 0."""
    rate = passed / judged
    middle = (rate + _Z**2 / (2 * judged)) / (1 + _Z**2 / judged)
    half = _Z / (1 + _Z**2 / judged) * sqrt(rate * (1 - rate) / judged + _Z**2 / (4 * judged**2))
    return RoughInterval(rate, max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate)))


def difference(passed: float, judged: float, base_passed: float, base_judged: float) -> RoughInterval:
    """Newcombe's interval (1998, method 10) of the first share minus the second."""
    one, base = share(passed, judged), share(base_passed, base_judged)
    delta = one.estimate - base.estimate
    low = delta - sqrt((one.estimate - one.low) ** 2 + (base.high - base.estimate) ** 2)
    high = delta + sqrt((one.high - one.estimate) ** 2 + (base.estimate - base.low) ** 2)
    return RoughInterval(delta, low, high)


@dataclass(frozen=True)
class InFlight:
    """An attempt that is under way, and for how long."""

    task: str
    arm: str
    model: str
    number: int
    seconds: float


@dataclass(frozen=True)
class WorkerActivity:
    """What workers do for a run; `workers` has the beats of those that are at it.

    `done` counts every try; of `unpriced` ones nobody knows the cost. `paced` has the calls a minute of models that
    their providers ask us to spare.
    """

    in_flight: dict[str, int] = field(default_factory=dict)
    slowest: tuple[InFlight, ...] = ()
    workers: tuple[heartbeat.Beat, ...] = ()
    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0
    paced: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """What a display shows of a run at one moment. Arms are meant by their position in `arms`.

    `units` is how many (task, model) pairs an arm has, None where each attempt is of another pair. `may_stop` says
    that the run may be over before all attempts are made.
    """

    run_id: str
    arms: tuple[str, ...]
    total_per_arm: int
    progress: Progress
    workers: int
    elapsed: float
    rate: float | None = None
    stopping: bool = False
    units: int | None = None
    budget_usd: float | None = None
    may_stop: bool = False
    inside: WorkerActivity = WorkerActivity()
    models: tuple[str, ...] = ()

    def called(self, model: str) -> str:
        """What people call a model of the run, as its results do."""
        return short_models(self.models).get(model, model)

    @property
    def total(self) -> int:
        return self.total_per_arm * len(self.arms)

    @property
    def left(self) -> int:
        return max(0, self.total - self.progress.recorded)

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.rate else None

    @property
    def spent(self) -> float | None:
        """USD, at least; None where no attempt's cost is known."""
        spent = self.progress.spent
        return spent if spent or self.inside.done > self.inside.unpriced else None

    @property
    def projected(self) -> float | None:
        """What the whole run will have cost if the rest costs as much as what has been done; None if unknown."""
        # The workers' own sums are of one moment; what the server has counted meanwhile would spoil the mean.
        priced = self.inside.done - self.inside.unpriced
        if self.spent is None or priced <= 0:
            return None
        return self.spent + self.left * self.inside.spent / priced

    def outcome(self, arm: int, *names: str) -> int:
        counts = self.progress.outcomes.get(arm, {})
        return sum(counts.get(name, 0) for name in names)

    def done(self, arm: int) -> int:
        return self.outcome(arm, "passed", "failed", "timeout", "error")

    def errors(self) -> int:
        return sum(self.outcome(arm, "error") for arm in range(len(self.arms)))

    def passing(self, arm: int) -> RoughInterval | None:
        """The share of judged attempts that passed, with a rough interval; None before there is one."""
        passed, judged = self._counts(arm)
        return share(passed, judged) if judged else None

    def is_compared(self, arm: int) -> bool:
        """Whether an arm has a baseline to be compared with, and is a candidate."""
        return BASELINE in self.arms and self.arms[arm] not in (BASELINE, ORACLE)

    def delta(self, arm: int) -> RoughInterval | None:
        """An arm's share minus the baseline's; None before both have one, and where there is nothing to compare."""
        if not self.is_compared(arm):
            return None
        mine, base = self._counts(arm), self._counts(self.arms.index(BASELINE))
        return difference(*mine, *base) if mine[1] and base[1] else None

    def _counts(self, arm: int) -> tuple[float, float]:
        # Attempts of one task resemble each other: more of them than there are pairs say hardly more.
        passed = self.outcome(arm, "passed")
        judged = passed + self.outcome(arm, "failed", "timeout")
        independent = min(judged, self.units or judged)
        return (passed * independent / judged if judged else 0.0), independent


INSIDE_SECONDS = 1.0
RATE_SECONDS = 60.0
SHOWN_SLOWEST = 8


class Looker:
    """Looks at one run again and again; remembers names of tasks and how fast the run has been going."""

    def __init__(self, store: Store, manifest: Manifest, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._manifest = manifest
        self._grid = manifest.grid
        self._clock = clock
        self._begun = clock()
        self._looked_at = float("-inf")
        self._inside = WorkerActivity()
        self._pace = heartbeat.Pace(RATE_SECONDS)
        self._rate = 0.0
        self._tasks: dict[int, str] = {}

    def view(self, progress: Progress, workers: int, *, stopping: bool = False) -> View:
        """The run as it is now; what is inside it may be a second old."""
        now = self._clock()
        if now - self._looked_at >= INSIDE_SECONDS:
            self._looked_at, self._inside = now, self._look_inside()
            self._rate = self._pace.rate(now, progress.recorded)
        return View(
            run_id=self._manifest.run_id,
            arms=tuple(arm.name for arm in self._manifest.arms),
            total_per_arm=self._grid.attempts // self._grid.arms,
            progress=progress,
            workers=workers,
            elapsed=now - self._begun,
            rate=self._rate or None,
            stopping=stopping,
            units=self._grid.tasks * self._grid.models,
            budget_usd=self._manifest.budget_usd,
            may_stop=self._manifest.stop_early,
            inside=self._inside,
            models=self._manifest.models,
        )

    def _look_inside(self) -> WorkerActivity:
        beats = heartbeat.read(self._store.client, self._manifest.run_id)
        in_flight: Counter[int] = Counter()
        for beat in beats:
            in_flight.update(beat.in_flight or {})
        longest = sorted((pair for beat in beats for pair in beat.slowest), key=lambda pair: -pair[1])
        return WorkerActivity(
            in_flight={self._manifest.models[model]: count for model, count in sorted(in_flight.items())},
            slowest=tuple(self._named(*pair) for pair in longest[:SHOWN_SLOWEST]),
            workers=tuple(beat for beat in beats if beat.in_flight is not None),
            done=sum(beat.done for beat in beats),
            retries=sum(beat.retries for beat in beats),
            unpriced=sum(beat.unpriced for beat in beats),
            spent=sum(beat.spent for beat in beats),
            paced=self._paced(),
        )

    def _paced(self) -> dict[str, int]:
        judge = self._manifest.judge_model
        models = dict.fromkeys([*self._manifest.models, *([judge] if judge else [])])
        pipe = self._store.client.pipeline(transaction=False)
        for model in models:
            pipe.hget(limits(model)[1], "rate")
        return {model: round(float(rate)) for model, rate in zip(models, pipe.execute(), strict=True) if rate}

    def _named(self, index: int, seconds: float) -> InFlight:
        cell = self._grid.cell(index)
        if cell.task not in self._tasks:
            key = Keys(self._manifest.run_id).tasks
            data = cast("bytes | None", self._store.client.hget(key, str(cell.task)))
            self._tasks[cell.task] = json.loads(zlib.decompress(data))["id"] if data else f"task {cell.task}"
        model, arm = self._manifest.models[cell.model], self._manifest.arms[cell.arm].name
        return InFlight(self._tasks[cell.task], arm, model, cell.number, seconds)

"""A run at one moment, as displays show it: counts, what is in flight, and who works on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from producer.rough_intervals import Interval, difference, share
from workers.store import Progress

BASELINE = "baseline"
ORACLE = "oracle"


@dataclass(frozen=True)
class InFlight:
    """An attempt that is under way, and for how long."""

    task: str
    arm: str
    model: str
    number: int
    seconds: float


@dataclass(frozen=True)
class Worker:
    """A worker that has taken part: its attempts of this run in flight and, where it is at it, how many a second."""

    name: str
    in_flight: int
    rate: float | None
    done: int


@dataclass(frozen=True)
class Inside:
    """What workers tell of a run. `done` counts every try; of `unpriced` ones nobody knows the cost."""

    in_flight: dict[str, int] = field(default_factory=dict)
    slowest: tuple[InFlight, ...] = ()
    workers: tuple[Worker, ...] = ()
    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0


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
    inside: Inside = Inside()

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

    def passing(self, arm: int) -> Interval | None:
        """The share of judged attempts that passed, with a rough interval; None before there is one."""
        passed, judged = self._counts(arm)
        return share(passed, judged) if judged else None

    def is_compared(self, arm: int) -> bool:
        """Whether an arm has a baseline to be compared with, and is a candidate."""
        return BASELINE in self.arms and self.arms[arm] not in (BASELINE, ORACLE)

    def delta(self, arm: int) -> Interval | None:
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

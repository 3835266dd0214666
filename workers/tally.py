"""What this worker process has done since it started, as plain numbers: cheap to keep, read by whoever looks.

The loop adds, other threads read. A reader may see a number one attempt before its neighbour; nothing is computed
from two of them that would mind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggregate.records import AttemptRecord
    from workers.claims import Stored

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
    """One run's share: attempts that ended here, repeated calls, answers of unknown cost, and USD."""

    done: int = 0
    retries: int = 0
    unpriced: int = 0
    spent: float = 0.0


@dataclass
class Tally:
    """Counts of a process by model, and by run for those who watch one.

    `wasted_attempts` were paid for and did not count, because another delivery or a later try did. Of errors that a
    later try replaced, the cost is not known here and not in `wasted_usd`.
    """

    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    unpriced: Counter[str] = field(default_factory=Counter)
    spent: dict[str, float] = field(default_factory=dict)
    model_seconds: dict[str, Histogram] = field(default_factory=dict)
    judge_seconds: dict[str, Histogram] = field(default_factory=dict)
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
        """A call is made once more, because the model was busy."""
        self.retries[model] += 1
        self.run(run_id).retries += 1

    def add(self, run_id: str, record: AttemptRecord, cost: float | None, stored: Stored) -> None:
        """An attempt has ended, and the store has said what it made of its record."""
        model, mine = record.model or "", self.run(run_id)
        mine.done += 1
        self.attempts[model, record.outcome] += 1
        if cost is not None:
            mine.spent += cost
            self.spent[model] = self.spent.get(model, 0.0) + cost
        elif record.outcome != "error":  # those are hardly ever billed
            mine.unpriced += 1
            self.unpriced[model] += 1
        if record.model_ms is not None:
            _histogram(self.model_seconds, model).add(record.model_ms / 1000)
        if record.judge_ms is not None and record.judgments:
            _histogram(self.judge_seconds, record.judgments[0].judge).add(record.judge_ms / 1000)
        if stored != "stored":
            self.wasted_attempts += 1
            self.wasted_usd += (cost or 0.0) if stored != "replaced" else 0.0


def _histogram(found: dict[str, Histogram], name: str) -> Histogram:
    if name not in found:
        found[name] = Histogram()
    return found[name]

"""Sums: what an attempt's calls used and cost, and what this worker process has done since it started.

Calls that failed are on the bill, and what nobody knows is counted apart, never as nothing. The event loop adds, other
threads read: a reader may see a number one attempt before its neighbour, and computes nothing from two of them that
would mind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from judges.judgment import Completion, ranges, usage
from workers.models.model import ModelError, ModelTimedOut

if TYPE_CHECKING:
    from aggregate.records.record import AttemptRecord
    from workers.store.claims import Stored

_RANGES = ranges(Completion)


@dataclass
class Bill:
    """A sum over calls: `usd` and `tokens` that are known, and how many calls nobody knows them of.

    `failed` are the calls that gave no answer and were billed, as far as they told. `judging_usd` is the part of
    `usd` that judges cost.
    """

    calls: int = 0
    usd: float = 0.0
    judging_usd: float = 0.0
    unpriced: int = 0
    tokens: int = 0
    uncounted: int = 0
    failed: list[Completion] = field(default_factory=list)

    async def call(self, asking: Awaitable[Completion]) -> Completion:
        """Wait for a call and put it on the bill, however it ends."""
        try:
            said = await asking
        except (ModelError, ModelTimedOut) as problem:
            self._add(problem.completion)
            billed = measured(problem.completion) if problem.completion else None
            if billed is not None and (billed.input_tokens or billed.cost_usd):
                self.failed.append(billed)
            raise
        except BaseException:  # cut off by a deadline: the model may have answered all the same
            self._add(None)
            raise
        self._add(said)
        return said

    def _add(self, said: Completion | None) -> None:
        self.calls += 1
        known = measured(said or Completion())
        if known.cost_source == "replay":
            return  # that was paid before
        self.usd += known.cost_usd or 0.0
        self.unpriced += known.cost_usd is None
        self.tokens += (known.input_tokens or 0) + (known.output_tokens or 0)
        self.uncounted += known.input_tokens is None or known.output_tokens is None

    def include_judging(self, other: Bill) -> None:
        """Add what calls of a judge cost."""
        self.usd += other.usd
        self.judging_usd += other.usd
        self.unpriced += other.unpriced

    def answered(self, said: Completion) -> Completion:
        """The answer with what the failed tries before it used and cost."""
        return said.model_copy(update=usage([*self.failed, said])) if self.failed else said

    def unanswered(self) -> Completion | None:
        """What was used and paid without an answer, and nothing else: there is nothing to judge or to compare."""
        if not self.failed:
            return None
        last = self.failed[-1]
        return Completion(
            **usage(self.failed),
            cost_source=last.cost_source,
            unit_prices=last.unit_prices,
            agent_version=last.agent_version,
            served_model=last.served_model,
        )


def measured(said: Completion) -> Completion:
    """The completion without numbers that nobody can have measured: negative, not finite, or beyond all sense."""
    wrong = [
        name
        for name, valid in _RANGES.items()
        if (value := getattr(said, name)) is not None and value not in valid
    ]
    return said.model_copy(update=dict.fromkeys(wrong)) if wrong else said


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

    def add(self, run_id: str, record: AttemptRecord, bill: Bill, stored: Stored) -> None:
        """An attempt has ended, and the store has said what it made of its record."""
        model, mine = record.model or "", self.run(run_id)
        mine.done += 1
        self.attempts[model, record.outcome] += 1
        mine.spent += bill.usd
        self.spent[model] = self.spent.get(model, 0.0) + bill.usd
        if bill.unpriced:
            mine.unpriced += 1
            self.unpriced[model] += 1
        if record.model_ms is not None and bill.calls:  # an answer that is only judged again took no time
            _histogram(self.model_seconds, model).add(record.model_ms / 1000)
        if record.judge_ms is not None and record.judgments:
            _histogram(self.judge_seconds, record.judgments[0].judge).add(record.judge_ms / 1000)
        if stored != "stored":
            self.wasted_attempts += 1
            self.wasted_usd += bill.usd if stored != "replaced" else 0.0


def _histogram(found: dict[str, Histogram], name: str) -> Histogram:
    if name not in found:
        found[name] = Histogram()
    return found[name]

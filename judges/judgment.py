"""The shapes of completions and judgments, and the time limit that all judges of text share.

A judge that has no process of its own gets one second for an output; after that the output has failed. The second is
processor time of the judging thread: an honest output must not fail because others keep the machine busy. Nothing
here interrupts a step. A judge looks at the clock between its steps, each of which takes time in proportion to the
output (4 MiB at most) and no more; patterns stop by themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from judges.trajectory import Trajectory

SPARED = "not asked: a required check had failed already"
Sandbox = Literal["auto", "required", "off"]
CHECKS = "checks"  # what judges a task that has several, where one word is needed
# In the copy of an agent's folder, for judges of files: names of whatever was there and is not kept, a line each.
LEFT_OUT = ".uplift-left-out"


@dataclass(frozen=True)
class Range:
    """Valid values of a number, both ends included; a value outside is treated as missing.

    Constructing a value does not check it: what a provider says of itself must not end an attempt. Who reads
    records from a file does (`aggregate.records.jsonl`), and tables leave such a number out.
    """

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def ranges(model: type[BaseModel]) -> dict[str, Range]:
    """The ranges that stand at the fields of a model."""
    return {
        name: part
        for name, field in model.model_fields.items()
        for part in field.metadata
        if isinstance(part, Range)
    }


COUNT = Range(0, 1_000_000_000_000)
SCORE = Range(0, 1)
WEIGHT = Range(0, 1e6)
USD = Range(0, 1e9)
POINTS = Range(0, 1e9)
_SECONDS = Range(0, 1e9)

Count = Annotated[int | None, COUNT]
Score = Annotated[float | None, SCORE]
Usd = Annotated[float | None, USD]
Points = Annotated[float | None, POINTS]
Seconds = Annotated[float | None, _SECONDS]
Tally = Annotated[int, COUNT]


class AttemptPart(BaseModel):
    """What is stored of an attempt: it never changes, and fields that a later version wrote are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Completion(AttemptPart):
    """What the model returned. None means unknown, never zero.

    `refused` are the hosts that an agent's network did not let it reach, and how many connections to each.
    `tool_calls` and `tool_errors` count by tool; `skill_loaded` says whether the arm's skill was read, and of a bare
    baseline whether it read the candidate's.
    """

    text: str = ""
    truncated: bool = False
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_tokens: Count = None
    cache_write_tokens: Count = None
    cost_usd: Usd = None
    cost_source: str | None = None
    unit_prices: dict[str, float] | None = None
    reasoning_tokens: Count = None
    turns: Count = None
    tool_calls: dict[str, int] | None = None
    tool_errors: dict[str, int] | None = None
    stop_reason: str | None = None
    # Version 0.1.0 called it otherwise.
    skill_loaded: Annotated[
        bool | None, Field(validation_alias=AliasChoices("skill_loaded", "skill_invoked"))
    ] = None
    agent_version: str | None = None
    served_model: str | None = None
    warnings: tuple[str, ...] = ()
    refused: Annotated[tuple[tuple[str, Tally], ...], Field(exclude_if=lambda refused: not refused)] = ()


def usage(calls: Sequence[Completion]) -> dict[str, Any]:
    """Add up tokens and cost of several calls; a sum is None where one of its parts is unknown."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd")
    parts = {name: [getattr(call, name) for call in calls] for name in names}
    return {name: sum(part) if part and None not in part else None for name, part in parts.items()}


class Criterion(AttemptPart):
    """Points that a judge gave for one named requirement; `achieved` is None where it gave none."""

    name: str
    achieved: Points = None
    max_points: Points = None


class BenchmarkTimes(AttemptPart):
    """Median seconds of one benchmark for the original code (nop), the candidate's and the oracle's."""

    name: str
    nop_median: Seconds = None
    agent_median: Seconds = None
    oracle_median: Seconds = None


class Tests(AttemptPart):
    """Counts of a test run on the candidate's output, and of the oracle's own failures."""

    passed: Tally = 0
    failed: Tally = 0
    errored: Tally = 0
    oracle_failed: Tally = 0


class Snapshot(AttemptPart):
    """Whether recorded results still hold: `status` is "passed" when they do."""

    status: str | None = None
    pass_to_fail: Tally = 0


class Judgment(AttemptPart):
    """What a judge said of a completion; `passed` and `score` are None when no judgment could be made.

    A panel's consensus is one Judgment whose `panel` holds each member's own. `check` is the name of one of a task's
    several checks, with its part of the score and whether a pass needs it. With `broke_off` the output failed because
    it could not be looked at to the end.

    `unguarded`: tests ran the output's code, if any, in their own process, where it could write its own verdict.
    """

    judge: str
    check: str | None = None
    weight: Annotated[float, WEIGHT] = 1.0
    required: bool = True
    judge_model: str | None = None
    passed: bool | None = None
    score: Score = None
    details: str = ""
    error: str | None = None
    matched: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    input_tokens: Count = None
    output_tokens: Count = None
    cost_usd: Usd = None
    saw_cut_text: bool = False
    broke_off: bool = False
    unguarded: bool = False
    panel: tuple[Self, ...] = ()
    benchmarks: tuple[BenchmarkTimes, ...] = ()
    tests: Tests | None = None
    snapshot: Snapshot | None = None

    @property
    def kind(self) -> str:
        """What judged the attempt whose first judgment this is: a type, or `checks`."""
        return self.judge if self.check is None else CHECKS

    @property
    def by_model(self) -> bool:
        return "llm-rubric" in self.judge or self.judge_model is not None or bool(self.panel)


def yes_or_no(
    judge: str, passed: bool, details: str, wanted: tuple[str, ...] = (), *, broke_off: bool = False
) -> Judgment:
    """A judgment without shades: the score is 1 or 0, and what was wanted is matched or missed."""
    return Judgment(
        judge=judge,
        passed=passed,
        score=float(passed),
        details=details,
        matched=wanted if passed else (),
        missed=() if passed else wanted,
        broke_off=broke_off,
    )


def weighted_mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of values by their weights; None where one that has a weight is missing, or none has any."""
    parts, weights = [], []
    for value, weight in values:
        if weight > 0:
            if value is None:
                return None
            parts.append(value * weight)
            weights.append(weight)
    return math.fsum(parts) / math.fsum(weights) if weights else None


@dataclass(frozen=True)
class Workspace:
    """Where a judge finds files: the suite's folder (the parent of `fixtures/`) and what an agent left behind.

    `prompt` is what was asked, `trajectory` what was done in `seconds`, where that is known. `passes` says whether a
    simulated answer is to pass: nobody has made files for it.
    """

    suite: Path | None = None
    left: Path | None = None
    sandbox: Sandbox = "auto"
    prompt: str = ""
    passes: bool | None = None
    trajectory: Trajectory | None = None
    seconds: float | None = None

    def fixture(self, name: str) -> tuple[Path, Path]:
        """The suite's fixtures folder and a file in it, links followed; raises FileNotFoundError for one elsewhere."""
        if self.suite is None:
            raise FileNotFoundError(f"{name}: no suite folder was given")
        fixtures, file = (self.suite / "fixtures").resolve(), (self.suite / name).resolve()
        if not file.is_relative_to(fixtures) or not file.is_file():
            raise FileNotFoundError(f"{name}: not a file in the suite's fixtures folder")
        return fixtures, file


class Ask(Protocol):
    """Anything that answers a prompt: a vendor client, a recording, a lambda in a test.

    What it raises may have a `completion`: what the failed call used and cost.
    """

    async def __call__(self, model: str, prompt: str, *, system: str = "") -> Completion: ...


JUDGING_SECONDS = 1.0
# When the check under way must be done, by the processor time of its thread.
_deadline: ContextVar[float] = ContextVar("_deadline")


class TooSlow(Exception):
    """A judge used its second without a result."""


class time_limit:  # half the time that a generator takes, for every judgment of a text
    """Within the block, `look_at_clock` raises TooSlow once the second is used."""

    def __enter__(self) -> None:
        self._before = _deadline.set(time.thread_time() + JUDGING_SECONDS)

    def __exit__(self, *problem: object) -> None:
        _deadline.reset(self._before)


def look_at_clock(remedy: str = "") -> float:
    """The seconds left of the limit, which somebody must have set; raises TooSlow where none are left."""
    left = _deadline.get() - time.thread_time()
    if left <= 0:
        raise TooSlow(f"not judged within {JUDGING_SECONDS:g} s" + (f"; {remedy}" if remedy else ""))
    return left

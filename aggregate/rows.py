"""Turn records into rows, one at a time, so that texts are dropped before the next record is read."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, cast

from aggregate.ranges import CRITERION
from aggregate.records import JUDGED, AttemptRecord
from aggregate.run_info import UNKNOWN_MODEL, TaskInfo, is_known_arm
from aggregate.stats import compute_impl_rate
from judges.judgment import Benchmark, Judgment, Snapshot, Tests

DETAIL_CHARACTERS = 500
Row = tuple[Any, ...]
Key = tuple[str, str, str, int, str]

# Columns that are taken over as they are. A getter makes the tuple in one call, and there are 100,000 to make.
_SAID = attrgetter(
    "cost_usd",
    "cost_source",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "turns",
    "truncated",
    "skill_invoked",
)
_SAID_NOTHING = (None, None, None, None, None, None, None, False, None)
_TOLD = attrgetter("started_at", "worker", "cached", "deliveries", "retries")
_BILLED = attrgetter("cost_usd", "input_tokens", "output_tokens")
_GIVEN = attrgetter("name", "achieved", "max_points")

# A judged outcome wins over one that was not, when an attempt has two records.
_RANK = {"passed": 1, "failed": 2, "timeout": 3, "error": 4, "skipped": 5}


@dataclass(frozen=True)
class Measured:
    """What a benchmark judge measured in one attempt."""

    task: str
    model: str
    arm: str
    attempt: int
    passed: bool
    benchmarks: tuple[Benchmark, ...]
    tests: Tests | None
    snapshot: Snapshot | None
    cost_usd: float | None
    turns: int | None


class Bundle(NamedTuple):
    """The rows of one record under its key."""

    key: Key
    attempt: Row
    judgments: list[Row]
    criteria: list[Row]
    measured: Measured | None


@dataclass
class Collected:
    """Rows of all records, sorted by key, and how many records were left out and why."""

    bundles: list[Bundle] = field(default_factory=list)
    duplicates: int = 0
    unknown_arms: Counter[str] = field(default_factory=Counter)


def collect(records: Iterable[AttemptRecord], tasks: Iterable[TaskInfo] = ()) -> Collected:
    """Rows of the records, in an order that does not depend on theirs; one record per attempt.

    Records of unknown arms are left out. Of two records of one attempt the judged one stays, else the first
    by content, so that arrival order never decides.
    """
    known = {task.id: task for task in tasks}
    collected = Collected()
    for record in records:
        if is_known_arm(record.arm):
            collected.bundles.append(_bundle(record, known))
        else:
            collected.unknown_arms[record.arm] += 1
    collected.bundles.sort(key=attrgetter("key"))
    _drop_duplicates(collected)
    return collected


def _drop_duplicates(collected: Collected) -> None:
    kept: list[Bundle] = []
    for bundle in collected.bundles:
        if kept and kept[-1].key == bundle.key:
            collected.duplicates += 1
            kept[-1] = min(kept[-1], bundle, key=lambda one: (_RANK[one.attempt[7]], repr(one)))
        else:
            kept.append(bundle)
    collected.bundles = kept


def members(judgments: tuple[Judgment, ...]) -> list[Judgment]:
    """The single judges behind a record's judgments: a panel's members instead of their consensus."""
    if len(judgments) == 1 and not judgments[0].panel:
        return list(judgments)
    return [member for judgment in judgments for member in (judgment.panel or (judgment,))]


def impl_rate(judgment: Judgment) -> float | None:
    """Points achieved of points possible; a judge without criteria counts its score as points out of 1."""
    if not judgment.criteria:
        return _unit(judgment.score)
    points = [
        (criterion.achieved, criterion.max_points)
        for criterion in judgment.criteria
        if criterion.achieved is not None
        and criterion.max_points is not None
        and _within(criterion.achieved, "achieved")
        and _within(criterion.max_points, "max_points")
    ]
    if not points:
        return None
    return compute_impl_rate(sum(achieved for achieved, _ in points), sum(most for _, most in points))


def _within(points: float, name: str) -> bool:
    low, high = CRITERION[name]
    return low <= points <= high


def _bundle(record: AttemptRecord, known: Mapping[str, TaskInfo]) -> Bundle:
    model = record.model or UNKNOWN_MODEL
    key = (record.task, model, record.arm, record.attempt, record.run_id or "")
    task = known.get(record.task)
    tier = record.tier or (task.tier if task else None)
    judges = members(record.judgments)
    rates = [impl_rate(judge) for judge in judges]
    first = record.judgments[0] if record.judgments else None
    kind = first.judge if first else (task.judge if task else None)
    attempt = (*key, tier, kind, record.outcome, *_attempt(record, judges, rates))
    judgments, criteria = [], []
    for number, judge in enumerate(judges, start=1):
        judgments.append((*key, tier, number, *_judgment(judge, rates[number - 1])))
        if judge.criteria:
            by = (*key, tier, number, judge.judge, judge.judge_model)
            criteria += [by + _GIVEN(criterion) for criterion in judge.criteria]
    measured = _measured(record, first, model) if record.outcome in JUDGED else None
    return Bundle(key, attempt, judgments, criteria, measured)


def _attempt(record: AttemptRecord, judges: list[Judgment], rates: list[float | None]) -> Row:
    """The columns of frames.ATTEMPTS after `outcome`."""
    judged = record.outcome in JUDGED
    return (
        judged,
        float(record.outcome == "passed") if judged else None,
        _score(record, judges) if judged else None,
        _median(rates) if judged else None,
        len(judges),
        [judge.score for judge in judges].count(None),
        *(_SAID_NOTHING if record.completion is None else _SAID(record.completion)),
        *_billed(judges),
        record.model_ms,
        record.judge_ms,
        _short(record.details),
        _short(record.error),
        *_TOLD(record),
        ";".join(sorted(record.tags)) if record.tags else None,
        _matched(judges) if judged else (),
    )


def _judgment(judge: Judgment, rate: float | None) -> Row:
    """The columns of frames.JUDGMENTS after `member`."""
    return (
        judge.judge,
        judge.judge_model,
        None if judge.passed is None else float(judge.passed),
        judge.score,
        rate,
        *_BILLED(judge),
        judge.saw_cut_text,
        len(judge.matched),
        len(judge.missed),
        _short(judge.details),
        _short(judge.error),
    )


def _measured(record: AttemptRecord, first: Judgment | None, model: str) -> Measured | None:
    benchmarks = record.benchmarks or (first.benchmarks if first else ())
    if not benchmarks and (first is None or first.judge != "benchmark"):
        return None
    completion = record.completion
    return Measured(
        task=record.task,
        model=model,
        arm=record.arm,
        attempt=record.attempt,
        passed=record.outcome == "passed",
        benchmarks=benchmarks,
        tests=record.tests or (first.tests if first else None),
        snapshot=record.snapshot or (first.snapshot if first else None),
        cost_usd=completion.cost_usd if completion else None,
        turns=completion.turns if completion else None,
    )


def _score(record: AttemptRecord, judges: list[Judgment]) -> float | None:
    """The record's own consensus, else the median over its judges that gave a score."""
    if record.score is not None:
        return record.score
    return _median([_unit(judge.score) for judge in judges])


def _matched(judges: list[Judgment]) -> tuple[str, ...]:
    """What at least half of the judges found: matched strings, and criteria with all their points."""
    if len(judges) == 1 and not judges[0].criteria:
        return tuple(sorted(set(judges[0].matched)))
    found: Counter[str] = Counter()
    for judge in judges:
        satisfied = {
            criterion.name
            for criterion in judge.criteria
            if criterion.achieved is not None
            and criterion.max_points
            and criterion.achieved >= criterion.max_points
        }
        found.update({*judge.matched, *satisfied})
    return tuple(sorted(item for item, count in found.items() if 2 * count >= len(judges)))


def _median(values: Iterable[float | None]) -> float | None:
    # A rate is NaN where the maximum is 0; NaN is the only number that differs from itself.
    given = [value for value in values if value is not None and value == value]
    if len(given) < 2:
        return given[0] if given else None
    return statistics.median(given)


def _billed(judges: list[Judgment]) -> Row:
    """Cost, input and output tokens of all judges of an attempt."""
    if len(judges) == 1:
        return cast("Row", _BILLED(judges[0]))
    return (
        _total(judge.cost_usd for judge in judges),
        _total(judge.input_tokens for judge in judges),
        _total(judge.output_tokens for judge in judges),
    )


def _total(values: Iterable[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) if given else None


def _unit(score: float | None) -> float | None:
    return score if score is not None and 0 <= score <= 1 else None


def _short(text: str | None) -> str | None:
    return text[:DETAIL_CHARACTERS] if text else None

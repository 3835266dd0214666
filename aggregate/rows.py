"""Turn records into rows, one at a time, so that texts are dropped before the next record is read."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from aggregate.ranges import POINTS
from aggregate.records import JUDGED, AttemptRecord
from aggregate.run_info import UNKNOWN_MODEL, TaskInfo, is_known_arm
from aggregate.stats import compute_impl_rate
from judges.judgment import Benchmark, Judgment, Snapshot, Tests

DETAIL_CHARACTERS = 500
Row = tuple[Any, ...]
Key = tuple[str, str, str, int, str]
_LEAST, _MOST = POINTS

# There are 100,000 records to read: one getter on an object's own dictionary takes as long as two attributes.
_RECORD = itemgetter(
    "task",
    "model",
    "arm",
    "attempt",
    "run_id",
    "tier",
    "outcome",
    "score",
    "tags",
    "judgments",
    "completion",
    "model_ms",
    "judge_ms",
    "details",
    "error",
)
_TOLD = itemgetter("started_at", "worker", "cached", "deliveries", "retries")
_SAID = itemgetter(
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
_JUDGMENT = itemgetter(
    "judge",
    "judge_model",
    "passed",
    "score",
    "saw_cut_text",
    "matched",
    "missed",
    "details",
    "error",
)
_BILLED = itemgetter("cost_usd", "input_tokens", "output_tokens")
_CRITERION = itemgetter("name", "achieved", "max_points")

# Places in an attempt's row, whose first five are its key.
_TIER, _JUDGE, _OUTCOME, _COST, _TURNS = 5, 6, 7, 14, 20

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
    timed_out: bool = False


class Bundle(NamedTuple):
    """The rows of one record under its key, with the columns of the frames.

    Those of judgments and criteria begin with `member`; the columns before it are those of their attempt.
    """

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
    _label(collected.bundles)
    return collected


def _label(bundles: list[Bundle]) -> None:
    """A task has one tier and one judge, the first that is named: a time-out has no judgment to name it.

    A benchmark that timed out counts as failed, whatever it measured before.
    """
    tiers: dict[str, str] = {}
    judges: dict[str, str] = {}
    for bundle in bundles:
        task, row = bundle.key[0], bundle.attempt
        if row[_TIER] is not None:
            tiers.setdefault(task, row[_TIER])
        if row[_JUDGE] is not None:
            judges.setdefault(task, row[_JUDGE])
    for number, bundle in enumerate(bundles):
        task, row = bundle.key[0], bundle.attempt
        tier, judge = tiers.get(task), judges.get(task)
        measured = bundle.measured
        if row[_OUTCOME] == "timeout" and (measured is not None or judge == "benchmark"):
            measured = _timed_out(bundle)
        if tier != row[_TIER] or judge != row[_JUDGE] or measured is not bundle.measured:
            bundles[number] = bundle._replace(
                attempt=(*row[:_TIER], tier, judge, *row[_OUTCOME:]), measured=measured
            )


def _timed_out(bundle: Bundle) -> Measured:
    (task, model, arm, attempt, _), row = bundle.key, bundle.attempt
    cost, turns = row[_COST], row[_TURNS]
    return Measured(task, model, arm, attempt, False, (), None, None, cost, turns, timed_out=True)


def _drop_duplicates(collected: Collected) -> None:
    kept: list[Bundle] = []
    for bundle in collected.bundles:
        if kept and kept[-1].key == bundle.key:
            collected.duplicates += 1
            kept[-1] = min(kept[-1], bundle, key=lambda one: (_RANK[one.attempt[_OUTCOME]], repr(one)))
        else:
            kept.append(bundle)
    collected.bundles = kept


def members(judgments: tuple[Judgment, ...]) -> list[Judgment]:
    """The single judges behind a record's judgments: a panel's members instead of their consensus."""
    if len(judgments) == 1 and not judgments[0].panel:
        return list(judgments)
    return [member for judgment in judgments for member in (judgment.panel or (judgment,))]


def _impl_rate(points: list[Row]) -> float | None:
    """Points achieved of points possible, over the criteria that have both."""
    total = possible = 0.0
    known = False
    for _, achieved, most in points:
        if achieved is None or most is None:
            continue
        if _LEAST <= achieved <= _MOST and _LEAST <= most <= _MOST:
            total += achieved
            possible += most
            known = True
    return compute_impl_rate(total, possible) if known else None


def _bundle(record: AttemptRecord, known: Mapping[str, TaskInfo]) -> Bundle:
    facts = vars(record)
    (
        task_id,
        model,
        arm,
        number,
        run_id,
        tier,
        outcome,
        score,
        tags,
        judgments,
        completion,
        model_ms,
        judge_ms,
        details,
        error,
    ) = _RECORD(facts)
    task = known.get(task_id)
    judged = outcome in JUDGED
    lone = len(judgments) == 1 and not judgments[0].panel and not judgments[0].criteria
    said = _lone(judgments[0]) if lone else _judges(members(judgments))
    key = (task_id, model or UNKNOWN_MODEL, arm, number, run_id or "")
    attempt = (
        *key,
        tier or (task.tier if task else None),
        judgments[0].judge if judgments else (task.judge if task else None),
        outcome,
        judged,
        float(outcome == "passed") if judged else None,
        (score if score is not None else said.score) if judged else None,
        said.rate if judged else None,
        len(said.judgments),
        said.missing,
        *(_SAID_NOTHING if completion is None else _SAID(vars(completion))),
        *said.billed,
        model_ms,
        judge_ms,
        details[:DETAIL_CHARACTERS] if details else None,
        error[:DETAIL_CHARACTERS] if error else None,
        *_TOLD(facts),
        ";".join(sorted(tags)) if tags else None,
        said.matched if judged else (),
    )
    first = judgments[0] if judgments else None
    timed = facts["benchmarks"] or (first is not None and (first.judge == "benchmark" or first.benchmarks))
    measured = _measured(record, first, key[1]) if judged and timed else None
    return Bundle(key, attempt, said.judgments, said.criteria, measured)


class _Said(NamedTuple):
    """What the judges of an attempt said: a row each, their criteria, and what they make together."""

    judgments: list[Row]
    criteria: list[Row]
    score: float | None
    rate: float | None
    missing: int
    billed: Row
    matched: tuple[str, ...]


def _judgment(number: int, facts: dict[str, Any], rate: float | None) -> Row:
    kind, model, passed, score, saw_cut, matched, missed, details, error = _JUDGMENT(facts)
    return (
        number,
        kind,
        model,
        None if passed is None else float(passed),
        score,
        rate,
        *_BILLED(facts),
        saw_cut,
        len(matched),
        len(missed),
        details[:DETAIL_CHARACTERS] if details else None,
        error[:DETAIL_CHARACTERS] if error else None,
    )


def _lone(judge: Judgment) -> _Said:
    """The most frequent case of `_judges` by a shorter way: one judge that gave no points."""
    facts = vars(judge)
    score, matched = facts["score"], facts["matched"]
    rate = _unit(score)
    found = matched if len(matched) < 2 else tuple(sorted(set(matched)))
    return _Said([_judgment(1, facts, rate)], [], rate, rate, int(score is None), _BILLED(facts), found)


def _judges(judges: list[Judgment]) -> _Said:
    judgments, criteria = [], []
    scores, rates, bills, found = [], [], [], []
    for number, judge in enumerate(judges, start=1):
        facts = vars(judge)
        points = [_CRITERION(vars(criterion)) for criterion in facts["criteria"]]
        score = facts["score"]
        rate = _impl_rate(points) if points else _unit(score)
        judgments.append(_judgment(number, facts, rate))
        if points:
            by = (number, facts["judge"], facts["judge_model"])
            criteria += [by + point for point in points]
        scores.append(score)
        rates.append(rate)
        bills.append(_BILLED(facts))
        found.append(_found(facts["matched"], points))
    return _Said(
        judgments,
        criteria,
        _median(map(_unit, scores)),
        _median(rates),
        scores.count(None),
        tuple(map(_total, zip(*bills, strict=True))) if bills else (None, None, None),
        _found_by_half(found),
    )


def _measured(record: AttemptRecord, first: Judgment | None, model: str) -> Measured:
    benchmarks = record.benchmarks or (first.benchmarks if first else ())
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


def _found(matched: tuple[str, ...], points: list[Row]) -> Iterable[str]:
    """What a judge found: matched strings, and criteria with all their points."""
    if not points:
        return matched
    return [
        *matched,
        *(name for name, achieved, most in points if achieved is not None and most and achieved >= most),
    ]


def _found_by_half(found: list[Iterable[str]]) -> tuple[str, ...]:
    """What at least half of the judges found."""
    if found and all(items == found[0] for items in found[1:]):
        return tuple(sorted(set(found[0])))
    counted = Counter(item for items in found for item in set(items))
    return tuple(sorted(item for item, count in counted.items() if 2 * count >= len(found)))


def _median(values: Iterable[float | None]) -> float | None:
    # A rate is NaN where the maximum is 0; NaN is the only number that differs from itself.
    given = [value for value in values if value is not None and value == value]
    if len(given) < 2:
        return given[0] if given else None
    return statistics.median(given)


def _total(values: Iterable[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) if given else None


def _unit(score: float | None) -> float | None:
    return score if score is not None and 0 <= score <= 1 else None

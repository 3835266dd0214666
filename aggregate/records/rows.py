"""Turn records into rows, one at a time, so that texts are dropped before the next record is read.

The tables of columns stand here, and frames, CSV files and the documentation follow them. To add a column that is
a field of the record, add its line; one that is computed also gets a field in `_Attempt` or `_Judge`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from aggregate.formulas.rates import compute_impl_rate
from aggregate.records.record import JUDGED, AttemptRecord
from aggregate.records.run_info import UNKNOWN_MODEL, TaskInfo, is_known_arm
from judges.judgment import (
    COUNT,
    POINTS,
    SCORE,
    USD,
    BenchmarkTimes,
    Completion,
    Criterion,
    Judgment,
    Range,
    Snapshot,
    Tests,
    ranges,
)

DETAIL_CHARACTERS = 500
Kind = Literal["str", "int", "float", "bool", "object"]
Row = tuple[Any, ...]
Key = tuple[str, str, str, int, str]


class Column(NamedTuple):
    """A column: its type, what it means, and the field that it copies, such as `completion.turns`; none: computed.

    `limits` are the valid values of a computed number; a copied one has those of its field.
    """

    kind: Kind
    text: str
    source: str = ""
    limits: Range | None = None


_PARTS: dict[str, type[BaseModel]] = {
    "record": AttemptRecord,
    "completion": Completion,
    "judgment": Judgment,
    "criterion": Criterion,
}
_KEYS = {
    "task": Column("str", "id of the task"),
    "model": Column("str", "the model that was asked, `unknown` where the record names none"),
    "arm": Column("str", "`baseline`, `candidate`, `candidate:ID` or `oracle`"),
    "attempt": Column("int", "number of the attempt, from 1"),
    "run_id": Column("str", "id of the run, empty where the record names none"),
    "tier": Column("str", "the task's tier"),
}
KEY = tuple(_KEYS)[:5]
ATTEMPTS: dict[str, Column] = {
    **_KEYS,
    "judge": Column("str", "the judge's type"),
    "outcome": Column("str", "`passed`, `failed`, `timeout`, `error` or `skipped`"),
    "judged": Column("bool", "whether it passed, failed or timed out"),
    "passed": Column("float", "1 or 0; missing when not judged"),
    "score": Column("float", "consensus of the judges, 0 to 1", limits=SCORE),
    "impl_rate": Column("float", "consensus, points achieved of points possible"),
    "panel_size": Column("int", "how many judges there were"),
    "panel_missing": Column("int", "how many of them gave no score"),
    "cost_usd": Column("float", "what the model's calls cost", "completion.cost_usd"),
    "cost_source": Column("str", "who says so", "completion.cost_source"),
    "input_tokens": Column("float", "fresh input", "completion.input_tokens"),
    "output_tokens": Column("float", "output", "completion.output_tokens"),
    "cache_read_tokens": Column(
        "float", "input read from the provider's cache", "completion.cache_read_tokens"
    ),
    "cache_write_tokens": Column("float", "input written to it", "completion.cache_write_tokens"),
    "turns": Column("float", "how many times the model was called", "completion.turns"),
    "truncated": Column("bool", "whether the answer was cut", "completion.truncated"),
    "skill_invoked": Column(
        "float", "1 or 0; missing when the model does not tell", "completion.skill_invoked"
    ),
    "served_model": Column("str", "who answered, by the reply's own words", "completion.served_model"),
    "agent_version": Column("str", "version of the agent's program", "completion.agent_version"),
    "judge_cost_usd": Column("float", "what all judges' calls cost", limits=USD),
    "judge_input_tokens": Column("float", "input of all judges", limits=COUNT),
    "judge_output_tokens": Column("float", "output of all judges", limits=COUNT),
    "model_ms": Column("float", "milliseconds that the model took", "record.model_ms"),
    "judge_ms": Column("float", "milliseconds that the judges took", "record.judge_ms"),
    "details": Column("str", f"what the judge says, up to {DETAIL_CHARACTERS} characters"),
    "error": Column("str", f"why there is no judgment, up to {DETAIL_CHARACTERS} characters"),
    "started_at": Column("str", "when the attempt began", "record.started_at"),
    "worker": Column("str", "which process made it", "record.worker"),
    "cached": Column("bool", "whether it was taken from an earlier run", "record.cached"),
    "deliveries": Column("float", "how often it was handed to a worker", "record.deliveries"),
    "retries": Column("float", "how often the model was asked again", "record.retries"),
    "tags": Column("str", "the task's tags, joined by `;`"),
    "matched": Column("object", "matched strings and satisfied criteria, joined by `;`"),
    "has_concepts": Column("bool", "whether strings or criteria were looked for"),
}
JUDGMENTS: dict[str, Column] = {
    **_KEYS,
    "member": Column("int", "1 for a single judge, 1 … for a panel"),
    "judge": Column("str", "the judge's type", "judgment.judge"),
    "judge_model": Column("str", "the model that judged", "judgment.judge_model"),
    "passed": Column("float", "1 or 0; missing when no judgment was made"),
    "score": Column("float", "0 to 1", "judgment.score"),
    "judge_impl_rate": Column("float", "points achieved of points possible; the score where there are none"),
    "cost_usd": Column("float", "what judging cost", "judgment.cost_usd"),
    "input_tokens": Column("float", "input", "judgment.input_tokens"),
    "output_tokens": Column("float", "output", "judgment.output_tokens"),
    "saw_cut_text": Column(
        "bool", "whether the judge saw only a part of the answer", "judgment.saw_cut_text"
    ),
    "n_matched": Column("int", "how many expected strings were found"),
    "n_missed": Column("int", "how many were not"),
    "details": Column("str", f"what the judge says, up to {DETAIL_CHARACTERS} characters"),
    "error": Column("str", f"why there is no judgment, up to {DETAIL_CHARACTERS} characters"),
}
CRITERIA: dict[str, Column] = {
    **_KEYS,
    "member": Column("int", "1 for a single judge, 1 … for a panel"),
    "judge": Column("str", "the judge's type"),
    "judge_model": Column("str", "the model that judged"),
    "criterion": Column("str", "the requirement's name", "criterion.name"),
    "achieved": Column("float", "points that it was given", "criterion.achieved"),
    "max_points": Column("float", "the most that it can be given", "criterion.max_points"),
}


def limits(column: Column) -> Range | None:
    """The valid values of a column, which stand at the field that it copies."""
    part, _, name = column.source.partition(".")
    return ranges(_PARTS[part]).get(name) if part else column.limits


class _Attempt(NamedTuple):
    """The computed columns of an attempt."""

    task: str
    model: str
    arm: str
    attempt: int
    run_id: str
    tier: str | None
    judge: str | None
    outcome: str
    judged: bool
    passed: float | None
    score: float | None
    impl_rate: float | None
    panel_size: int
    panel_missing: int
    judge_cost_usd: float | None
    judge_input_tokens: int | None
    judge_output_tokens: int | None
    details: str | None
    error: str | None
    tags: str | None
    matched: tuple[str, ...]
    has_concepts: bool


class _Judge(NamedTuple):
    """The computed columns of a judgment, apart from those of its attempt."""

    member: int
    passed: float | None
    judge_impl_rate: float | None
    n_matched: int
    n_missed: int
    details: str | None
    error: str | None


def _copied(columns: dict[str, Column], part: str) -> dict[str, str]:
    """The columns that copy a field of a part of the record, and the names of those fields."""
    sources = {name: column.source.partition(".") for name, column in columns.items()}
    return {name: source[2] for name, source in sources.items() if source[0] == part}


# There are 100,000 records to read: one getter on an object's own dictionary takes as long as two attributes.
_RECORD = itemgetter(
    *("task", "model", "arm", "attempt", "run_id", "tier", "outcome", "score", "tags"),
    *("judgments", "completion", "details", "error"),
)
_COMPLETION = _copied(ATTEMPTS, "completion")
_RECORD_FIELDS = itemgetter(*_copied(ATTEMPTS, "record").values())
_COMPLETION_FIELDS = itemgetter(*_COMPLETION.values())
_NO_COMPLETION = tuple(False if ATTEMPTS[name].kind == "bool" else None for name in _COMPLETION)
_JUDGMENT = itemgetter("passed", "matched", "missed", "details", "error")
_JUDGMENT_FIELDS = itemgetter(*_copied(JUDGMENTS, "judgment").values())
_BILL = itemgetter("cost_usd", "input_tokens", "output_tokens")
_CRITERION_FIELDS = itemgetter(*_copied(CRITERIA, "criterion").values())
_CRITERION = itemgetter("name", "achieved", "max_points")

# How rows hold their columns, which is not the order in which tables show them.
ATTEMPT_ROW = (*_Attempt._fields, *_copied(ATTEMPTS, "record"), *_COMPLETION)
JUDGMENT_ROW = (*_Judge._fields, *_copied(JUDGMENTS, "judgment"))
CRITERION_ROW = ("member", "judge", "judge_model", *_copied(CRITERIA, "criterion"))
_TIER, _JUDGE, _OUTCOME, _COST, _TURNS, _STARTED, _WORKER, _CACHED = map(
    ATTEMPT_ROW.index, ("tier", "judge", "outcome", "cost_usd", "turns", "started_at", "worker", "cached")
)

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
    benchmarks: tuple[BenchmarkTimes, ...]
    tests: Tests | None
    snapshot: Snapshot | None
    cost_usd: float | None
    turns: int | None
    timed_out: bool = False


class RecordRows(NamedTuple):
    """The rows of one record under its key; those of judgments and criteria leave out the columns of their attempt."""

    key: Key
    attempt: Row
    judgments: list[Row]
    criteria: list[Row]
    measured: Measured | None


@dataclass
class Collected:
    """Rows of all records, sorted by key, and how many records were left out and why."""

    records: list[RecordRows] = field(default_factory=list)
    duplicates: int = 0
    copies: int = 0
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
            collected.records.append(_rows(record, known))
        else:
            collected.unknown_arms[record.arm] += 1
    collected.records.sort(key=attrgetter("key"))
    _drop_duplicates(collected)
    _drop_copies(collected)
    _label(collected.records)
    return collected


def _label(records: list[RecordRows]) -> None:
    """A task has one tier and one judge, the first that is named: a time-out has no judgment to name it.

    A benchmark that timed out counts as failed, whatever it measured before.
    """
    tiers: dict[str, str] = {}
    judges: dict[str, str] = {}
    for rows in records:
        task, row = rows.key[0], rows.attempt
        if row[_TIER] is not None:
            tiers.setdefault(task, row[_TIER])
        if row[_JUDGE] is not None:
            judges.setdefault(task, row[_JUDGE])
    for number, rows in enumerate(records):
        task, row = rows.key[0], rows.attempt
        tier, judge = tiers.get(task), judges.get(task)
        measured = rows.measured
        if row[_OUTCOME] == "timeout" and (measured is not None or judge == "benchmark"):
            measured = _timed_out(rows)
        if tier != row[_TIER] or judge != row[_JUDGE] or measured is not rows.measured:
            labelled = list(row)
            labelled[_TIER], labelled[_JUDGE] = tier, judge
            records[number] = rows._replace(attempt=tuple(labelled), measured=measured)


def _timed_out(rows: RecordRows) -> Measured:
    (task, model, arm, attempt, _), row = rows.key, rows.attempt
    cost, turns = row[_COST], row[_TURNS]
    return Measured(task, model, arm, attempt, False, (), None, None, cost, turns, timed_out=True)


def _drop_duplicates(collected: Collected) -> None:
    kept: list[RecordRows] = []
    for rows in collected.records:
        if kept and kept[-1].key == rows.key:
            collected.duplicates += 1
            kept[-1] = min(kept[-1], rows, key=lambda one: (_RANK[one.attempt[_OUTCOME]], repr(one)))
        else:
            kept.append(rows)
    collected.records = kept


def _drop_copies(collected: Collected) -> None:
    """Of merged runs that share a cached baseline, each attempt counts once: it was made once."""

    def made(rows: RecordRows) -> tuple[object, ...]:
        return (*rows.key[:4], rows.attempt[_STARTED], rows.attempt[_WORKER])

    cached = [rows for rows in collected.records if rows.attempt[_CACHED] and rows.attempt[_STARTED]]
    if not cached:
        return
    first: dict[tuple[object, ...], RecordRows] = {}
    for rows in sorted(collected.records, key=lambda one: bool(one.attempt[_CACHED])):
        first.setdefault(made(rows), rows)
    copies = {id(rows) for rows in cached if first[made(rows)] is not rows}
    collected.records = [rows for rows in collected.records if id(rows) not in copies]
    collected.copies = len(copies)


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
        if achieved in POINTS and most in POINTS:
            total += achieved
            possible += most
            known = True
    return compute_impl_rate(total, possible) if known else None


def _rows(record: AttemptRecord, known: Mapping[str, TaskInfo]) -> RecordRows:
    facts = vars(record)
    task_id, model, arm, number, run_id, tier, outcome, score, tags, judgments, completion, details, error = (
        _RECORD(facts)
    )
    task = known.get(task_id)
    judged = outcome in JUDGED
    single = len(judgments) == 1 and not judgments[0].panel and not judgments[0].criteria
    said = _single_judge(judgments[0]) if single else _judges(members(judgments))
    key = (task_id, model or UNKNOWN_MODEL, arm, number, run_id or "")
    cost, input_tokens, output_tokens = said.bill
    computed = _Attempt(
        *key,
        tier=tier or (task.tier if task else None),
        judge=judgments[0].judge if judgments else (task.judge if task else None),
        outcome=outcome,
        judged=judged,
        passed=float(outcome == "passed") if judged else None,
        score=(score if score is not None else said.score) if judged else None,
        impl_rate=said.rate if judged else None,
        panel_size=len(said.judgments),
        panel_missing=said.missing,
        judge_cost_usd=cost,
        judge_input_tokens=input_tokens,
        judge_output_tokens=output_tokens,
        details=details[:DETAIL_CHARACTERS] if details else None,
        error=error[:DETAIL_CHARACTERS] if error else None,
        tags=";".join(sorted(tags)) if tags else None,
        matched=said.matched if judged else (),
        has_concepts=said.has_concepts,
    )
    completed = _NO_COMPLETION if completion is None else _COMPLETION_FIELDS(vars(completion))
    attempt = (*computed, *_RECORD_FIELDS(facts), *completed)
    first = judgments[0] if judgments else None
    timed = facts["benchmarks"] or (first is not None and (first.judge == "benchmark" or first.benchmarks))
    measured = _measured(record, first, key[1]) if judged and timed else None
    return RecordRows(key, attempt, said.judgments, said.criteria, measured)


class _Said(NamedTuple):
    """What the judges of an attempt said: a row each, their criteria, and what they make together."""

    judgments: list[Row]
    criteria: list[Row]
    score: float | None
    rate: float | None
    missing: int
    bill: Row
    matched: tuple[str, ...]
    has_concepts: bool


def _judgment(number: int, facts: dict[str, Any], rate: float | None) -> Row:
    passed, matched, missed, details, error = _JUDGMENT(facts)
    computed = _Judge(
        member=number,
        passed=None if passed is None else float(passed),
        judge_impl_rate=rate,
        n_matched=len(matched),
        n_missed=len(missed),
        details=details[:DETAIL_CHARACTERS] if details else None,
        error=error[:DETAIL_CHARACTERS] if error else None,
    )
    return (*computed, *_JUDGMENT_FIELDS(facts))


def _single_judge(judge: Judgment) -> _Said:
    """The most frequent case of `_judges` by a shorter way: one judge that gave no points."""
    facts = vars(judge)
    score, matched = facts["score"], facts["matched"]
    rate = _unit(score)
    found = matched if len(matched) < 2 else tuple(sorted(set(matched)))
    row, concepts = _judgment(1, facts, rate), bool(matched or facts["missed"])
    return _Said([row], [], rate, rate, int(score is None), _BILL(facts), found, concepts)


def _judges(judges: list[Judgment]) -> _Said:
    judgments, criteria = [], []
    scores, rates, bills, found = [], [], [], []
    for number, judge in enumerate(judges, start=1):
        facts = vars(judge)
        named = [vars(criterion) for criterion in facts["criteria"]]
        points = list(map(_CRITERION, named))
        score = facts["score"]
        rate = _impl_rate(points) if points else _unit(score)
        judgments.append(_judgment(number, facts, rate))
        if points:
            by = (number, facts["judge"], facts["judge_model"])
            criteria += [by + _CRITERION_FIELDS(one) for one in named]
        scores.append(score)
        rates.append(rate)
        bills.append(_BILL(facts))
        found.append(_found(facts["matched"], points))
    return _Said(
        judgments,
        criteria,
        _median(map(_unit, scores)),
        _median(rates),
        scores.count(None),
        tuple(map(_total, zip(*bills, strict=True))) if bills else (None, None, None),
        _found_by_half(found),
        bool(criteria) or any(judge.matched or judge.missed for judge in judges),
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

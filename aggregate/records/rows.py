"""Turn records into rows, one at a time, so that texts are dropped before the next record is read.

The tables of columns stand here, and frames, CSV files and the documentation follow them. To add a column that is
a field of the record, add its line; one that is computed also gets its value in `_rows` or `_judgment`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from aggregate.formulas.rates import compute_impl_rate, consensus
from aggregate.records.record import JUDGED, AttemptRecord
from aggregate.records.run_info import UNKNOWN_MODEL, TaskInfo, is_known_arm
from aggregate.text.formats import counted, plain
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
    weighted_mean,
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
    "judge": Column("str", "the judge's type, `checks` for a task with several"),
    "outcome": Column("str", "`passed`, `failed`, `timeout`, `error` or `skipped`"),
    "judged": Column("bool", "whether it passed, failed or timed out"),
    "passed": Column("float", "1 or 0; missing when not judged"),
    "score": Column("float", "consensus of the judges, 0 to 1", limits=SCORE),
    "impl_rate": Column("float", "consensus, points achieved of points possible"),
    "program_passed": Column(
        "float",
        "1 or 0: passed by the required checks that ask no model; only in runs that have both kinds",
        limits=SCORE,
    ),
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
    "skill_loaded": Column(
        "float", "1 or 0; missing when the model does not tell", "completion.skill_loaded"
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
    "missed": Column("object", "expected strings and criteria that were not met, joined by `;`"),
    "has_concepts": Column("bool", "whether strings or criteria were looked for"),
}
JUDGMENTS: dict[str, Column] = {
    **_KEYS,
    "member": Column("int", "1 for a single judge, 1 … for a panel"),
    "check": Column("str", "name of the check, of a task with several"),
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
    "check": Column("str", "name of the check, of a task with several"),
    "judge": Column("str", "the judge's type"),
    "judge_model": Column("str", "the model that judged"),
    "criterion": Column("str", "the requirement's name", "criterion.name"),
    "achieved": Column("float", "points that it was given", "criterion.achieved"),
    "max_points": Column("float", "the most that it can be given", "criterion.max_points"),
}

# Of tasks with several checks: what each said, a panel with one voice.
CHECKS: dict[str, Column] = {
    **_KEYS,
    "check": Column("str", "name of the check"),
    "judge": Column("str", "what judged"),
    "by": Column("str", "`program` or `model`"),
    "required": Column("bool", "whether a pass needs it"),
    "weight": Column("float", "its part of the score"),
    "passed": Column("float", "1 or 0; missing when no judgment was made, or it was spared"),
    "score": Column("float", "0 to 1", limits=SCORE),
    "details": Column("str", f"what the check says, up to {DETAIL_CHARACTERS} characters"),
}


def limits(column: Column) -> Range | None:
    """The valid values of a column, which stand at the field that it copies."""
    part, _, name = column.source.partition(".")
    return ranges(_PARTS[part]).get(name) if part else column.limits


def _fields(columns: dict[str, Column], part: str = "") -> dict[str, str]:
    """The columns that copy fields of a part of the record, and which; without a part those that are computed."""
    sources = {name: column.source.partition(".") for name, column in columns.items()}
    return {name: source[2] or name for name, source in sources.items() if source[0] == part}


# There are 100,000 records to read: one getter on an object's own dictionary takes as long as two attributes.
_OWN = {name: column for name, column in JUDGMENTS.items() if name not in _KEYS}
_KEY_FIELDS = itemgetter(*KEY)
_ATTEMPT = itemgetter(*_fields(ATTEMPTS), *_fields(ATTEMPTS, "record").values())
_COMPLETION = itemgetter(*_fields(ATTEMPTS, "completion").values())
_NO_COMPLETION = _COMPLETION(vars(Completion()))
# In the order of `_judgment`.
_COMPUTED_OF_JUDGE = [
    "member",
    "check",
    "passed",
    "judge_impl_rate",
    "n_matched",
    "n_missed",
    "details",
    "error",
]
_JUDGMENT = itemgetter(*_fields(_OWN, "judgment").values())
_CRITERION = itemgetter(*_fields(CRITERIA, "criterion").values())

# How rows hold their columns, which is not the order in which tables show them.
ATTEMPT_ROW = [name for part in ("", "record", "completion") for name in _fields(ATTEMPTS, part)]
CHECK_ROW = [name for name in CHECKS if name not in _KEYS]
# The tables below that of attempts, each with how its rows hold their columns.
BELOW = {
    "judgments": ([*_COMPUTED_OF_JUDGE, *_fields(_OWN, "judgment")], JUDGMENTS),
    "criteria": (["member", "check", "judge", "judge_model", *_fields(CRITERIA, "criterion")], CRITERIA),
    "checks": (CHECK_ROW, CHECKS),
}
_OUTCOME, _COST, _TURNS, _STARTED, _WORKER, _CACHED = map(
    ATTEMPT_ROW.index, ("outcome", "cost_usd", "turns", "started_at", "worker", "cached")
)

_BY, _REQUIRED, _WEIGHT, _PASSED = map(CHECK_ROW.index, ("by", "required", "weight", "passed"))
_SUMS = ("judge_cost_usd", "judge_input_tokens", "judge_output_tokens")
_TOGETHER = itemgetter("score", "impl_rate", "panel_missing", "matched", "missed", *_SUMS)

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
    checks: list[Row]


def collect(
    records: Iterable[AttemptRecord], tasks: Iterable[TaskInfo] = ()
) -> tuple[list[RecordRows], list[str]]:
    """Rows of the records by key, one record per attempt, whatever order they came in; and what was left out.

    Records of unknown arms are left out. Of two records of one attempt the judged one stays, else the first
    by content, so that arrival order never decides.
    """
    known = {task.id: task for task in tasks}
    by_key: dict[Key, RecordRows] = {}
    repeated = 0
    unknown_arms: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for record in records:
        if not is_known_arm(record.arm):
            unknown_arms[record.arm] += 1
            continue
        rows = _rows(record, known.get(record.task))
        if rows.key in by_key:
            repeated += 1
            rows = min(by_key[rows.key], rows, key=lambda rows: (_RANK[rows.attempt[_OUTCOME]], repr(rows)))
        elif record.completion is not None:
            for host, connections in record.completion.refused:
                refused[host] += connections
        by_key[rows.key] = rows
    attempts = _made_once([by_key[key] for key in sorted(by_key)])
    left_out = [
        f"{count} records of unknown arm {plain(arm, 40)} were left out"
        for arm, count in sorted(unknown_arms.items())
    ]
    if refused:
        times, hosts = counted(refused.total(), "connection"), counted(len(refused), "other host")
        were = "was" if refused.total() == 1 else "were"
        left_out.append(
            f"{times} to {hosts} {were} refused; `--network open` allows them, unless they are local"
        )
    if repeated:
        left_out.append(f"{repeated} records repeat an attempt that has one already; one of each was kept")
    if copies := len(by_key) - len(attempts):
        left_out.append(f"{copies} cached records repeat an attempt of another run; each attempt counts once")
    return attempts, left_out


def _made_once(attempts: list[RecordRows]) -> list[RecordRows]:
    """Of merged runs that share a cached baseline, each attempt counts once: it was made once."""
    if not any(rows.attempt[_CACHED] for rows in attempts):
        return attempts

    def made(rows: RecordRows) -> Row:
        return (*rows.key[:4], rows.attempt[_STARTED], rows.attempt[_WORKER])

    seen = {made(rows) for rows in attempts if not rows.attempt[_CACHED]}
    kept = []
    for rows in attempts:
        if rows.attempt[_CACHED] and rows.attempt[_STARTED]:
            if made(rows) in seen:
                continue
            seen.add(made(rows))
        kept.append(rows)
    return kept


def measured(attempts: Iterable[RecordRows], judges: Iterable[str | None]) -> Iterator[Measured]:
    """What benchmarks measured; one that timed out counts as failed, whatever it measured before.

    `judges` are those of each attempt's task: a time-out has no judgment to name its judge.
    """
    attempts = list(attempts)
    timed = {rows.key[0] for rows in attempts if rows.measured is not None}
    for rows, judge in zip(attempts, judges, strict=True):
        row = rows.attempt
        if row[_OUTCOME] == "timeout" and (rows.key[0] in timed or judge == "benchmark"):
            key, cost, turns = rows.key[:4], row[_COST], row[_TURNS]
            yield Measured(*key, False, (), None, None, cost, turns, timed_out=True)
        elif rows.measured is not None:
            yield rows.measured


def _rows(record: AttemptRecord, task: TaskInfo | None) -> RecordRows:
    facts = vars(record)
    outcome, judgments, completion = facts["outcome"], facts["judgments"], facts["completion"]
    score, details, error, tags = facts["score"], facts["details"], facts["error"], facts["tags"]
    first: Judgment | None = judgments[0] if judgments else None
    checks: list[Row] = []
    if first is not None and first.check is not None:
        judges, criteria, together, checks = _several(judgments)
    else:
        judges, criteria, together = _judges(judgments)
    judged = outcome in JUDGED
    task_id, model, arm, number, run_id = _KEY_FIELDS(facts)
    key = (task_id, model or UNKNOWN_MODEL, arm, number, run_id or "")
    computed = {
        **facts,
        **together,
        "model": key[1],
        "run_id": key[4],
        "tier": facts["tier"] or (task.tier if task else None),
        "judge": first.kind if first else (task.judge if task else None),
        "judged": judged,
        "passed": float(outcome == "passed") if judged else None,
        "program_passed": _program_passed(first, checks, outcome) if judged else None,
        "score": (score if score is not None else together["score"]) if judged else None,
        "impl_rate": together["impl_rate"] if judged else None,
        "panel_size": len(judges),
        "details": details[:DETAIL_CHARACTERS] if details else None,
        "error": error[:DETAIL_CHARACTERS] if error else None,
        "tags": ";".join(sorted(tags)) if tags else None,
        "matched": together["matched"] if judged else (),
        "missed": together["missed"] if judged else (),
    }
    completed = _NO_COMPLETION if completion is None else _COMPLETION(vars(completion))
    timed = facts["benchmarks"] or any(one.judge == "benchmark" or one.benchmarks for one in judgments)
    measured = _measured(record, first, key) if judged and timed else None
    return RecordRows(key, (*_ATTEMPT(computed), *completed), judges, criteria, measured, checks)


def _program_passed(first: Judgment | None, checks: list[Row], outcome: str) -> float | None:
    """Whether it passed by what asks no model and is required; None where nothing of that kind is known."""
    if not checks:
        return None if first is None or first.by_model else float(outcome == "passed")
    ours = [row[_PASSED] for row in checks if row[_BY] == "program" and row[_REQUIRED]]
    return None if not ours or None in ours else float(all(ours))


def _several(judgments: Iterable[Judgment]) -> tuple[list[Row], list[Row], dict[str, Any], list[Row]]:
    """The rows of a task with several checks: the score is the mean of the checks' medians by their weights."""
    by_check: dict[str, list[Judgment]] = {}
    for one in judgments:
        by_check.setdefault(one.check or one.judge, []).append(one)
    judges, criteria, checks, parts = list[Row](), list[Row](), list[Row](), list[Row]()
    for name, said in by_check.items():
        first, passes = vars(said[0]), [one.passed for one in said]
        rows, points, part = _judges(said, name)
        judges += rows
        criteria += points
        by = "model" if said[0].by_model else "program"
        passed = None if None in passes else float(all(passes))
        details = first["details"][:DETAIL_CHARACTERS] or None
        known = (first["required"], first["weight"], passed, part["score"], details)
        checks.append((name, first["judge"], by, *known))
        if not part["has_concepts"] and passed is not None:
            part["matched" if passed else "missed"] = (name,)
        parts.append(_TOGETHER(part))
    scores, rates, missing, matched, missed, *sums = zip(*parts, strict=True)
    weights = [row[_WEIGHT] for row in checks]
    score = _mean(scores, weights)
    together = {
        "score": score,
        "impl_rate": score if rates == scores else _mean(rates, weights),
        "panel_missing": sum(missing),
        "matched": tuple(sorted(set(chain.from_iterable(matched)))),
        "missed": tuple(sorted(set(chain.from_iterable(missed)))),
        "has_concepts": True,
        **dict(zip(_SUMS, map(_total, sums), strict=True)),
    }
    return judges, criteria, together, checks


def _mean(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    # Equal to itself is all but NaN.
    known = [value if value == value else None for value in values]
    return weighted_mean(zip(known, weights, strict=True))


def _judgment(member: int, facts: dict[str, Any], rate: float | None, check: str | None = None) -> Row:
    passed, details, error = facts["passed"], facts["details"], facts["error"]
    return (
        member,
        check,
        None if passed is None else float(passed),
        rate,
        len(facts["matched"]),
        len(facts["missed"]),
        details[:DETAIL_CHARACTERS] if details else None,
        error[:DETAIL_CHARACTERS] if error else None,
        *_JUDGMENT(facts),
    )


def _judges(
    said: Sequence[Judgment], check: str | None = None
) -> tuple[list[Row], list[Row], dict[str, Any]]:
    """A row for each judge, one for each criterion, and what the judges say together; of a panel its members."""
    if len(said) == 1 and not said[0].panel and not said[0].criteria:
        return _single_judge(said[0], check)
    judges = [judge for one in said for judge in one.panel or (one,)]
    scores = [judge.score for judge in judges]
    rates = list(map(_impl_rate, judges))
    judgments, criteria = [], []
    for member, (judge, rate) in enumerate(zip(judges, rates, strict=True), start=1):
        judgments.append(_judgment(member, vars(judge), rate, check))
        by = (member, check, judge.judge, judge.judge_model)
        criteria += [by + _CRITERION(vars(criterion)) for criterion in judge.criteria]
    together = {
        "score": consensus(map(_unit, scores)),
        "impl_rate": consensus(rates),
        "panel_missing": scores.count(None),
        "judge_cost_usd": _total(judge.cost_usd for judge in judges),
        "judge_input_tokens": _total(judge.input_tokens for judge in judges),
        "judge_output_tokens": _total(judge.output_tokens for judge in judges),
        "matched": _met_by_half(list(map(_met, judges))),
        "missed": _met_by_half([list(judge.missed) for judge in judges]),
        "has_concepts": any(judge.matched or judge.missed or judge.criteria for judge in judges),
    }
    return judgments, criteria, together


def _single_judge(judge: Judgment, check: str | None) -> tuple[list[Row], list[Row], dict[str, Any]]:
    """The most frequent case of `_judges` by a shorter way: one judge that gave no points."""
    facts = vars(judge)
    score, matched = facts["score"], facts["matched"]
    rate = _unit(score)
    together = {
        "score": rate,
        "impl_rate": rate,
        "panel_missing": int(score is None),
        "judge_cost_usd": facts["cost_usd"],
        "judge_input_tokens": facts["input_tokens"],
        "judge_output_tokens": facts["output_tokens"],
        "matched": matched if len(matched) < 2 else tuple(sorted(set(matched))),
        "missed": tuple(facts["missed"]),
        "has_concepts": bool(matched or facts["missed"]),
    }
    return [_judgment(1, facts, rate, check)], [], together


def _measured(record: AttemptRecord, first: Judgment | None, key: Key) -> Measured:
    """What stands in the record, or with its first judgment."""
    parts = ("benchmarks", "tests", "snapshot")
    found: dict[str, Any] = {
        part: getattr(record, part) or (first and getattr(first, part)) for part in parts
    }
    answer = record.completion or Completion()
    passed = record.outcome == "passed"
    return Measured(*key[:4], passed, **found, cost_usd=answer.cost_usd, turns=answer.turns)


def _impl_rate(judge: Judgment) -> float | None:
    """Points achieved of points possible, over the criteria that have both; the score where there are none."""
    if not judge.criteria:
        return _unit(judge.score)
    pairs = [(one.achieved, one.max_points) for one in judge.criteria]
    known = [pair for pair in pairs if all(points is not None and points in POINTS for points in pair)]
    return compute_impl_rate(*map(sum, zip(*known, strict=True))) if known else None


def _met(judge: Judgment) -> list[str]:
    """What a judge found: matched strings, and criteria with all their points."""
    points = [(one.name, one.achieved, one.max_points) for one in judge.criteria]
    full = [name for name, achieved, most in points if achieved is not None and most and achieved >= most]
    return [*judge.matched, *full]


def _met_by_half(met: list[list[str]]) -> tuple[str, ...]:
    """What at least half of the judges found; most often they agree."""
    if met and all(items == met[0] for items in met[1:]):
        return tuple(sorted(set(met[0])))
    counted = Counter(item for items in met for item in set(items))
    return tuple(sorted(item for item, count in counted.items() if 2 * count >= len(met)))


def _total(values: Iterable[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) if given else None


def _unit(score: float | None) -> float | None:
    return score if score is not None and 0 <= score <= 1 else None

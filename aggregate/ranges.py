"""Which numbers a record can hold; others were not measured, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator

from aggregate.records import AttemptRecord
from judges.judgment import Judgment

MAX_USD = 1e9
MAX_COUNT = 1e12
MAX_MILLISECONDS = 1e12
MAX_POINTS = 1e9
MAX_SECONDS = 1e9

Range = tuple[float, float]

_COST: Range = (0.0, MAX_USD)
_COUNT: Range = (0.0, MAX_COUNT)
_POINTS: Range = (0.0, MAX_POINTS)
_SECONDS: Range = (0.0, MAX_SECONDS)

RECORD: dict[str, Range] = {
    "score": (0.0, 1.0),
    "model_ms": (0.0, MAX_MILLISECONDS),
    "judge_ms": (0.0, MAX_MILLISECONDS),
    "deliveries": _COUNT,
    "retries": _COUNT,
}
COMPLETION: dict[str, Range] = {
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "cache_read_tokens": _COUNT,
    "cache_write_tokens": _COUNT,
    "cost_usd": _COST,
    "turns": _COUNT,
}
JUDGMENT: dict[str, Range] = {
    "score": (0.0, 1.0),
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "cost_usd": _COST,
}
CRITERION: dict[str, Range] = {"achieved": _POINTS, "max_points": _POINTS}
BENCHMARK: dict[str, Range] = {"nop_median": _SECONDS, "agent_median": _SECONDS, "oracle_median": _SECONDS}
TESTS: dict[str, Range] = {"passed": _COUNT, "failed": _COUNT, "errored": _COUNT, "oracle_failed": _COUNT}
SNAPSHOT: dict[str, Range] = {"pass_to_fail": _COUNT}


def problems(record: AttemptRecord) -> Iterator[tuple[str, str]]:
    """Each number of a record that is out of range, as (path, what is wrong)."""
    if record.attempt > MAX_COUNT:
        yield "attempt", f"{record.attempt:.6g} is out of range; allowed: 1 to {MAX_COUNT:g}"
    yield from _outside("", record, RECORD)
    if record.completion is not None:
        yield from _outside("completion.", record.completion, COMPLETION)
    yield from _measured("", record)
    for number, judgment in enumerate(record.judgments):
        yield from _judgment(f"judgments[{number}].", judgment)


def _judgment(path: str, judgment: Judgment) -> Iterator[tuple[str, str]]:
    yield from _outside(path, judgment, JUDGMENT)
    for number, criterion in enumerate(judgment.criteria):
        yield from _outside(f"{path}criteria[{number}].", criterion, CRITERION)
    yield from _measured(path, judgment)
    for number, member in enumerate(judgment.panel):
        yield from _judgment(f"{path}panel[{number}].", member)


def _measured(path: str, holder: AttemptRecord | Judgment) -> Iterator[tuple[str, str]]:
    for number, benchmark in enumerate(holder.benchmarks):
        yield from _outside(f"{path}benchmarks[{number}].", benchmark, BENCHMARK)
    if holder.tests is not None:
        yield from _outside(f"{path}tests.", holder.tests, TESTS)
    if holder.snapshot is not None:
        yield from _outside(f"{path}snapshot.", holder.snapshot, SNAPSHOT)


def _outside(path: str, holder: object, ranges: dict[str, Range]) -> Iterator[tuple[str, str]]:
    for name, (low, high) in ranges.items():
        value = getattr(holder, name)
        if value is not None and not low <= value <= high:
            yield f"{path}{name}", f"{value:.6g} is out of range; allowed: {low:g} to {high:g}"

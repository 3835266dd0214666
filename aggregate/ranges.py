"""Which numbers a record can hold; others were not measured, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

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


class _Check:
    """A quick test that almost every object passes; False only means that the thorough one must look."""

    def __init__(self, ranges: dict[str, Range]) -> None:
        self._get = attrgetter(*ranges)
        self._high = min(high for _, high in ranges.values())

    def __call__(self, holder: object) -> bool:
        known = tuple(filter(None, self._get(holder)))  # neither missing nor 0, which every range holds
        return not known or (min(known) > 0 and max(known) <= self._high)


_record_fits = _Check({name: bounds for name, bounds in RECORD.items() if name != "score"})
_completion_fits, _criterion_fits = _Check(COMPLETION), _Check(CRITERION)
_judgment_fits = _Check({name: bounds for name, bounds in JUDGMENT.items() if name != "score"})


def problems(record: AttemptRecord) -> list[tuple[str, str]]:
    """Each number of a record that is out of range, as (path, what is wrong)."""
    return [] if _fits(record) else list(_problems(record))


def _fits(record: AttemptRecord) -> bool:
    if record.benchmarks or record.tests is not None or record.snapshot is not None:
        return False  # rare, and best left to the thorough way
    completion = record.completion
    return (
        record.attempt <= MAX_COUNT
        and (record.score is None or 0 <= record.score <= 1)
        and _record_fits(record)
        and (completion is None or _completion_fits(completion))
        and all(map(_fits_judgment, record.judgments))
    )


def _fits_judgment(judgment: Judgment) -> bool:
    if judgment.benchmarks or judgment.tests is not None or judgment.snapshot is not None or judgment.panel:
        return False
    return (
        (judgment.score is None or 0 <= judgment.score <= 1)
        and _judgment_fits(judgment)
        and all(map(_criterion_fits, judgment.criteria))
    )


def _problems(record: AttemptRecord) -> Iterator[tuple[str, str]]:
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

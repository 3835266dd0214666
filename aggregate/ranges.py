"""Which numbers a record can hold; others were not measured, whoever wrote them."""

from __future__ import annotations

from types import GenericAlias
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, create_model

from aggregate.records import AttemptRecord
from judges.judgment import Benchmark, Completion, Criterion, Judgment, Snapshot, Tests

Range = tuple[float, float]
Model = TypeVar("Model", bound=BaseModel)

_SCORE: Range = (0, 1)
_USD: Range = (0, 1e9)
_COUNT: Range = (0, 1_000_000_000_000)
_POINTS: Range = (0, 1e9)
_SECONDS: Range = (0, 1e9)
_MILLISECONDS: Range = (0, 1e12)

RECORD: dict[str, Range] = {
    "score": _SCORE,
    "model_ms": _MILLISECONDS,
    "judge_ms": _MILLISECONDS,
    "deliveries": _COUNT,
    "retries": _COUNT,
}
COMPLETION: dict[str, Range] = {
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "cache_read_tokens": _COUNT,
    "cache_write_tokens": _COUNT,
    "cost_usd": _USD,
    "turns": _COUNT,
}
JUDGMENT: dict[str, Range] = {
    "score": _SCORE,
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "cost_usd": _USD,
}
CRITERION: dict[str, Range] = {"achieved": _POINTS, "max_points": _POINTS}
BENCHMARK: dict[str, Range] = {"nop_median": _SECONDS, "agent_median": _SECONDS, "oracle_median": _SECONDS}
TESTS: dict[str, Range] = {"passed": _COUNT, "failed": _COUNT, "errored": _COUNT, "oracle_failed": _COUNT}
SNAPSHOT: dict[str, Range] = {"pass_to_fail": _COUNT}


def _bounded(base: type[Model], bounds: dict[str, Range], **parts: Any) -> type[Model]:
    """The same type with its numbers held to their ranges, and its parts to theirs."""
    numbers: dict[str, Any] = {}
    for name, (low, high) in bounds.items():
        field = base.model_fields[name]
        numbers[name] = (Annotated[field.annotation, Field(ge=low, le=high)], field.default)
    return create_model(base.__name__, __base__=base, **numbers, **parts)


def _many(part: type[BaseModel]) -> Any:
    return GenericAlias(tuple, (part, ...)), ()


_measured = {
    "benchmarks": _many(_bounded(Benchmark, BENCHMARK)),
    "tests": (_bounded(Tests, TESTS) | None, None),
    "snapshot": (_bounded(Snapshot, SNAPSHOT) | None, None),
}
_criteria = {"criteria": _many(_bounded(Criterion, CRITERION))}
_member = _bounded(Judgment, JUDGMENT, **_criteria, **_measured)
_judgment = _bounded(Judgment, JUDGMENT, **_criteria, **_measured, panel=_many(_member))
BoundedRecord = _bounded(
    AttemptRecord,
    RECORD,
    attempt=(Annotated[int, Field(ge=1, le=_COUNT[1])], ...),
    completion=(_bounded(Completion, COMPLETION) | None, None),
    judgments=_many(_judgment),
    **_measured,
)

"""Records whose numbers are held to their ranges: for those that somebody else wrote.

Apart from the ranges, because building these types takes a tenth of a second.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, create_model

from aggregate.ranges import BENCHMARK, COMPLETION, COUNT, CRITERION, JUDGMENT, RECORD, SNAPSHOT, TESTS, Range
from aggregate.records import AttemptRecord
from judges.judgment import Benchmark, Completion, Criterion, Judgment, Snapshot, Tests

Model = TypeVar("Model", bound=BaseModel)


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
    attempt=(Annotated[int, Field(ge=1, le=COUNT[1])], ...),
    completion=(_bounded(Completion, COMPLETION) | None, None),
    judgments=_many(_judgment),
    **_measured,
)

"""Judge settings as a suite writes them: one frozen type per judge, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
FixturePath = Annotated[str, StringConstraints(pattern=r"^fixtures/.")]

DEFAULT_PYTEST_SECONDS = 60
DEFAULT_PASS_THRESHOLD = 0.7


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Contains(_Spec):
    """Every expected string occurs and no forbidden one does, whatever the case."""

    type: Literal["contains"]
    expected: Annotated[list[NonEmpty], Field(min_length=1)]
    forbidden: list[NonEmpty] = []


class Pytest(_Spec):
    """A test file from `fixtures/` runs against the output, whose path is in `AI_OUTPUT_FILE`."""

    type: Literal["pytest"]
    test_file: FixturePath
    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = DEFAULT_PYTEST_SECONDS


class RubricCriterion(_Spec):
    """One requirement of a rubric and the most points it can earn."""

    name: NonEmpty
    max_points: Annotated[float, Field(gt=0)]
    description: str = ""


class Rubric(_Spec):
    """A judge model, or a panel of them, scores the output against a rubric."""

    type: Literal["llm-rubric"]
    rubric: NonEmpty
    pass_threshold: Annotated[float, Field(ge=0, le=1)] = DEFAULT_PASS_THRESHOLD
    criteria: list[RubricCriterion] = []
    judges: list[NonEmpty] = []

    @field_validator("rubric")
    @classmethod
    def _not_blank(cls, rubric: str) -> str:
        if not rubric.strip():
            raise ValueError("must not be blank")
        return rubric


class Benchmark(_Spec):
    """A benchmark file times the output against the original code, and against an oracle where there is one."""

    type: Literal["benchmark"]
    benchmark_file: FixturePath
    original_file: FixturePath
    oracle_file: FixturePath | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = 300


JudgeSpec = Contains | Pytest | Rubric | Benchmark
JUDGE_TYPES: tuple[str, ...] = ("contains", "pytest", "llm-rubric", "benchmark")

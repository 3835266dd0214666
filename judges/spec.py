"""Judge settings as a suite writes them: one frozen type per judge, told apart by `type`.

To add a judge: its settings here and in `JudgeSpec`, its check in `judges/checks`, its case in `judges/__init__`.
Validation, the editor's schema and the simulated model follow `JudgeSpec`; tests name the documents that lack it.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
FixturePath = Annotated[str, StringConstraints(pattern=r"^fixtures/.")]

DEFAULT_PYTEST_SECONDS = 60
DEFAULT_PASS_THRESHOLD = 0.7
MAX_PATTERN_CHARACTERS = 2_000


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
    rubric: Annotated[NonEmpty, Field(json_schema_extra={"pattern": r"\S"})]
    pass_threshold: Annotated[float, Field(ge=0, le=1)] = DEFAULT_PASS_THRESHOLD
    criteria: list[RubricCriterion] = []
    judges: list[NonEmpty] = []

    @field_validator("rubric")
    @classmethod
    def _not_blank(cls, rubric: str) -> str:
        if not rubric.strip():
            raise ValueError("must not be blank")
        return rubric

    @field_validator("criteria")
    @classmethod
    def _told_apart(cls, criteria: list[RubricCriterion]) -> list[RubricCriterion]:
        # A judge gives its points by name.
        repeated = [name for name, count in Counter(one.name for one in criteria).items() if count > 1]
        if repeated:
            raise ValueError(f"must have different names; {repeated[0][:40]!r} is there more than once")
        return criteria


class Benchmark(_Spec):
    """A benchmark file times the output against the original code, and against an oracle where there is one."""

    type: Literal["benchmark"]
    benchmark_file: FixturePath
    original_file: FixturePath
    oracle_file: FixturePath | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = 300


class Regex(_Spec):
    """A pattern is found somewhere in the output; with `should_match: false`, nowhere."""

    type: Literal["regex"]
    pattern: Annotated[NonEmpty, Field(max_length=MAX_PATTERN_CHARACTERS)]
    ignore_case: bool = False
    multiline: bool = False
    should_match: bool = True

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        # Imported where it is needed: most suites have no patterns, and records need none of this.
        from judges import safe_patterns

        safe_patterns.compiled(pattern)
        return pattern


class Equals(_Spec):
    """The output is this text; white space around either does not count."""

    type: Literal["equals"]
    text: Annotated[str, StringConstraints(pattern=r"\S")]
    ignore_case: bool = False
    ignore_whitespace: bool = False


class JsonSchema(_Spec):
    """The output is JSON, alone or in a code fence, that satisfies a schema: written here or in a fixture."""

    model_config = ConfigDict(
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["schema"], "properties": {"schema": {"type": "object"}}},
                {"required": ["schema_file"], "properties": {"schema_file": {"type": "string"}}},
            ]
        },
    )

    type: Literal["json-schema"]
    inline: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    schema_file: FixturePath | None = None

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.inline is None) == (self.schema_file is None):
            raise ValueError("must have either schema or schema_file")
        return self


JudgeSpec = Contains | Pytest | Rubric | Benchmark | Regex | Equals | JsonSchema

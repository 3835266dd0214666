"""Judge settings as a suite writes them: one frozen type per judge, told apart by `type`, or by `not` and `any`.

To add a judge: its settings here and in `JudgeSpec`, its check in `judges/checks`, its case in `judges/__init__`.
Validation, the editor's schema and the simulated model follow `JudgeSpec`; tests name the documents that lack it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
FixturePath = Annotated[str, StringConstraints(pattern=r"^fixtures/.")]

DEFAULT_PYTEST_SECONDS = 60
DEFAULT_PASS_THRESHOLD = 0.7
MAX_PATTERN_CHARACTERS = 2_000
MAX_CHECKS = 100
MAX_NESTED = 4
Threshold = Annotated[float, Field(ge=0, le=1)]
TestSeconds = Annotated[float, Field(ge=1, le=3600)]


def _stays_inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts or not path.isprintable():
        raise ValueError("must be a path inside the agent's folder, such as 'out.csv' or 'tmp/'")
    return path


LeftPath = Annotated[NonEmpty, AfterValidator(_stays_inside)]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Judge(_Spec):
    # The keys of a task's check, as one of several. Where they say nothing they are nowhere written, so that what
    # was written without them, digests included, stays as it was.
    name: Annotated[str | None, Field(pattern=r"\S", max_length=80, exclude_if=lambda name: name is None)] = (
        None
    )
    weight: Annotated[float, Field(ge=0, le=1e6, exclude_if=lambda weight: weight == 1)] = 1
    required: Annotated[bool, Field(exclude_if=bool)] = True

    @property
    def kind(self) -> str:
        """What the judgment says of who judged: the type, and of `not` and `any` also what they hold."""
        return str(self.type)  # type: ignore[attr-defined]  # all but the two, which have their own

    @property
    def inner(self) -> tuple[JudgeSpec, ...]:
        """The judges that this one only combines."""
        return ()

    @property
    def leaves(self) -> Iterator[JudgeSpec]:
        """The judges that look at the output: this one, or those that it combines."""
        for one in self.inner:
            yield from one.leaves
        if not self.inner:
            yield self  # type: ignore[misc]  # every subclass is a JudgeSpec

    @property
    def asks_a_model(self) -> bool:
        return any(one.asks_a_model for one in self.inner)


CHECK_KEYS = frozenset(_Judge.model_fields)


class Contains(_Judge):
    """Every expected string occurs and no forbidden one does, whatever the case."""

    type: Literal["contains"]
    expected: Annotated[list[NonEmpty], Field(min_length=1)]
    forbidden: list[NonEmpty] = []


class Pytest(_Judge):
    """A test file from `fixtures/` runs against the output, whose path is in `AI_OUTPUT_FILE`."""

    type: Literal["pytest"]
    test_file: FixturePath
    timeout_seconds: TestSeconds = DEFAULT_PYTEST_SECONDS


class RubricCriterion(_Spec):
    """One requirement of a rubric and the most points it can earn."""

    name: NonEmpty
    max_points: Annotated[float, Field(gt=0)]
    description: str = ""


class Rubric(_Judge):
    """A judge model, or a panel of them, scores the output against a rubric."""

    type: Literal["llm-rubric"]
    rubric: Annotated[NonEmpty, Field(json_schema_extra={"pattern": r"\S"})]
    pass_threshold: Threshold = DEFAULT_PASS_THRESHOLD
    criteria: list[RubricCriterion] = []
    judges: list[NonEmpty] = []
    sees: Annotated[
        list[Literal["prompt", "output", "files"]],
        Field(min_length=1, exclude_if=lambda sees: sees == ["output"]),
    ] = ["output"]
    reference: Annotated[NonEmpty | None, Field(exclude_if=lambda text: text is None)] = None

    @property
    def asks_a_model(self) -> bool:
        return True

    @field_validator("sees")
    @classmethod
    def _sees_what_was_made(cls, sees: list[str]) -> list[str]:
        if "output" not in sees and "files" not in sees:
            raise ValueError("must hold output or files")
        return sees

    @model_validator(mode="before")
    @classmethod
    def _sees_the_prompt(cls, written: Any, info: ValidationInfo) -> Any:
        # Since version "1.1" of suites; whoever reads one says so.
        if isinstance(written, dict) and info.context and info.context.get("sees") and "sees" not in written:
            return {**written, "sees": info.context["sees"]}
        return written

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


class Benchmark(_Judge):
    """A benchmark file times the output against the original code, and against an oracle where there is one."""

    type: Literal["benchmark"]
    benchmark_file: FixturePath
    original_file: FixturePath
    oracle_file: FixturePath | None = None
    timeout_seconds: TestSeconds = 300


class Regex(_Judge):
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


class Equals(_Judge):
    """The output is this text; white space around either does not count."""

    type: Literal["equals"]
    text: Annotated[str, StringConstraints(pattern=r"\S")]
    ignore_case: bool = False
    ignore_whitespace: bool = False


class JsonSchema(_Judge):
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


class Length(_Judge):
    """The output has no fewer and no more characters, words or lines than this."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": [f"{end}_{unit}"]}
                for unit in ("characters", "words", "lines")
                for end in ("min", "max")
            ]
        }
    )

    type: Literal["length"]
    min_characters: Annotated[int | None, Field(ge=0)] = None
    max_characters: Annotated[int | None, Field(ge=0)] = None
    min_words: Annotated[int | None, Field(ge=0)] = None
    max_words: Annotated[int | None, Field(ge=0)] = None
    min_lines: Annotated[int | None, Field(ge=0)] = None
    max_lines: Annotated[int | None, Field(ge=0)] = None

    @property
    def bounds(self) -> dict[str, tuple[int | None, int | None]]:
        """The fewest and the most of each unit that has a bound."""
        units = ("characters", "words", "lines")
        both = {unit: (getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")) for unit in units}
        return {unit: ends for unit, ends in both.items() if ends != (None, None)}

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if not self.bounds:
            raise ValueError("must have a bound, such as max_words")
        for unit, (least, most) in self.bounds.items():
            if least is not None and most is not None and least > most:
                raise ValueError(f"must not have a min_{unit} above max_{unit}")
        return self


class PythonFunction(_Judge):
    """A function of the suite takes the output's text and returns a bool, a score, or a score and a reason."""

    type: Literal["python"]
    function: Annotated[str, StringConstraints(pattern=r"^fixtures/[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$")]
    pass_threshold: Threshold = DEFAULT_PASS_THRESHOLD
    timeout_seconds: TestSeconds = DEFAULT_PYTEST_SECONDS


class CommandCheck(_Judge):
    """A program gets the output on stdin, and says by its exit code, or in JSON on stdout, how good it is."""

    type: Literal["command"]
    argv: Annotated[list[NonEmpty], Field(min_length=1)]
    pass_threshold: Threshold = DEFAULT_PASS_THRESHOLD
    timeout_seconds: TestSeconds = DEFAULT_PYTEST_SECONDS


_Texts = Annotated[
    list[NonEmpty],
    Field(min_length=1),
    BeforeValidator(
        lambda text: [text] if isinstance(text, str) else text, json_schema_input_type=str | list[str]
    ),
]


class Files(_Judge):
    """Files that an agent has left: which there are, which there are not, which are as before, and what they hold."""

    type: Literal["files"]
    exists: list[LeftPath] = []
    absent: list[LeftPath] = []
    unchanged: list[LeftPath] = []
    contains: dict[LeftPath, _Texts] = {}

    @model_validator(mode="after")
    def _looks_at_something(self) -> Self:
        if not (self.exists or self.absent or self.unchanged or self.contains):
            raise ValueError("must have at least one of exists, absent, unchanged and contains")
        return self


class ToolUse(_Judge):
    """Which tools were used without failing, which were not used at all, in which order, and how often."""

    type: Literal["tools"]
    expect: list[NonEmpty] = []
    forbid: list[NonEmpty] = []
    order: list[NonEmpty] = []
    max_calls: Annotated[int | None, Field(ge=0)] = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.expect or self.forbid or self.order) and self.max_calls is None:
            raise ValueError("must have at least one of expect, forbid, order and max_calls")
        return self


class StepLimits(_Judge):
    """The attempt took no more model calls, tokens, seconds or USD than this."""

    type: Literal["steps"]
    max_turns: Annotated[int | None, Field(ge=0)] = None
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    max_seconds: Annotated[float | None, Field(ge=0)] = None
    max_usd: Annotated[float | None, Field(ge=0)] = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if all(limit is None for limit in (self.max_turns, self.max_tokens, self.max_seconds, self.max_usd)):
            raise ValueError("must have at least one of max_turns, max_tokens, max_seconds and max_usd")
        return self


class SkillLoaded(_Judge):
    """The agent loaded the skill that was mounted for it."""

    type: Literal["skill-loaded"]


StepsCheck = ToolUse | StepLimits | SkillLoaded


class Not(_Judge):
    """A judge comes to its end and finds that the output does not pass."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)
    TAG: ClassVar[str] = "not"

    what: Annotated[OneJudge, Field(alias="not")]

    @property
    def kind(self) -> str:
        return f"not {self.what.kind}"

    @property
    def inner(self) -> tuple[JudgeSpec, ...]:
        return (self.what,)

    _one_of_many = field_validator("what")(lambda what: _inner(what))


class AnyOf(_Judge):
    """At least one of these judges passes the output; they are tried in this order."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)
    TAG: ClassVar[str] = "any"

    judges: Annotated[list[OneJudge], Field(alias="any", min_length=1, max_length=MAX_CHECKS)]

    @property
    def kind(self) -> str:
        return "any of " + ", ".join(dict.fromkeys(leaf.kind for leaf in self.leaves))

    @property
    def inner(self) -> tuple[JudgeSpec, ...]:
        return tuple(self.judges)

    _each_of_many = field_validator("judges")(lambda judges: list(map(_inner, judges)))


def unnamed(spec: JudgeSpec) -> JudgeSpec:
    """The judge, which is none of a task's checks; raises ValueError where it says what only a check can say."""
    if said := sorted(spec.model_fields_set & CHECK_KEYS):
        raise ValueError(f"must not have {', '.join(said)}, which only an entry of checks: can have")
    return spec


def _inner(spec: JudgeSpec) -> JudgeSpec:
    if isinstance(spec, Benchmark):
        raise ValueError("must not be a benchmark, which can only stand alone")
    if _nested(spec) >= MAX_NESTED:
        raise ValueError(f"must not be nested more than {MAX_NESTED} deep")
    return unnamed(spec)


def _nested(spec: JudgeSpec) -> int:
    return 1 + max(map(_nested, spec.inner)) if spec.inner else 0


def _told_by(written: Any) -> str | None:
    """Which judge is meant: by the key `not` or `any`, else by its type, whatever that is."""
    if not isinstance(written, dict):
        return written.TAG if isinstance(written, Not | AnyOf) else getattr(written, "type", None)
    kind = next((key for key in ("not", "any") if key in written), written.get("type"))
    return kind if isinstance(kind, str) or kind is None else "?"


JudgeSpec = (
    Contains
    | Pytest
    | Rubric
    | Benchmark
    | Regex
    | Equals
    | JsonSchema
    | Length
    | PythonFunction
    | CommandCheck
    | Files
    | ToolUse
    | StepLimits
    | SkillLoaded
    | Not
    | AnyOf
)
if TYPE_CHECKING:
    OneJudge = JudgeSpec
else:
    _TAGGED = tuple(
        Annotated[one, Tag(getattr(one, "TAG", None) or get_args(one.model_fields["type"].annotation)[0])]
        for one in get_args(JudgeSpec)
    )
    OneJudge = Annotated[Union[_TAGGED], Discriminator(_told_by)]  # noqa: UP007  # its members are computed
Not.model_rebuild()
AnyOf.model_rebuild()

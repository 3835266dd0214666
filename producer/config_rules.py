"""What a config may say, and in which words it is told that it may not.

The fields are the flags of `uplift evaluate` and the settings of `workers.messages`. Secrets have no place in
it: a config is committed, and its settings travel to every worker.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from judges.judgment import Sandbox
from workers.messages import CommandSpec, Limits, Price, SkillMode
from workers.models.output import secrets

Steps = tuple[str | int, ...]
Broken = tuple[Steps, str]

_SECRET_KEY = re.compile(
    r"(api|access|secret|private|auth|bearer|session|refresh)[_-]?(key|token)$|^(key|token|auth|authorization)$"
    r"|(secret|password|passwd|credentials?)$|(?-i:[A-Z0-9]_(KEY|TOKEN)$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(sk|pk|rk)-[\w-]{12,}|\bAIza[\w-]{20,}|\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}"
)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class LimitsTable(Limits):
    """Limits for every model, and tables of a model's own under its spec."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Limits]


class CommandRules(CommandSpec):
    """A program as a config may declare it."""

    environment: tuple[Annotated[str, Field(pattern=_VARIABLE)], ...] = ()


class Values(BaseModel):
    """Everything that can be set; None is not set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    broker: str | None = None
    state_root: str | None = None
    in_flight: Annotated[int | None, Field(ge=1)] = None
    agents: Annotated[int | None, Field(ge=1)] = None
    models: Annotated[tuple[str, ...] | None, Field(min_length=1)] = None
    judge_model: str | None = None
    pass_k: Annotated[int | None, Field(ge=1)] = None
    skill_mode: SkillMode | None = None
    sandbox: Sandbox | None = None
    baseline_cache_dir: str | None = None
    eval_threshold: float | None = None
    margin: Annotated[float | None, Field(ge=0, lt=1)] = None
    gate: Literal["verdict", "decision"] | None = None
    weak_baseline: Literal["error", "warn"] | None = None
    stop_early: Literal["verdict", "decision"] | None = None
    effect: Annotated[float | None, Field(gt=0, le=1)] = None
    budget_usd: Annotated[float | None, Field(gt=0)] = None
    tools: tuple[str, ...] | None = None
    retry: bool | None = None
    params: dict[str, Any] = {}
    limits: LimitsTable = Field(default_factory=lambda: LimitsTable.model_validate({}))
    prices: dict[str, Price] = {}
    commands: dict[str, CommandRules] = {}


def checked(raw: Mapping[str, Any], *, secrets_allowed: bool = False) -> tuple[Values | None, list[Broken]]:
    """The values, or everything that is wrong with them, by place."""
    found = [] if secrets_allowed else list(_secrets(raw, ()))
    try:
        # As JSON, because lists must become tuples while text must not become numbers.
        values = Values.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as invalid:
        hidden = {steps for steps, _ in found}
        for error in invalid.errors(include_url=False):
            steps = error["loc"]
            if steps not in hidden:
                found.append((steps, _message(steps, cast("dict[str, Any]", error))))
        return None, found
    found.extend(_misnamed(values))
    return (None if found else values), found


def place(steps: Steps) -> str:
    """A key as TOML writes it: limits."openai:m".rpm, commands.x.argv[0]."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        shown = step if re.fullmatch(r"[\w-]+", step) else json.dumps(step, ensure_ascii=False)
        text += f".{shown}" if text else shown
    return text


def looks_secret(key: str, value: object) -> bool:
    """Whether a setting holds a secret, by its name, its look, or because the environment calls it one."""
    if not isinstance(value, str) or not value:
        return False
    known = any(secret in value for secret in secrets(os.environ))
    return bool(
        known or _SECRET_KEY.search(key) or _SECRET_VALUE.search(value) or _PASSWORD_IN_URL.search(value)
    )


def suggestion(name: str, known: list[str]) -> str:
    """` (did you mean …?)` where a known name is near, else nothing."""
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _secrets(value: object, steps: Steps) -> Iterator[Broken]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets(inner, (*steps, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _secrets(inner, (*steps, number))
    elif looks_secret(str(next((step for step in reversed(steps) if isinstance(step, str)), "")), value):
        if steps == ("broker",):
            yield steps, "holds a password; set UPLIFT_BROKER instead"
        else:
            yield steps, "looks like a secret; set it in the environment of the workers"


def _misnamed(values: Values) -> Iterator[Broken]:
    """Model specs and programs that no worker could use."""
    from workers.messages import ModelSettings
    from workers.models.choose import UnknownModel, parse
    from workers.models.command import declared

    settings = ModelSettings(commands=dict(values.commands))
    specs: list[tuple[Steps, str]] = [(("models", n), spec) for n, spec in enumerate(values.models or ())]
    specs += [(("limits", spec), spec) for spec in values.limits.__pydantic_extra__]
    specs += [(("judge_model",), values.judge_model)] if values.judge_model is not None else []
    for steps, spec in specs:
        try:
            parse(spec)
        except UnknownModel as problem:
            yield steps, str(problem)
    for name in values.commands:
        try:
            declared(name, settings)
        except UnknownModel as problem:
            yield ("commands", name), str(problem)


def _message(steps: Steps, error: dict[str, Any]) -> str:
    kind, context, given = error["type"], error.get("ctx", {}), error["input"]
    match kind:
        case "extra_forbidden":
            allowed = _allowed(steps[:-1])
            return f"unknown key; allowed: {', '.join(allowed)}{suggestion(str(steps[-1]), allowed)}"
        case "model_type" | "model_attributes_type" if steps[:1] == ("limits",) and len(steps) == 2:
            allowed = list(Limits.model_fields)
            hint = suggestion(str(steps[-1]), allowed)
            return f"unknown key; allowed: {', '.join(allowed)}, and tables named after models{hint}"
        case "missing":
            return "is missing"
        case "literal_error":
            words = context["expected"].replace("'", "").replace(" or ", ", ")
            hint = suggestion(given, words.split(", ")) if isinstance(given, str) else ""
            return f"is {_shown(given)}; allowed: {words}{hint}"
        case "string_pattern_mismatch":
            return f"is {_shown(given)}; must be the name of an environment variable, without a value"
    return f"is {_shown(given)}; {_MUST.get(kind, error['msg'].lower()).format(**context)}"


_MUST = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must not be empty",
}


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _allowed(steps: Steps) -> list[str]:
    """The keys that a table may have."""
    model: Any = Values
    for step in steps:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(step))
            model = _inner(field.annotation) if field is not None else Limits
        # Under prices and commands any name leads to the same table.
        elif get_origin(model) is dict:
            model = _inner(get_args(model)[1])
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _inner(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        return next(one for one in get_args(annotation) if one is not type(None))
    return annotation

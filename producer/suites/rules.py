"""What a suite may say, version "1.0", and in which words a suite is told that it may not.

Fields and judges are those of `workers.store.messages` and `judges.spec`; here are the limits that hold for what
people write. `defaults:` may set `timeout_seconds`, `tier` and `tags`; a task's own value replaces the
default.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from judges.safe_text import did_you_mean, near_name, path_of, requirement, shown
from judges.spec import FixturePath, JudgeSpec
from producer.suites.yaml_file import Finding, Node
from workers.store.messages import DEFAULT_TIMEOUT_SECONDS, Replies, Task

Steps = tuple[str | int, ...]
JUDGE_TYPES: tuple[str, ...] = tuple(
    get_args(judge.model_fields["type"].annotation)[0] for judge in get_args(JudgeSpec)
)

# What every dialect of patterns can say, as editors read it in the schema; `_in_any_script` says the rest.
_ID = r"^[^\x00-/:-@\[-`{-\x7f][^\x00-,/:-@\[-^`{-\x7f]{0,63}$"
_ID_RULE = (
    "must be 1 to 64 letters or digits of any alphabet, '.', '_' or '-', and start with a letter or digit"
)
_NOT_BLANK = r"\S"
_PATTERNS = {
    _ID: _ID_RULE,
    _NOT_BLANK: "must hold some text",
    r"^fixtures/.": "must be a file under fixtures/, such as 'fixtures/input.csv'",
}
# Listing a million mistakes of one task would take gigabytes.
_FLOOD = 10_000
_NUMBER_AS_TEXT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_SCALAR = re.compile(r"[^\s,\[\]{}]{1,40}")


def _in_any_script(text: str) -> str:
    """An id of letters, the marks that belong to them, and digits, composed so that equal ids are equal texts."""
    if text.isascii():
        return text
    for place, one in enumerate(text):
        kind = unicodedata.category(one)
        if not (one in "._-" or kind == "Nd" or kind[0] == "L" or (place and kind[0] == "M")):
            raise ValueError(f"{_ID_RULE}; U+{ord(one):04X} is neither")
    if (composed := unicodedata.normalize("NFC", text)) != text:
        raise ValueError(f"must be in Unicode's composed form, NFC; write it anew as {composed}")
    return text


NotBlank = Annotated[str, StringConstraints(pattern=_NOT_BLANK)]
Seconds = Annotated[float, Field(strict=True, ge=1, le=3600)]


class RepliesRules(Replies):
    """Replies of the simulated model, which must be fixtures."""

    passing: Annotated[FixturePath | None, Field(alias="pass")] = None
    failing: Annotated[FixturePath | None, Field(alias="fail")] = None


class TaskRules(Task):
    """A task as a suite may write it; `Task` itself is what travels."""

    id: Annotated[str, StringConstraints(pattern=_ID), AfterValidator(_in_any_script)]
    prompt: NotBlank
    timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS
    tier: NotBlank | None = None
    tags: tuple[NotBlank, ...] = ()
    files: tuple[FixturePath, ...] = ()
    replies: RepliesRules | None = None
    should_trigger: Annotated[bool | None, Field(strict=True)] = None


class _Rules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Defaults(_Rules):
    """What a task takes when it does not say so itself."""

    timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS
    tier: NotBlank | None = None
    tags: tuple[NotBlank, ...] = ()


class SuiteRules(_Rules):
    """A whole suite file, but for what its tasks say."""

    skill_id: NotBlank
    version: Literal["1.0"]
    description: str = ""
    defaults: Defaults = Defaults()
    tasks: Annotated[list[Any], Field(min_length=1)]


def broken_rules(root: Node, text: str, *, most: int) -> Iterator[Finding]:
    """What is wrong with a suite's values; about so many at most, and nothing about bad nodes."""
    yield from _broken(SuiteRules, root, (), text)
    tasks = root.get("tasks")
    count = 0
    for number, task in enumerate(tasks.items() if tasks else []):
        for finding in _broken(TaskRules, task, ("tasks", number), text):
            yield finding
            count += 1
        if count > most:
            return


def _broken(model: type[BaseModel], node: Node, prefix: Steps, text: str) -> Iterator[Finding]:
    try:
        model.model_validate(node.value)
    except ValidationError as invalid:
        if invalid.error_count() > _FLOOD:
            yield Finding(node.start, path_of(prefix), f"has more than {_FLOOD:,} mistakes; write it anew")
            return
        for error in invalid.errors(include_url=False, include_input=False):
            steps = _steps_of(error["loc"], error["type"])
            target, found = node.at(steps)
            if target.bad:
                continue
            message = _message(model, error, target, text) if found else _missing(steps, target)
            start = target.key_start if error["type"] == "extra_forbidden" else target.start
            yield Finding(start, path_of((*prefix, *steps)), message)


def _steps_of(loc: tuple[str | int, ...], kind: str) -> Steps:
    # pydantic names the chosen judge between `judge` and its keys; the file does not.
    steps = loc[:1] + loc[2:] if loc[:1] == ("judge",) else loc
    return (*steps, "type") if kind.startswith("union_tag") else steps


def _message(model: type[BaseModel], error: Any, node: Node, text: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    is_what = f"is {_description(node, text)}"
    match kind:
        case "extra_forbidden":
            allowed = _allowed_keys(model, error["loc"][:-1])
            name = str(error["loc"][-1])
            return f"unknown key {shown(name)}; allowed: {', '.join(allowed)}{did_you_mean(name, allowed)}"
        case "union_tag_invalid":
            allowed = list(JUDGE_TYPES)
            if not isinstance(node.value, str):
                return f"{is_what}; must be one of {', '.join(allowed)}"
            hint = did_you_mean(node.value, allowed)
            return f"unknown judge {shown(node.value)}; allowed: {', '.join(allowed)}{hint}"
        case "string_type":
            return f"{is_what}; must be text{_quote_hint(node, text)}"
        case "float_type" | "int_type":
            return f"{is_what}; must be a number{_unquote_hint(node)}"
        case "literal_error":
            return f"{is_what}; must be the text {_expected(context)}{_quote_hint(node, text)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = _allowed_keys(model, error["loc"])
            return f"{is_what}; must be a mapping{f' with keys such as {keys[0]}' if keys else ''}"
        case "string_pattern_mismatch":
            return f"{is_what}; {_PATTERNS.get(context['pattern']) or requirement(error)}"
    return f"{is_what}; {requirement(error)}"


def _missing(steps: Steps, holder: Node) -> str:
    if steps != ("judge", "type"):
        return "is missing; this key is required"
    # Without a type no other key of the judge is checked, so a misspelt one is looked for here.
    near = near_name("type", holder.value)
    hint = f" (is {shown(near)} meant as type?)" if near else ""
    return f"is missing; must be one of {', '.join(JUDGE_TYPES)}{hint}"


def _description(node: Node, text: str) -> str:
    """What a value is, in the words of the file: 1.10 stays 1.10."""
    match node.value:
        case None:
            return "nothing"
        case bool():
            return _written(node, text)
        case int() | float():
            return f"the number {_written(node, text)}"
        case str() if not node.value.strip():
            return "blank" if node.value else "empty"
        case str():
            return f"the text {shown(node.value)}"
        case list():
            return "a list" if node.value else "an empty list"
    return "a mapping"


def _written(node: Node, text: str) -> str:
    found = _SCALAR.match(text, node.start)
    return found[0] if found else shown(node.value)


def _quote_hint(node: Node, text: str) -> str:
    return f' (quote it: "{_written(node, text)}")' if isinstance(node.value, bool | int | float) else ""


def _unquote_hint(node: Node) -> str:
    quoted = isinstance(node.value, str) and _NUMBER_AS_TEXT.fullmatch(node.value)
    return " (write it without quotes)" if quoted else ""


def _expected(context: dict[str, Any]) -> str:
    return str(context.get("expected", "")).replace("'", '"')


def _type_names(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["type"].annotation) if "type" in model.model_fields else ()


def _allowed_keys(model: type[BaseModel], loc: Steps) -> list[str]:
    """The keys of the mapping at a pydantic location, in the order in which the models declare them."""
    models = [model]
    for step in loc:
        if isinstance(step, int):
            continue
        chosen = [model for model in models if step in _type_names(model)]
        models = chosen or [
            inner
            for model in models
            for name, field in model.model_fields.items()
            if (field.alias or name) == step
            for inner in _models_in(field.annotation)
        ]
    return list(dict.fromkeys(field.alias or name for m in models for name, field in m.model_fields.items()))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in {list, tuple, Annotated, Union, UnionType}:
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return []

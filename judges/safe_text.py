"""Read and quote text from strangers safely: normalised accents, valid UTF-8, strict JSON, plain error messages.

The lowest room: every package reads strangers' texts, and all of them by these functions.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from types import UnionType
from typing import Annotated, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

# Unicode's stream-safe text: no letter has more marks, and a joiner that shows nothing divides longer runs.
_MOST_MARKS = 30
_JOINER = "\N{COMBINING GRAPHEME JOINER}"
# Comparing two names takes the product of their lengths.
_LONGEST_NAME = 80
_ORDINARY_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")
_Value = TypeVar("_Value")
_NUMBERS = {int, float, bool, type(None)}


class NotJson(ValueError):
    """A text that is not standard JSON; the message says why, and where it is known."""


def composed(text: str) -> str:
    """The text in NFC. Runs of marks are divided first: sorting a run takes the square of its length."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _long_runs().sub(rf"\g<0>{_JOINER}", text))


@cache
def _long_runs() -> Any:
    import regex  # knows which characters are marks, as `re` does not; most outputs need neither

    return regex.compile(rf"\p{{M}}{{{_MOST_MARKS}}}(?=\p{{M}})")


def storable(value: _Value) -> _Value:
    """Replace what UTF-8 cannot hold in every text of a value: JSON can spell lone surrogates, which no file takes."""
    return each_text(value, storable_text)


def storable_text(text: str) -> str:
    """A text with `?` for each character that UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def each_text(value: _Value, change: Callable[[str], str]) -> _Value:
    """Change every text of a value, also in tuples and pydantic's models; the same object where nothing changed."""
    changed: object = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, tuple):
        changed = tuple([each_text(part, change) for part in value])
    elif names := _text_fields(type(value)):  # type: ignore[arg-type]  # mypy: not every value's hash is one
        fields = vars(value)
        texts = [(name, fields[name]) for name in names if fields[name]]
        parts = {name: new for name, old in texts if (new := each_text(old, change)) is not old}
        changed = cast("BaseModel", value).model_copy(update=parts) if parts else value
    return value if changed is value or changed == value else cast("_Value", changed)


@cache
def _text_fields(kind: type) -> tuple[str, ...]:
    """The fields of a model that may hold text; none of what is no model."""
    if not issubclass(kind, BaseModel):
        return ()
    types = {name: field.annotation for name, field in kind.model_fields.items()}
    return tuple(name for name, held in types.items() if not {*(get_args(held) or (held,))} <= _NUMBERS)


def strict_json(text: str) -> Any:
    """The value of standard JSON; raises NotJson for anything else, NaN and keys that occur twice included."""
    try:
        return STRICT_DECODER.decode(text)
    except json.JSONDecodeError as wrong:
        raise NotJson(f"not JSON: {wrong.msg} at line {wrong.lineno}, column {wrong.colno}") from None
    except RecursionError:
        raise NotJson("not usable as JSON: nested too deeply") from None
    except NotJson:
        raise
    except ValueError as wrong:  # int() refuses more than some thousand digits
        raise NotJson(f"not usable as JSON: {wrong}") from None


def _refuse_constant(word: str) -> NoReturn:
    raise NotJson(f"not JSON: {word} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise NotJson(f"not usable as JSON: key {twice[:_LONGEST_NAME]!r} occurs twice")
    return values


# `raw_decode` also raises ValueError for long numbers, and RecursionError.
STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def shown(value: object, longest: int = 60) -> str:
    """A value as messages quote it: on one line, with nothing a terminal would obey, cut when it is long."""
    text = repr(value[: longest + 1] if isinstance(value, str) else value)
    return text if len(text) <= longest + 2 else f"{text[:longest]}…{text[0]}"


def path_of(steps: Iterable[str | int]) -> str:
    """Steps into a value as people write them: `tasks[3].judge.type`."""
    path = ""
    for step in steps:
        if isinstance(step, str) and _ORDINARY_KEY.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{step if isinstance(step, int) else shown(step, 40)}]"
    return path


def broken_fields(
    invalid: ValidationError, *, whole: str, above: tuple[str | int, ...] = (), most: int | None = None
) -> list[str]:
    """What pydantic found wrong, as `place: what it is; what it must be`; `whole` names the value itself."""
    return [
        f"{path_of((*above, *error['loc'])) or whole}: {_what_it_is(error)}{requirement(error)}"
        for error in invalid.errors(include_url=False)[:most]
    ]


def _what_it_is(error: ErrorDetails) -> str:
    """Which value is meant, where that is short enough to be quoted."""
    quotable = isinstance(error["input"], str | int | float) and error["type"] != "json_invalid"
    return f"is {shown(error['input'])}; " if quotable else ""


def requirement(error: ErrorDetails) -> str:
    """What a value must be that pydantic has refused, in words for people who write such files."""
    context = error.get("ctx", {})
    if (words := _REQUIREMENTS.get(error["type"])) is not None:
        return words.format(**context)
    if error["type"] == "value_error":
        return str(context["error"])
    return error["msg"][:1].lower() + error["msg"][1:]


_REQUIREMENTS = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "literal_error": "must be {expected}",
    "extra_forbidden": "is not known here",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_too_short": "must hold at least one character",
    "too_short": "must hold at least one entry",
}


def allowed_keys(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys of the mapping at a pydantic location, in the order in which the models declare them.

    A name that people choose, as in `dict[str, Model]`, leads on to that model.
    """
    models = [model]
    for step in loc:
        chosen = [model for model in models if step in _type_names(model)]
        fields = [pair for model in models for pair in model.model_fields.items()]
        types = [field.annotation for name, field in fields if (field.alias or name) == step]
        if chosen or types:
            models = chosen or [inner for annotation in types for inner in _models_in(annotation)]
    return list(dict.fromkeys(field.alias or name for m in models for name, field in m.model_fields.items()))


def _type_names(model: type[BaseModel]) -> tuple[str, ...]:
    return (
        get_args(model.model_fields["type"].annotation)
        if "type" in model.model_fields
        else (getattr(model, "TAG", None),)
    )


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in {list, tuple, dict, Annotated, Union, UnionType}:
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return []

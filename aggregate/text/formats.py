"""Numbers as people read them, text from models that is safe to print, and values as standard JSON.

In JSON, what is missing or infinite becomes null, and keys keep their order.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from judges.safe_text import storable

if TYPE_CHECKING:
    from pydantic import BaseModel

MISSING = "–"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
DIGITS = 6  # more than any run can tell; they keep the last bits of a sum out of an artifact


def shown(value: float | None, how: Callable[[float], str]) -> str:
    """The value as text, and a dash where it is missing or infinite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return how(value)


def points(difference: float) -> str:
    """A difference of rates in signed percentage points: +12.5; what is not nothing is not written as 0."""
    if 1e-6 < abs(difference) < 0.0005:
        return f"{100 * difference:+.1g}"
    return f"{round(100 * difference, 1) + 0.0:+.3g}" if abs(difference) < 1 else f"{100 * difference:+.0f}"


def rate(value: float) -> str:
    """0.875 as 87.5 %; only what is all is 100.0 %, and only nothing 0.0 %."""
    if 0.9995 <= value < 1:
        return f"{math.floor(10_000 * value) / 100:.2f} %"
    return f"{100 * value:.1f} %" if value >= 0.0005 or value <= 0 else f"{100 * value:.1g} %"


def usd(value: float) -> str:
    """Dollars and cents, with two digits that are not 0 where a sum is smaller: $0.71, $0.0075."""
    if value <= 0:
        return "$0"
    return f"${value:,.{max(2, min(9, 1 - math.floor(math.log10(value))))}f}"


def duration(seconds: float) -> str:
    """How long something took: 7 s, 4 min, 2 h 5 min."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def number(value: float) -> str:
    """A score or a mean to two places."""
    return f"{value:.2f}"


def signed(value: float) -> str:
    """A difference of scores to two places, with its sign."""
    return f"{value:+.2f}"


def in_points(value: float) -> str:
    """A difference of rates in points."""
    return f"{points(value)} points"


def size_in_points(value: float) -> str:
    """How large a difference of rates is, whatever its sign."""
    return f"{points(abs(value)).lstrip('+')} points"


def seconds(value: float) -> str:
    """Milliseconds as seconds."""
    if 0 < value < 1:
        return "<0.001 s"
    return f"{value / 1000:.3g} s" if value < 1_000_000 else f"{value / 1000:,.0f} s"


def times(ratio: float) -> str:
    """A ratio to two places, more where it is small: 0.12, 0.043, 12.5."""
    if not 0.05 <= ratio < 1000:
        return f"{ratio:.2g}" if ratio < 1 else f"{ratio:,.0f}"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"


def p_value(value: float) -> str:
    """A p-value to two places, and never a zero that it is not."""
    return f"{value:.2f}" if value >= 0.01 else "<0.01"


def level_text(level: float) -> str:
    """A confidence level in percent, never rounded up to certainty: 95 %, 98.33 %, 99.9985 %."""
    level = min(level, 0.999999)
    short = f"{100 * level:.4g}"
    return f"{short if short != '100' else f'{100 * level:.7g}'} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form: 1 task, 2 tasks, 2 pairs of task and model."""
    if number == 1:
        return f"1 {noun}"
    head, of, tail = noun.partition(" of ")
    return f"{number} {head}s{of}{tail}"


# CSI and OSC sequences go as a whole; what is left of any other escape loses its control characters below.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]")
# Cc control, Cf format (bidi overrides, zero-width), Cs lone surrogates, Co private use, Cn unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def plain(text: str, limit: int | None = None) -> str:
    """The text on one line without escapes, control or bidi characters; cut with … at `limit` characters."""
    text = " ".join(safe_line(text).split())
    if limit is not None and len(text) > limit:
        return text[: max(limit - 1, 0)] + "…"
    return text


def safe_line(text: str) -> str:
    """The text on one line with its spaces, without escapes, control or bidi characters."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, _ESCAPES.sub("", text)))


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _HIDDEN else character


def clean(value: Any, digits: int | None = None) -> Any:
    """The value in JSON's own types; NaN and infinities become None, lone surrogates a question mark.

    With `digits`, floats keep that many decimal places, or significant digits where they are below 1.
    Lists of `cleaned_rows` stay as they are.
    """
    kind = type(value)
    if kind is dict or isinstance(value, Mapping):
        made = {}
        for key, entry in value.items():
            # Most entries are plain; half a million calls for those of 10,000 tasks would take half a second.
            if (plain := type(entry)) is float:
                entry = _number(entry, digits)
            elif plain is not str or not entry.isascii():
                entry = clean(entry, digits)
            made[storable(str(key))] = entry
        return made
    if kind is str:
        return storable(value)
    if kind is float:
        return _number(value, digits)
    if value is None or kind is bool or kind is int or kind is Cleaned:
        return value
    if hasattr(value, "tolist"):  # numpy's, which those who only write an artifact need not load
        return clean(value.tolist(), digits)
    return [clean(entry, digits) for entry in value]


_Row = TypeVar("_Row")


class Cleaned(list[_Row]):
    """Entries that are in JSON's own types already, so that `clean` leaves them alone."""


def cleaned_rows(
    make: Callable[..., _Row], columns: Mapping[str, Collection[Any]], digits: int | None = None
) -> Cleaned[_Row]:
    """The columns of a table as rows that `make` makes of clean values.

    Most cells of a column are alike, and each different one is cleaned once: 10,000 tasks have 200,000 cells.
    """
    cells = []
    for column in columns.values():
        made = {cell: clean(cell, digits) for cell in set(column)}
        cells.append(map(made.__getitem__, column))
    names = tuple(columns)
    return Cleaned(make(**dict(zip(names, row, strict=True))) for row in zip(*cells, strict=True))


def _number(value: float, digits: int | None) -> float | None:
    if not math.isfinite(value):
        return None
    if digits is None:
        return value
    # Costs of single attempts are far below a cent, hence significant digits there.
    return float(f"{value:.{digits}g}") if -1 < value < 1 else round(value, digits)


def rounded(value: float | None, places: int = 4) -> float | None:
    """The number rounded, and None where it is missing or infinite; never minus zero."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), places) + 0.0


def schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The JSON Schema of a model, as it is published; the title names its version."""
    schema = {"$schema": SCHEMA_DIALECT, **model.model_json_schema(by_alias=True), "title": title}
    _tidy(schema)
    return schema


def _tidy(part: Any) -> None:
    """Leave out what only repeats: names as titles, and defaults that are null."""
    if isinstance(part, list):
        for item in part:
            _tidy(item)
    if isinstance(part, dict):
        for value in part.get("properties", {}).values():
            value.pop("title", None)
            if value.get("default", 0) is None:
                del value["default"]
        for value in part.values():
            _tidy(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Standard JSON text of a cleaned value."""
    if indent is None:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    # Python's own indents in Python, which takes half a second for 10,000 tasks.
    return to_json(value, indent=indent, inf_nan_mode="null").decode()

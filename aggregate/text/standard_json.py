"""Write numbers as standard JSON: what is missing or infinite becomes null, and keys keep their order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from judges.safe_text import storable

if TYPE_CHECKING:
    from pydantic import BaseModel

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
DIGITS = 6  # more than any run can tell; they keep the last bits of a sum out of an artifact


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
    make: Callable[..., _Row], columns: Mapping[str, Iterable[Any]], digits: int | None = None
) -> Cleaned[_Row]:
    """The columns of a table as rows that `make` makes of clean values.

    Most cells of a column are alike, and each different one is cleaned once: 10,000 tasks have 200,000 cells.
    """
    cells = (map(_Known(digits).__getitem__, column) for column in columns.values())
    names = tuple(columns)
    return Cleaned(make(**dict(zip(names, row, strict=True))) for row in zip(*cells, strict=True))


class _Known(dict[Any, Any]):
    """Cells and what they are when clean."""

    def __init__(self, digits: int | None) -> None:
        self.digits = digits

    def __missing__(self, cell: Any) -> Any:
        self[cell] = made = clean(cell, self.digits)
        return made


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

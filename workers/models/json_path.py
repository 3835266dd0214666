"""Find values in a program's JSON output by a small path language, as the config writes it.

`a.b.0` walks names and list indices; `*` takes every value of an object or list, and numbers found that way
are added up. `PATH where KEY=VALUE and KEY=VALUE` looks only where those paths have those values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class BadPath(ValueError):
    """A path that cannot be read."""


@dataclass(frozen=True)
class JsonPath:
    """A parsed path: the steps to walk, and the conditions on the object they start from."""

    steps: tuple[str, ...]
    conditions: tuple[tuple[tuple[str, ...], str], ...] = ()

    def find(self, value: Any) -> Any:
        """The value at the path, a sum where `*` found several numbers, or None."""
        if any(_shown(_first(value, steps)) != wanted for steps, wanted in self.conditions):
            return None
        found = [one for one in _walk(value, self.steps) if one is not None]
        if len(found) > 1 and all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in found
        ):
            return sum(found)
        return found[0] if found else None


def parse(text: str) -> JsonPath:
    path, _, rest = text.partition(" where ")
    conditions = []
    for condition in rest.split(" and ") if rest else []:
        key, equals, wanted = condition.partition("=")
        if not equals or not key.strip():
            raise BadPath(f"condition {condition!r} of path {text!r} is not KEY=VALUE")
        conditions.append((_steps(key, text), wanted.strip()))
    return JsonPath(_steps(path, text), tuple(conditions))


def _steps(path: str, text: str) -> tuple[str, ...]:
    steps = tuple(path.strip().split("."))
    if not all(steps):
        raise BadPath(f"path {text!r} has an empty step")
    return steps


def _walk(value: Any, steps: tuple[str, ...]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict):
        chosen = list(value.values()) if step == "*" else [value.get(step)]
    elif isinstance(value, list):
        index = int(step) if step.lstrip("-").isdecimal() else None
        inside = index is not None and -len(value) <= index < len(value)
        chosen = value if step == "*" else [value[index]] if inside and index is not None else []
    else:
        return
    for one in chosen:
        yield from _walk(one, rest)


def _first(value: Any, steps: tuple[str, ...]) -> Any:
    return next(_walk(value, steps), None)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)

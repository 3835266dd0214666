"""The parts of a YAML file that remember where they stand, and how messages quote them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_LINE_END = re.compile(r"\r\n|\r|\n")
_ORDINARY_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")


class Node:
    """A value, where it and its key start in the text, and its parts as nodes.

    `value` is plain Python. `bad` marks what was already complained about, so that nobody complains twice.
    """

    __slots__ = ("bad", "children", "key_start", "start", "value")

    def __init__(self, start: int, value: Any, children: Any = None, *, bad: bool = False) -> None:
        self.start = start
        self.key_start = start
        self.value = value
        self.children: dict[str, Node] | list[Node] | None = children
        self.bad = bad

    def get(self, step: str | int) -> Node | None:
        """The part under a key or an index; None where there is none."""
        if isinstance(self.children, dict) and isinstance(step, str):
            return self.children.get(step)
        if isinstance(self.children, list) and isinstance(step, int) and 0 <= step < len(self.children):
            return self.children[step]
        return None

    def at(self, steps: Iterable[str | int]) -> tuple[Node, bool]:
        """The node at the end of the steps and True; or the last one on the way there and False."""
        node = self
        for step in steps:
            part = node.get(step)
            if part is None:
                return node, False
            node = part
        return node, True

    def items(self) -> list[Node]:
        """The entries of a list; none for anything else."""
        return self.children if isinstance(self.children, list) else []


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at an index of the text; `where` is the value's path, such as `tasks[3].judge.type`."""

    start: int
    where: str
    message: str


@dataclass(frozen=True)
class Lines:
    """Where the lines of a text start; lines and columns count from 1, columns in characters."""

    text: str

    @cached_property
    def _starts(self) -> array[int]:
        starts = array("L", [0])
        starts.extend(found.end() for found in _LINE_END.finditer(self.text))
        return starts

    def place(self, start: int) -> tuple[int, int]:
        """Line and column of an index of the text."""
        line = bisect_right(self._starts, start)
        return line, start - self._starts[line - 1] + 1


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

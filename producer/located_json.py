"""Read a JSON file whose every value knows its line and column, and say what is wrong with it.

Standard JSON and no more: no comments, no NaN, no duplicate keys, at most 32 levels, no control characters or
lone surrogates in texts. A BOM is accepted. Only the first mistake of syntax is told, as nothing can be made
of what follows it.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from pathlib import Path
from typing import Any

from producer import located_yaml
from producer.located_yaml import Document
from producer.yaml_nodes import Finding, Node, path_of, shown

MAX_DEPTH = 32
MAX_VALUES = 2_000_000

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_WORD = re.compile(r"[A-Za-z]++")
_WORDS = {"true": True, "false": False, "null": None}
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_NUMBER_LENGTH = 40

Steps = tuple[str | int, ...]


class _Wrong(Exception):
    """The text is no JSON from here on."""

    def __init__(self, start: int, steps: Steps, message: str) -> None:
        super().__init__(message)
        self.finding = Finding(start, path_of(steps), message)


def read(path: Path) -> Document:
    """The file's values and what is wrong with it as JSON; FileNotFoundError when there is none."""
    return located_yaml.read(path, parse, kind="JSON")


def parse(text: str, file: str) -> Document:
    """The text's values and what is wrong with it as JSON; problems call it `file`. Never raises."""
    reader = _Reader(text)
    try:
        root = reader.value(reader.skip(0), ())
        end = reader.skip(reader.end)
        if end < len(text):
            raise _Wrong(end, (), "text follows the end of the JSON; remove it")
    except _Wrong as wrong:
        return Document(file, text, None, (*reader.findings, wrong.finding))
    return Document(file, text, root, tuple(reader.findings))


class _Reader:
    """Reads one value after the other; `end` is where the last one ended."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        self.findings: list[Finding] = []
        self._count = 0

    def skip(self, start: int) -> int:
        found = _SPACE.match(self.text, start)
        return found.end() if found else start

    def value(self, start: int, steps: Steps) -> Node:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _Wrong(start, (), "holds too many values; split the file")
        if len(steps) > MAX_DEPTH:
            raise _Wrong(start, steps, f"nested more than {MAX_DEPTH} levels deep")
        match self.text[start : start + 1]:
            case "{":
                return self._object(start, steps)
            case "[":
                return self._array(start, steps)
            case '"':
                return Node(start, self._string(start, steps))
            case "":
                raise _Wrong(start, steps, "invalid JSON: the text ends here; a value is missing")
        return self._scalar(start, steps)

    def _object(self, start: int, steps: Steps) -> Node:
        node = Node(start, {}, {})
        at = self.skip(start + 1)
        while self._goes_on(at, "}", steps, first=not node.value):
            at = self.skip(at + 1) if node.value else at
            if self.text[at : at + 1] != '"':
                raise _Wrong(at, steps, "invalid JSON: a key in double quotes is expected")
            key = self._string(at, steps)
            colon = self.skip(self.end)
            if self.text[colon : colon + 1] != ":":
                raise _Wrong(colon, (*steps, key), "invalid JSON: a ':' is expected after the key")
            part = self.value(self.skip(colon + 1), (*steps, key))
            part.key_start = at
            if key in node.value:
                self._complain(at, (*steps, key), f"duplicate key {shown(key)}; keep one of them")
            node.value[key] = part.value
            node.children[key] = part  # type: ignore[index,call-overload]  # it was made as a dict, above
            at = self.skip(self.end)
        self.end = at + 1
        return node

    def _array(self, start: int, steps: Steps) -> Node:
        node = Node(start, [], [])
        at = self.skip(start + 1)
        while self._goes_on(at, "]", steps, first=not node.value):
            at = self.skip(at + 1) if node.value else at
            part = self.value(at, (*steps, len(node.value)))
            node.value.append(part.value)
            node.children.append(part)  # type: ignore[union-attr]  # it was made as a list, above
            at = self.skip(self.end)
        self.end = at + 1
        return node

    def _goes_on(self, at: int, closing: str, steps: Steps, *, first: bool) -> bool:
        here = self.text[at : at + 1]
        if here == closing:
            return False
        if not here:
            raise _Wrong(at, steps, f"invalid JSON: the text ends here; a '{closing}' is missing")
        if not first and here != ",":
            raise _Wrong(at, steps, f"invalid JSON: ',' or '{closing}' is expected, not {shown(here)}")
        return True

    def _string(self, start: int, steps: Steps) -> str:
        found = _STRING.match(self.text, start)
        if found is None:
            raise _Wrong(start, steps, "invalid JSON: this text in quotes has no end on its line")
        try:
            value: str = json.loads(found[0])
        except ValueError:
            raise _Wrong(start, steps, "invalid JSON: a wrong escape in this text") from None
        if forbidden := _FORBIDDEN.search(value):
            self._complain(start, steps, f"forbidden character U+{ord(forbidden[0]):04X}; remove it")
        self.end = found.end()
        return value

    def _scalar(self, start: int, steps: Steps) -> Node:
        if word := _WORD.match(self.text, start):
            if word[0] not in _WORDS:
                raise _Wrong(start, steps, f"invalid JSON: {shown(word[0])} is no value; texts need quotes")
            self.end = word.end()
            return Node(start, _WORDS[word[0]])
        number = _NUMBER.match(self.text, start)
        if number is None:
            raise _Wrong(start, steps, f"invalid JSON: {shown(self.text[start])} cannot start a value")
        if len(number[0]) > _MAX_NUMBER_LENGTH or not isfinite(float(number[0])):
            raise _Wrong(start, steps, "a number that is too long or too large; write it as text")
        self.end = number.end()
        value: Any = json.loads(number[0])
        return Node(start, value)

    def _complain(self, start: int, steps: Steps, message: str) -> None:
        if len(self.findings) < located_yaml.MAX_PROBLEMS:
            self.findings.append(Finding(start, path_of(steps), message))

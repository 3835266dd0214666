"""Read a JSON file whose every value knows its line and column, and say what is wrong with it.

Standard JSON and no more: no comments, no NaN, no duplicate keys, and the limits that hold for YAML too. Only the
first mistake of syntax is told, as nothing can be made of what follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from producer.suites import yaml_file
from producer.suites.yaml_file import Document, Finding

# Of a text that is JSON: a text in quotes, a bracket, or a number or word.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]]|[^\s,:{}\[\]"]++')
_NOT_STANDARD = ("NaN", "Infinity", "-Infinity")


def read(path: Path) -> Document:
    """The file's values and what is wrong with it as JSON; FileNotFoundError when there is none."""
    return yaml_file.read(path, parse, kind="JSON")


def parse(text: str, file: str) -> Document:
    """The text's values and what is wrong with it as JSON; problems call it `file`. Never raises."""
    if (wrong := _syntax_error(text)) is not None:
        return Document(file, text, None, (wrong,))
    return yaml_file.parse(text, file, _events)


def _syntax_error(text: str) -> Finding | None:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as wrong:
        return Finding(wrong.pos, "", f"invalid JSON: {wrong.msg[:1].lower()}{wrong.msg[1:]}")
    except RecursionError:
        return Finding(0, "", "nested too deeply")
    for token in _TOKEN.finditer(text):
        if token[0] in _NOT_STANDARD:
            return Finding(token.start(), "", f"invalid JSON: {token[0]} is no value; texts need quotes")
    return None


def _events(text: str) -> Iterator[Any]:
    """The events that a YAML parser would tell of a text that is JSON."""
    for token in _TOKEN.finditer(text):
        start, end = (yaml.Mark("", index, 0, 0, None, 0) for index in token.span())
        match token[0]:
            case "{":
                yield yaml.MappingStartEvent(None, None, True, start, end)
            case "[":
                yield yaml.SequenceStartEvent(None, None, True, start, end)
            case "}":
                yield yaml.MappingEndEvent(start, end)
            case "]":
                yield yaml.SequenceEndEvent(start, end)
            case word if word[0] == '"':
                yield yaml.ScalarEvent(None, None, (False, True), json.loads(word), start, end, '"')
            case word:
                yield yaml.ScalarEvent(None, None, (True, False), word, start, end)

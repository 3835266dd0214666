"""The YAML block at the top of a SKILL.md: read narrowly, as strangers may have written it, edited in place.

Only top-level keys and the text of plain values are looked at; nothing is ever constructed from YAML tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 32

_OPENING = re.compile(r"\ufeff?---[ \t]*(?:\r\n|\n|\Z)")
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
_TEXT = "tag:yaml.org,2002:str"


class InvalidFrontMatter(ValueError):
    """What is wrong with a front matter, and on which line and column of the file, counted from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Entry:
    """One top-level key: its value if that is text, and where its lines begin and end in the YAML block."""

    text: str | None
    start: int
    end: int
    line: int


@dataclass(frozen=True)
class FrontMatter:
    """A front matter's entries by key, in their order, and where the YAML between the `---` lines lies."""

    entries: dict[str, Entry]
    start: int
    end: int
    body: int


def is_absent(text: str) -> bool:
    """Whether a text does not even begin like a front matter."""
    return _OPENING.match(text) is None


def read(text: str) -> FrontMatter:
    """The front matter of a SKILL.md; raises InvalidFrontMatter."""
    opening = _OPENING.match(text)
    if opening is None:
        raise InvalidFrontMatter("no front matter; begin the file with '---', name, description and '---'")
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise InvalidFrontMatter("the front matter is not closed; end it with a line '---'")
    source = text[opening.end() : closing.start()]
    if len(source) > MAX_CHARACTERS:
        raise InvalidFrontMatter(
            f"{len(source)} characters of front matter; at most {MAX_CHARACTERS} are allowed"
        )
    after = text.find("\n", closing.end())
    return FrontMatter(
        entries=_entries(source, lines_before=1),
        start=opening.end(),
        end=closing.start(),
        body=len(text) if after < 0 else after + 1,
    )


def update(text: str, lines: Sequence[str]) -> str:
    """Put the keys that `lines` give into the front matter; everything else stays, byte for byte.

    A key that is there already is replaced in its place with all that is nested in it; new keys come last.
    Raises InvalidFrontMatter.
    """
    matter = read(text)
    source = text[matter.start : matter.end]
    eol = "\r\n" if "\r\n" in source else "\n"
    given = "".join(line.rstrip("\r\n") + "\n" for line in _without_rules(lines))
    if len(given) > MAX_CHARACTERS:
        raise InvalidFrontMatter(f"{len(given)} characters to put in; at most {MAX_CHARACTERS} are allowed")
    additions = _editable(given, _entries(given, lines_before=0))
    if not additions:
        raise InvalidFrontMatter("nothing to put in; give lines such as 'description: …'")
    present = _editable(source, matter.entries)
    # From the last to the first, so that the places of earlier entries stay true.
    for key, entry in sorted(present.items(), key=lambda item: item[1].start, reverse=True):
        if key in additions:
            source = source[: entry.start] + _lines_of(given, additions[key], eol) + source[entry.end :]
    source += "".join(_lines_of(given, entry, eol) for key, entry in additions.items() if key not in present)
    return text[: matter.start] + source + text[matter.end :]


def _without_rules(lines: Sequence[str]) -> list[str]:
    kept = list(lines)
    for end in (0, -1):
        if kept and kept[end].strip() == "---":
            del kept[end]
    return kept


def _lines_of(source: str, entry: Entry, eol: str) -> str:
    return source[entry.start : entry.end].rstrip("\n").replace("\n", eol) + eol


def _editable(source: str, entries: dict[str, Entry]) -> dict[str, Entry]:
    for key, entry in entries.items():
        if entry.start and source[entry.start - 1] != "\n":
            raise InvalidFrontMatter(f"cannot edit {key!r}; write one 'key: value' to a line", entry.line)
    return entries


def _entries(source: str, *, lines_before: int) -> dict[str, Entry]:
    try:
        _refuse_traps(source)
        node = yaml.compose(source, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1 + lines_before, mark.column + 1) if mark else (1 + lines_before, 1)
        raise InvalidFrontMatter(
            f"not readable as YAML: {error.problem or error.context}", line, column
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidFrontMatter(f"not readable as YAML: {reason}", 1 + lines_before) from error
    if not isinstance(node, yaml.MappingNode):
        raise InvalidFrontMatter("not a list of keys; write lines such as 'name: …'", 1 + lines_before)
    starts = [key.start_mark.index for key, _ in node.value] + [len(source)]
    entries: dict[str, Entry] = {}
    for (key, value), following in zip(node.value, starts[1:], strict=True):
        line = key.start_mark.line + 1 + lines_before
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidFrontMatter("a key must be plain text", line)
        if key.value in entries:
            raise InvalidFrontMatter(f"key {key.value!r} occurs twice; keep one", line)
        text = value.value if value.tag == _TEXT and isinstance(value, yaml.ScalarNode) else None
        start = key.start_mark.index
        entries[key.value] = Entry(text, start, start + _length(source[start:following]), line)
    return entries


def _refuse_traps(source: str) -> None:
    depth = 0
    for event in yaml.parse(source, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(None, None, "anchors and aliases are not allowed", event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"nested deeper than {MAX_DEPTH}", event.start_mark)


def _length(entry: str) -> int:
    """Characters of an entry without the blank lines and comments that follow it."""
    lines = entry.splitlines(keepends=True)
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    return sum(map(len, lines))

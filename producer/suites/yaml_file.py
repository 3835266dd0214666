"""Read a YAML file whose every value knows its line and column, and say everything that is wrong with it.

It is read narrowly, because files may come from strangers: one document, no tags, anchors, aliases, merge keys or
directives, keys that are text, at most 32 levels. That makes it fast and safe too: nothing is constructed, nothing is
expanded, and no level of the file is a level of Python's stack. A BOM, CRLF and lone CR are accepted.
`parse_anchored` allows other tools' files anchors, aliases and merge keys, and no more values than it says.

A plain (unquoted) scalar means what JSON would make of it: `null`, `true`, `false` (also `~`, nothing at all,
and capitalised) and decimal numbers such as 30, -1, .5 or 1e3. Everything else is text, exactly as written:
`yes`, `no`, `on`, `off`, `2026-01-01`, `1:30`, `1_000`, `0x10` and `007` are not turned into anything.
`.inf`, `.nan` and numbers that overflow are errors. Quotes always make text.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from aggregate.text import files
from judges.safe_text import path_of, shown

_LINE_END = re.compile(r"\r\n|\r|\n")


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

    def items(self, key: str | None = None) -> list[Node]:
        """The entries of a list, or of the list under a key; none for anything else."""
        node = self if key is None else self.get(key)
        return node.children if node and isinstance(node.children, list) else []


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at an index of the text; `where` is the value's path, such as `tasks[3].judge.type`."""

    start: int
    where: str
    message: str


MAX_DEPTH = 32
MAX_EVENTS = 2_000_000
MAX_FINDINGS = 2_000
MAX_REPEATED = 100_000
_MAX_NUMBER_LENGTH = 40
# Past this depth libyaml's own cost grows with every level, so reading stops altogether.
_HOPELESS_DEPTH = 256

# libyaml where PyYAML was built with it; the pure parser gives the same events, many times slower.
DEFAULT_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Events = Callable[[str], Iterable[Any]]
yaml_events: Events = partial(yaml.parse, Loader=DEFAULT_LOADER)

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*+)(\.[0-9]*+)?|(\.[0-9]++))([eE][-+]?[0-9]++)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_FORBIDDEN_RAW = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_FORBIDDEN_ESCAPED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_BLANK = r"[ \t]*+(?:#[^\r\n]*+)?"
_BLANK_LINES = re.compile(rf"(?>{_BLANK}(?:\r\n|\r|\n))*+(?:{_BLANK}\Z)?")
_DIRECTIVES = re.compile(rf"(?>(?:%[^\r\n]*+|{_BLANK})(?:\r\n|\r|\n))*+(?:%[^\r\n]*+\Z)?")


class _GiveUp(Exception):
    """The rest of the text is not worth reading; what is wrong has been said."""


class _NotAValue(Exception):
    """A plain scalar that looks like a number and is none that can be used."""


def parse(text: str, file: str, events: Events = yaml_events, *, repeats: int | None = None) -> Document:
    """The text's values, None where they cannot be read to the end, and all that is wrong with it as YAML.

    Problems call it `file`. `events` may read another language. An empty text has no values and nothing wrong.
    Never raises.
    """
    builder = _Builder(text, repeats)
    root = None
    try:
        root = builder.read(events)
    except _GiveUp:
        pass
    except yaml.MarkedYAMLError as error:
        builder.complain(*_syntax_error(error, text))
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The pure parser lets these out for escapes beyond Unicode, and does not say where.
        builder.complain(0, f"invalid YAML: {shown(str(error))}; remove it")
    builder.complain_of_characters(upto=len(text) + 1)
    return Document(file, text, root, tuple(builder.findings))


# With anchors, aliases and merge keys; aliases may repeat so many values in all.
parse_anchored = partial(parse, repeats=MAX_REPEATED)


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    start = min(mark.index, len(text)) if mark is not None else 0
    problem = error.problem or "it cannot be read"
    remedy = "check quotes, brackets and indentation"
    if "cannot start any token" in problem:
        culprit = text[start : start + 1]
        problem, remedy = f"text starts with {culprit!r}", "quote it"
        if culprit == "\t":
            problem, remedy = "a tab cannot indent", "use spaces"
    elif "mapping values are not allowed" in problem:
        problem, remedy = "a ':' is not expected here", "mend the indentation, or quote text that holds ': '"
    elif error.context and error.context_mark is not None:
        problem += f" {error.context}, which began on line {error.context_mark.line + 1}"
    return start, f"invalid YAML: {problem}; {remedy}"


def _plain_value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise _NotAValue(f"{text} is not a finite number; write a finite one (or quote it to mean text)")
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if len(text) > _MAX_NUMBER_LENGTH:
        allowed = f"at most {_MAX_NUMBER_LENGTH} are allowed (quote it to mean text)"
        raise _NotAValue(f"a number of {len(text):,} characters; {allowed}")
    if not any(number.groups()):
        return int(text)
    if not isfinite(float(text)):
        raise _NotAValue(f"{text} is not a finite number; write a smaller one (or quote it to mean text)")
    return float(text)


@dataclass(slots=True, eq=False)
class _Frame:
    """A mapping or list that is being read.

    `step` leads to it from its parent. `key` is a mapping's current key, None while one is awaited; with
    `keep` off, the key's value is read and dropped. In a `rejected` frame nothing more is worth a complaint.
    """

    node: Node
    step: str | int | None
    rejected: bool
    key: str | None = None
    key_start: int = 0
    keep: bool = True
    merging: bool = False
    merged: list[Node] = field(default_factory=list)

    @property
    def awaits_key(self) -> bool:
        return self.key is None and type(self.node.value) is dict

    @property
    def next_step(self) -> str | int | None:
        return self.key if type(self.node.value) is dict else len(self.node.value)

    def take_key(self, key: str, start: int, *, keep: bool) -> None:
        self.key, self.key_start, self.keep = key, start, keep

    def take(self, node: Node) -> None:
        children, value = self.node.children, self.node.value
        if isinstance(children, list):
            children.append(node)
            value.append(node.value)
        elif self.merging:
            self.merged.append(node)
        elif self.keep and children is not None and self.key is not None:
            node.key_start = self.key_start
            children[self.key] = node
            value[self.key] = node.value
        self.key, self.merging = None, False


class _Builder:
    """Follows the parser's events with a stack of its own, so that deep files cost no recursion."""

    def __init__(self, text: str, repeats: int | None) -> None:
        self._repeats = repeats  # how many values aliases may still repeat; None where there are to be none
        self._anchors: dict[str, Node] = {}
        self.findings: list[Finding] = []
        # The outermost frame stands for the file: a list whose one entry is the document.
        self._frames = [_Frame(Node(0, [], []), None, rejected=False)]
        self._document = Document("", text, None, ())
        forbidden = islice(_FORBIDDEN_RAW.finditer(text), MAX_FINDINGS)
        self._characters = deque((character.start(), character[0]) for character in forbidden)
        # Parsers stop at the first such character; with stand-ins of the same length they find the rest too.
        self._text = _FORBIDDEN_RAW.sub("\N{REPLACEMENT CHARACTER}", text) if self._characters else text
        self._hide_directives()

    def complain(self, start: int, message: str, where: str | None = None) -> None:
        if len(self.findings) < MAX_FINDINGS and not self._frames[-1].rejected:
            self.findings.append(Finding(start, self._where() if where is None else where, message))

    def complain_of_characters(self, upto: int, since: int | None = None) -> None:
        """Report forbidden characters before an index; those from `since` on belong to the current value."""
        while self._characters and self._characters[0][0] < upto:
            start, character = self._characters.popleft()
            where = "" if since is None or start < since else None
            self.complain(start, f"forbidden character U+{ord(character):04X}; remove it", where)

    def read(self, events: Events) -> Node | None:
        for number, event in enumerate(events(self._text)):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._container(event, Node(event.start_mark.index, {}, {}))
            elif kind is yaml.SequenceStartEvent:
                self._container(event, Node(event.start_mark.index, [], []))
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._merge(self._frames.pop())
            elif kind is yaml.AliasEvent:
                self._alias(event.anchor, event.start_mark.index)
            elif kind is yaml.DocumentEndEvent:
                self._look_behind(event.end_mark.index)
                break
            if number > MAX_EVENTS:
                self.complain(event.start_mark.index, "holds too many values; split the file", "")
                raise _GiveUp
        return self._frames[0].node.get(0)

    def _hide_directives(self) -> None:
        # Parsers compare every directive with all earlier ones, so a file full of them would never end.
        start = _end_of(_BLANK_LINES, self._text, 0)
        if self._text[start : start + 1] != "%":
            return
        self.complain(start, "a YAML directive is not allowed; remove the line", "")
        end = _end_of(_DIRECTIVES, self._text, start)
        hidden = re.sub(r"[^\r\n]", " ", self._text[start:end])
        self._text = self._text[:start] + hidden + self._text[end:]

    def _look_behind(self, end: int) -> None:
        # Looked at and not parsed: a second document may begin with directives too.
        start = _end_of(_BLANK_LINES, self._text, end)
        if start < len(self._text):
            self.complain(start, "a second YAML document starts; only one is allowed (remove it)", "")

    def _where(self) -> str:
        steps = [frame.step for frame in self._frames[2:]]
        if len(self._frames) > 1:
            steps.append(self._frames[-1].next_step)
        return path_of(step for step in steps if step is not None)

    def _scalar(self, event: Any) -> None:
        start, value = event.start_mark.index, event.value
        if self._characters:
            self.complain_of_characters(event.end_mark.index, since=start)
        self._properties(event, node := Node(start, value))
        if event.tag is not None:
            self._reject(start)
            return
        if event.implicit[0]:
            try:
                value = node.value = _plain_value(value)
            except _NotAValue as wrong:
                self._reject(start, str(wrong))
                return
        elif event.style == '"' and (escaped := _FORBIDDEN_ESCAPED.search(value)):
            self.complain(start, f"forbidden character U+{ord(escaped[0]):04X}; remove its escape")
        frame = self._frames[-1]
        if frame.awaits_key:
            self._key(frame, value, event)
        else:
            frame.take(node)

    def _alias(self, name: str, start: int) -> None:
        """Put the value that has the anchor in the alias's place; its parts are shared, and all of them count."""
        alias, target, wrong = shown(f"*{name}"), self._anchors.get(name), ""
        if self._repeats is None:
            wrong = "is not allowed; write the value out"
        elif target is None:
            wrong = "has no anchor before it"
        elif any(frame.node is target for frame in self._frames):
            wrong = "stands inside the value that it repeats"
        elif self._frames[-1].awaits_key:
            wrong = "is not a key; keys must be text"
        if wrong or target is None or self._repeats is None:
            self._reject(start, f"alias {alias} {wrong}")
            return
        parts = [(target, len(self._frames))]
        while parts:
            part, depth = parts.pop()
            self._repeats -= 1
            if self._repeats < 0 or depth > MAX_DEPTH + 1:
                limits = f"at most {MAX_REPEATED:,} may be repeated in all, {MAX_DEPTH} levels deep"
                self.complain(start, f"alias {alias} repeats too many values; {limits}")
                raise _GiveUp
            held = part.children
            parts += [(each, depth + 1) for each in (held.values() if isinstance(held, dict) else held or ())]
        self._frames[-1].take(Node(target.start, target.value, target.children, bad=target.bad))

    def _merge(self, frame: _Frame) -> None:
        """Give a mapping, which ends here, the keys that its merge keys lend it; its own come first."""
        node = frame.node
        for lent in (each for holder in frame.merged for each in holder.items() or [holder]):
            if not isinstance(lent.children, dict):
                self.complain(lent.start, "merge key << needs a mapping, or a list of mappings")
            elif isinstance(node.children, dict):
                node.children = {**lent.children, **node.children}
                node.value.update({key: lent.value[key] for key in lent.value if key not in node.value})

    def _key(self, frame: _Frame, key: Any, event: Any) -> None:
        start, keep, merging = event.start_mark.index, False, False
        if not isinstance(key, str):
            self.complain(start, f"key {event.value or 'nothing'} is not text; keys must be text (quote it)")
        elif key == "<<" and event.implicit[0]:
            if self._repeats is None:
                self.complain(start, "merge key << is not allowed; write the keys out")
                frame.node.bad = True
            merging = self._repeats is not None
        elif (first := frame.node.get(key)) is not None:
            line = self._document.line(first.key_start)
            frame.take_key(key, start, keep=False)
            self.complain(start, f"duplicate key {shown(key)}, first on line {line}; keep one of them")
        else:
            keep = True
        frame.take_key(event.value, start, keep=keep)
        frame.merging = merging

    def _container(self, event: Any, node: Node) -> None:
        self._properties(event, node)
        parent, depth = self._frames[-1], len(self._frames)
        step, rejected = parent.next_step, True
        if depth > _HOPELESS_DEPTH:
            raise _GiveUp
        if parent.awaits_key:
            kind = "mapping" if isinstance(node.value, dict) else "list"
            self._reject(node.start, f"a {kind} is not a key; keys must be text")
        elif depth == MAX_DEPTH + 1:
            self._reject(node.start, f"nested {depth} levels deep; at most {MAX_DEPTH} are allowed")
        elif event.tag is not None:
            self._reject(node.start)
        else:
            parent.take(node)
            rejected = parent.rejected
        self._frames.append(_Frame(node, step, rejected=rejected))

    def _properties(self, event: Any, node: Node) -> None:
        start = event.start_mark.index
        if event.anchor is not None and self._repeats is not None:
            self._anchors[event.anchor] = node
        elif event.anchor is not None:
            self.complain(start, f"anchor {shown(f'&{event.anchor}')} is not allowed; write the value out")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.complain(start, f"tag {shown(tag)} is not allowed; remove it")

    def _reject(self, start: int, message: str = "") -> None:
        """Put a bad value, or a key that is dropped with its value, where the next one is awaited."""
        if message:
            self.complain(start, message)
        frame = self._frames[-1]
        if frame.awaits_key:
            frame.take_key("?", start, keep=False)
            frame.node.bad = True
        else:
            frame.take(Node(start, None, bad=True))


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


MAX_BYTES = 16 * 1024 * 1024
MAX_PROBLEMS = 1_000


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file, and where. Lines and columns count from 1; line 0 is no place at all."""

    file: str
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}  " if self.line else ""
        return f"{place}{self.where}: {self.message}" if self.where else f"{place}{self.message}"


@dataclass(frozen=True)
class Document:
    """One YAML file: its text, its values (None where they cannot be read) and what is wrong with it."""

    file: str
    text: str
    root: Node | None
    findings: tuple[Finding, ...]

    @cached_property
    def _starts(self) -> array[int]:
        """Where the lines of the text start."""
        starts = array("L", [0])
        starts.extend(end.end() for end in _LINE_END.finditer(self.text))
        return starts

    def line(self, start: int) -> int:
        """The line that holds an index of the text, counted from 1."""
        return bisect_right(self._starts, start)

    def problems(self, findings: Iterable[Finding]) -> tuple[Problem, ...]:
        """The findings in the order of the file, without repetitions; a flood is cut, and the cut is said."""
        ordered = sorted(set(findings), key=lambda finding: (finding.start, finding.where, finding.message))
        problems = [self._problem(finding) for finding in ordered[:MAX_PROBLEMS]]
        if len(ordered) > MAX_PROBLEMS:
            cut = f"more than {MAX_PROBLEMS:,} problems; mend these first"
            problems.append(self._problem(Finding(ordered[MAX_PROBLEMS].start, "", cut)))
        return tuple(problems)

    def _problem(self, finding: Finding) -> Problem:
        line = self.line(finding.start)
        column = finding.start - self._starts[line - 1] + 1  # in characters
        return Problem(self.file, line, column, finding.where, finding.message)


def read(path: Path, parse: Callable[[str, str], Document] = parse, *, kind: str = "YAML") -> Document:
    """The file's values and all that is wrong with it as YAML; FileNotFoundError when there is none.

    Another `parse` reads files of another `kind` with the same care.
    """
    try:
        data = files.read(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError) as missing:
        raise FileNotFoundError(str(path)) from missing
    except OSError as failed:
        message = f"cannot be read: {failed.strerror}; make it readable"
        if isinstance(failed, files.Unreadable):
            remedy = " (split it)" if isinstance(failed, files.TooLarge) else f"; must be a {kind} file"
            message = failed.words + remedy
        return Document(str(path), "", None, (Finding(0, "", message),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        before = data[: broken.start].decode("utf-8-sig")
        message = f"byte 0x{data[broken.start]:02x} is not UTF-8 text; save the file as UTF-8"
        return Document(str(path), before, None, (Finding(len(before), "", message),))
    return parse(text, str(path))

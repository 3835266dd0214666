"""What an import found, what it could not carry over, and how files beside the source are read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from producer.located_yaml import Document, Problem
from producer.yaml_nodes import Finding, Node, shown

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_TASKS = 10_000

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


class Unimportable(Exception):
    """Nothing was written; `problems` says all that is wrong, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class Refused(Exception):
    """Something that cannot be carried over; the message says why."""


@dataclass(frozen=True)
class LeftOut:
    """A task, assertion or setting that has no equivalent, where it stands and why."""

    kind: Literal["task", "assertion", "setting"]
    place: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}  {self.what}: {self.why}"


@dataclass(frozen=True)
class ImportedTask:
    """A task's fields as YAML will have them, and where it came from."""

    origin: str
    fields: dict[str, Any]
    remarks: tuple[str, ...] = ()


@dataclass
class Found:
    """Everything that an import makes of a source; counts are of the source, before anything was left out."""

    source: str
    skill_id: str
    description: str = ""
    tasks: list[ImportedTask] = field(default_factory=list)
    fixtures: dict[str, bytes] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    task_count: int = 0
    assertion_count: int = 0
    tasks_left_out: int = 0
    _told: set[LeftOut] = field(default_factory=set)
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def assertions_left_out(self) -> int:
        """How many assertions were left out; several reasons for one of them count once."""
        return len({item.place for item in self.left_out if item.kind == "assertion"})

    def leave_out(
        self, kind: Literal["task", "assertion", "setting"], place: str, what: str, why: str
    ) -> None:
        """Note what is not carried over; tasks are counted, and the same words are noted once."""
        self.tasks_left_out += kind == "task"
        item = LeftOut(kind, place, what, why)
        if item not in self._told:
            self._told.add(item)
            self.left_out.append(item)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def new_id(self, name: str) -> str:
        """An id that no task of this import has: the name, with a number behind it where it is taken."""
        free = name
        while free in self._numbers:
            self._numbers[name] += 1
            free = f"{name}-{self._numbers[name]}"
        self._numbers[free] = 1
        return free


class Source:
    """A document and its problems: everything that is wrong is gathered, and told at once."""

    def __init__(self, document: Document, name: str) -> None:
        self.document = document
        self.name = name
        self._findings: list[Finding] = list(document.findings)

    def place(self, node: Node) -> str:
        """`file:line:column` of a value."""
        problem = self.document.problems([Finding(node.start, "", "")])[0]
        return f"{self.name}:{problem.line}:{problem.column}"

    def wrong(self, node: Node, where: str, message: str) -> None:
        self._findings.append(Finding(node.start, where, message))

    def check(self) -> None:
        """Raise Unimportable when anything was found wrong."""
        if self._findings:
            raise Unimportable(self.document.problems(self._findings))

    def text(self, node: Node | None, where: str) -> str | None:
        """A text, or None and a complaint where it is something else; None without complaint where it is absent."""
        if node is None:
            return None
        if not isinstance(node.value, str):
            self.wrong(node, where, f"is {kind_of(node.value)}; must be text")
            return None
        return node.value

    def entries(self, node: Node | None, where: str) -> list[Node]:
        """The entries of a list; none, and a complaint, where it is something else."""
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, list):
            self.wrong(node, where, f"is {kind_of(node.value)}; must be a list")
        return node.items()


def kind_of(value: object) -> str:
    """What a value is, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {shown(value)}"
        case list():
            return "a list"
    return "a mapping"


def no_such_source(path: Path) -> Unimportable:
    return Unimportable([Problem(str(path), 0, 0, "", f"nothing to import at {path}")])


def slug(text: str, longest: int = 40) -> str:
    """A text as part of an id: lower-case letters, digits and dashes; perhaps empty."""
    return _UNSAFE.sub("-", text.lower())[: longest + 1].strip("-")[:longest].strip("-")


def unique(name: str, taken: Iterable[str]) -> str:
    """The name, with a number behind it where it is taken."""
    used = set(taken)
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name}-{number}"
    return free


def file_beside(home: Path, name: str) -> bytes:
    """The content of a file inside a folder, symbolic links resolved; raises Refused for anything else."""
    if "\0" in name or Path(name).is_absolute():
        raise Refused(f"{shown(name)} is not a path inside {home.name or 'the folder'}")
    root = Path(os.path.realpath(home))
    path = Path(os.path.realpath(root / name))
    if not path.is_relative_to(root):
        raise Refused(f"{shown(name)} leaves the source's folder; nothing outside is read")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{shown(name)} is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise Refused(f"{shown(name)} holds {status.st_size:,} bytes; at most 16 MiB are allowed")
        return path.read_bytes()
    except FileNotFoundError:
        raise Refused(f"{shown(name)} does not exist") from None
    except OSError as failed:
        raise Refused(f"{shown(name)} cannot be read: {failed.strerror}") from None


def text_beside(home: Path, name: str) -> str:
    """The text of a file inside a folder; raises Refused."""
    try:
        return file_beside(home, name).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise Refused(f"{shown(name)} is not UTF-8 text") from None


def criteria(statements: Sequence[str]) -> list[dict[str, Any]]:
    """A rubric's criteria: one point for each statement, under a short name of its own."""
    made: list[dict[str, Any]] = []
    for number, statement in enumerate(statements, start=1):
        name = unique(slug(statement) or f"statement-{number}", [each["name"] for each in made])
        made.append({"name": name, "max_points": 1, "description": statement})
    return made

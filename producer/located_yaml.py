"""Read a YAML file whose every value knows its line and column, and say everything that is wrong with it.

A BOM, CRLF and lone CR are accepted. What YAML may hold, and what unquoted words mean, `yaml_reader` tells.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from producer import yaml_reader
from producer.yaml_nodes import Finding, Lines, Node

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
    def _lines(self) -> Lines:
        return Lines(self.text)

    def line(self, start: int) -> int:
        """The line that holds an index of the text, counted from 1."""
        return self._lines.place(start)[0]

    def problems(self, findings: Iterable[Finding]) -> tuple[Problem, ...]:
        """The findings in the order of the file, without repetitions; a flood is cut, and the cut is said."""
        ordered = sorted(set(findings), key=lambda found: (found.start, found.where, found.message))
        problems = [self._problem(found) for found in ordered[:MAX_PROBLEMS]]
        if len(ordered) > MAX_PROBLEMS:
            cut = f"more than {MAX_PROBLEMS:,} problems; mend these first"
            problems.append(self._problem(Finding(ordered[MAX_PROBLEMS].start, "", cut)))
        return tuple(problems)

    def _problem(self, found: Finding) -> Problem:
        line, column = self._lines.place(found.start)
        return Problem(self.file, line, column, found.where, found.message)


class _Unreadable(Exception):
    """The file's content cannot be had; the message says why and what to do."""


def parse(text: str, file: str) -> Document:
    """The text's values and all that is wrong with it as YAML; problems call it `file`. Never raises."""
    root, findings = yaml_reader.build(text)
    return Document(file, text, root, tuple(findings))


def read(path: Path, parse: Callable[[str, str], Document] = parse, *, kind: str = "YAML") -> Document:
    """The file's values and all that is wrong with it as YAML; FileNotFoundError when there is none.

    Another `parse` reads files of another `kind` with the same care.
    """
    try:
        data = _content(path, kind)
    except _Unreadable as unreadable:
        return Document(str(path), "", None, (Finding(0, "", str(unreadable)),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        before = data[: broken.start].decode("utf-8-sig")
        message = f"byte 0x{data[broken.start]:02x} is not UTF-8 text; save the file as UTF-8"
        return Document(str(path), before, None, (Finding(len(before), "", message),))
    return parse(text, str(path))


def _content(path: Path, kind: str) -> bytes:
    try:
        status = path.stat()
        # Opening a pipe would wait for ever, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise _Unreadable(f"is {what}; must be a {kind} file")
        if status.st_size > MAX_BYTES:
            raise _Unreadable(f"holds {status.st_size:,} bytes; at most 16 MiB are allowed (split it)")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError) as missing:
        raise FileNotFoundError(str(path)) from missing
    except OSError as failed:
        raise _Unreadable(f"cannot be read: {failed.strerror}; make it readable") from failed
    if len(data) > MAX_BYTES:
        raise _Unreadable("holds more than 16 MiB; at most 16 MiB are allowed (split it)")
    return data

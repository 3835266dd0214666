"""What all importers share: the tasks they make, what they leave out and why, and writing the suite.

Files beside the source are read with care. The suite is written whole or not at all, over nothing that exists, and
is valid before anybody sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from aggregate.text import files
from aggregate.text.formats import counted, plain
from judges.safe_text import shown
from producer.suites import json_file, rules, suite, yaml_file
from producer.suites.yaml_file import Document, Finding, Node, Problem
from workers.store import bundles
from workers.store.messages import Task

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_TASKS = 10_000
MAX_FOLDER_BYTES = 4 * MAX_FILE_BYTES

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
# What can be left out.
Part = Literal["task", "assertion", "setting"]


class Unimportable(suite.InvalidSuite):
    """Nothing was written; `problems` says all that is wrong, in the order of the file."""


def unimportable(source: str | Path, message: str) -> Unimportable:
    """The error for a file or folder that is wrong as a whole."""
    return Unimportable([Problem(str(source), 0, 0, "", message)])


class Refused(Exception):
    """Something that cannot be carried over; the message says why."""


@dataclass(frozen=True)
class LeftOut:
    """A task, assertion or setting that has no equivalent, where it stands and why."""

    kind: Part
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


@dataclass
class Found:
    """Everything that an import makes of a source; counts are of the source, before anything was left out.

    `skills` has the files of the arms that the source compares, by the arm's name.
    """

    source: str
    skill_id: str
    description: str = ""
    tasks: list[ImportedTask] = field(default_factory=list)
    fixtures: dict[str, bytes] = field(default_factory=dict)
    skills: dict[str, dict[str, bytes]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    changed: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    task_count: int = 0
    assertion_count: int = 0
    tasks_left_out: int = 0
    _told: set[LeftOut] = field(default_factory=set)
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """What became of the source's tasks and assertions; one of which a part is lost counts as lost."""
        lost = {item.place for item in self.left_out if item.kind == "assertion"}
        changed = {item.place for item in self.changed} - lost
        fates = {"changed": len(changed), "lost": len(lost)}
        tasks = {"imported": self.task_count - self.tasks_left_out, "left out": self.tasks_left_out}
        kept = self.assertion_count - len(lost) - len(changed)
        return {
            "task": {"found": self.task_count, **tasks},
            "assertion": {"found": self.assertion_count, "kept": kept, **fates},
        }

    def told(self) -> list[str]:
        """The counts, and everything that was not carried over as it was, line by line."""
        lines = []
        for kind, counts in self.counts.items():
            what = ", ".join(f"{count} {word}" for word, count in counts.items() if word != "found")
            if counts["found"]:
                lines.append(f"{counted(counts['found'], kind)} found: {what}")
        lines += [f"changed: {item}" for item in self.changed]
        lines += [f"{'lost' if item.kind == 'assertion' else 'left out'}: {item}" for item in self.left_out]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def change(self, place: str, what: str, how: str) -> None:
        """Note an assertion that judges a little otherwise here, once."""
        self._tell(LeftOut("assertion", place, what, how), self.changed)

    def leave_out(self, kind: Part, place: str, what: str, why: str) -> None:
        """Note what is not carried over; tasks are counted, and the same words are noted once."""
        self.tasks_left_out += kind == "task"
        self._tell(LeftOut(kind, place, what, why), self.left_out)

    def _tell(self, item: LeftOut, told: list[LeftOut]) -> None:
        if item not in self._told:
            self._told.add(item)
            told.append(item)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def leave_out_settings(
        self, source: ImportedSource, node: Node | None, known: Collection[str], owner: str = ""
    ) -> None:
        """Note every key of a mapping that is not among the known ones."""
        for key, part in node.children.items() if node and isinstance(node.children, dict) else ():
            if key not in known:
                what = plain(owner + key, 100)
                self.leave_out("setting", source.place(part), what, "Uplift has no such setting")

    def new_id(self, name: str) -> str:
        """An id that no task of this import has: the name, with a number behind it where it is taken."""
        return numbered(name, self._numbers)


class ImportedSource:
    """A document that is imported, and all problems in it, which are raised together."""

    def __init__(self, document: Document, name: str) -> None:
        self.document = document
        self.name = name
        self._findings: list[Finding] = list(document.findings)

    def place(self, node: Node) -> str:
        """`file:line:column` of a value."""
        place = self.document.problems([Finding(node.start, "", "")])[0]
        return f"{self.name}:{place.line}:{place.column}"

    def wrong(self, node: Node, where: str, message: str) -> None:
        self._findings.append(Finding(node.start, where, message))

    def check(self) -> None:
        """Raise Unimportable when anything was found wrong."""
        if self._findings:
            raise Unimportable(self.document.problems(self._findings))

    def wrong_kind(self, node: Node, where: str, wanted: str) -> None:
        self.wrong(node, where, f"is {kind_of(node.value)}; must be {wanted}")

    def text(self, node: Node | None, where: str) -> str | None:
        """A text, or None and a complaint where it is something else; None without complaint where it is absent."""
        if node is not None and not isinstance(node.value, str):
            self.wrong_kind(node, where, "text")
        return node.value if node and isinstance(node.value, str) else None

    def entries(self, node: Node | None, where: str, wanted: str = "a list") -> list[Node]:
        """The entries of a list; none where it is absent, and a complaint where it is something else."""
        if node is not None and not isinstance(node.value, list | None):
            self.wrong_kind(node, where, wanted)
        return node.items() if node else []

    def mapping(self, node: Node | None, where: str) -> dict[str, Any]:
        """A mapping's values; none where it is absent, and a complaint where it is something else."""
        if node is not None and not isinstance(node.value, dict | None):
            self.wrong_kind(node, where, "a mapping of names to values")
        return dict(node.value) if node and isinstance(node.value, dict) else {}

    def mappings(
        self, node: Node | None, where: str, wanted: str = "a mapping"
    ) -> Iterator[tuple[int, Node]]:
        """The entries of a list that are mappings, with their numbers; a complaint for each of the others."""
        for number, entry in enumerate(self.entries(node, where)):
            if isinstance(entry.value, dict):
                yield number, entry
            else:
                self.wrong_kind(entry, f"{where}[{number}]" if where else "", wanted)


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


def open_source(path: Path, *, keys: str) -> tuple[ImportedSource, Node]:
    """A JSON or YAML file and its mapping, which should have these keys; raises Unimportable."""
    try:
        if path.suffix in (".yaml", ".yml"):
            document = yaml_file.read(path, yaml_file.parse_anchored)
        else:
            document = json_file.read(path)
    except FileNotFoundError:
        raise unimportable(path, f"nothing to import at {path}") from None
    source, root = ImportedSource(document, str(path)), document.root or Node(0, None)
    source.check()
    if not isinstance(root.value, dict):
        what = kind_of(root.value) if document.root else "empty"
        source.wrong(root, "", f"is {what}; must be a mapping with {keys}")
        source.check()
    return source, root


def slug(text: str, longest: int = 40) -> str:
    """Turn a text into part of an id: lower-case letters, digits and dashes; may be empty."""
    return _UNSAFE.sub("-", text.lower())[: longest + 1].strip("-")[:longest].strip("-")


def name_of(text: str) -> str:
    """What a check is called in tables: a text on one line, or as much of it as there is room for."""
    return " ".join(_NOT_PRINTABLE.sub(" ", text).split())[:70].strip()


def numbered(name: str, taken: dict[str, int]) -> str:
    """The name, with a number behind it where it is taken; `taken` has the last number that each one was given."""
    free = name
    while free in taken:
        taken[name] += 1
        free = f"{name}-{taken[name]}"
    taken[free] = 1
    return free


def file_beside(home: Path, name: str) -> bytes:
    """The content of a file inside a folder, symbolic links resolved; raises Refused for anything else."""
    path = _inside(home, name)
    try:
        return files.read(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise Refused(f"{shown(name)} does not exist") from None
    except OSError as failed:
        words = getattr(failed, "words", f"cannot be read: {failed.strerror}")
        raise Refused(f"{shown(name)} {words}") from None


def files_in(home: Path, folder: str) -> dict[str, bytes]:
    """All files below a folder of a folder, by their paths in it; none where there is none; raises Refused."""
    place, found, size = _inside(home, folder), dict[str, bytes](), 0
    try:
        names = bundles.files(place) if files.is_folder(place) else {}
    except bundles.BundleError as broken:
        raise Refused(str(broken)) from None
    for name in names:
        found[name] = file_beside(place, name)
        size += len(found[name])
        if size > MAX_FOLDER_BYTES:
            raise Refused(f"{shown(folder)} holds more than {MAX_FOLDER_BYTES >> 20} MiB")
    return found


def _inside(home: Path, name: str) -> Path:
    """A path below a folder, symbolic links resolved; raises Refused where it leads elsewhere."""
    if "\0" in name or Path(name).is_absolute():
        raise Refused(f"{shown(name)} is not a path inside {home.name or 'the folder'}")
    root = Path(os.path.realpath(home))
    path = Path(os.path.realpath(root / name))
    if not path.is_relative_to(root):
        raise Refused(f"{shown(name)} leaves the source's folder; nothing outside is read")
    return path


def text_beside(home: Path, name: str) -> str:
    """The text of a file inside a folder; raises Refused."""
    try:
        return file_beside(home, name).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise Refused(f"{shown(name)} is not UTF-8 text") from None


SUITE_NAME = "suite.yaml"
MODELINE = f"# yaml-language-server: $schema={rules.SCHEMA_FILE}"
_NOT_PRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]+")


def write(found: Found, folder: Path) -> Path:
    """Write the suite, its schema and its fixtures into a new folder; returns the suite's path.

    Raises Unimportable when there is nothing to write, or when the folder exists already.
    """
    if not found.tasks:
        raise unimportable(found.source, "\n".join(["no task can be imported", *found.told()]))
    # A link that leads nowhere would be written through.
    if folder.exists() or folder.is_symlink():
        raise unimportable(folder, f"{folder} exists already and is left as it is; choose another --output")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _fill(partial, found)
        _check(partial / SUITE_NAME, found)
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder / SUITE_NAME


def suite_text(found: Found) -> str:
    """The suite as YAML, with comments that say where each task came from and what is missing."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Found) -> Iterator[str]:
    yield MODELINE
    yield _comment(f"Imported from {found.source} by `uplift import`.")
    told = (("Not imported", found.left_out), ("Changed", found.changed), ("To know", found.notes))
    for title, items in told:
        if items:
            yield from ("#", f"# {title}:", *(_comment(f"  {item}") for item in items))
    version = "1.1" if any("checks" in task.fields for task in found.tasks) else "1.0"
    head = {"skill_id": found.skill_id, "version": version, "description": found.description}
    yield from _dumped({key: text for key, text in head.items() if text})
    yield "tasks:"
    for task in found.tasks:
        lines = (_comment(f"from {task.origin}"), *_dumped([task.fields]), "")
        yield from (f"  {line}" if line else "" for line in lines)


def _dumped(value: Any) -> list[str]:
    """The lines of a value as block YAML; texts of several lines stay readable."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )
    return str(text).splitlines()


def _comment(text: str) -> str:
    return f"# {_NOT_PRINTABLE.sub(' ', text)}"


def _fill(folder: Path, found: Found) -> None:
    content = {f"fixtures/{name}": data for name, data in found.fixtures.items()}
    for arm, skill in found.skills.items():
        content |= {f"{arm}/{name}": data for name, data in skill.items()}
    content |= {SUITE_NAME: suite_text(found).encode(), rules.SCHEMA_FILE: rules.schema_text().encode()}
    for name, data in content.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def _check(path: Path, found: Found) -> None:
    """Read the written suite back; raises Unimportable where its tasks are not those that were meant."""
    try:
        loaded = suite.load(path)
    except suite.InvalidSuite as invalid:
        problems = [
            Problem(found.source, 0, 0, wrong.where, f"{found.source}: {wrong.where}: {wrong.message}")
            for wrong in invalid.problems
        ]
        raise Unimportable(problems) from invalid
    meant = tuple(Task.model_validate(task.fields) for task in found.tasks)
    if loaded.tasks != meant:
        raise unimportable(found.source, "the suite would not say what the source says; please report this")


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, and texts of several lines are blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text_node)

"""Skills: a folder with a SKILL.md, or one SKILL.md file, checked and made ready to travel.

The YAML block at the top of a SKILL.md is read as suites are, and edited in place. Only the name and the description
must be right: what is wrong with other keys is a warning, as agents may know what to make of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from aggregate.text import files
from aggregate.text.files import is_file, is_folder
from judges.errors import UpliftError, did_you_mean
from producer.state_root import file_name
from producer.suites import yaml_file
from producer.suites.yaml_file import Document, Node, Problem
from workers.store import bundles
from workers.store.bundles import Bundle, BundleError

MAX_CHARACTERS = 64 * 1024

_OPENING = re.compile(r"(\ufeff?---)[ \t]*(?:\r\n|\n|\Z)")
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
_TOP_KEY = re.compile(r"[\w-]*")


class InvalidFrontMatter(ValueError):
    """What is wrong with a front matter, and on which line and column of the file, counted from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class FrontMatter:
    """A front matter as a document whose places are those of the file, its keys, and where the body begins.

    `doubts` is what is wrong with other keys than name and description.
    """

    document: Document
    keys: dict[str, Node]
    body: int
    doubts: tuple[Problem, ...]

    def line(self, key: str) -> int:
        return self.document.line(self.keys[key].key_start)

    def text(self, key: str) -> str:
        """A key's value; empty where it is not text, or is not there."""
        value = self.keys[key].value if key in self.keys else None
        return value if isinstance(value, str) else ""


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
    if (length := closing.start() - opening.end()) > MAX_CHARACTERS:
        raise InvalidFrontMatter(f"{length} characters of front matter; at most {MAX_CHARACTERS} are allowed")
    # With a comment for the opening line, places in the YAML are places in the file.
    source = "#" * opening.end(1) + text[opening.end(1) : closing.start()]
    document, keys = _parsed(source, first_line=2)
    problems = document.problems(document.findings)
    for problem in problems:
        if _TOP_KEY.match(problem.where)[0] in ("", "name", "description"):  # type: ignore[index]  # it always matches
            raise InvalidFrontMatter(problem.message, problem.line, problem.column)
    after = text.find("\n", closing.end())
    return FrontMatter(document, keys, len(text) if after < 0 else after + 1, problems)


def update(text: str, lines: Sequence[str]) -> str:
    """Put the keys that `lines` give into the front matter; everything else stays, byte for byte.

    A key that is there already is replaced in its place with all that is nested in it; new keys come last.
    Raises InvalidFrontMatter.
    """
    matter = read(text)
    end = len(matter.document.text)
    eol = "\r\n" if "\r\n" in text[:end] else "\n"
    given = "".join(line.rstrip("\r\n") + "\n" for line in _without_rules(lines))
    if len(given) > MAX_CHARACTERS:
        raise InvalidFrontMatter(f"{len(given)} characters to put in; at most {MAX_CHARACTERS} are allowed")
    additions = {
        key: given[start:stop].rstrip("\n").replace("\n", eol) + eol
        for key, (start, stop) in _spans(*_parsed(given, first_line=1)).items()
    }
    if not additions:
        raise InvalidFrontMatter("nothing to put in; give lines such as 'description: …'")
    present = _spans(matter.document, matter.keys)
    text = text[:end] + "".join(added for key, added in additions.items() if key not in present) + text[end:]
    # From the last to the first, so that the places of earlier entries stay true.
    for key, (start, stop) in sorted(present.items(), key=itemgetter(1), reverse=True):
        if key in additions:
            text = text[:start] + additions[key] + text[stop:]
    return text


def _without_rules(lines: Sequence[str]) -> list[str]:
    kept = list(lines)
    for end in (0, -1):
        if kept and kept[end].strip() == "---":
            del kept[end]
    return kept


def _parsed(source: str, *, first_line: int) -> tuple[Document, dict[str, Node]]:
    """The YAML of a front matter, and its top-level keys."""
    document = yaml_file.parse(source, "")
    if document.root is None and (problems := document.problems(document.findings)):
        raise InvalidFrontMatter(problems[0].message, problems[0].line, problems[0].column)
    if document.root is None or not isinstance(document.root.children, dict):
        raise InvalidFrontMatter("not a list of keys; write lines such as 'name: …'", first_line)
    return document, document.root.children


def _spans(document: Document, keys: dict[str, Node]) -> dict[str, tuple[int, int]]:
    """Where the lines of each key begin and end; raises InvalidFrontMatter for what cannot be edited by lines."""
    for problem in document.problems(document.findings):
        raise InvalidFrontMatter(f"{problem.where}: {problem.message}", problem.line, problem.column)
    spans, source = {}, document.text
    starts = [node.key_start for node in keys.values()]
    for key, start, following in zip(keys, starts, [*starts[1:], len(source)], strict=False):
        if start and source[start - 1] != "\n":
            line = document.line(start)
            raise InvalidFrontMatter(f"cannot edit {key!r}; write one 'key: value' to a line", line)
        spans[key] = (start, start + _length(source[start:following]))
    return spans


def _length(entry: str) -> int:
    """Characters of an entry without the blank lines and comments that follow it."""
    lines = entry.splitlines(keepends=True)
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    return sum(map(len, lines))


FILE_NAME = "SKILL.md"
MAX_SKILL_BYTES = 1024 * 1024
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500

# The tests of a skill are not part of it: an agent that can read what it is judged by proves nothing.
NOT_THE_SKILL = ("evals", ".uplift", ".github", "uplift.toml", ".env")

# The Agent Skills format's keys, then those that Claude Code adds.
KNOWN_KEYS = (
    *("name", "description", "license", "compatibility", "metadata", "allowed-tools"),
    *("when_to_use", "argument-hint", "arguments", "disable-model-invocation", "user-invocable"),
    *("disallowed-tools", "model", "effort", "context", "agent", "hooks", "paths", "shell"),
)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_QUOTED = 12  # words: shorter phrases are in many texts by chance
_COMPARED = 200_000  # characters of a text that are looked through
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class InvalidSkill(UpliftError):
    """A skill that cannot be used: one line with place, value and remedy."""


@dataclass(frozen=True)
class Skill:
    """A skill's SKILL.md; `folder` holds what belongs to it, and is None for a skill that is one file.

    `edited` is the text of another file of the folder, by its real path, where that is not what the file holds.
    `warnings` are for people: nothing in them keeps the skill from being used.
    """

    path: Path
    name: str
    description: str
    text: str
    folder: Path | None = None
    edited: tuple[Path, str] | None = None
    warnings: tuple[str, ...] = ()


def load(path: Path) -> Skill:
    """Read a skill from a folder or a file; raises InvalidSkill."""
    try:
        folder = path if is_folder(path) else None
        file = _skill_file(path) if folder else path
        exists = is_file(file)
    except OSError as error:
        raise InvalidSkill(f"skill {path} cannot be read: {error.strerror}") from error
    if not exists:
        raise InvalidSkill(
            f"skill not found: {path}; give a folder with a {FILE_NAME}, or a {FILE_NAME} file"
        )
    return with_text(Skill(path=file, name="", description="", text="", folder=folder), read_text(file))


def with_text(skill: Skill, text: str, *, place: str | None = None) -> Skill:
    """The same skill, folder included, with another SKILL.md; errors say that it came from `place`."""
    where = place or str(skill.path)
    _check_text(text, where)
    return _checked(replace(skill, text=text), where)


def with_edited(skill: Skill, file: Path, text: str, *, place: str) -> Skill:
    """The same skill with another text of a file in its folder that is not the SKILL.md."""
    _check_text(text, place)
    return replace(skill, edited=(file, text))


def folder_name(skill: Skill) -> str:
    """What the skill's folder is called where it is mounted: the skill's own name, as agents expect."""
    return file_name(skill.name)


def bundle(skill: Skill, *, without: Collection[Path] = ()) -> Bundle:
    """The skill as workers get it: its folder, or its SKILL.md alone; raises InvalidSkill.

    `without` are files and folders that stay behind where they lie in the skill's folder.
    """
    under, content = folder_name(skill), skill.text.encode()
    try:
        if skill.folder is None:
            return bundles.pack_files({f"{under}/{FILE_NAME}": content})
        leave_out = [*(skill.folder / name for name in NOT_THE_SKILL), *without]
        changed = {FILE_NAME: content, **_edited(skill, leave_out)}
        return bundles.pack(skill.folder, under=under, replace=changed, leave_out=leave_out)
    except BundleError as error:
        raise InvalidSkill(f"skill {skill.folder or skill.path} cannot be packed: {error}") from error


def other_files(skill: Skill, *, without: Collection[Path] = ()) -> list[str]:
    """The files that a bundle of the skill holds beside its SKILL.md, sorted."""
    if skill.folder is None:
        return []
    leave_out = [*(skill.folder / name for name in NOT_THE_SKILL), *without]
    return [name for name in bundles.files(skill.folder, leave_out=leave_out) if name != FILE_NAME]


def quoting(skill: Skill, prompts: Mapping[str, str], baseline: Skill | None = None) -> tuple[str, ...]:
    """The tasks whose prompts hold twelve words in a row of a skill's text that the baseline's does not have."""
    own = set(_phrases(skill.text)) - set(_phrases(baseline.text) if baseline else ())
    return tuple(task for task, prompt in prompts.items() if own and not own.isdisjoint(_phrases(prompt)))


def _phrases(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text[:_COMPARED].casefold())
    return zip(*(words[start:] for start in range(_QUOTED)), strict=False)


def _edited(skill: Skill, leave_out: Collection[Path]) -> dict[str, bytes]:
    """The edited file under every name that it has in the folder; an edit of what stays behind is an error."""
    if skill.folder is None or skill.edited is None:
        return {}
    (file, text), inside = skill.edited, bundles.files(skill.folder, leave_out=leave_out)
    names = [name for name, path in inside.items() if path.resolve() == file]
    if not names:
        raise InvalidSkill(f"{file} is not handed to a model with the skill; an edit of it changes nothing")
    return dict.fromkeys(names, text.encode())


def _skill_file(folder: Path) -> Path:
    file = folder / FILE_NAME
    if is_file(file):
        return file
    others = sorted(child.name for child in folder.iterdir() if child.name.lower() == FILE_NAME.lower())
    if FILE_NAME in others:
        raise InvalidSkill(f"{file} is not a regular file; a skill is a folder with that file in it")
    hint = f"rename {others[0]} to {FILE_NAME}" if others else "a skill is a folder with that file in it"
    raise InvalidSkill(f"no {FILE_NAME} in {folder}; {hint}")


def read_text(file: Path) -> str:
    """A file of a skill as text; raises InvalidSkill."""
    try:
        data = files.read(file, MAX_SKILL_BYTES)
    except files.TooLarge as error:
        raise InvalidSkill(f"{file}: {error.words}; move parts into files beside it") from error
    except OSError as error:
        raise InvalidSkill(f"{file}: cannot be read: {error.strerror}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSkill(f"{file}:{line}: not UTF-8 text; save it as UTF-8") from error


def _check_text(text: str, where: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"{where}: more than {MAX_SKILL_BYTES} bytes; shorten it")
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise InvalidSkill(f"{where}:{line}: control character {control.group()!r}; remove it")


def _checked(skill: Skill, where: str) -> Skill:
    if not skill.text.strip("\ufeff \t\r\n"):
        raise InvalidSkill(f"{where}: the {FILE_NAME} is empty; write the skill, or leave it out")
    if is_absent(skill.text):
        name = skill.path.resolve().parent.name or "skill"
        remark = f"{where}:1: no front matter, so agents know the skill by its folder's name, {name}"
        return replace(skill, name=name, description="", warnings=(remark,))
    try:
        matter = read(skill.text)
    except InvalidFrontMatter as error:
        raise InvalidSkill(f"{where}:{error.line}:{error.column}: {error}") from error
    name = _required(matter, "name", where)
    description = _required(matter, "description", where)
    return replace(skill, name=name, description=description, warnings=tuple(_warnings(matter, where)))


def _required(matter: FrontMatter, key: str, where: str) -> str:
    if key not in matter.keys:
        raise InvalidSkill(f"{where}:1:1: the front matter has no {key}; add a line '{key}: …'")
    place, text = f"{where}:{matter.line(key)}:1", matter.text(key)
    if not isinstance(matter.keys[key].value, str):
        raise InvalidSkill(f"{place}: {key} is not text; put its value in quotes")
    if not text.strip():
        raise InvalidSkill(f"{place}: {key} {text[:40]!r} is not readable; write some text")
    return text.strip()


def _warnings(matter: FrontMatter, where: str) -> Iterator[str]:
    for doubt in matter.doubts:
        yield f"{where}:{doubt.line}: {doubt.where}: {doubt.message}"
    name = matter.text("name")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name.strip()):
        rule = f"at most {MAX_NAME} lower-case letters, digits and single hyphens"
        yield f"{where}:{matter.line('name')}: name {name[:80]!r} should be {rule}"
    for key, limit in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        if (length := len(matter.text(key))) > limit:
            yield f"{where}:{matter.line(key)}: {key} has {length} characters; agents read at most {limit}"
    for key in matter.keys:
        if key not in KNOWN_KEYS:
            hint = did_you_mean(key, KNOWN_KEYS)
            yield f"{where}:{matter.line(key)}: unknown key {key[:80]!r} in the front matter{hint}"

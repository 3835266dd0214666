"""Skills: a folder with a SKILL.md, or one SKILL.md file, checked and made ready to travel."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from producer import front_matter
from producer.front_matter import FrontMatter, InvalidFrontMatter
from producer.names import file_name
from workers import bundles
from workers.bundles import Bundle, BundleError

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
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class InvalidSkill(Exception):
    """A skill that cannot be used: one line with place, value and remedy."""


@dataclass(frozen=True)
class Skill:
    """A skill's SKILL.md; `folder` holds what belongs to it, and is None for a skill that is one file.

    `warnings` are for people: nothing in them keeps the skill from being used.
    """

    path: Path
    name: str
    description: str
    text: str
    folder: Path | None = None
    warnings: tuple[str, ...] = ()


def load(path: Path) -> Skill:
    """Read a skill from a folder or a file; raises InvalidSkill."""
    try:
        folder = path if path.is_dir() else None
        file = _skill_file(path) if folder else path
        found = file.is_file()
    except OSError as error:
        raise InvalidSkill(f"skill {path} cannot be read: {error.strerror}") from error
    if not found:
        raise InvalidSkill(
            f"skill not found: {path}; give a folder with a {FILE_NAME}, or a {FILE_NAME} file"
        )
    return _checked(Skill(path=file, name="", description="", text=_read(file), folder=folder))


def with_text(skill: Skill, text: str, *, place: str | None = None) -> Skill:
    """The same skill, folder included, with another SKILL.md; errors say that it came from `place`."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"{place or skill.path}: more than {MAX_SKILL_BYTES} bytes; shorten it")
    return _checked(replace(skill, text=text), place=place)


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
        return bundles.pack(skill.folder, under=under, replace={FILE_NAME: content}, leave_out=leave_out)
    except BundleError as error:
        raise InvalidSkill(f"skill {skill.folder or skill.path} cannot be packed: {error}") from error


def _skill_file(folder: Path) -> Path:
    file = folder / FILE_NAME
    if file.is_file():
        return file
    others = sorted(child.name for child in folder.iterdir() if child.name.lower() == FILE_NAME.lower())
    hint = f"rename {others[0]} to {FILE_NAME}" if others else "a skill is a folder with that file in it"
    raise InvalidSkill(f"no {FILE_NAME} in {folder}; {hint}")


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_SKILL_BYTES + 1)
    except OSError as error:
        raise InvalidSkill(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"{file}: more than {MAX_SKILL_BYTES} bytes; move parts into files beside it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSkill(f"{file}:{line}: not UTF-8 text; save it as UTF-8") from error


def _checked(skill: Skill, *, place: str | None = None) -> Skill:
    where = place or str(skill.path)
    if not skill.text.strip("\ufeff \t\r\n"):
        raise InvalidSkill(f"{where}: the {FILE_NAME} is empty; write the skill, or leave it out")
    if control := _CONTROL.search(skill.text):
        line = skill.text.count("\n", 0, control.start()) + 1
        raise InvalidSkill(f"{where}:{line}: control character {control.group()!r}; remove it")
    try:
        matter = front_matter.read(skill.text)
    except InvalidFrontMatter as error:
        raise InvalidSkill(f"{where}:{error.line}:{error.column}: {error}") from error
    name = _required(matter, "name", where)
    description = _required(matter, "description", where)
    return replace(skill, name=name, description=description, warnings=tuple(_warnings(matter, where)))


def _required(matter: FrontMatter, key: str, where: str) -> str:
    entry = matter.entries.get(key)
    if entry is None:
        raise InvalidSkill(f"{where}:1:1: the front matter has no {key}; add a line '{key}: …'")
    if entry.text is None:
        raise InvalidSkill(f"{where}:{entry.line}:1: {key} is not text; put its value in quotes")
    if not entry.text.strip() or _CONTROL.search(entry.text):
        raise InvalidSkill(
            f"{where}:{entry.line}:1: {key} {entry.text[:40]!r} is not readable; write some text"
        )
    return entry.text.strip()


def _warnings(matter: FrontMatter, where: str) -> list[str]:
    found = []
    name = matter.entries["name"]
    if len(name.text or "") > MAX_NAME or not _NAME.fullmatch((name.text or "").strip()):
        rule = f"at most {MAX_NAME} lower-case letters, digits and single hyphens"
        found.append(f"{where}:{name.line}: name {(name.text or '')[:80]!r} should be {rule}")
    for key, limit in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        entry = matter.entries.get(key)
        if entry is not None and len(entry.text or "") > limit:
            length = len(entry.text or "")
            found.append(f"{where}:{entry.line}: {key} has {length} characters; agents read at most {limit}")
    for key, entry in matter.entries.items():
        if key not in KNOWN_KEYS:
            close = get_close_matches(key[:80], KNOWN_KEYS, n=1, cutoff=0.75)
            hint = f"; did you mean {close[0]}?" if close else ""
            found.append(f"{where}:{entry.line}: unknown key {key[:80]!r} in the front matter{hint}")
    return found

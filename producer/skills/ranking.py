"""Rankings: candidates for a skill, proposed and scored by another tool, each made into a skill to compare.

A ranking is a JSON file with `run_id`, `target.path` (the skill to improve) and `scored_candidates`; docs/ranking.md
lists every field. Only candidates that are asked for are looked at, each for itself: one that is wrong says nothing
about the others. Relative paths are looked up beside the ranking file first, then in the working folder. Nothing is
written.

A candidate without a text has an `execution_plan`: one edit of the SKILL.md, or of another Markdown file of the skill.

append_markdown_section   puts the lines at the end, under `section_heading` if there is one
replace_markdown_section  puts the lines in place of what stands under a heading, up to the next heading of
                          the same or a higher level; the heading stays unless the lines bring their own
insert_before_section     puts the lines in front of a heading
update_yaml_frontmatter   puts the lines' keys, or those of `frontmatter_updates`, into the front matter (see
                          skill.update)

`section_heading` is a heading's text, with or without its `#` marks; with them the level must fit too. What
looks like a heading inside a code block, an HTML comment or the front matter is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, assert_never

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from aggregate.text import files
from aggregate.text.files import exists
from judges.errors import UpliftError, did_you_mean
from judges.safe_text import NotJson, broken_fields, strict_json
from producer.skills import skill as skills
from producer.skills.skill import InvalidSkill, Skill

MAX_RANKING_BYTES = 16 * 1024 * 1024
MAX_CANDIDATES = 1_000
MAX_ID = 200
ALL = "all"
DEFAULT_LANE = "generic-skill"
TEXT_FIELDS = ("skill_content", "content", "body")
UNSUPPORTED = "unsupported_"  # how an action begins that its author left to people
DEFAULT_LEVEL = 2
MAX_HEADING = 500


class InvalidRanking(UpliftError):
    """A ranking, or one candidate of it, that cannot be used: one line with place, value and remedy."""


class NobodyCanApply(Exception):
    """A candidate that says itself that nobody can apply it."""


class PlanFailed(ValueError):
    """A plan that cannot be carried out on this text."""


class _Shape(BaseModel):
    # Rankings come from other tools, which may say more than is asked here.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ExecutionPlan(_Shape):
    """An edit as the ranking describes it; what else its author wrote down is ignored."""

    action: Literal[
        "append_markdown_section",
        "replace_markdown_section",
        "insert_before_section",
        "update_yaml_frontmatter",
    ]
    section_heading: Annotated[str | None, Field(max_length=MAX_HEADING)] = None
    content_lines: list[str] = []
    frontmatter_updates: dict[str, Any] = {}


class Named(_Shape):
    """What a candidate needs in order to be asked for."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]

    @field_validator("id")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable() or text != text.strip():
            raise ValueError("must be printable and not start or end with a space")
        return text


class Scored(Named):
    """What it needs in order to be held against the threshold."""

    score: float


class Candidate(Scored):
    """One proposal: its text in one of several forms, the file that its plan edits, and whether anybody can do that."""

    skill_content: str | None = None
    content: str | None = None
    body: str | None = None
    skill_path: str | None = None
    target_path: str | None = None
    executor_support: bool | None = None
    execution_plan: ExecutionPlan | None = None


class Target(_Shape):
    """The skill to improve."""

    path: Annotated[str, Field(min_length=1)]


class RankingFile(_Shape):
    """A ranking file, but for what its candidates say."""

    run_id: Annotated[str, Field(min_length=1)]
    lane: Annotated[str | None, Field(min_length=1, max_length=MAX_ID)] = None
    target: Target
    scored_candidates: Annotated[list[Any], Field(min_length=1, max_length=MAX_CANDIDATES)]


@dataclass(frozen=True)
class Ranking:
    """A ranking file's content: `run_id` may be any text, `target` is a path as it was written."""

    path: Path
    run_id: str
    lane: str
    target: str
    entries: tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A candidate that was asked for; nothing but its id has been checked."""

    id: str
    number: int
    content: Mapping[str, Any]


_Model = TypeVar("_Model", bound=BaseModel)


def load(path: Path) -> Ranking:
    """Read a ranking; raises InvalidRanking. Neither the target nor any candidate is looked at yet."""
    content = _read(RankingFile, _parsed(path), path)
    lane = content.lane or DEFAULT_LANE
    return Ranking(path, content.run_id, lane, content.target.path, tuple(content.scored_candidates))


def select(ranking: Ranking, wanted: Sequence[str]) -> tuple[Entry, ...]:
    """The candidates with these ids, each once, in the order asked for; `all` stands for every one.

    Raises InvalidRanking for an id that is not there, which lists those that are, and for one that occurs twice.
    """
    if ALL in wanted:
        entries = enumerate(ranking.entries)
        wanted = [_read(Named, each, ranking.path, ("scored_candidates", n)).id for n, each in entries]
    return tuple(_entry(ranking, each) for each in dict.fromkeys(wanted))


def score(ranking: Ranking, entry: Entry) -> float:
    """The candidate's score; raises InvalidRanking."""
    return _read(Scored, entry.content, ranking.path, ("scored_candidates", entry.number)).score


def baseline(ranking: Ranking) -> Skill:
    """The skill at `target.path`; raises InvalidSkill."""
    return skills.load(_resolved(ranking, ranking.target))


def skill(ranking: Ranking, entry: Entry, target: Skill) -> Skill:
    """The candidate as a skill: the target's folder with the candidate's text, or with its edit made.

    Its text is the first of `skill_content`, `content`, `body`, `skill_path` and `execution_plan` that is there and
    not blank. Given text that has no front matter gets the target's. Raises NobodyCanApply where the candidate says
    so, InvalidRanking where there is no text, where a plan cannot be carried out and where nothing is changed, and
    InvalidSkill where the text is not a skill.
    """
    place, where = f"{ranking.path}: candidate {entry.id!r}", ("scored_candidates", entry.number)
    if not _has_text(entry):
        _refuse_unsupported(entry)
    chosen = _read(Candidate, entry.content, ranking.path, where)
    file = _edited_file(ranking, chosen, target, place)
    if not _has_text(entry):
        return _planned(chosen, target, file, place)
    if file != target.path:
        raise InvalidRanking(
            f"{place} gives a whole {skills.FILE_NAME}, but its target_path is {chosen.target_path!r}; "
            "leave one of them out, or edit that file with an execution_plan"
        )
    text, warnings = _text(ranking, chosen, target, place)
    _refuse_same(text, target.text, place)
    candidate = skills.with_text(target, text, place=place)
    return replace(candidate, warnings=(*candidate.warnings, *warnings))


def _entry(ranking: Ranking, wanted: str) -> Entry:
    ids = [each.get("id") if isinstance(each, dict) else None for each in ranking.entries]
    numbers = [number for number, each in enumerate(ids) if each == wanted]
    if len(numbers) > 1:
        raise InvalidRanking(
            f"{ranking.path}: scored_candidates[{numbers[1]}].id: {wanted!r} occurs twice; ids are unique"
        )
    if numbers:
        number, content = numbers[0], ranking.entries[numbers[0]]
        named = _read(Named, content, ranking.path, ("scored_candidates", number))
        return Entry(named.id, number, content)
    known = [each for each in ids if isinstance(each, str)]
    listed = ", ".join(map(repr, known[:20])) + (", …" if len(known) > 20 else "")
    raise InvalidRanking(
        f"{ranking.path}: no candidate {wanted!r}; there are {listed}{did_you_mean(wanted, known)}"
    )


def _has_text(entry: Entry) -> bool:
    given = (entry.content.get(field) for field in (*TEXT_FIELDS, "skill_path"))
    return any(isinstance(text, str) and text.strip() for text in given)


def _refuse_unsupported(entry: Entry) -> None:
    plan = entry.content.get("execution_plan")
    action = plan.get("action") if isinstance(plan, dict) else None
    if isinstance(action, str) and action.startswith(UNSUPPORTED):
        raise NobodyCanApply(f"the candidate says that nobody can apply it: its action is {action[:80]!r}")
    if entry.content.get("executor_support") is False:
        raise NobodyCanApply("the candidate says that nobody can apply it: executor_support is false")


def _edited_file(ranking: Ranking, chosen: Candidate, target: Skill, place: str) -> Path:
    """The file that a plan edits: the one that `target_path` names in the skill's folder, else the SKILL.md."""
    if chosen.target_path is None or not chosen.target_path.strip():
        return target.path
    home = target.folder or target.path.parent
    inside = home / chosen.target_path
    try:
        file = (inside if inside.exists() else _resolved(ranking, chosen.target_path)).resolve()
        if file in (target.path.resolve(), home.resolve()):
            return target.path
        exists = file.is_file()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise InvalidRanking(f"{place}: target_path: no such file: {chosen.target_path[:200]!r}")
    if target.folder is None or not file.is_relative_to(home.resolve()):
        raise InvalidRanking(
            f"{place}: target_path: {chosen.target_path[:200]!r} is no part of the skill {ranking.target}"
        )
    return file


def _planned(chosen: Candidate, target: Skill, file: Path, place: str) -> Skill:
    if chosen.execution_plan is None:
        fields = ", ".join((*TEXT_FIELDS, "skill_path"))
        raise InvalidRanking(f"{place} has no text; give one of {fields} or an execution_plan")
    before = target.text if file == target.path else skills.read_text(file)
    try:
        text = apply(chosen.execution_plan, before)
    except PlanFailed as error:
        raise InvalidRanking(f"{place}: execution_plan: {error}") from error
    _refuse_same(text, before, place)
    if file == target.path:
        return skills.with_text(target, text, place=place)
    return skills.with_edited(target, file, text, place=place)


def _refuse_same(text: str, before: str, place: str) -> None:
    if text == before:
        raise InvalidRanking(f"{place} has the baseline's very text; comparing the two would say nothing")


def _text(ranking: Ranking, chosen: Candidate, target: Skill, place: str) -> tuple[str, list[str]]:
    for field in TEXT_FIELDS:
        given = getattr(chosen, field)
        if given and given.strip():
            return _with_front_matter(given, target), []
    assert chosen.skill_path is not None
    try:
        other = skills.load(_resolved(ranking, chosen.skill_path))
    except InvalidSkill as error:
        raise InvalidRanking(f"{place}: skill_path: {error}") from error
    return _with_front_matter(other.text, target), _left_behind(other, place)


def _with_front_matter(text: str, target: Skill) -> str:
    if not skills.is_absent(text) or skills.is_absent(target.text):
        return text
    head = target.text[: skills.read(target.text).body]
    return (head if head.endswith("\n") else head + "\n") + text


def _read(model: type[_Model], value: Any, path: Path, where: tuple[str | int, ...] = ()) -> _Model:
    """The value as this model; raises InvalidRanking that names the first thing that is wrong, and its place."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = broken_fields(error, whole="the top level", above=where)
        more = f" (and {len(others)} more)" if others else ""
        raise InvalidRanking(f"{path}: {first}{more}") from error


def _left_behind(other: Skill, place: str) -> list[str]:
    if other.folder is None or not any(child.name != skills.FILE_NAME for child in other.folder.iterdir()):
        return []
    return [
        f"{place}: only the {skills.FILE_NAME} of {other.folder} is compared, with the target's other files"
    ]


def _resolved(ranking: Ranking, path: str) -> Path:
    beside = ranking.path.parent / path
    try:
        return beside if exists(beside) else Path(path)
    except OSError:  # whoever reads it says why not
        return beside


def _parsed(path: Path) -> Any:
    try:
        data = files.read(path, MAX_RANKING_BYTES, pipes=True)
    except FileNotFoundError as error:
        raise InvalidRanking(
            f"ranking not found: {path}; give the JSON file that ranks the candidates"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidRanking(f"ranking {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    try:
        return strict_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidRanking(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except NotJson as error:
        raise InvalidRanking(f"{path}: {error}") from error


# Edits


@dataclass(frozen=True)
class Heading:
    """A heading: its level, its text, and the numbers of its first line and of the line after it."""

    level: int
    text: str
    line: int
    after: int


def apply(plan: ExecutionPlan, text: str) -> str:
    """The text with the edit made; raises PlanFailed."""
    eol = "\r\n" if "\r\n" in text else "\n"
    content = _trimmed(plan.content_lines)
    if plan.action == "update_yaml_frontmatter" and plan.frontmatter_updates:
        if content:
            raise PlanFailed("content_lines and frontmatter_updates are both given; leave one out")
        content = _as_lines(plan.frontmatter_updates)
    if not content:
        empty = "frontmatter_updates" in plan.model_fields_set and not plan.content_lines
        what = "frontmatter_updates is empty" if empty else "content_lines has nothing but blank lines"
        raise PlanFailed(what)
    match plan.action:
        case "append_markdown_section":
            text += "" if not text or text.endswith("\n") else eol
            gap = "" if text.endswith(("\n\n", "\n\r\n")) else eol
            return text + gap + eol.join(_under_heading(plan.section_heading, content)) + eol
        case "replace_markdown_section":
            return _replace(text, _wanted(plan), content, eol)
        case "insert_before_section":
            return _insert(text, _wanted(plan), content, eol)
        case "update_yaml_frontmatter":
            try:
                return skills.update(text, content)
            except skills.InvalidFrontMatter as error:
                raise PlanFailed(str(error)) from error
        case _:
            assert_never(plan.action)


def headings(text: str) -> list[Heading]:
    """A SKILL.md's headings in their order, as CommonMark has them; those in lists and quotations do not count."""
    from markdown_it import MarkdownIt  # few rankings edit sections

    first = _first_line(text)
    # A line ends with "\n" alone, here as for the edits.
    body = "\n".join(text.split("\n")[first:]).replace("\r", " ")
    tokens = MarkdownIt("commonmark").disable("inline").parse(body)
    return [
        Heading(int(token.tag[1]), _plain(content.content), first + token.map[0], first + token.map[1])
        for token, content in pairwise(tokens)
        if token.type == "heading_open" and token.level == 0 and token.map
    ]


def _replace(text: str, wanted: str, content: list[str], eol: str) -> str:
    every = headings(text)
    section = _find(every, wanted)
    following = [other for other in every if other.line > section.line and other.level <= section.level]
    lines = text.split("\n")
    own = _marked(content[0])
    brings_heading = own is not None and own[0] == section.level
    before = lines[: section.line if brings_heading else section.after]
    after = lines[following[0].line :] if following else [""]
    if not brings_heading:
        before.append(eol.removesuffix("\n"))
    if following:
        content = [*content, ""]
    return "\n".join([*before, *_ended(content, eol), *after])


def _insert(text: str, wanted: str, content: list[str], eol: str) -> str:
    section = _find(headings(text), wanted)
    lines = text.split("\n")
    before, after = lines[: section.line], lines[section.line :]
    if before and before[-1].strip():
        before.append(eol.removesuffix("\n"))
    return "\n".join([*before, *_ended([*content, ""], eol), *after])


def _ended(content: list[str], eol: str) -> list[str]:
    # Lines are joined with "\n" afterwards, so a CRLF text needs its "\r" here.
    return [line + eol.removesuffix("\n") for line in content]


def _wanted(plan: ExecutionPlan) -> str:
    if plan.section_heading is None or not plan.section_heading.strip(" #\t\r\n"):
        raise PlanFailed(f"{plan.action} needs a section_heading")
    return plan.section_heading.strip()


def _find(every: Sequence[Heading], wanted: str) -> Heading:
    level, name = _marked(wanted) or (None, _plain(wanted))
    fitting = [heading for heading in every if level in (None, heading.level)]
    alike = [heading for heading in fitting if heading.text == name]
    alike = alike or [heading for heading in fitting if heading.text.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        places = ", ".join(str(heading.line + 1) for heading in alike)
        raise PlanFailed(f"section {wanted!r} occurs {len(alike)} times (lines {places}); rename all but one")
    names = ["#" * heading.level + " " + heading.text[:80] for heading in every]
    hint = did_you_mean(wanted, [*names, *(heading.text for heading in every)])
    listed = ", ".join(map(repr, names[:20])) or "none"
    raise PlanFailed(
        f"no section {wanted!r}; headings here: {listed}{', …' if len(names) > 20 else ''}{hint}"
    )


def _under_heading(heading: str | None, content: list[str]) -> list[str]:
    if heading is None or not heading.strip(" #\t\r\n"):
        return content
    line = " ".join(heading.split())
    line = line if _marked(line) else f"{'#' * DEFAULT_LEVEL} {line}"
    if _marked(content[0]) == _marked(line):
        return content
    return [line, "", *content]


def _as_lines(updates: Mapping[str, Any]) -> list[str]:
    """A mapping as the lines of a front matter, in its own order."""
    try:
        text = yaml.safe_dump(dict(updates), allow_unicode=True, sort_keys=False, width=math.inf)
    except (yaml.YAMLError, RecursionError) as error:
        raise PlanFailed(f"frontmatter_updates cannot be written as YAML: {error}") from error
    return text.removesuffix("\n").split("\n")


def _trimmed(lines: Sequence[str]) -> list[str]:
    # One entry may hold several lines; afterwards each line is its own, without an end.
    joined = "\n".join(line.removesuffix("\n").removesuffix("\r") for line in lines)
    split = joined.replace("\r\n", "\n").split("\n")
    while split and not split[0].strip():
        del split[0]
    while split and not split[-1].strip():
        del split[-1]
    return split


def _first_line(text: str) -> int:
    """The line on which the body starts; a front matter that cannot be read is taken for body."""
    try:
        return text.count("\n", 0, skills.read(text).body)
    except skills.InvalidFrontMatter:
        return 0


def _marked(line: str) -> tuple[int, str] | None:
    """Level and text of a heading that is marked with `#`; None for any other line."""
    return next(((heading.level, heading.text) for heading in headings(line)), None)


def _plain(text: str) -> str:
    return " ".join(text.split())

"""A ranking's `execution_plan`: one edit of a SKILL.md, made in memory.

append_markdown_section   puts the lines at the end, under `section_heading` if there is one
replace_markdown_section  puts the lines in place of what stands under a heading, up to the next heading of
                          the same or a higher level; the heading stays unless the lines bring their own
insert_before_section     puts the lines in front of a heading
update_yaml_frontmatter   puts the lines' keys into the front matter (see front_matter.update)

`section_heading` is a heading's text, with or without its `#` marks; with them the level must fit too. What
looks like a heading inside a fenced code block, an HTML comment or the front matter is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from producer import front_matter

DEFAULT_LEVEL = 2
MAX_HEADING = 500

_MARKS = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NOT_A_PARAGRAPH = re.compile(r"[ \t]*(?:[-*+>|<#]|\d+[.)][ \t]|```|~~~)|(?: {4}|\t)|[ \t]*$")


class PlanFailed(ValueError):
    """A plan that cannot be carried out on this text."""


class ExecutionPlan(BaseModel):
    """An edit as the ranking describes it; what else its author wrote down is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    action: Literal[
        "append_markdown_section",
        "replace_markdown_section",
        "insert_before_section",
        "update_yaml_frontmatter",
    ]
    section_heading: Annotated[str | None, Field(max_length=MAX_HEADING)] = None
    content_lines: Annotated[list[str], Field(min_length=1)]


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
    if not content:
        raise PlanFailed("content_lines has nothing but blank lines")
    match plan.action:
        case "append_markdown_section":
            return _append(text, _under_heading(plan.section_heading, content), eol)
        case "replace_markdown_section":
            return _replace(text, _wanted(plan), content, eol)
        case "insert_before_section":
            return _insert(text, _wanted(plan), content, eol)
        case "update_yaml_frontmatter":
            try:
                return front_matter.update(text, content)
            except front_matter.InvalidFrontMatter as error:
                raise PlanFailed(str(error)) from error
        case _:
            assert_never(plan.action)


def headings(text: str) -> list[Heading]:
    """A SKILL.md's headings in their order."""
    lines = text.split("\n")
    found: list[Heading] = []
    fence = ""
    comment = False
    first = _first_line(text)
    for number in range(first, len(lines)):
        line = lines[number].rstrip("\r")
        if comment:
            comment = "-->" not in line
        elif fence:
            fence = "" if _closes(line, fence) else fence
        elif opened := _opened_fence(line):
            fence = opened
        elif line.lstrip().startswith("<!--"):
            comment = "-->" not in line
        elif marked := _marked(line):
            found.append(Heading(*marked, number, number + 1))
        elif _underlines(lines, number, found, first):
            level = 1 if "=" in line else 2
            found.append(Heading(level, _plain(lines[number - 1]), number - 1, number + 1))
    return found


def _append(text: str, content: list[str], eol: str) -> str:
    if text and not text.endswith("\n"):
        text += eol
    gap = "" if text.endswith(("\n\n", "\n\r\n")) else eol
    return text + gap + eol.join(content) + eol


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
    found = [heading for heading in fitting if heading.text == name]
    found = found or [heading for heading in fitting if heading.text.casefold() == name.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(str(heading.line + 1) for heading in found)
        raise PlanFailed(f"section {wanted!r} occurs {len(found)} times (lines {places}); rename all but one")
    names = ["#" * heading.level + " " + heading.text[:80] for heading in every]
    close = get_close_matches(wanted, [*names, *(heading.text[:80] for heading in every)], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
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
        return text.count("\n", 0, front_matter.read(text).body)
    except front_matter.InvalidFrontMatter:
        return 0


def _marked(line: str) -> tuple[int, str] | None:
    """Level and text of a heading that is marked with `#`; None for any other line."""
    marks = _MARKS.match(line)
    if marks is None:
        return None
    text = line[marks.end() :].strip()
    bare = text.rstrip("#")
    if not bare or bare[-1] in " \t":
        text = bare
    return len(marks[1]), _plain(text)


def _opened_fence(line: str) -> str:
    opened = _FENCE.fullmatch(line)
    if opened is None or (opened[1][0] == "`" and "`" in opened[2]):
        return ""
    return opened[1]


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]} and not line.startswith("    ")


def _underlines(lines: Sequence[str], number: int, found: Sequence[Heading], first: int) -> bool:
    """Whether this line underlines a paragraph of one line; a rule below anything else is no heading."""
    if number <= first or not _UNDERLINE.fullmatch(lines[number].rstrip("\r")):
        return False
    above = number - 1
    if _NOT_A_PARAGRAPH.match(lines[above].rstrip("\r")) or (found and found[-1].after == number):
        return False
    return above == first or not lines[above - 1].strip() or bool(found and found[-1].after == above)


def _plain(text: str) -> str:
    return " ".join(text.split())

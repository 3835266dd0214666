"""A ranking's `execution_plan`: one edit of a SKILL.md, or of another Markdown file of a skill, made in memory.

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
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, assert_never

import yaml
from pydantic import BaseModel, ConfigDict, Field

from judges.safe_text import did_you_mean
from producer.skills import skill

UNSUPPORTED = "unsupported_"  # how an action begins that its author left to people
DEFAULT_LEVEL = 2
MAX_HEADING = 500


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
    content_lines: list[str] = []
    frontmatter_updates: dict[str, Any] = {}


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
            return _append(text, _under_heading(plan.section_heading, content), eol)
        case "replace_markdown_section":
            return _replace(text, _wanted(plan), content, eol)
        case "insert_before_section":
            return _insert(text, _wanted(plan), content, eol)
        case "update_yaml_frontmatter":
            try:
                return skill.update(text, content)
            except skill.InvalidFrontMatter as error:
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
        return text.count("\n", 0, skill.read(text).body)
    except skill.InvalidFrontMatter:
        return 0


def _marked(line: str) -> tuple[int, str] | None:
    """Level and text of a heading that is marked with `#`; None for any other line."""
    return next(((heading.level, heading.text) for heading in headings(line)), None)


def _plain(text: str) -> str:
    return " ".join(text.split())

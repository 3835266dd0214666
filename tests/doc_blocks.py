"""Read the pages of the documentation: their fenced blocks with the markers above them, links and headings."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "bench" / "coverage.md",
]
COMMANDS = ("sh", "bash", "console")

_FENCE = re.compile(r"^( *)(`{3,})([\w-]*)[^`]*$")
_MARKER = re.compile(r"<!-- (illustrative|tested|exits|output)(?:: (.*?))? -->")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `marker` and `words` come from the comment on the line above it."""

    page: Path
    line: int
    language: str
    text: str
    marker: str = ""
    words: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def executed(self) -> bool:
        return self.language in COMMANDS and self.marker not in ("illustrative", "tested")

    @property
    def commands(self) -> str:
        """What is to be typed: in a console block, what follows the prompts."""
        if self.language != "console":
            return self.text
        return "\n".join(line[2:] for line in self.text.splitlines() if line.startswith("$ "))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Every fenced block of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        start = number
        while lines[number].strip() != fence[2]:
            number += 1
        text = textwrap.dedent("\n".join(lines[start:number])) + "\n"
        above = _MARKER.search(lines[start - 2]) if start >= 2 else None
        marker, words = (above[1], above[2] or "") if above else ("", "")
        found.append(Block(page, start, fence[3], text, marker, words))
        number += 1
    return tuple(found)


def prose(page: Path) -> str:
    """A page without its fenced blocks, comments included."""
    kept: list[str] = []
    inside = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if inside:
            inside = "" if line.strip() == inside else inside
        elif fence is not None:
            inside = fence[2]
        else:
            kept.append(line)
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures; code in backticks has none."""
    return _LINK.findall(re.sub(r"`[^`]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """What may follow `#` in a link to a page, made from its headings as hosts make it."""
    made: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while slug + (f"-{number}" if number else "") in made:
            number += 1
        made.add(slug + (f"-{number}" if number else ""))
    return made


def named_commands(page: Path) -> list[tuple[str, str]]:
    """Every `uplift …` of a page, in blocks and in running text, with its place."""
    texts = [(f"{page.relative_to(ROOT)}", found) for found in re.findall(r"`(uplift [^`]+)`", prose(page))]
    for block in blocks(page):
        if block.language in COMMANDS:
            joined = re.sub(r"\\\n\s*", " ", block.commands)
            for line in joined.splitlines():
                if (at := re.search(r"(?:^|[\s(])(uplift .*)", re.sub(r"\s#.*", "", line))) is not None:
                    texts.append((block.place, at[1]))
    return texts

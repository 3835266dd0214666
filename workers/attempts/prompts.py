"""The words around a skill in a prompt, for models that are given its text instead of its folder."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_INTRODUCTION = "You have the following skill. Use it where it helps with the task that comes after it."
_SHORTEST_FENCE = 4


def prepend(skill: str, prompt: str) -> str:
    """The skill's text in front of the prompt, neither of them changed."""
    return _front(skill) + prompt


# The same for every attempt, and looking through a long skill takes longer than the rest of one.
@lru_cache(maxsize=64)
def _front(skill: str) -> str:
    """The skill in a fence that is longer than any run of backticks in it, so that no skill can end it early.

    It depends on the skill's text alone, so that a repeated run asks the very same thing.
    """
    longest = max(map(len, re.findall("`+", skill)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    end = "" if skill.endswith("\n") else "\n"
    return f"{_INTRODUCTION}\n\n{fence}markdown\n{skill}{end}{fence}\n\n"


@lru_cache(maxsize=64)
def skill_text(folder: Path) -> str:
    """The text of a skill's SKILL.md."""
    return (folder / "SKILL.md").read_text(encoding="utf-8")

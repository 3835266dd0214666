"""Put a skill's text in front of a task's prompt, for models that cannot mount a folder."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_INTRODUCTION = "You have the following skill. Use it where it helps with the task that comes after it."
_SHORTEST_FENCE = 4


def prepend(skill_text: str, prompt: str) -> str:
    """The skill's text in front of the prompt, neither of them changed.

    The fence is longer than any run of backticks in the skill, so that no skill can end it early; it depends
    on the skill's text alone, so that a repeated run asks the very same thing.
    """
    return _front(skill_text) + prompt


@lru_cache(
    maxsize=64
)  # the same for every attempt, and looking through a long skill takes longer than the rest of one
def _front(skill_text: str) -> str:
    longest = max(map(len, re.findall("`+", skill_text)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    end = "" if skill_text.endswith("\n") else "\n"
    return f"{_INTRODUCTION}\n\n{fence}markdown\n{skill_text}{end}{fence}\n\n"


@lru_cache(maxsize=64)
def skill_text(folder: Path) -> str:
    """The text of a skill's SKILL.md."""
    return (folder / "SKILL.md").read_text(encoding="utf-8")

"""What the model is asked in prepend mode: the skill's text, fenced, and then the prompt as it is."""

from __future__ import annotations

import re

_INTRODUCTION = "You have the following skill. Use it where it helps with the task that comes after it."
_SHORTEST_FENCE = 4


def prepend(skill_text: str, prompt: str) -> str:
    """The skill's text in front of the prompt, neither of them changed.

    The fence is longer than any run of backticks in the skill, so that no skill can end it early; it depends
    on the skill's text alone, so that a repeated run asks the very same thing.
    """
    longest = max(map(len, re.findall("`+", skill_text)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    end = "" if skill_text.endswith("\n") else "\n"
    return f"{_INTRODUCTION}\n\n{fence}markdown\n{skill_text}{end}{fence}\n\n{prompt}"

"""Words of its own with which the simulated model satisfies, or fails, a small deterministic judge.

It guesses: the judge's own text, what a pattern would be as plain text, a few short values. Each guess is
judged, so nothing is said that would not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from judges import equals
from judges.judgment import Completion
from judges.spec import Equals, JsonSchema, JudgeSpec, Regex

ANSWER = "Simulated answer:"
WRONG = "Simulated wrong answer."
_SHORT = (WRONG, "–", "", "{}", "[]", "0", "true", '""')


def fitting(judge: JudgeSpec, passes: bool) -> str | None:
    """A text that passes the judge, or fails it; None where no guess does, or the judge takes more than words."""
    if not isinstance(judge, Equals | Regex | JsonSchema):
        return None
    return _fitting(judge.model_dump_json(), type(judge), passes)


@lru_cache(maxsize=4096)
def _fitting(settings: str, kind: type[Equals | Regex | JsonSchema], passes: bool) -> str | None:
    judge = kind.model_validate_json(settings)
    return next((text for text in _guesses(judge) if _passes(judge, text) is passes), None)


def _guesses(judge: Equals | Regex | JsonSchema) -> Iterator[str]:
    if isinstance(judge, Equals):
        yield judge.text
    elif isinstance(judge, Regex):
        for pattern in (judge.pattern, judge.pattern.split("|")[0].strip("^$")):
            yield re.sub(r"\\([^A-Za-z0-9])", r"\1", pattern)
    yield from _SHORT


def _passes(judge: Equals | Regex | JsonSchema, text: str) -> bool | None:
    match judge:
        case Equals():
            return equals.judge(judge, Completion(text=text)).passed
        case Regex():
            from judges import regex

            return regex.judged(judge, text).passed
        case JsonSchema():
            from judges import json_schema

            # A schema in a file is not at hand here.
            return None if judge.inline is None else json_schema.judged(judge.inline, text).passed

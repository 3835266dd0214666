"""Read the grade out of a judge model's reply, or say why it cannot be read.

A reply is readable when it holds exactly one grade: one JSON object with the wanted key, alone, in a code
fence or wrapped in prose. Nothing is guessed. Two different grades, a broken object, a grade inside a list
or inside another object, and a second `"score":` anywhere in the prose are all unreadable, because the
other one might be a quotation from the output, and there is no telling which. The same grade given twice is
one grade.

Text that the judge was told is not its reply: an echo of the prompt or of the delimited output is removed
first, and a grade that stands word for word in the output counts as quoted.

Covered: grades planted in the output that a judge repeats. Not covered: a judge that believes the output
and writes a good grade of its own. Only a better judge, or a panel, helps against that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from judges.spec import Rubric

MAX_REPLY_CHARACTERS = 100_000
MAX_REASONING_CHARACTERS = 4_000

# Where a JSON object with a key, or a list, could begin.
_START = re.compile(r'\{\s*"|\[')


class Unreadable(Exception):
    """No single grade could be taken from a reply; the message says why, for the judge and for the record."""


@dataclass(frozen=True)
class Grade:
    """A judge's own reply: a score from 0 to 1, the points by criterion it came from, and why."""

    score: float
    points: Mapping[str, float]
    reasoning: str


@dataclass(frozen=True)
class Told:
    """What the judge was given: its prompt, the delimiters of the output in it, and the output as shown."""

    prompt: str
    opening: str
    closing: str
    shown: str


def read(spec: Rubric, reply: str, told: Told) -> Grade:
    """Take the one grade that a reply holds; raises Unreadable when there is none or more than one."""
    key = "points" if spec.criteria else "score"
    reply = _without_echo(reply, told)
    if len(reply) > MAX_REPLY_CHARACTERS:
        raise Unreadable(f"the reply has {len(reply)} characters; {MAX_REPLY_CHARACTERS} are allowed")
    source, grade = _only_grade(reply, key)
    if _squeezed(source) in _squeezed(told.shown):
        raise Unreadable("the grade is a word-for-word quotation from the output")
    reasoning = grade.get("reasoning")
    points = _points(spec, grade["points"]) if spec.criteria else {}
    if points:
        score = sum(points.values()) / sum(criterion.max_points for criterion in spec.criteria)
    else:
        score = _number(grade["score"], "score", 1.0)
    return Grade(min(score, 1.0), points, _storable(reasoning) if isinstance(reasoning, str) else "")


def write(spec: Rubric, score: float, reasoning: str) -> str:
    """The reply of a judge that gives `score` (0 to 1); with criteria, that share of each one's points."""
    if not 0 <= score <= 1:
        raise ValueError(f"a score is from 0 to 1, not {score}")
    if spec.criteria:
        points = {criterion.name: score * criterion.max_points for criterion in spec.criteria}
        return json.dumps({"points": points, "reasoning": reasoning})
    return json.dumps({"score": score, "reasoning": reasoning})


def _without_echo(reply: str, told: Told) -> str:
    reply = reply.replace(told.prompt, " ")
    while told.opening in reply:
        before, _, rest = reply.partition(told.opening)
        _, closed, after = rest.partition(told.closing)
        # An echo that never closes may be output to its very end, so all of it goes.
        reply = f"{before} {after}" if closed else before
    return reply


def _only_grade(reply: str, key: str) -> tuple[str, dict[str, Any]]:
    """The source and the value of the reply's only object that has `key`."""
    found: list[tuple[str, dict[str, Any]]] = []
    prose, position = [], 0
    while start := _START.search(reply, position):
        prose.append(reply[position : start.start()])
        value, end = _decoded(reply, start.start())
        source = reply[start.start() : end]
        if isinstance(value, dict) and key in value:
            found.append((source, value))
        else:
            prose.append(source)
        position = end
    prose.append(reply[position:])
    if not found:
        raise Unreadable(f'no JSON object with "{key}" in the reply')
    if any(value != found[0][1] for _, value in found):
        raise Unreadable(f"{len(found)} different grades in the reply")
    # A second grade that is nested, or not quite JSON, is still a second grade.
    if re.search(rf"""["'“”‘’]{key}["'“”‘’]\s*:""", "\n".join(prose), re.IGNORECASE):
        raise Unreadable("more than one grade in the reply")
    return found[0]


def _decoded(reply: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends; a bracket in prose is None, one character long."""
    try:
        return _DECODER.raw_decode(reply, start)
    # int() refuses more than some thousand digits with a plain ValueError, of which JSONDecodeError is one.
    except (ValueError, RecursionError) as broken:
        if reply[start] == "[" and not re.match(r"\[\s*[\[{]", reply[start : start + 100]):
            return None, start + 1
        vague = isinstance(broken, json.JSONDecodeError | RecursionError)
        reason = "not valid JSON" if vague else str(broken)
        raise Unreadable(f"broken object in the reply: {reason}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("duplicate keys")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant)


def _points(spec: Rubric, given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise Unreadable(
            f'"points" is {_shown(given)}; it must be an object with a number for each criterion'
        )
    missing = [criterion.name for criterion in spec.criteria if criterion.name not in given]
    if missing:
        raise Unreadable("no points for " + ", ".join(map(repr, missing)))
    return {
        criterion.name: _number(given[criterion.name], criterion.name, criterion.max_points)
        for criterion in spec.criteria
    }


def _number(given: Any, name: str, most: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise Unreadable(f'"{name}" is {_shown(given)}; it must be a number')
    if not 0 <= given <= most:
        raise Unreadable(f'"{name}" is {_shown(given)}; it must be from 0 to {most:g}')
    return float(given) + 0.0  # -0.0 is 0


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _storable(text: str) -> str:
    # JSON can spell lone surrogates, which no UTF-8 file or store can hold.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_REASONING_CHARACTERS else text[:MAX_REASONING_CHARACTERS] + "…"

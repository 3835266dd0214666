"""Models that are none: `sim` passes as often as it is told to, `mock` always says the same; both are free.

`sim` is told the judge, so it can answer rightly or wrongly on purpose. Every draw follows from the seed and the
attempt's own key, so a run can be repeated whatever the order, the workers and the retries. For a judge of text it
guesses words: the judge's own texts, what a pattern would be as plain text, a few short values. Each guess is judged,
so nothing is said that would not do.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from judges import text_judge
from judges.judgment import Completion, Workspace
from judges.safe_text import did_you_mean
from judges.spec import Contains, JudgeSpec, Rubric
from workers.models.model import UNBILLED, ModelFailed, Request
from workers.store.messages import Task

ANSWER = "Simulated answer:"
WRONG = "Simulated wrong answer."
_SHORT = (WRONG, "–", "", "{}", "[]", "0", "true", '""')


def fitting(judge: JudgeSpec, passes: bool) -> str | None:
    """A text that passes the judge, or fails it; None where no guess does, or the judge takes more than words."""
    return _fitting(judge.model_dump_json(), type(judge), passes)


@lru_cache(maxsize=4096)
def _fitting(settings: str, kind: type[JudgeSpec], passes: bool) -> str | None:
    judge = kind.model_validate_json(settings)
    try:
        judged = text_judge(judge, Workspace())
    except FileNotFoundError:  # the suite's files are not at hand here
        return None
    if judged is None:
        return None
    return next((text for text in _guesses(judge) if judged(text).passed is passes), None)


def _guesses(judge: JudgeSpec) -> Iterator[str]:
    """What the judge's own texts would be if they were patterns, a few short values, and the texts themselves."""
    texts = [value for name, value in judge if name != "type" and isinstance(value, str)]
    for text in texts:
        for pattern in (text, text.split("|")[0].strip("^$")):
            yield re.sub(r"\\([^A-Za-z0-9])", r"\1", pattern)
    yield from _SHORT
    yield from texts


_RATES = ("baseline", "candidate", "error", "garbage")


@dataclass(frozen=True)
class SimSettings:
    """What `sim:KEY=VALUE,…` can say: pass probabilities, mean seconds, USD a call, rates of trouble."""

    baseline: float = 0.5
    candidate: float = 0.7
    latency: float = 0.0
    spread: Literal["fixed", "exp"] = "fixed"
    cost: float = 0.0
    error: float = 0.0
    garbage: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Draws:
    """Independent uniform numbers in [0, 1) that belong to one attempt."""

    passes: float
    garbage: float
    latency: float
    score: float
    variant: int
    noise: bytes


def parse(text: str) -> SimSettings:
    """Read `KEY=VALUE,…`; raises ValueError that names the key, the value and what is allowed."""
    known = [field.name for field in fields(SimSettings)]
    values: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key = key.strip()
        if key not in known:
            raise ValueError(f"unknown key {key!r}; known keys: {', '.join(known)}{did_you_mean(key, known)}")
        if not equals:
            raise ValueError(f"{key} lacks a value; write {key}=VALUE")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _value(key, value.strip())
    return SimSettings(**values)


def _value(key: str, text: str) -> float | int | str:
    if key == "spread":
        if text not in ("fixed", "exp"):
            raise ValueError(f"spread is {text!r}; allowed: fixed, exp")
        return text
    try:
        number = int(text) if key == "seed" else float(text)
    except ValueError:
        raise ValueError(
            f"{key} is {text!r}; {'an integer' if key == 'seed' else 'a number'} is needed"
        ) from None
    if not math.isfinite(number) or (number < 0 and key != "seed"):
        raise ValueError(f"{key} is {text}; it must be finite and not negative")
    if key in _RATES and number > 1:
        raise ValueError(f"{key} is {text}; it must be between 0 and 1")
    return number


def missing_reply(task: Task) -> str | None:
    """Why sim could not answer this task rightly, or None; a producer can ask before anything is run."""
    given = task.replies is not None and task.replies.passing is not None
    if given or isinstance(task.judge, Contains | Rubric) or fitting(task.judge, True) is not None:
        return None
    return f"task {task.id}: sim needs replies: {{pass: fixtures/…}} to answer a {task.judge.type} task"


class Sim:
    """Draws each attempt's outcome and answers accordingly."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings

    async def complete(self, request: Request) -> Completion:
        draws = self._draws(request)
        if self.settings.latency > 0:
            await asyncio.sleep(self._seconds(draws))
        if request.arm != "oracle" and self._errs(request):
            raise ModelFailed("simulated error", completion=UNBILLED)
        text = self._text(request, draws)
        return Completion(
            text=text,
            input_tokens=len(request.prompt) // 4,
            output_tokens=len(text) // 4,
            cost_usd=self.settings.cost,
            cost_source="sim",
            turns=1,
        )

    async def close(self) -> None:
        pass

    def passes(self, request: Request) -> bool:
        """Whether this attempt is drawn to pass; the oracle always does."""
        return self._passes(request, self._draws(request))

    def rubric_score(self, request: Request, threshold: float) -> float:
        """The score that a rubric judge is to give: at or above the threshold just when the attempt passes.

        With a threshold of 0 every score passes, so nothing can be drawn to fail.
        """
        draws = self._draws(request)
        if self._passes(request, draws):
            return threshold + (1 - threshold) * draws.score
        return threshold * draws.score

    def latency(self, request: Request) -> float:
        """How long this attempt takes, in seconds."""
        return self._seconds(self._draws(request))

    def _passes(self, request: Request, draws: Draws) -> bool:
        if request.arm == "oracle":
            return True
        if draws.garbage < self.settings.garbage:
            return False
        chance = self.settings.candidate if _is_candidate(request.arm) else self.settings.baseline
        return draws.passes < chance

    def _draws(self, request: Request) -> Draws:
        digest = self._digest(request, "")
        unit = [int.from_bytes(digest[i : i + 6]) / 2**48 for i in (0, 6, 12, 18)]
        return Draws(unit[0], unit[1], unit[2], unit[3], int.from_bytes(digest[24:28]), digest[28:])

    def _errs(self, request: Request) -> bool:
        # A retry must be able to succeed, so the draw also depends on how many tries have failed.
        if not self.settings.error:
            return False
        digest = self._digest(request, f"error {request.earlier_errors}")
        return int.from_bytes(digest[:6]) / 2**48 < self.settings.error

    def _digest(self, request: Request, purpose: str) -> bytes:
        task = request.task.id if request.task else request.prompt
        key = f"{self.settings.seed}\0{task}\0{request.arm}\0{request.attempt}\0{purpose}"
        return hashlib.blake2b(key.encode("utf-8", "replace")).digest()

    def _seconds(self, draws: Draws) -> float:
        if self.settings.spread == "fixed":
            return self.settings.latency
        return -self.settings.latency * math.log1p(-draws.latency)

    def _text(self, request: Request, draws: Draws) -> str:
        if request.task is None:
            return ANSWER
        passes = self._passes(request, draws)
        judge = request.task.judge
        if request.arm != "oracle" and draws.garbage < self.settings.garbage:
            return _garbage(draws.noise, judge if isinstance(judge, Contains) else None)
        reply = _reply(request, request.task, passes)
        if reply is not None:
            return reply
        if isinstance(judge, Contains):
            expected, forbidden = tuple(judge.expected), tuple(judge.forbidden)
            if passes:
                return _right(expected, forbidden)
            kept, start = divmod(draws.variant % 64, len(expected))
            return _wrong(expected, start, kept % len(expected))
        if passes and (problem := missing_reply(request.task)):
            raise ModelFailed(problem, completion=UNBILLED)
        words = fitting(judge, passes)
        return words if words is not None else f"{ANSWER} good." if passes else WRONG


def _is_candidate(arm: str) -> bool:
    return arm == "candidate" or arm.startswith("candidate:")


def _reply(request: Request, task: Task, passes: bool) -> str | None:
    """The suite's own file for this outcome, or None where it names none."""
    if task.replies is None or request.suite is None:
        return None
    name = task.replies.passing if passes else task.replies.failing
    if name is None:
        return None
    path = request.suite / name
    try:
        return _file_text(path, path.stat().st_mtime_ns)
    except OSError as problem:
        raise ModelFailed(f"task {task.id}: reply {name} cannot be read: {problem.strerror}") from None


@lru_cache(maxsize=256)
def _file_text(path: Path, mtime_ns: int) -> str:
    return path.read_text("utf-8", "replace")


@lru_cache(maxsize=16384)
def _right(expected: tuple[str, ...], forbidden: tuple[str, ...]) -> str:
    """All expected strings; our own words around them only where they hold nothing forbidden."""
    listed = "\n".join(expected)
    text = f"{ANSWER}\n{listed}"
    return text if _judged(text, expected, forbidden) else listed


@lru_cache(maxsize=16384)
def _wrong(expected: tuple[str, ...], start: int, kept_count: int) -> str:
    """A text that surely misses an expected string, and holds some of the others so that scores differ."""
    kept = [expected[(start + 1 + i) % len(expected)] for i in range(kept_count)]
    # An expected string may occur in another one, or in our own words: then say less.
    for text in ("\n".join([WRONG, *kept]), WRONG, "–"):
        if not _judged(text, expected, ()):
            return text
    return ""


def _garbage(noise: bytes, judge: Contains | None) -> str:
    """Unusable text: control characters and bytes that are no UTF-8."""
    text = (b"\x00\x1b[31m\xff" + noise).decode("utf-8", "replace")
    if judge is not None and _judged(text, tuple(judge.expected), ()):
        return ""
    return text


def _judged(text: str, expected: tuple[str, ...], forbidden: tuple[str, ...]) -> bool:
    spec = Contains(type="contains", expected=list(expected), forbidden=list(forbidden))
    check = text_judge(spec, Workspace())
    return check is not None and check(text).passed is True


REPLY = "This is a mock reply: no model was asked."


class Mock:
    """Gives one fixed reply, so that plumbing can be tried without a model."""

    async def complete(self, request: Request) -> Completion:
        return Completion(
            text=REPLY,
            input_tokens=len(request.prompt) // 4,
            output_tokens=len(REPLY) // 4,
            cost_usd=0.0,
            cost_source="mock",
            turns=1,
        )

    async def close(self) -> None:
        pass

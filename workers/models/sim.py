"""Answer without a model: `sim` passes as often as its settings say, `mock` always says the same; both are free.

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

from judges import conclude, text_judge
from judges.errors import did_you_mean
from judges.judgment import Completion, Workspace, yes_or_no
from judges.spec import (
    Benchmark,
    CommandCheck,
    Contains,
    Files,
    JudgeSpec,
    Length,
    Pytest,
    PythonFunction,
    Rubric,
    StepsCheck,
)
from workers.models.model import UNBILLED, Model, ModelFailed, Request
from workers.store.messages import Task

ANSWER = "Simulated answer:"
WRONG = "Simulated wrong answer."
_SHORT = (WRONG, "–", "", "{}", "[]", "0", "true", '""')


def fitting(judge: JudgeSpec, passes: bool) -> str | None:
    """Find a text that passes the judge, or fails it; None where no guess does, or the judge runs code or a model."""
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


def fitting_all(task: Task, passes: bool) -> str | None:
    """The same for a task whose judges combine others or are several; rubrics and an agent's files are simulated."""
    settings = {"id", "prompt", "judge", "checks", "threshold"}
    return _fitting_all(task.model_dump_json(include=settings, by_alias=True), passes)


@lru_cache(maxsize=4096)
def _fitting_all(settings: str, passes: bool) -> str | None:
    task = Task.model_validate_json(settings)
    if any(isinstance(leaf, Pytest | Benchmark | PythonFunction | CommandCheck) for leaf in task.leaves):
        return None
    try:
        judges = [text_judge(check, Workspace()) for check in task.judges]
    except FileNotFoundError:
        return None
    own = [fit for check in task.judges if (fit := fitting(check, True)) is not None]
    for text in ("\n".join(own), *own, *_SHORT):
        told = [yes_or_no("simulated", passes, "") if judge is None else judge(text) for judge in judges]
        if conclude(task.judges, task.threshold, told).passed is passes:
            return text
    return None


def _guesses(judge: JudgeSpec) -> Iterator[str]:
    """What the judge's own texts would be as patterns, a few short values, the texts themselves, and a long one."""
    for inner in judge.inner:
        yield from _guesses(inner)
    if isinstance(judge, Contains):
        yield "\n".join(judge.expected)
    if isinstance(judge, Length):
        least = {unit: ends[0] or 0 for unit, ends in judge.bounds.items()}
        words = ["word"] * max(least.get("words", 0), -(-least.get("characters", 0) // 4))
        yield " ".join(words)
        yield "\n".join([*words, *["word"] * (least.get("lines", 0) - len(words))])
    texts = [value for name, value in judge if name != "type" and isinstance(value, str)]
    for text in texts:
        for pattern in (text, text.split("|")[0].strip("^$")):
            yield re.sub(r"\\([^A-Za-z0-9])", r"\1", pattern)
    yield from _SHORT
    yield from texts
    yield "word " * 2000
    yield "line\n" * 2000


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


@lru_cache(maxsize=256)
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
    """Why sim cannot give this task a right answer; None where it can. The producer asks before a run starts."""
    given = task.replies is not None and task.replies.passing is not None
    if given or isinstance(task.judge, Contains | Rubric | Files | StepsCheck):
        return None
    if _words(task, True) is not None:
        return None
    return f"task {task.id}: sim needs replies: {{pass: fixtures/…}} to answer a {task.judged_by} task"


def _words(task: Task, passes: bool) -> str | None:
    alone = task.judge is not None and not task.judge.inner
    return fitting(task.judges[0], passes) if alone else fitting_all(task, passes)


class Sim(Model):
    """Draws each attempt's outcome and answers accordingly."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings

    async def complete(self, request: Request) -> Completion:
        if self.settings.latency > 0:
            await asyncio.sleep(self.latency(request))
        # A retry must be able to succeed, so the draw also depends on how many tries have failed.
        if self._happens(self.settings.error, request, 0, f"error {request.earlier_errors}"):
            raise ModelFailed("simulated error", completion=UNBILLED)
        return _completion(request, self._text(request), self.settings.cost, "sim")

    def passes(self, request: Request) -> bool:
        """Whether this attempt is drawn to pass; the oracle always does."""
        if request.arm == "oracle":
            return True
        is_candidate = request.arm.partition(":")[0] == "candidate"
        chance = self.settings.candidate if is_candidate else self.settings.baseline
        return not self._is_garbage(request) and self._unit(request, 0) < chance

    def rubric_score(self, request: Request, threshold: float, *, passes: bool | None = None) -> float:
        """The score that a rubric judge is to give: at or above the threshold just when the attempt passes.

        With a threshold of 0 every score passes, so nothing can be drawn to fail. A rubric of which the opposite is
        wanted is told so by `passes`.
        """
        score, passes = self._unit(request, 3), self.passes(request) if passes is None else passes
        return threshold + (1 - threshold) * score if passes else threshold * score

    def latency(self, request: Request) -> float:
        """How long this attempt takes, in seconds."""
        if self.settings.spread == "fixed":
            return self.settings.latency
        return -self.settings.latency * math.log1p(-self._unit(request, 2))

    def _is_garbage(self, request: Request) -> bool:
        return self._happens(self.settings.garbage, request, 1)

    def _happens(self, rate: float, request: Request, number: int, purpose: str = "") -> bool:
        """Draw whether there is trouble of such a rate; the oracle has none."""
        return rate > 0 and request.arm != "oracle" and self._unit(request, number, purpose) < rate

    def _unit(self, request: Request, number: int, purpose: str = "") -> float:
        """One of four independent uniform numbers in [0, 1) that belong to an attempt."""
        return int.from_bytes(self._digest(request, purpose)[6 * number : 6 * number + 6]) / 2**48

    def _digest(self, request: Request, purpose: str = "") -> bytes:
        task = request.task.id if request.task else request.prompt
        key = f"{self.settings.seed}\0{task}\0{request.arm}\0{request.attempt}\0{purpose}"
        return hashlib.blake2b(key.encode("utf-8", "replace")).digest()

    def _text(self, request: Request) -> str:
        if request.task is None:
            return ANSWER
        passes, judge = self.passes(request), request.task.judge
        if self._is_garbage(request):
            return _garbage(self._digest(request)[28:], judge if isinstance(judge, Contains) else None)
        reply = _reply(request, request.task, passes)
        if reply is not None:
            return reply
        if isinstance(judge, Contains):
            expected, forbidden = tuple(judge.expected), tuple(judge.forbidden)
            if passes:
                return _right(expected, forbidden)
            kept, start = divmod(int.from_bytes(self._digest(request)[24:28]) % 64, len(expected))
            return _wrong(expected, start, kept % len(expected))
        if passes and (problem := missing_reply(request.task)):
            raise ModelFailed(problem, completion=UNBILLED)
        words = _words(request.task, passes)
        return words if words is not None else f"{ANSWER} good." if passes else WRONG


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
    """Unusable text: control characters, and replacements for bytes that are not UTF-8."""
    text = (b"\x00\x1b[31m\xff" + noise).decode("utf-8", "replace")
    if judge is not None and _judged(text, tuple(judge.expected), ()):
        return ""
    return text


def _judged(text: str, expected: tuple[str, ...], forbidden: tuple[str, ...]) -> bool:
    spec = Contains(type="contains", expected=list(expected), forbidden=list(forbidden))
    check = text_judge(spec, Workspace())
    return check is not None and check(text).passed is True


REPLY = "This is a mock reply: no model was asked."


class Mock(Model):
    """Gives one fixed reply, so that plumbing can be tried without a model."""

    async def complete(self, request: Request) -> Completion:
        return _completion(request, REPLY, 0.0, "mock")


def _completion(request: Request, text: str, usd: float, source: str) -> Completion:
    return Completion(
        text=text,
        input_tokens=len(request.prompt) // 4,
        output_tokens=len(text) // 4,
        cost_usd=usd,
        cost_source=source,
        turns=1,
    )

"""One attempt: ask the model and judge what it said. Knows no Celery, and never raises.

A failure in here is data: raising would cancel the chord's callback and lose every other record of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import judges
from judges.judgment import Completion, Judgment, Workspace
from judges.spec import Rubric
from workers.claims import Claim
from workers.grid import Cell
from workers.messages import Task
from workers.models import ModelTimedOut, Request
from workers.models.choose import is_simulated
from workers.models.output import without_secrets
from workers.models.retry import RETRIES, with_retries
from workers.models.sim import Sim
from workers.prompts import prepend
from workers.runs import Run

MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True)
class Attempt:
    """What is to be done: one model call for (task, arm, model, number)."""

    task: Task
    arm: str
    model: str
    number: int

    @classmethod
    def at(cls, run: Run, cell: Cell, task: Task) -> Attempt:
        return cls(task, run.manifest.arms[cell.arm].name, run.manifest.models[cell.model], cell.number)


@dataclass(frozen=True)
class Answer:
    """How asking ended: with a completion, or with a time-out or an error and why."""

    request: Request
    started_at: str
    seconds: float
    completion: Completion | None = None
    outcome: Literal["timeout", "error"] | None = None
    error: str | None = None
    retries: int = 0
    hopeless: bool = False


Again = Callable[[], Awaitable[float]]


async def ask(
    attempt: Attempt, run: Run, claim: Claim, again: Again, workspace: Path | None = None
) -> Answer:
    """Ask the model within the task's time; whatever goes wrong is in the answer.

    `again` waits for leave to ask once more and says how many seconds that took, which the deadline does not count.
    """
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    begun = time.perf_counter()
    tries = 0
    request = Request(prompt=attempt.task.prompt)

    def ended(**how: Any) -> Answer:
        seconds = time.perf_counter() - begun
        return Answer(request, started_at, seconds, retries=max(0, tries - 1), **how)

    try:
        request = _request(attempt, run, claim, workspace)
        model = run.model(attempt.model)
        async with asyncio.timeout(attempt.task.timeout_seconds) as deadline:

            async def call() -> Completion:
                nonlocal tries
                tries += 1
                if tries > 1:
                    deadline.reschedule((deadline.when() or 0.0) + await again())
                return await model.complete(request)

            # A wait that the deadline would cut short is not begun: an outage is an error, never a slow answer.
            completion, _ = await with_retries(
                call,
                retries=RETRIES if run.settings.retry else 0,
                seconds_left=lambda: (deadline.when() or 0.0) - asyncio.get_running_loop().time(),
            )
        return ended(completion=redacted(completion))
    except TimeoutError as late:
        spent = redacted(late.completion) if isinstance(late, ModelTimedOut) else None
        words = f"no answer within {attempt.task.timeout_seconds:g} s"
        return ended(outcome="timeout", error=words, completion=spent)
    # Any exception of a client is this attempt's error; the type names what broke where the message does not.
    except Exception as problem:
        text = without_secrets(f"{type(problem).__name__}: {problem}")[:MAX_ERROR_CHARACTERS]
        return ended(outcome="error", error=text, hopeless=getattr(problem, "hopeless", False))


def redacted(completion: Completion) -> Completion:
    """The completion without any secret of this worker: an agent has its key and may print it."""
    text = without_secrets(completion.text)
    warnings = tuple(map(without_secrets, completion.warnings))
    if (text, warnings) == (completion.text, completion.warnings):
        return completion
    return completion.model_copy(update={"text": text, "warnings": warnings})


def prompt_and_skill(attempt: Attempt, run: Run) -> tuple[str, Path | None]:
    """What the model is asked, and the skill's folder where it is mounted instead of put in front."""
    skill = run.skills.get(attempt.arm)
    if skill is None or run.skill_mode(attempt.model) == "mount":
        return attempt.task.prompt, skill
    return prepend(_skill_text(skill), attempt.task.prompt), None


def _request(attempt: Attempt, run: Run, claim: Claim, workspace: Path | None) -> Request:
    prompt, mounted = prompt_and_skill(attempt, run)
    return Request(
        prompt=prompt,
        task=attempt.task,
        arm=attempt.arm,
        attempt=attempt.number,
        earlier_errors=claim.errors,
        skill=mounted,
        workspace=workspace,
        suite=run.fixtures,
        params=run.settings.params,
        timeout_seconds=attempt.task.timeout_seconds,
        sandbox=run.manifest.sandbox,
    )


@lru_cache(maxsize=64)
def _skill_text(folder: Path) -> str:
    return (folder / "SKILL.md").read_text(encoding="utf-8")


class Repeats(Protocol):
    """A call's leave; `again` waits for leave to repeat it and returns the seconds waited."""

    async def again(self) -> float: ...


class Leave(Protocol):
    """Leave to ask a judge's model: entered when its limit allows a call."""

    def __call__(self, run: Run, spec: str, prompt: str) -> AbstractAsyncContextManager[Repeats]: ...


async def judge(
    attempt: Attempt, run: Run, answer: Answer, leave: Leave, left: Path | None = None
) -> tuple[Judgment, float]:
    """Judge a completion; returns the judgment and the seconds that it took."""
    assert answer.completion is not None
    begun = time.perf_counter()
    where = Workspace(suite=run.fixtures, left=left, sandbox=run.manifest.sandbox)

    async def ask_judge(model: str, prompt: str, *, system: str = "") -> Completion:
        spec = _grader(attempt, run, model)
        if is_simulated(spec):
            return _simulated_grade(attempt, run, answer.request, spec)
        question = Request(prompt=prompt, system=system, params=run.settings.params)
        return redacted(await _graded(run, spec, question, leave))

    judgment = await judges.judge(attempt.task.judge, answer.completion, ask_judge, where)
    return judgment, time.perf_counter() - begun


def _grader(attempt: Attempt, run: Run, model: str) -> str:
    """Who judges; where the run's model is not real, no judge is asked either."""
    if is_simulated(attempt.model):
        return attempt.model
    return model or run.manifest.judge_model or attempt.model


def _simulated_grade(attempt: Attempt, run: Run, request: Request, spec: str) -> Completion:
    """A mocked judge is content, a simulated one gives the score that was drawn for the attempt."""
    from judges.rubric import passing_reply, reply_with_score

    rubric = attempt.task.judge
    assert isinstance(rubric, Rubric)
    client = run.model(spec)
    reply = passing_reply(rubric)
    if isinstance(client, Sim):
        reply = reply_with_score(rubric, client.rubric_score(request, rubric.pass_threshold))
    return Completion(text=reply, cost_usd=0.0, cost_source="simulated")


async def _graded(run: Run, spec: str, question: Request, leave: Leave) -> Completion:
    """What a judge's model says, within its limits and with the retries of any other call."""
    retries, tries = RETRIES if run.settings.retry else 0, 0
    async with (
        leave(run, spec, question.prompt) as turn,
        asyncio.timeout(question.timeout_seconds) as deadline,
    ):

        async def call() -> Completion:
            nonlocal tries
            tries += 1
            if tries > 1:
                deadline.reschedule((deadline.when() or 0.0) + await turn.again())
            return await run.model(spec).complete(question)

        completion, _ = await with_retries(call, retries=retries)
    return completion

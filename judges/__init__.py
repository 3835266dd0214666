"""Judges say whether an output is good; `judge` turns a completion and a task's judge into a judgment.

They know no Celery, no vendor and no pandas. What they need from outside is handed to them: a way to ask a
model, and the folder in which the suite's fixtures lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

from judges.checks import contains, equals
from judges.judgment import Ask, Completion, Judgment, TooSlow, Workspace, time_limit, yes_or_no
from judges.safe_text import storable
from judges.spec import Benchmark, Contains, Equals, JsonSchema, JudgeSpec, Pytest, Regex, Rubric

MAX_ERROR_CHARACTERS = 2000
# Comparing so few characters takes less time than finding a thread for it.
_SHORT_CHARACTERS = 20_000


async def judge(
    spec: JudgeSpec, completion: Completion, ask: Ask, workspace: Workspace | None = None
) -> Judgment:
    """Judge a completion. Never raises: a judge that breaks gives `error`, and neither a pass nor a score.

    Cancellation is not a breakage and goes on to the caller.
    """
    try:
        return storable(await _judge(spec, completion, ask, workspace or Workspace()))
    # The one broad except around judges: whatever broke in there says nothing about the output.
    except Exception as broken:
        message = f"{type(broken).__name__}: {broken}"[:MAX_ERROR_CHARACTERS]
        return storable(Judgment(judge=spec.type, details=f"the judge broke: {message}", error=message))


async def _judge(spec: JudgeSpec, completion: Completion, ask: Ask, workspace: Workspace) -> Judgment:
    if (judged := text_judge(spec, workspace)) is not None:
        if isinstance(spec, Contains | Equals) and len(completion.text) <= _SHORT_CHARACTERS:
            return judged(completion.text)
        import asyncio  # takes long to import, and whoever only reads records needs none of it

        return await asyncio.to_thread(judged, completion.text)  # where it delays nobody else
    if isinstance(spec, Rubric):
        from judges.checks import rubric

        return await rubric.judge(spec, completion, ask)
    if isinstance(spec, Pytest):
        from judges.checks import pytest_file

        return await pytest_file.judge(spec, completion, workspace)
    assert isinstance(spec, Benchmark), spec.type
    from judges.checks import benchmark

    return await benchmark.judge(spec, completion, workspace)


def text_judge(spec: JudgeSpec, workspace: Workspace) -> Callable[[str], Judgment] | None:
    """The judge as a function of the output's text; None for one that asks a model or runs code.

    An output on which it takes more than its second has failed. Raises FileNotFoundError where a fixture of the
    judge is not in the workspace.
    """
    check = _text_check(spec, workspace)
    return None if check is None else partial(_in_time, spec.type, check)


def _in_time(kind: str, check: Callable[[str], Judgment], text: str) -> Judgment:
    try:
        with time_limit():
            return check(text)
    except TooSlow as slow:
        return yes_or_no(kind, False, str(slow))


def _text_check(spec: JudgeSpec, workspace: Workspace) -> Callable[[str], Judgment] | None:
    # Judges that need more than strings are imported when first used: importing a record must stay cheap.
    match spec:
        case Contains():
            return partial(contains.judged, spec)
        case Equals():
            return partial(equals.judged, spec)
        case Regex():
            from judges.checks import regex

            return partial(regex.judged, spec)
        case JsonSchema():
            from judges.checks import json_schema

            return partial(json_schema.judged, json_schema.schema_of(spec, workspace))
        case Rubric() | Pytest() | Benchmark():
            return None
        case _:
            assert_never(spec)

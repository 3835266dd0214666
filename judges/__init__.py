"""Judges say whether an output is good; `judge` turns a completion and a task's judge into a judgment.

They know no Celery, no vendor and no pandas. What they need from outside is handed to them: a way to ask a
model, and the folder in which the suite's fixtures lie.
"""

from __future__ import annotations

from typing import assert_never

from judges import contains, equals
from judges.judgment import Ask, Completion, Judgment, Workspace
from judges.spec import Benchmark, Contains, Equals, JsonSchema, JudgeSpec, Pytest, Regex, Rubric

MAX_ERROR_CHARACTERS = 2000


async def judge(
    spec: JudgeSpec, completion: Completion, ask: Ask, workspace: Workspace | None = None
) -> Judgment:
    """Judge a completion. Never raises: a judge that breaks gives `error`, and neither a pass nor a score.

    Cancellation is not a breakage and goes on to the caller.
    """
    try:
        return await _judge(spec, completion, ask, workspace or Workspace())
    # The one broad except around judges: whatever broke in there says nothing about the output.
    except Exception as broken:
        message = f"{type(broken).__name__}: {broken}"[:MAX_ERROR_CHARACTERS]
        return Judgment(judge=spec.type, details=f"the judge broke: {message}", error=message)


async def _judge(spec: JudgeSpec, completion: Completion, ask: Ask, workspace: Workspace) -> Judgment:
    # Judges that need more than strings are imported when first used: importing a record must stay cheap.
    match spec:
        case Contains():
            return contains.judge(spec, completion)
        case Equals():
            return equals.judge(spec, completion)
        case Regex():
            from judges import regex

            return await regex.judge(spec, completion)
        case JsonSchema():
            from judges import json_schema

            return await json_schema.judge(spec, completion, workspace)
        case Rubric():
            from judges import rubric

            return await rubric.judge(spec, completion, ask)
        case Pytest():
            from judges import pytest_run

            return await pytest_run.judge(spec, completion, workspace)
        case Benchmark():
            from judges import benchmark

            return await benchmark.judge(spec, completion, workspace)
        case _:
            assert_never(spec)

"""Judges say whether an output is good; `judge` turns a completion and a judge's settings into a judgment.

`judge_all` does so for a task with several checks. They know no Celery, no vendor and no pandas. What they need from
outside is handed to them: a way to ask a model, and the folder in which the suite's fixtures lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from judges.checks import texts
from judges.judgment import (
    CHECKS,
    SPARED,
    Ask,
    Completion,
    Judgment,
    TooSlow,
    Workspace,
    time_limit,
    weighted_mean,
    yes_or_no,
)
from judges.safe_text import storable
from judges.spec import (
    AnyOf,
    Benchmark,
    CommandCheck,
    Contains,
    Equals,
    Files,
    JsonSchema,
    JudgeSpec,
    Length,
    Not,
    Pytest,
    PythonFunction,
    Regex,
    Rubric,
    StepsCheck,
)

MAX_ERROR_CHARACTERS = 2000
MAX_DETAILS_CHARACTERS = 10_000
# Comparing so few characters takes less time than finding a thread for it.
_SHORT_CHARACTERS = 20_000
_QUICK = (Contains, Equals)
_TOLERANCE = 1e-9
_Amount = TypeVar("_Amount", int, float)
# How a rubric's model is asked; a simulated one is told whether the rubric is to pass.
AskAbout = Callable[[Rubric, Workspace], Ask]


async def judge(
    spec: JudgeSpec, completion: Completion, ask: Ask, workspace: Workspace | None = None
) -> Judgment:
    """Judge a completion. Never raises: a judge that breaks gives `error`, and neither a pass nor a score.

    Cancellation is not a breakage and goes on to the caller.
    """
    return await judge_about(spec, completion, lambda *_: ask, workspace or Workspace())


async def judge_about(
    spec: JudgeSpec, completion: Completion, ask_about: AskAbout, workspace: Workspace
) -> Judgment:
    """The same, where who is asked depends on the rubric."""
    try:
        return storable(await _judge(spec, completion, ask_about, workspace))
    # The one broad except around judges: whatever broke in there says nothing about the output.
    except Exception as broken:
        message = f"{type(broken).__name__}: {broken}"[:MAX_ERROR_CHARACTERS]
        return storable(Judgment(judge=spec.kind, details=f"the judge broke: {message}", error=message))


async def judge_all(
    checks: Sequence[JudgeSpec],
    threshold: float | None,
    completion: Completion,
    ask_about: AskAbout,
    workspace: Workspace,
    *,
    spare: bool = False,
) -> Judgment:
    """Judge by several checks; what they say together has each one's judgment as its `panel`.

    With `spare`, no model is asked once a required check has failed that asks none.
    """
    made: dict[int, Judgment] = {}
    for place, spec in enumerate(checks):
        if not spec.asks_a_model:
            made[place] = await judge_about(spec, completion, ask_about, workspace)
    failed = spare and any(checks[place].required and one.passed is False for place, one in made.items())
    paid = [place for place in range(len(checks)) if place not in made]
    if failed:
        made |= {place: Judgment(judge=checks[place].kind, details=SPARED) for place in paid}
    elif paid:
        import asyncio

        judged = (judge_about(checks[place], completion, ask_about, workspace) for place in paid)
        made |= dict(zip(paid, await asyncio.gather(*judged), strict=True))
    return conclude(checks, threshold, [made[place] for place in range(len(checks))])


def names(checks: Sequence[JudgeSpec]) -> list[str]:
    """What each check is called: its own name, else what it is, with a number where others are called so."""
    taken, named, numbers = {spec.name for spec in checks if spec.name}, [], dict[str, int]()
    for spec in checks:
        name = kind = spec.name or spec.kind
        if spec.name is None:
            while name in taken:
                numbers[kind] = numbers.get(kind, 1) + 1
                name = f"{kind} {numbers[kind]}"
            taken.add(name)
        named.append(name)
    return named


def conclude(checks: Sequence[JudgeSpec], threshold: float | None, made: Sequence[Judgment]) -> Judgment:
    """What the judgments of a task's checks, in their order, say together.

    A pass needs all required ones and, where there is a threshold, a mean score that reaches it. A required check
    that broke makes it an error, whatever the others say: else outages would hit only what would have passed.
    Each judgment becomes its check's, and must be nobody else's: to copy it takes as long as to make it.
    """
    for spec, name, one in zip(checks, names(checks), made, strict=True):
        vars(one).update(check=name, weight=spec.weight, required=spec.required)
    score = weighted_mean((one.score, one.weight) for one in made)
    required = [one for one in made if one.required]
    broken = [one for one in made if one.error and (one.required or (threshold is not None and one.weight))]
    passed: bool | None = all(one.passed for one in required)
    details = [f"{sum(one.passed is True for one in made)} of {len(made)} checks passed"]
    if passed and threshold is not None:
        passed = None if score is None else score >= threshold - _TOLERANCE
        if score is not None:
            details.append(f"score {score:.2f}, needs {threshold:.2f}")
    complaints = sorted((one for one in made if not one.passed), key=lambda one: not one.required)
    details += [
        f"{one.check}{'' if one.required else ' (not required)'}: {one.details}" for one in complaints
    ]
    timed = [one for one in made if one.judge == "benchmark"] or [one for one in made if one.tests]
    whole = Judgment(
        judge=CHECKS,
        passed=None if broken else passed,
        score=score,
        details="; ".join(details)[:MAX_DETAILS_CHARACTERS],
        error="; ".join(f"{one.check}: {one.error}" for one in broken)[:MAX_ERROR_CHARACTERS] or None,
        panel=tuple(made),
    )
    # Not copied: that they are the very same tells whose they are.
    measured = {name: getattr(one, name) for one in timed[:1] for name in ("benchmarks", "tests", "snapshot")}
    return whole.model_copy(update=measured) if measured else whole


async def _judge(
    spec: JudgeSpec, completion: Completion, ask_about: AskAbout, workspace: Workspace
) -> Judgment:
    if (judged := text_judge(spec, workspace)) is not None:
        if isinstance(spec, _QUICK) and len(completion.text) <= _SHORT_CHARACTERS:
            return judged(completion.text)
        import asyncio  # takes long to import, and whoever only reads records needs none of it

        return await asyncio.to_thread(judged, completion.text)  # where it delays nobody else
    if isinstance(spec, Rubric):
        from judges.checks import rubric

        return await rubric.judge(spec, completion, ask_about(spec, workspace), workspace)
    if isinstance(spec, Pytest):
        from judges.checks import pytest_file

        return await pytest_file.judge(spec, completion, workspace)
    if isinstance(spec, PythonFunction | CommandCheck | Files):
        from judges.checks import programs

        return await programs.judge(spec, completion, workspace)
    if isinstance(spec, StepsCheck):
        from judges.checks import steps

        return steps.judge(spec, completion, workspace)
    if isinstance(spec, Not):
        opposite = None if workspace.passes is None else not workspace.passes
        turned = replace(workspace, passes=opposite)
        return _turned(spec, await judge_about(spec.what, completion, ask_about, turned))
    if isinstance(spec, AnyOf):
        tried: list[Judgment] = []
        for one in spec.judges:
            tried.append(await judge_about(one, completion, ask_about, workspace))
            if tried[-1].passed:
                break
        return _any_of(spec, tried)
    assert isinstance(spec, Benchmark), spec.kind
    from judges.checks import benchmark

    return await benchmark.judge(spec, completion, workspace)


def _turned(spec: Not, one: Judgment) -> Judgment:
    """The opposite, but for an output that could not be looked at to the end: it must not profit from that."""
    passed = None if one.passed is None else not one.passed and not one.broke_off
    details = one.details if passed is None or one.broke_off else f"{spec.what.kind}: {one.details}"
    return _combined(spec, passed, details, [one])


def _any_of(spec: AnyOf, tried: Sequence[Judgment]) -> Judgment:
    passed = True if tried[-1].passed else None if any(one.error for one in tried) else False
    best = [tried[-1]] if passed else tried
    return _combined(spec, passed, "; ".join(f"{one.judge}: {one.details}" for one in best), tried)


def _combined(spec: JudgeSpec, passed: bool | None, details: str, parts: Sequence[Judgment]) -> Judgment:
    paid = [one for one in parts if one.by_model]
    errors = "; ".join(one.error for one in parts if one.error)[:MAX_ERROR_CHARACTERS]
    return Judgment(
        judge=spec.kind,
        passed=passed,
        score=None if passed is None else float(passed),
        details=details[:MAX_DETAILS_CHARACTERS],
        error=errors if passed is None else None,
        saw_cut_text=any(one.saw_cut_text for one in parts),
        broke_off=not passed and any(one.broke_off for one in parts),
        input_tokens=_sum([one.input_tokens for one in paid]),
        output_tokens=_sum([one.output_tokens for one in paid]),
        cost_usd=_sum([one.cost_usd for one in paid]),
    )


def _sum(parts: Sequence[_Amount | None]) -> _Amount | None:
    known = [part for part in parts if part is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(parts) else None


def text_judge(spec: JudgeSpec, workspace: Workspace) -> Callable[[str], Judgment] | None:
    """The judge as a function of the output's text; None for one that asks a model, runs code or reads files.

    An output on which it takes more than its second has failed. Raises FileNotFoundError where a fixture of the
    judge is not in the workspace.
    """
    check = _text_check(spec, workspace)
    return None if check is None else partial(_in_time, spec.kind, check)


def _in_time(kind: str, check: Callable[[str], Judgment], text: str) -> Judgment:
    try:
        with time_limit():
            return check(text)
    except TooSlow as slow:
        return yes_or_no(kind, False, str(slow), broke_off=True)


def _text_check(spec: JudgeSpec, workspace: Workspace) -> Callable[[str], Judgment] | None:
    # Judges that need more than strings are imported when first used: importing a record must stay cheap.
    match spec:
        case Contains():
            return partial(texts.contains, spec)
        case Equals():
            return partial(texts.equals, spec)
        case Regex():
            return partial(texts.regex, spec)
        case Length():
            return partial(texts.length, spec)
        case JsonSchema():
            from judges.checks import json_schema

            return partial(json_schema.judged, json_schema.schema_of(spec, workspace))
        case Not() | AnyOf():
            parts = [_text_check(one, workspace) for one in spec.inner]
            checks = [check for check in parts if check is not None]
            return partial(_combination, spec, checks) if len(checks) == len(parts) else None
        case _:
            return None


def _combination(spec: Not | AnyOf, checks: Sequence[Callable[[str], Judgment]], text: str) -> Judgment:
    """The judges of text that a judge combines have one second together."""
    if isinstance(spec, Not):
        return _turned(spec, checks[0](text))
    tried: list[Judgment] = []
    for check in checks:
        tried.append(check(text))
        if tried[-1].passed:
            break
    return _any_of(spec, tried)

"""Judge by what an attempt did, not by what it said: its tool calls, what they took, and whether the skill was read.

Where the model or its program does not tell what a check needs, it is an error that says so, never a failure.
"""

from __future__ import annotations

from collections.abc import Iterator

from judges.judgment import Completion, Judgment, Workspace, yes_or_no
from judges.spec import SkillLoaded, StepLimits, StepsCheck, ToolUse
from judges.trajectory import Trajectory


def judge(spec: StepsCheck, completion: Completion, workspace: Workspace) -> Judgment:
    """Score is the share of conditions met."""
    if workspace.passes is not None:
        return yes_or_no(spec.type, workspace.passes, "simulated: there are no steps")
    match spec:
        case ToolUse():
            held = None if workspace.trajectory is None else list(_tools(spec, workspace.trajectory))
            lacking = "the steps of this attempt"
        case StepLimits():
            held, lacking = _limits(spec, completion, workspace)
        case SkillLoaded():
            loaded = completion.skill_loaded
            held = None if loaded is None else [("the skill is loaded", "" if loaded else "it was not")]
            lacking = "whether a skill was loaded"
    if held is None:
        why = f"nobody can judge this: the model or its program does not tell {lacking}"
        return Judgment(judge=spec.type, details=why, error=why)
    complaints = [f"{what}: {why}" for what, why in held if why]
    return Judgment(
        judge=spec.type,
        passed=not complaints,
        score=(len(held) - len(complaints)) / len(held),
        details="; ".join(complaints) or f"all {len(held)} conditions met",
        matched=tuple(what for what, why in held if not why),
        missed=tuple(what for what, why in held if why),
    )


def _tools(spec: ToolUse, trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """Each condition in words, and why it is not met. A failed call is a use, but none that was asked for."""
    used = [call.name for call in trajectory.calls]
    worked = [call.name for call in trajectory.calls if not call.failed]
    for name in spec.expect:
        yield f"{name} is used", "" if name in worked else "it failed" if name in used else "it was not"
    for name in spec.forbid:
        yield f"{name} is not used", f"it was, {used.count(name)} times" if name in used else ""
    if spec.order:
        waiting = list(spec.order)
        for name in worked:
            if waiting and name == waiting[0]:
                waiting.pop(0)
        yield (
            f"used in this order: {', '.join(spec.order)}",
            f"no {waiting[0]} in its place" if waiting else "",
        )
    if spec.max_calls is not None:
        few = len(used) <= spec.max_calls
        yield f"at most {spec.max_calls} calls", "" if few else f"there were {len(used)}"


def _limits(
    spec: StepLimits, completion: Completion, workspace: Workspace
) -> tuple[list[tuple[str, str]] | None, str]:
    """Each limit in words, and why it is not kept; None, and what nobody tells, where one cannot be known."""
    tokens = (completion.input_tokens, completion.output_tokens)
    took = {
        "turns": completion.turns,
        "tokens": None if None in tokens else sum(part or 0 for part in tokens),
        "seconds": workspace.seconds,
        "usd": completion.cost_usd,
    }
    held = []
    for unit, value in took.items():
        most = getattr(spec, f"max_{unit}")
        if most is None:
            continue
        if value is None:
            return None, f"its {unit}"
        held.append((f"at most {most:g} {unit}", "" if value <= most else f"it took {value:g}"))
    return held, ""

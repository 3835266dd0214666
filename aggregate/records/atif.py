"""Trajectories as other tools know them: ATIF, Harbor's format, in version 1.8, written and read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any, Protocol

from judges.judgment import COUNT, USD, Completion
from judges.trajectory import Step, ToolCall, Trajectory

VERSION = "ATIF-v1.8"
_METRICS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "cache_read_tokens",
    "cost_usd": "cost_usd",
}
_MOST_DEPTH = 20


def document(trajectory: Trajectory, **extra: Any) -> dict[str, Any]:
    """The trajectory as ATIF; `extra` says which attempt it is. Steps of sub-agents are documents inside it."""
    notes = f"{trajectory.left_out} steps were not kept" if trajectory.left_out else None
    totals = {f"total_{name}": trajectory.sum(field) for name, field in _METRICS.items()}
    whole = {
        "final_metrics": _known({**totals, "total_steps": len(trajectory.steps)}),
        "notes": notes,
        "extra": {**extra, "ended": trajectory.ended, "stop_reason": trajectory.stop_reason},
    }
    inside = defaultdict[int | None, list[Step]](list)
    for step in trajectory.steps:
        inside[step.within].append(step)
    return _known({**_nested(trajectory, inside, None, "main"), **whole})


def _nested(
    trajectory: Trajectory,
    inside: dict[int | None, list[Step]],
    within: int | None,
    name: str,
    depth: int = 0,
) -> dict[str, Any]:
    """The steps of one agent, with those of its sub-agents, each told once: who forged them may go in a circle."""
    steps = inside.pop(within, [])
    calls = (call.number for step in steps for call in step.calls)
    helped = dict.fromkeys(number for number in calls if number in inside and depth < _MOST_DEPTH)
    inner = [_nested(trajectory, inside, number, f"call-{number}", depth + 1) for number in helped]
    return _known(
        {
            "schema_version": VERSION,
            "trajectory_id": name,
            "agent": {"name": trajectory.agent or "unknown", "version": trajectory.version or "unknown"},
            "steps": [_step(step, number, helped) for number, step in enumerate(steps, start=1)],
            "subagent_trajectories": inner or None,
        }
    )


def _step(step: Step, number: int, helped: Container[int]) -> dict[str, Any]:
    if step.source != "agent":
        return _known({"step_id": number, "source": step.source, "message": step.text, "timestamp": step.at})
    metrics = _known({name: getattr(step, field) for name, field in _METRICS.items()})
    more = {name: getattr(step, name) for name in ("cache_write_tokens", "reasoning_tokens")}
    if more := _known(more):
        metrics["extra"] = more
    results = [
        _result(call, helped) for call in step.calls if call.result is not None or call.number in helped
    ]
    return _known(
        {
            "step_id": number,
            "source": "agent",
            "message": step.text,
            "timestamp": step.at,
            "model_name": step.model,
            "reasoning_content": step.reasoning or None,
            "tool_calls": [
                {
                    "tool_call_id": f"call-{call.number}",
                    "function_name": call.name,
                    "arguments": call.arguments,
                }
                for call in step.calls
            ]
            or None,
            "observation": {"results": results} if results else None,
            "metrics": metrics or None,
            "extra": {"stop_reason": step.stop_reason} if step.stop_reason else None,
        }
    )


def _result(call: ToolCall, helped: Container[int]) -> dict[str, Any]:
    name = f"call-{call.number}"
    return _known(
        {
            "source_call_id": name,
            "content": call.result,
            "subagent_trajectory_ref": [{"trajectory_id": name}] if call.number in helped else None,
            "extra": {"failed": True} if call.failed else None,
        }
    )


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


class Noting(Protocol):
    """Where steps are noted: a worker's trace of an attempt."""

    agent: str
    version: str | None
    observed: bool

    def step(
        self, source: str, text: str = "", *, key: str | None = None, parent: str | None = None, **facts: Any
    ) -> Any: ...

    def say(self, step: Any, text: str, name: str = "text") -> None: ...

    def call(self, step: Any, key: str, name: str, arguments: Any, parent: str | None = None) -> None: ...

    def result(self, key: str, text: str, *, failed: bool, parent: str | None = None) -> None: ...

    def spent(self, step: Any, used: Completion) -> None: ...


def note(told: Any, trace: Noting, parent: str | None = None, depth: int = 0) -> None:
    """Note the steps of an ATIF document that a program left, of any version; what makes no sense is passed over."""
    if not isinstance(told, dict) or not str(told.get("schema_version")).startswith("ATIF-v1."):
        raise ValueError("no ATIF document of version 1")
    trace.observed = True
    subagents = {str(one.get("trajectory_id")): one for one in _mappings(told.get("subagent_trajectories"))}
    for step in _mappings(told.get("steps")):
        source = step.get("source")
        if source not in ("system", "user", "agent") or step.get("is_copied_context"):
            continue
        facts: dict[str, Any] = {"at": at} if (at := _time(step.get("timestamp"))) else {}
        if source == "agent":
            facts["model"] = _text(step.get("model_name"), 80) or None
        made = trace.step(source, _text(step.get("message")), parent=parent, **facts)
        if source != "agent":
            continue
        if reasoning := _text(step.get("reasoning_content")):
            trace.say(made, reasoning, "reasoning")
        for call in _mappings(step.get("tool_calls")):
            name, key = str(call.get("function_name")), str(call.get("tool_call_id"))
            trace.call(made, key, name, call.get("arguments"), parent)
        _note_spending(step.get("metrics"), made, trace)
        for result in _mappings(_mapping(step.get("observation")).get("results")):
            key = str(result.get("source_call_id"))
            for ref in _mappings(result.get("subagent_trajectory_ref")):
                inner = subagents.pop(str(ref.get("trajectory_id")), None)
                if inner is not None and depth < _MOST_DEPTH:
                    note(inner, trace, key, depth + 1)
            failed = bool(_mapping(result.get("extra")).get("failed"))
            trace.result(key, _text(result.get("content")), failed=failed, parent=parent)


def _note_spending(metrics: Any, made: Any, trace: Noting) -> None:
    told = _mapping(metrics)
    used: dict[str, Any] = {field: told.get(name) for name, field in _METRICS.items()}
    used["reasoning_tokens"] = _mapping(told.get("extra")).get("reasoning_tokens")
    numbers: dict[str, Any] = {
        name: value for name, value in used.items() if type(value) is int and value in COUNT
    }
    cost = used["cost_usd"]
    if type(cost) in (int, float) and cost in USD:
        numbers["cost_usd"] = cost
    if numbers:
        trace.spent(made, Completion(**numbers))


def _text(content: Any, longest: int | None = None) -> str:
    """A message as text; of images and the like, only what they are."""
    parts = content if isinstance(content, list) else [content]
    texts = [_part(part) for part in parts if part is not None]
    return "\n".join(texts)[:longest]


def _part(part: Any) -> str:
    if isinstance(part, dict):
        return str(part["text"]) if "text" in part else f"({part.get('type')})"
    return part if isinstance(part, str) else json.dumps(part)


def _time(text: Any) -> str | None:
    try:
        return datetime.fromisoformat(text).isoformat() if isinstance(text, str) else None
    except ValueError:
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []

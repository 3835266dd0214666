"""Speedups of a run's benchmark tasks, per arm and model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aggregate.rows import Measured
from aggregate.speedup import summarize_speedups, task_payload
from aggregate.stats import mean_known

_MEANS = (
    "agent_advantage",
    "agent_advantage_level1",
    "agent_advantage_level2",
    "agent_advantage_level3",
    "agent_advantage_level4",
    "task_speedup",
    "success",
    "trajectory_length",
)
_SUMS = ("num_benchmarks", "num_valid_benchmarks")


def block(measured: Iterable[Measured], arms: Iterable[str]) -> dict[str, Any] | None:
    """Speedups by arm, then model, with each attempt's payload under its task; None without benchmarks."""
    wanted = set(arms)
    grouped: dict[str, dict[str, dict[str, list[Measured]]]] = {}
    for one in measured:
        if one.arm in wanted:
            by_task = grouped.setdefault(one.arm, {}).setdefault(one.model, {})
            by_task.setdefault(one.task, []).append(one)
    return {
        arm: {model: _summary(tasks) for model, tasks in sorted(models.items())}
        for arm, models in sorted(grouped.items())
    } or None


def mean_advantage(speedups: dict[str, Any] | None, arm: str) -> float | None:
    """The arm's advantage over the oracle, mean over its models; None when the suite has no benchmarks."""
    if speedups is None or arm not in speedups:
        return None
    return mean_known(summary["agent_advantage"] for summary in speedups[arm].values())


def _summary(tasks: dict[str, list[Measured]]) -> dict[str, Any]:
    payloads = {task: [_payload(one) for one in attempts] for task, attempts in sorted(tasks.items())}
    joined = [_task(payloads[task], tasks[task]) for task in sorted(tasks)]
    return {**summarize_speedups(joined), "tasks": payloads}


def _payload(one: Measured) -> dict[str, Any]:
    payload = task_payload(
        one.benchmarks, one.tests, one.snapshot, one.cost_usd, one.turns, timed_out=one.timed_out
    )
    return {"attempt": one.attempt, "passed": one.passed, **payload}


def _task(payloads: Sequence[dict[str, Any]], attempts: Sequence[Measured]) -> dict[str, Any]:
    """One task over its attempts: means of ratios, sums of what was measured and paid."""
    costs = [payload["task_cost_usd"] for payload in payloads if payload["task_cost_usd"] is not None]
    return {
        **{name: mean_known(payload[name] for payload in payloads) for name in _MEANS},
        **{name: sum(payload[name] for payload in payloads) for name in _SUMS},
        "task_cost_usd": sum(costs) if costs else None,
        "attempts": len(attempts),
        "passes": sum(one.passed for one in attempts),
    }

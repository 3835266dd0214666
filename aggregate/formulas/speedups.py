"""How much faster a candidate's code runs than the original, and than an expert's, from benchmark medians."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aggregate.formulas.rates import cost_weighted_advantage, mean_known, pass_at_k
from judges.judgment import BenchmarkTimes, Snapshot, Tests

LEVELS = (1, 2, 3, 4)
ADVANTAGES = ("agent_advantage", *map("agent_advantage_level{}".format, LEVELS))


def compute_advantage(
    benchmarks: Iterable[BenchmarkTimes | Mapping[str, Any]], failed: bool
) -> dict[str, Any]:
    """Speedups of one task and their lead over the oracle's at four levels; NaN where there is no oracle.

    A failed candidate is treated as if it had changed nothing: every agent speedup becomes 1.
    """
    read = [_benchmark(benchmark) for benchmark in benchmarks]
    # An oracle belongs to the task. Where it exists, a benchmark that it did not finish is invalid.
    oracle_exists = any(benchmark.oracle_median is not None for benchmark in read)
    rows = [_ratios(benchmark, failed, oracle_exists) for benchmark in read]
    valid = [row for row in rows if row["valid"]]
    levels = {
        f"agent_advantage_level{level}": _level_advantage(valid, level) if oracle_exists else math.nan
        for level in LEVELS
    }
    return {
        "agent_advantage": levels["agent_advantage_level4"],
        **levels,
        "task_speedup": _geometric_mean([row["agent_speedup"] for row in valid]) if valid else 1.0,
        "num_benchmarks": len(rows),
        "num_valid_benchmarks": len(valid),
        "fallback_to_baseline": failed,
        "per_benchmark_speedups": rows,
    }


def _benchmark(benchmark: BenchmarkTimes | Mapping[str, Any]) -> BenchmarkTimes:
    """Records from elsewhere may hold NaN or infinite medians: those were not measured."""
    if isinstance(benchmark, BenchmarkTimes):
        return benchmark
    medians = {name: benchmark.get(name) for name in ("nop_median", "agent_median", "oracle_median")}
    return BenchmarkTimes.model_construct(name=str(benchmark["name"]), **medians)


def _ratios(benchmark: BenchmarkTimes, failed: bool, oracle_exists: bool) -> dict[str, Any]:
    agent = 1.0 if failed else _ratio(benchmark.nop_median, benchmark.agent_median)
    oracle = _ratio(benchmark.nop_median, benchmark.oracle_median)
    return {
        "name": benchmark.name,
        "agent_speedup": agent,
        "oracle_speedup": oracle,
        "advantage": agent - oracle,
        "valid": not math.isnan(agent) and (not oracle_exists or not math.isnan(oracle)),
    }


def _ratio(before: float | None, after: float | None) -> float:
    """before / after, or NaN unless both are times and the ratio is a finite number above 0."""
    if before is None or after is None or not 0 < before < math.inf or not 0 < after < math.inf:
        return math.nan
    ratio = float(before) / float(after)
    return ratio if 0 < ratio < math.inf else math.nan


def _level_advantage(valid: Sequence[Mapping[str, Any]], level: int) -> float:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in valid:
        groups.setdefault(group_name(row["name"], level), []).append(row)
    return mean_known(
        _geometric_mean([row["agent_speedup"] for row in rows])
        - _geometric_mean([row["oracle_speedup"] for row in rows])
        for rows in groups.values()
    )


def group_name(name: str, level: int) -> str:
    """The group of a benchmark `module.Class.function(params)`: 1 module, 2 class, 3 function, 4 all.

    A class is the second-last of at least three parts if it starts upper-case; a function outside any class
    is grouped with its module's other such functions at level 2.
    """
    parts = name.split("(", 1)[0].strip().split(".")
    has_class = len(parts) >= 3 and parts[-2][:1].isupper()
    match level:
        case 1:
            return ".".join(parts[:-2] if has_class else parts[:-1])
        case 2:
            return ".".join(parts[:-1])
        case 3:
            return ".".join(parts)
        case 4:
            return ""
    raise ValueError(f"level: {level} is not one of 1, 2, 3, 4")


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def task_payload(
    benchmarks: Iterable[BenchmarkTimes | Mapping[str, Any]],
    tests: Tests | None = None,
    snapshot: Snapshot | None = None,
    cost_usd: float | None = None,
    turns: float | None = None,
    *,
    timed_out: bool = False,
) -> dict[str, Any]:
    """All that is kept of one benchmark task: speedups, test and snapshot summaries, success.

    A snapshot was declared if there is one; one whose status is not "passed" failed, also when it is missing.
    A time-out failed, too.
    """
    pytest_failed = tests is not None and tests.failed + tests.errored > tests.oracle_failed
    snapshot_failed = snapshot is not None and (snapshot.status != "passed" or snapshot.pass_to_fail > 0)
    failed = pytest_failed or snapshot_failed or timed_out
    return {
        **compute_advantage(benchmarks, failed),
        "pytest_summary": tests.model_dump() if tests is not None else None,
        "snapshot_summary": snapshot.model_dump() if snapshot is not None else None,
        "pytest_failed": pytest_failed,
        "snapshot_failed": snapshot_failed,
        "success": not failed,
        "task_cost_usd": cost_usd,
        "trajectory_length": turns,
    }


def summarize_speedups(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One arm and model over its tasks: arithmetic means of task payloads, sums of benchmark counts.

    Optional keys of a payload: `task_cost_usd` and `trajectory_length`; `passes` with `attempts` for accuracy
    and pass@k. What no task knows is NaN.
    """
    means = {name: _mean_of(tasks, name) for name in ADVANTAGES}
    mean_cost = _mean_of(tasks, "task_cost_usd")
    return {
        "n": len(tasks),
        "mean_speedup": _mean_of(tasks, "task_speedup"),
        "mean_success_rate": _mean_of(tasks, "success"),
        **means,
        "num_benchmarks": sum(task.get("num_benchmarks", 0) for task in tasks),
        "num_valid_benchmarks": sum(task.get("num_valid_benchmarks", 0) for task in tasks),
        "mean_cost_per_task": mean_cost,
        "cost_weighted_advantage": cost_weighted_advantage(means["agent_advantage"], mean_cost),
        "mean_trajectory_length": _mean_of(tasks, "trajectory_length"),
        **_passes(tasks),
    }


def _passes(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = [(task["attempts"], task["passes"]) for task in tasks if task.get("attempts")]
    most = max((attempts for attempts, _ in counted), default=0)
    return {
        "accuracy": mean_known(float(passes > 0) for _, passes in counted),
        "pass_at_k": {k: mean_known(pass_at_k(n, c, k) for n, c in counted) for k in range(1, most + 1)},
    }


def _mean_of(tasks: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean_known(task.get(name) for task in tasks)

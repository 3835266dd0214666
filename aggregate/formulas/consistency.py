"""How much a task's result changes when only chance does: spread over repeated attempts, and flaky tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

FLAKY_RANGE = 20.0
_TOLERANCE = 1e-9


def compute_consistency(mean: float, std: float) -> float:
    """1 minus the coefficient of variation, clamped to 0..1; `std` is the sample standard deviation.

    NaN when either is missing (fewer than two values have no std) and when the mean is not above 0.
    """
    mean, std = float(mean), float(std)
    if not (math.isfinite(mean) and math.isfinite(std)) or mean <= 0 or std < 0:
        return math.nan
    return min(1.0, max(0.0, 1 - std / mean))


def compute_consistency_metrics(results: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Spread of repeated attempts of one arm, from `{task, accuracy (0..100), matched, missed}` per attempt.

    None unless some task has two judged attempts; an attempt without a finite accuracy was not judged.
    """
    attempts: dict[str, tuple[list[float], list[Iterable[str]]]] = {}
    with_concepts: set[str] = set()
    for result in results:
        accuracy: Any = result.get("accuracy")
        if isinstance(accuracy, Real) and math.isfinite(accuracy):
            accuracies, matched = attempts.setdefault(str(result["task"]), ([], []))
            accuracies.append(float(accuracy))
            matched.append(result.get("matched") or ())
            if result.get("missed"):
                with_concepts.add(str(result["task"]))
    spreads = {}
    for task, (accuracies, matched) in attempts.items():
        if len(accuracies) >= 2:
            std, spread = statistics.pstdev(accuracies), max(accuracies) - min(accuracies)
            overlap = concept_overlap(matched, has_concepts=task in with_concepts)
            spreads[task] = spread_of(len(accuracies), std, spread, overlap)
    found = consistency_of(spreads)
    if found is not None:
        flaky = {task: found["tasks"][task] for task in found["flaky_tasks"]}
        found["warnings"] = [f"{task}: {flaky_text(one['range'], one['n'])}" for task, one in flaky.items()]
    return found


def consistency_of(spreads: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The means over tasks that were repeated, and which of them are flaky, from the `spread_of` each."""
    if not spreads:
        return None
    tasks = dict(sorted(spreads.items()))
    mean_std = _mean([spread["std"] for spread in tasks.values()])
    return {
        "accuracy_std_dev": mean_std,
        "accuracy_range": _mean([spread["range"] for spread in tasks.values()]),
        "consistency_score": min(100.0, max(0.0, 100 - 3 * mean_std)),
        "concept_overlap": _mean(
            [one["concept_overlap"] for one in tasks.values() if not math.isnan(one["concept_overlap"])]
        ),
        "flaky_tasks": [task for task, spread in tasks.items() if spread["flaky"]],
        "flaky_sigma": {task: spread["sigma"] for task, spread in tasks.items()},
        "flaky_by_sigma": [task for task, spread in tasks.items() if spread["flaky_by_sigma"]],
        "unseen_bound": {task: s["unseen_bound"] for task, s in tasks.items() if s["range"] == 0},
        "tasks": tasks,
        "n": len(tasks),
    }


def spread_of(attempts: int, std: float, spread: float, overlap: float) -> dict[str, Any]:
    """What repeated attempts of one task say: their number, population standard deviation, range and overlap."""
    sigma = spread / d2(attempts)
    return {
        "n": attempts,
        "std": std if spread else 0.0,  # rounding must not look like variation
        "range": spread,
        "sigma": sigma,
        "flaky": spread > FLAKY_RANGE + _TOLERANCE,
        # The same line that two attempts are held to, so that more attempts do not make a task look flakier.
        "flaky_by_sigma": sigma > FLAKY_RANGE / d2(2) + _TOLERANCE,
        "unseen_bound": math.nan if spread else unseen_bound(attempts),
        "concept_overlap": overlap,
    }


def concept_overlap(matched: Sequence[Iterable[str]], *, has_concepts: bool = False) -> float:
    """Percentage of the items matched in any attempt that were matched in all.

    Where none ever was, 100 for a task that `has_concepts` to be matched, and NaN for one that has none.
    """
    sets = [set(items) for items in matched]
    union = set().union(*sets)
    if not union:
        return 100.0 if has_concepts else math.nan
    return 100.0 * len(union.intersection(*sets)) / len(union)


@lru_cache(maxsize=256)
def unseen_bound(attempts: int) -> float:
    """Largest chance of another outcome that `attempts` equal ones leave open at 95 %.

    1 - 0.05 ** (1 / k): Clopper & Pearson, Biometrika 26 (1934) 404, with no event seen.
    """
    if attempts < 1:
        return math.nan
    return float(-math.expm1(math.log(0.05) / attempts))


def flaky_text(spread: float, attempts: int) -> str:
    """The words of a flaky warning: "range 35 points over 5 attempts"."""
    return f"range {round(spread, 1):g} points over {attempts} attempts"


@lru_cache(maxsize=256)
def d2(attempts: int) -> float:
    """Expected range of that many standard normal values (Tippett, Biometrika 17 (1925) 364); NaN below 2.

    Integral of 1 - F^k - (1 - F)^k; the trapezoid rule is exact to rounding on so smooth a function.
    """
    if attempts < 2:
        return math.nan
    step = 0.05
    total = 0.0
    for i in range(-240, 241):
        below = 0.5 * math.erfc(-i * step / math.sqrt(2))
        above = 0.5 * math.erfc(i * step / math.sqrt(2))
        total += 1 - below**attempts - above**attempts
    return total * step


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan

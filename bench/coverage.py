"""How often the two intervals hold the true difference, and what early stopping costs and saves.

    python -m bench.coverage                 every setting, seeded: a few minutes on two cores
    python -m bench.coverage --draws 200     a rough look

Whether an interval holds the truth is read off the distribution function at the truth, which is much cheaper
than inverting it; in every setting some draws are also put through the public functions, which must agree.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from scipy.special import stdtrit

from aggregate import intervals
from aggregate.stats import delta_interval, fixed_suite_interval
from bench import early_stopping
from bench.simulated_tasks import KINDS, Array, Setting, rates

TASKS = (5, 7, 10, 15, 19, 20, 30, 50, 100)
ATTEMPTS = (1, 2, 3, 5, 10)
BASE_RATES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
EFFECTS = (0.0, 0.2)
TAIL = 0.025
CHECKED = 3  # draws per setting that are put through the public functions
LOWEST, MEAN = 0.90, 0.95


def t_bounds(values: Array) -> tuple[Array, Array]:
    mean, count = values.mean(axis=1), values.shape[1]
    half = stdtrit(count - 1, 1 - TAIL) * values.std(axis=1, ddof=1) / np.sqrt(count)
    return mean - half, mean + half


def beta_side(candidate: Array, baseline: Array, total: int, truth: float) -> tuple[Array, Array]:
    """Whether the fixed-suite interval's low end is at or below the truth, and its high end at or above."""
    pairs, where = np.unique(np.stack([candidate, baseline], axis=1), axis=0, return_inverse=True)
    below = np.array([_probability(c, b, total, truth) for c, b in pairs])[where.ravel()]
    estimate = (candidate - baseline) / total
    return (below >= TAIL) | (estimate <= truth), (below <= 1 - TAIL) | (estimate >= truth)


def _probability(candidate: float, baseline: float, total: int, truth: float) -> float:
    """P(difference of the two posteriors <= truth), integrated over the narrower one."""
    one = (0.5 + candidate, 0.5 + total - candidate)
    other = (0.5 + baseline, 0.5 + total - baseline)
    if one[0] * one[1] < other[0] * other[1]:
        return 1 - intervals._difference_cdf(-truth, *other, *one)
    return intervals._difference_cdf(truth, *one, *other)


def population_coverage(setting: Setting, draws: int) -> float:
    """Share of draws, of new tasks each time, in which delta_interval holds the mean over all such tasks."""
    rng = setting.generator()
    candidate_rates, baseline_rates = rates(setting, draws, rng)
    candidate = rng.binomial(setting.attempts, candidate_rates)
    baseline = rng.binomial(setting.attempts, baseline_rates)
    differences = (candidate - baseline) / setting.attempts
    truth = setting.truth
    estimate = differences.mean(axis=1)
    if setting.tasks < intervals.FEW_TASKS:
        low, high = t_bounds(differences)
        total = setting.tasks * setting.attempts
        beta_low, beta_high = beta_side(candidate.sum(axis=1), baseline.sum(axis=1), total, truth)
        held = ((low <= truth) | beta_low) & ((high >= truth) | beta_high)
    else:
        pseudo = np.full((draws, 1), 1 / np.sqrt(setting.attempts))
        low, high = t_bounds(np.hstack([differences, pseudo, -pseudo]))
        held = (np.minimum(low, estimate) <= truth) & (np.maximum(high, estimate) >= truth)
    _agree(delta_interval, setting, candidate, baseline, held, truth)
    return float(held.mean())


def suite_coverage(setting: Setting, draws: int) -> float:
    """Share of repeats of one suite in which fixed_suite_interval holds that suite's own difference."""
    rng = setting.generator()
    candidate_rates, baseline_rates = rates(setting, 1, rng)
    truth = float((candidate_rates - baseline_rates).mean())
    shape = (draws, setting.tasks)
    candidate = rng.binomial(setting.attempts, candidate_rates, shape)
    baseline = rng.binomial(setting.attempts, baseline_rates, shape)
    total = setting.tasks * setting.attempts
    low, high = beta_side(candidate.sum(axis=1), baseline.sum(axis=1), total, truth)
    _agree(fixed_suite_interval, setting, candidate, baseline, low & high, truth)
    return float((low & high).mean())


def _agree(public, setting: Setting, candidate: Array, baseline: Array, held: Array, truth: float) -> None:
    attempts = [setting.attempts] * setting.tasks
    for draw in range(min(CHECKED, len(held))):
        interval = public(candidate[draw], attempts, baseline[draw], attempts)
        near = min(abs(interval.low - truth), abs(interval.high - truth)) < 1e-9
        if not near and (interval.low <= truth <= interval.high) != held[draw]:
            raise SystemExit(f"{public.__name__} disagrees with the simulation in {setting}, draw {draw}")


def both(draws: int, setting: Setting) -> tuple[float, float]:
    return population_coverage(setting, draws), suite_coverage(setting, draws)


def settings() -> list[Setting]:
    return [Setting(*numbers) for numbers in itertools.product(TASKS, ATTEMPTS, BASE_RATES, EFFECTS, KINDS)]


def table(title: str, kind: Sequence[str], found: dict[Setting, float]) -> None:
    """Print lowest / mean coverage by tasks and attempts, over base rates and effects."""
    print(f"\n{title}\n")
    print("| tasks | " + " | ".join(f"k = {k}" for k in ATTEMPTS) + " |")
    print("|---|" + "---|" * len(ATTEMPTS))
    chosen = {setting: value for setting, value in found.items() if setting.kind in kind}
    for tasks in TASKS:
        cells = []
        for attempts in ATTEMPTS:
            values = [v for s, v in chosen.items() if (s.tasks, s.attempts) == (tasks, attempts)]
            cells.append(f"{min(values):.3f} / {np.mean(values):.3f}")
        print(f"| {tasks} | " + " | ".join(cells) + " |")
    lowest = min(chosen, key=lambda setting: chosen[setting])
    short = sum(value < LOWEST for value in chosen.values())
    mean = float(np.mean(list(chosen.values())))
    print(
        f"\nOver {len(chosen)} settings: lowest {chosen[lowest]:.3f} ({lowest.tasks} tasks, k = {lowest.attempts}, "
        f"base rate {lowest.base}, effect {lowest.truth:+}, {lowest.kind}), mean {mean:.3f}, {short} below "
        f"{LOWEST:.2f}. Bar (never below {LOWEST:.2f}, mean at least {MEAN:.2f}): "
        + ("kept." if not short and mean >= MEAN else "MISSED.")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="simulated runs per setting")
    options = parser.parse_args()
    started = time.perf_counter()
    everything = settings()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(partial(both, options.draws), everything, chunksize=10))
        stopping = early_stopping.simulate(pool, options.draws)
    population = {s: result[0] for s, result in zip(everything, results, strict=True)}
    suite = {s: result[1] for s, result in zip(everything, results, strict=True)}
    print(f"Each cell: lowest / mean coverage of 95 % intervals, {options.draws} draws per setting.")
    table("Tasks like these (delta_interval), alike and varied tasks", ("alike", "varied"), population)
    table("Tasks like these (delta_interval), all-or-nothing effects", ("all-or-nothing",), population)
    table("Exactly this suite (fixed_suite_interval), all three kinds", KINDS, suite)
    print()
    early_stopping.show(stopping)
    print(f"\n{time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()

"""How often the two intervals hold the true difference, and what early stopping costs and saves.

    python -m bench.coverage                 every setting, seeded: a few minutes on two cores
    python -m bench.coverage --draws 200     a rough look

Whether an interval holds the truth is read off the distribution function at the truth, which is much cheaper
than inverting it; in every setting some draws are also put through the public functions, which must agree.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from aggregate.formulas import intervals
from aggregate.formulas.verdict import MARGIN
from bench import early_stopping
from bench.simulated_tasks import POPULATIONS, Array, Bits, Population, Setting, of_kind, shares_below

TASKS = (5, 7, 10, 15, 20, 30, 43, 50, 100)  # 43: the fewest at which nothing but ties shows no_worse
ATTEMPTS = (1, 2, 3, 5, 10)
LEVELS = (0.95, 0.99, 0.995)
SEVERAL_MODELS = ((10, 3), (10, 5), (40, 3), (40, 5))  # tasks, models
SHARED_KINDS = ("varied", "all-or-nothing", "skewed", "bimodal")
SUITE_KINDS = ("alike", "varied", "all-or-nothing")
SUITE_RATES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
CHECKED = 3  # draws per setting that are put through the public functions, and whose width is told
AGAIN = 10  # times the draws for a cell near a bar: chance alone is not to decide
FEWEST = 10  # tasks from which on the bars count


@dataclass(frozen=True)
class Found:
    """Of the simulated runs in one setting, the shares: by level, an interval that holds the truth, and so on.

    A false `improved` needs a truth of 0 or less, a false `no_worse` one of -MARGIN or less: NaN elsewhere.
    """

    setting: Setting
    holds: tuple[float, ...]
    improved: tuple[float, ...]
    no_worse: tuple[float, ...]
    width: float


def task_coverage(draws: int, setting: Setting, *, cells: bool = False) -> Found:
    """The interval for tasks like these, of new tasks in every draw; `cells` takes every model's result for a task."""
    candidate, baseline = setting.passes(draws, setting.generator())
    gained = candidate - baseline
    steps, most = gained.sum(axis=2), setting.attempts * setting.models
    if cells:
        steps, most = gained.reshape(draws, -1), setting.attempts
    population = setting.population
    at_truth, at_zero, at_margin = shares_below((population.truth, 0.0, -MARGIN), steps, most)
    estimate = steps.mean(axis=1) / most
    by_level = []
    for level in LEVELS:
        tail = (1 - level) / 2
        holds = (at_truth >= tail) | (estimate <= population.truth)
        holds &= (at_truth <= 1 - tail) | (estimate >= population.truth)
        by_level.append((holds, (at_zero < tail) & (estimate > 0), (at_margin < tail) & (estimate > -MARGIN)))
    width = _checked(setting, steps / most, *by_level[0])
    holds, improved, no_worse = (
        [float(bits.mean()) for bits in kind] for kind in zip(*by_level, strict=True)
    )
    nothing = [math.nan] * len(LEVELS)
    return Found(
        setting,
        tuple(holds),
        tuple(improved if population.truth <= 0 else nothing),
        tuple(no_worse if population.truth <= -MARGIN else nothing),
        width,
    )


def near_a_bar(found: Found) -> bool:
    return found.setting.tasks >= FEWEST and (
        found.holds[0] < 0.90 or found.improved[0] > 0.04 or found.no_worse[0] > 0.10
    )


def _checked(setting: Setting, differences: Array, holds: Bits, improved: Bits, no_worse: Bits) -> float:
    """Compare with the public function, which must agree, and return the mean width of what it gave."""
    truth, widths = setting.population.truth, []
    for draw in range(min(CHECKED, len(differences))):
        found = intervals.differences_interval(differences[draw])
        widths.append(found.high - found.low)
        near = min(abs(end - mark) for end in (found.low, found.high) for mark in (truth, 0, -MARGIN)) < 1e-9
        public = (found.low <= truth <= found.high, found.low > 0, found.low > -MARGIN)
        if not near and public != (holds[draw], improved[draw], no_worse[draw]):
            raise SystemExit(f"differences_interval disagrees with the simulation in {setting}, draw {draw}")
    return float(np.mean(widths))


def suite_coverage(draws: int, setting: Setting) -> float:
    """Share of repeats of one suite in which fixed_suite_interval holds that suite's own difference."""
    rng = setting.generator()
    candidate_rates, baseline_rates = setting.population.rates((setting.tasks,), rng)
    truth = float((candidate_rates - baseline_rates).mean())
    shape = (draws, setting.tasks)
    candidate = rng.binomial(setting.attempts, candidate_rates, shape)
    baseline = rng.binomial(setting.attempts, baseline_rates, shape)
    total = setting.tasks * setting.attempts
    held = _suite_holds(candidate.sum(axis=1), baseline.sum(axis=1), total, truth)
    attempts = [setting.attempts] * setting.tasks
    for draw in range(min(CHECKED, draws)):
        found = intervals.fixed_suite_interval(candidate[draw], attempts, baseline[draw], attempts)
        near = min(abs(found.low - truth), abs(found.high - truth)) < 1e-9
        if not near and (found.low <= truth <= found.high) != held[draw]:
            raise SystemExit(f"fixed_suite_interval disagrees with the simulation in {setting}, draw {draw}")
    return float(held.mean())


def _suite_holds(candidate: Array, baseline: Array, total: int, truth: float) -> Bits:
    pairs, where = np.unique(np.stack([candidate, baseline], axis=1), axis=0, return_inverse=True)
    below = np.array([_probability(c, b, total, truth) for c, b in pairs])[where.ravel()]
    estimate = (candidate - baseline) / total
    tail = (1 - LEVELS[0]) / 2
    return ((below >= tail) | (estimate <= truth)) & ((below <= 1 - tail) | (estimate >= truth))


def _probability(candidate: float, baseline: float, total: int, truth: float) -> float:
    """P(difference of the two posteriors <= truth), integrated over the narrower one."""
    one = (0.5 + candidate, 0.5 + total - candidate)
    other = (0.5 + baseline, 0.5 + total - baseline)
    if one[0] * one[1] < other[0] * other[1]:
        return 1 - intervals.difference_cdf(-truth, *other, *one)
    return intervals.difference_cdf(truth, *one, *other)


def settings(populations: Iterable[Population]) -> list[Setting]:
    return [Setting(*numbers) for numbers in itertools.product(populations, TASKS, ATTEMPTS)]


def show_grid(title: str, cells: Sequence[tuple[Setting, float]]) -> None:
    """Print lowest / mean of a share by tasks and attempts, over the populations."""
    print(f"\n**{title}**\n")
    print("| tasks | " + " | ".join(f"k = {k}" for k in ATTEMPTS) + " |")
    print("|---|" + "---|" * len(ATTEMPTS))
    for tasks in TASKS:
        columns = []
        for attempts in ATTEMPTS:
            values = [share for s, share in cells if (s.tasks, s.attempts) == (tasks, attempts)]
            columns.append(f"{min(values):.3f} / {np.mean(values):.3f}")
        print(f"| {tasks} | " + " | ".join(columns) + " |")


def show_kinds(found: Sequence[Found]) -> None:
    print(f"\n**By kind of population, from {FEWEST} tasks on**\n")
    print("| kind | populations | lowest | mean | false `improved` | false `no_worse` | mean width |")
    print("|---|---|---|---|---|---|---|")
    for kind in dict.fromkeys(one.setting.population.kind for one in found):
        rows = [one for one in found if one.setting.population.kind == kind]
        holds = [one.holds[0] for one in rows]
        print(
            f"| {kind} | {len({one.setting.population for one in rows})} | {min(holds):.3f} | {np.mean(holds):.3f} "
            f"| {_largest(one.improved[0] for one in rows)} | {_largest(one.no_worse[0] for one in rows)} "
            f"| {np.mean([one.width for one in rows]):.3f} |"
        )


def _largest(shares: Iterable[float]) -> str:
    known = [share for share in shares if not math.isnan(share)]
    return f"at most {max(known):.1%}" if known else "-"


def show_widths(found: Sequence[Found]) -> None:
    print("\n**Mean width, over all populations and k**\n")
    print("| tasks | " + " | ".join(map(str, TASKS)) + " | all |")
    print("|---|" + "---|" * (len(TASKS) + 1))
    widths = [np.mean([one.width for one in found if one.setting.tasks == tasks]) for tasks in TASKS]
    every = np.mean([one.width for one in found])
    print("| width | " + " | ".join(f"{width:.2f}" for width in (*widths, every)) + " |")


def show_bars(found: Sequence[Found]) -> None:
    """Say of each bar whether it is kept, and name the cells that fail it."""
    print(f"\n**Bars, from {FEWEST} tasks on, at level {LEVELS[0]}**\n")
    holds = {one.setting: one.holds[0] for one in found}
    improved = {one.setting: one.improved[0] for one in found if not math.isnan(one.improved[0])}
    no_worse = {one.setting: one.no_worse[0] for one in found if not math.isnan(one.no_worse[0])}
    mean = float(np.mean(list(holds.values())))
    _bar("coverage at least 0.88 in every cell", holds, lambda share: share >= 0.88, 1.0)
    _bar("coverage at least 0.93 in 95 % of cells", holds, lambda share: share >= 0.93, 0.95)
    print(f"- mean coverage at least 0.95: {mean:.3f} over {len(holds)} cells: {_kept(mean >= 0.95)}")
    _bar("false `improved` at most 5 % in every cell", improved, lambda share: share <= 0.05, 1.0)
    _bar("false `no_worse` at most 12 % in every cell", no_worse, lambda share: share <= 0.12, 1.0)
    _bar("false `no_worse` at most 5 % in 95 % of cells", no_worse, lambda share: share <= 0.05, 0.95)


def _bar(what: str, cells: dict[Setting, float], good: Callable[[float], bool], wanted: float) -> None:
    bad = {setting: share for setting, share in cells.items() if not good(share)}
    kept = 1 - len(bad) / len(cells)
    extremes = f"{min(cells.values()):.3f} to {max(cells.values()):.3f}"
    kinds = Counter(setting.population.kind for setting in bad)
    others = (
        " (the others: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + ")" if bad else ""
    )
    print(f"- {what}: {len(cells) - len(bad)} of {len(cells)}{others}, {extremes}: {_kept(kept >= wanted)}")
    if kept < wanted:
        for setting, share in bad.items():
            print(f"    - {share:.3f}: {setting}")


def _kept(kept: bool) -> str:
    return "kept" if kept else "MISSED"


def show_levels(found: Sequence[Found]) -> None:
    print(f"\n**Levels, the same draws, from {FEWEST} tasks on**\n")
    print("| level | lowest | mean | cells that hold it less 0.02 | false `improved`, mean | largest |")
    print("|---|---|---|---|---|---|")
    for number, level in enumerate(LEVELS):
        holds = np.array([one.holds[number] for one in found])
        improved = [one.improved[number] for one in found if not math.isnan(one.improved[number])]
        print(
            f"| {level} | {holds.min():.3f} | {holds.mean():.3f} | {(holds >= level - 0.02).mean():.1%} "
            f"| {np.mean(improved):.2%} | {max(improved):.1%} |"
        )


def show_models(averaged: Sequence[Found], cells: Sequence[Found]) -> None:
    print("\n**Several models per task, k = 3, effects shared by the models: lowest / mean coverage**\n")
    print("| unit | " + " | ".join(f"{tasks} × {models}" for tasks, models in SEVERAL_MODELS) + " |")
    print("|---|" + "---|" * len(SEVERAL_MODELS))
    for unit, found in (
        ("the task, its models averaged", averaged),
        ("every model's result (not used)", cells),
    ):
        columns = []
        for tasks, models in SEVERAL_MODELS:
            size = [one for one in found if (one.setting.tasks, one.setting.models) == (tasks, models)]
            holds = [one.holds[0] for one in size]
            columns.append(f"{min(holds):.3f} / {np.mean(holds):.3f}")
        print(f"| {unit} | " + " | ".join(columns) + " |")
    print(
        "\nFalse `improved` with the task as the unit: " + _largest(one.improved[0] for one in averaged) + "."
    )


def show_suite(cells: Sequence[tuple[Setting, float]]) -> None:
    show_grid("Exactly this suite (fixed_suite_interval)", cells)
    lowest, share = min(cells, key=lambda cell: cell[1])
    mean = float(np.mean([share for _, share in cells]))
    print(
        f"\nOver {len(cells)} cells: lowest {share:.3f} ({lowest}), mean {mean:.3f}. "
        f"Bar (never below 0.90, mean at least 0.95): {_kept(share >= 0.90 and mean >= 0.95)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="simulated runs per setting")
    draws = parser.parse_args().draws
    started = time.monotonic()
    single = settings(POPULATIONS)
    shared = [
        Setting(population, tasks, 3, models)
        for population in POPULATIONS
        for tasks, models in SEVERAL_MODELS
        if population.kind in SHARED_KINDS
    ]
    suites = settings(of_kind(*what) for what in itertools.product(SUITE_KINDS, SUITE_RATES, (0.0, 0.2)))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(partial(task_coverage, draws), single, chunksize=10))
        near = [one.setting for one in found if near_a_bar(one)]
        again = {one.setting: one for one in pool.map(partial(task_coverage, AGAIN * draws), near)}
        averaged = list(pool.map(partial(task_coverage, draws), shared, chunksize=5))
        cells = list(pool.map(partial(task_coverage, draws, cells=True), shared, chunksize=5))
        suite = list(zip(suites, pool.map(partial(suite_coverage, draws), suites, chunksize=10), strict=True))
        stopping = early_stopping.simulate(pool, draws)
    found = [again.get(one.setting, one) for one in found]
    enough = [one for one in found if one.setting.tasks >= FEWEST]
    print(
        f"{len(POPULATIONS)} populations, {draws} draws per cell ({AGAIN} times as many for the {len(again)} near a "
        "bar); each entry: lowest / mean coverage at 95 %."
    )
    show_grid("Tasks like these (delta_interval)", [(one.setting, one.holds[0]) for one in found])
    show_kinds(enough)
    show_widths(found)
    show_bars(enough)
    show_levels(enough)
    show_models(averaged, cells)
    show_suite(suite)
    print()
    early_stopping.show(stopping)
    print(f"\n{time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()

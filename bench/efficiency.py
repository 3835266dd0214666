"""How often the interval of the cost ratio holds the truth, the mean log ratio of all tasks of the kind.

    python -m bench.efficiency                 every setting, seeded: about a minute on two cores
    python -m bench.efficiency --draws 200     a rough look

Costs of attempts are log-normal, sigma 0.3 to 1, and one task in ten is tenfold: in both arms, in the candidate only,
in either arm by itself, or attempts instead of tasks are.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import stats

from aggregate.formulas.intervals import ratio_interval

TASKS = (5, 7, 10, 15, 20, 30, 40)
KINDS = ("both arms", "candidate only", "either arm", "single attempts")
SIGMAS = (0.3, 0.6, 1.0)
ATTEMPTS = (1, 3, 5, 10)
LEVELS = (0.95, 0.99)
SHARE = 0.1
BAR = 0.93


class Setting(NamedTuple):
    """A population of tasks, and a run on some of them."""

    tasks: int
    kind: str
    sigma: float
    attempts: int


def log_ratios(setting: Setting, draws: int) -> tuple[np.ndarray, float]:
    """Log ratios by draw and task, and the mean that they have in the population."""
    rng = np.random.default_rng([setting.tasks, KINDS.index(setting.kind), setting.attempts])
    tasks, attempts = (draws, setting.tasks, 1), (draws, setting.tasks, setting.attempts)
    costs = [np.exp(setting.sigma * rng.standard_normal(attempts)) for _ in range(2)]
    dear = [rng.random(attempts if setting.kind == "single attempts" else tasks) < SHARE for _ in range(2)]
    if setting.kind == "both arms":
        dear[1] = dear[0]
    if setting.kind == "candidate only":
        dear[1] = np.zeros(tasks, bool)
    candidate, baseline = (
        (cost * np.where(ten, 10, 1)).mean(axis=2) for cost, ten in zip(costs, dear, strict=True)
    )
    truth = SHARE * math.log(10) if setting.kind == "candidate only" else 0.0
    return np.log(candidate / baseline), truth


def coverage(draws: int, setting: Setting) -> dict[str, float]:
    """Share of draws whose interval holds the truth: the rule in use by level, and Student's t as it is."""
    logs, truth = log_ratios(setting, draws)
    found = {}
    for level in LEVELS:
        made = [ratio_interval(one, level) for one in logs]
        found[f"{level:g}"] = float(np.mean([one.low <= math.exp(truth) <= one.high for one in made]))
    plain = stats.ttest_1samp(logs, truth, axis=1).pvalue
    return {**found, "Student": float((plain >= 1 - LEVELS[0]).mean())}


def table(title: str, rule: str, found: dict[Setting, dict[str, float]]) -> None:
    """Print lowest / mean coverage by tasks and kind, over sigma and attempts."""
    print(f"\n**{title}**\n")
    print("| tasks | " + " | ".join(KINDS) + " |")
    print("|---|" + "---|" * len(KINDS))
    for tasks in TASKS:
        cells = []
        for kind in KINDS:
            values = [held[rule] for s, held in found.items() if (s.tasks, s.kind) == (tasks, kind)]
            cells.append(f"{min(values):.3f} / {np.mean(values):.3f}")
        print(f"| {tasks} | " + " | ".join(cells) + " |")
    values = [held[rule] for held in found.values()]
    short = sum(value < BAR for value in values)
    print(f"\nOver {len(values)} settings: lowest {min(values):.3f}, mean {np.mean(values):.3f}, ", end="")
    print(f"{short} below {BAR:.2f}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="simulated runs per setting")
    options = parser.parse_args()
    started = time.perf_counter()
    everything = [Setting(*one) for one in itertools.product(TASKS, KINDS, SIGMAS, ATTEMPTS)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        held = list(pool.map(partial(coverage, options.draws), everything, chunksize=8))
    found = dict(zip(everything, held, strict=True))
    print(
        f"`python -m bench.efficiency --draws {options.draws}`. Each cell: lowest / mean coverage, ", end=""
    )
    print(f"sigma {', '.join(map(str, SIGMAS))}, {', '.join(map(str, ATTEMPTS))} attempts.")
    table("95 % intervals of the ratio; tenfold are", "0.95", found)
    table("99 % intervals; tenfold are", "0.99", found)
    table("For comparison: Student's t without the task more, 95 %; tenfold are", "Student", found)
    print("\n| tasks that all agree | " + " | ".join(map(str, TASKS)) + " |")
    print("|---|" + "---|" * len(TASKS))
    widths = [ratio_interval(np.zeros(tasks)).high for tasks in TASKS]
    print("| factor that stays open | " + " | ".join(f"{width:.2f}" for width in widths) + " |")
    print(f"\n{time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()

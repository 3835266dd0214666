"""How often the smallest detectable difference is found: four runs in five is what it promises.

python -m bench.detectable               every setting, seeded: about a minute
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np

from aggregate.formulas.intervals import UNSEEN, share_below
from aggregate.formulas.power_and_stopping import min_detectable_effect

TASKS = (10, 15, 20, 40, 100)
ATTEMPTS = (1, 2, 3, 5, 10)
RATES = (0.15, 0.3, 0.5, 0.8, 0.9)
SPREADS = (0.0, 0.1, 0.2, 0.3)
LOWEST, HIGHEST = 0.75, 0.85


def found(tasks: int, attempts: int, rate: float, task_sd: float, effect: float, draws: int) -> float:
    """Share of runs whose interval lies above 0; NaN where no pass rates have this effect and spread."""
    numbers = (tasks, attempts, round(100 * rate), round(100 * task_sd))
    rng = np.random.default_rng(numbers)
    true = effect + task_sd * rng.choice([-1, 1], (draws, tasks))
    middle = min(max(rate, effect / 2), 1 - effect / 2)
    arms = [middle + side * true / 2 for side in (1, -1)]
    if min(arm.min() for arm in arms) < -1e-9 or max(arm.max() for arm in arms) > 1 + 1e-9:
        return math.nan
    passes = [rng.binomial(attempts, np.clip(arm, 0, 1)) for arm in arms]
    steps = passes[0] - passes[1] + attempts
    counts = np.stack([(steps == step).sum(axis=1) for step in range(2 * attempts + 1)], axis=1).astype(float)
    counts[:, [0, -1]] += UNSEEN
    values = np.arange(-attempts, attempts + 1) / attempts
    return float((share_below(0.0, values, counts) < 0.025).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4000, help="simulated runs per setting")
    draws = parser.parse_args().draws
    cells: dict[tuple[int, int, float, float], float] = {}
    for tasks, attempts, rate, task_sd in itertools.product(TASKS, ATTEMPTS, RATES, SPREADS):
        effect = min_detectable_effect(tasks, attempts, rate, task_sd)
        if math.isfinite(effect) and not math.isnan(
            share := found(tasks, attempts, rate, task_sd, effect, draws)
        ):
            cells[tasks, attempts, rate, task_sd] = share
    print(f"Each cell: lowest to highest share found, over rates and spreads, {draws} draws per setting.\n")
    print("| tasks | " + " | ".join(f"k = {attempts}" for attempts in ATTEMPTS) + " |")
    print("|---|" + "---|" * len(ATTEMPTS))
    for tasks in TASKS:
        row = [[s for c, s in cells.items() if c[:2] == (tasks, attempts)] for attempts in ATTEMPTS]
        print(f"| {tasks} | " + " | ".join(f"{min(part):.2f} to {max(part):.2f}" for part in row) + " |")
    outside = {cell: share for cell, share in cells.items() if not LOWEST <= share <= HIGHEST}
    print(f"\nOver {len(cells)} settings: {min(cells.values()):.3f} to {max(cells.values()):.3f}. ", end="")
    print(f"Bar ({LOWEST} to {HIGHEST} in every one): " + ("kept." if not outside else "MISSED."))
    for (tasks, attempts, rate, task_sd), share in outside.items():
        print(f"- {tasks} tasks × {attempts}, rate {rate}, spread {task_sd}: {share:.3f}")


if __name__ == "__main__":
    main()

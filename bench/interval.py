"""How long the interval for tasks like these takes on a suite of 10,000 tasks: `python -m bench.interval`."""

from __future__ import annotations

import time

import numpy as np

from aggregate.formulas.intervals import delta_interval
from bench.rows import Row, show

TASKS, ATTEMPTS = 10_000, 5


def rows(times: int = 5) -> list[Row]:
    """This file's part of the bench table; the best of a few, in processor time, since others use the machine too."""
    rng = np.random.default_rng(1)
    candidate, baseline = rng.binomial(ATTEMPTS, [[0.6], [0.5]], (2, TASKS))
    attempts = np.full(TASKS, ATTEMPTS)
    spent = []
    for _ in range(times + 1):  # the first one also loads scipy
        begun = time.process_time()
        found = delta_interval(candidate, attempts, baseline, attempts)
        spent.append(time.process_time() - begun)
    note = f"{found.low:+.3f} to {found.high:+.3f}"
    return [Row(f"interval of {TASKS} tasks × {ATTEMPTS}", 1000 * min(spent[1:]), "ms CPU", 50, note=note)]


if __name__ == "__main__":
    show(rows())

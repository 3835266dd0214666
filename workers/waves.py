"""Which attempts are published together when a run may stop early: it looks at its records between waves.

Attempts are numbered breadth first, so a wave is a range of numbers. A run that may not stop early is one wave.
"""

from __future__ import annotations

import math

from workers.grid import Grid
from workers.messages import Manifest

SLICES = 5
SMALLEST_SLICE = 20


def next_end(manifest: Manifest, grid: Grid, end: int) -> int:
    """The index at which the wave after `end` ends.

    Looks of `decision` come after each round of attempts, as its statistics demand; `verdict` may look at any
    time, and does so a few times a round.
    """
    match manifest.stop_early:
        case None:
            return grid.attempts
        case "decision":
            return min(grid.attempts, (end // grid.units + 1) * grid.units)
        case "verdict":
            # Whole tasks only, so that both arms of a task are in the same wave.
            step = grid.models * grid.arms
            tasks = max(math.ceil(grid.tasks / SLICES), math.ceil(SMALLEST_SLICE / step))
            round_end = (end // grid.units + 1) * grid.units
            return min(grid.attempts, round_end, end + tasks * step)


def waves(manifest: Manifest, grid: Grid) -> int:
    """How many waves the run has if it never stops."""
    count, end = 0, 0
    while end < grid.attempts:
        count, end = count + 1, next_end(manifest, grid, end)
    return count

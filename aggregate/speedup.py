"""How much faster a candidate's code runs than the original: the public names of `aggregate.formulas.speedups`."""

from __future__ import annotations

from aggregate.formulas.speedups import (
    LEVELS,
    compute_advantage,
    group_name,
    summarize_speedups,
    task_payload,
)

__all__ = ["LEVELS", "compute_advantage", "group_name", "summarize_speedups", "task_payload"]

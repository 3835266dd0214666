"""Every number of a run as a plain function: the public names of `aggregate.formulas`.

Missing is NaN, never 0.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "agreement": "judge_bias krippendorff_alpha",
    "consistency": (
        "FLAKY_RANGE compute_consistency compute_consistency_metrics concept_overlap d2 flaky_text unseen_bound"
    ),
    "intervals": "Interval PairedCounts delta_interval fixed_suite_interval paired_counts",
    "power_and_stopping": "attempts_needed min_detectable_effect tasks_needed",
    "rates": (
        "attempt_pass_rate compute_cop compute_frontier_cop compute_impl_rate consensus cost_per_extra_pass "
        "cost_weighted_advantage dominates mean_known normalized_gain pass_at_k pass_hat_k rounded_delta task_pass_rate"
    ),
    "significance": (
        "SignFlip TaskChanges benjamini_hochberg fisher_by_task holm mcnemar_exact sign_flip_test"
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a formula when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"aggregate.formulas.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)

"""Made-up suites whose true pass rates are known, for checking the statistics against the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KINDS = ("alike", "varied", "all-or-nothing")
_CONCENTRATION = 2.0  # of the Beta distributions: most rates near 0 or 1, as real suites have them
_DRIFT = 0.04  # what a varied skill breaks, and repairs, on average, beside its effect


@dataclass(frozen=True)
class Setting:
    """A suite of `tasks`, `attempts` an arm, with a mean baseline rate and a true mean difference.

    alike: every task has the same two rates. varied: baseline rates differ, and the skill repairs a share of
    each task's failures and breaks a share of its passes. all-or-nothing: baseline rates differ, the skill
    replaces the rate of every second task by a fresh one and leaves the others alone: the most skewed kind.
    """

    tasks: int
    attempts: int
    base: float
    effect: float
    kind: str

    @property
    def truth(self) -> float:
        """The effect, turned towards the middle so that rates stay between 0 and 1."""
        return self.effect if self.base <= 0.5 else -self.effect

    def generator(self) -> np.random.Generator:
        numbers = (self.tasks, self.attempts, round(100 * self.base), round(100 * self.effect))
        return np.random.default_rng([*numbers, KINDS.index(self.kind)])


def rates(setting: Setting, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """True candidate and baseline rates, draws × tasks; their mean difference over all tasks is the truth."""
    shape = (draws, setting.tasks)
    base, truth = setting.base, setting.truth

    def beta(mean: float) -> Array:
        return rng.beta(_CONCENTRATION * mean, _CONCENTRATION * (1 - mean), shape)

    if setting.kind == "alike":
        return np.full(shape, base + truth), np.full(shape, base)
    baseline = beta(base)
    if setting.kind == "varied":
        repaired = beta((_DRIFT + max(0.0, truth)) / (1 - base))
        broken = beta((_DRIFT + max(0.0, -truth)) / base)
        return baseline + repaired * (1 - baseline) - broken * baseline, baseline
    return np.where(rng.random(shape) < 0.5, beta(base + 2 * truth), baseline), baseline

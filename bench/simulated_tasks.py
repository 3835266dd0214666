"""Made-up suites whose true pass rates are known, for checking the statistics against the truth."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregate.formulas.intervals import UNSEEN, share_below

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
_CONCENTRATION = 2.0  # of the Beta distributions: most rates near 0 or 1, as real suites have them
_DRIFT = 0.04  # what a varied skill breaks, and repairs, on average, beside its effect

_BATCH = 200  # draws whose distribution functions are computed at once: more would not fit the cache


@dataclass(frozen=True)
class Population:
    """Tasks of one kind, as many as you like, with a known mean difference: what a skill does to them.

    `varied`: baseline rates differ (`base` is their mean), and the skill repairs a share of each task's failures
    and breaks a share of its passes. `all-or-nothing`: baseline rates differ, the skill replaces the rate of
    every second task by a fresh one and leaves the others alone. Every other kind is a mixture of a few sorts
    of tasks, each with its share, its candidate rate and its baseline rate.
    """

    kind: str
    name: str
    base: float = 0.0
    effect: float = 0.0
    sorts: tuple[tuple[float, float, float], ...] = ()

    @property
    def truth(self) -> float:
        """The mean difference over all such tasks."""
        if not self.sorts:
            return self.effect
        return round(math.fsum(share * (candidate - base) for share, candidate, base in self.sorts), 12)

    def rates(self, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Array, Array]:
        """True candidate and baseline rates of tasks that are drawn from it."""
        if self.sorts:
            shares, candidate, baseline = np.array(self.sorts).T
            which = rng.choice(len(shares), shape, p=shares)
            return candidate[which], baseline[which]
        baseline = _beta(self.base, shape, rng)
        if self.kind == "varied":
            repaired = _beta((_DRIFT + max(0.0, self.effect)) / (1 - self.base), shape, rng)
            broken = _beta((_DRIFT + max(0.0, -self.effect)) / self.base, shape, rng)
            return baseline + repaired * (1 - baseline) - broken * baseline, baseline
        fresh = _beta(self.base + 2 * self.effect, shape, rng)
        return np.where(rng.random(shape) < 0.5, fresh, baseline), baseline


def _beta(mean: float, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if mean in (0.0, 1.0):
        return np.full(shape, mean)
    return rng.beta(_CONCENTRATION * mean, _CONCENTRATION * (1 - mean), shape)


@dataclass(frozen=True)
class Setting:
    """A suite of `tasks` from a population, `attempts` an arm for each of the `models`.

    The models of a task share its rates: what a skill does to a task, it does with every model.
    """

    population: Population
    tasks: int
    attempts: int
    models: int = 1

    def generator(self) -> np.random.Generator:
        name = zlib.crc32(f"{self.population.kind} {self.population.name}".encode())
        return np.random.default_rng([self.tasks, self.attempts, self.models, name])

    def passes(self, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Passes of candidate and baseline in as many simulated runs, each of new tasks: draws × tasks × models."""
        rates = self.population.rates((draws, self.tasks, 1), rng)
        shape = (draws, self.tasks, self.models)
        candidate, baseline = (rng.binomial(self.attempts, rate, shape).astype(np.float64) for rate in rates)
        return candidate, baseline

    def __str__(self) -> str:
        models = f" × {self.models} models" if self.models > 1 else ""
        return (
            f"{self.tasks} tasks{models}, k = {self.attempts}, {self.population.kind}: {self.population.name}"
        )


def mixture(kind: str, name: str, *sorts: tuple[float, float, float]) -> Population:
    """A population of a few sorts of tasks: (share, candidate rate, baseline rate)."""
    # Rounded: 1 - 0.95 - 0.05 is a little below 0, and no rate.
    return Population(kind, name, sorts=tuple((s, round(c, 12), round(b, 12)) for s, c, b in sorts))


def _turned(base: float, effect: float) -> float:
    """The effect, turned towards the middle so that rates stay between 0 and 1."""
    return effect if base <= 0.5 else -effect


def of_kind(kind: str, base: float, effect: float) -> Population:
    """Alike, varied or all-or-nothing tasks with a mean baseline rate and a true difference."""
    truth = _turned(base, effect)
    name = f"rate {base:g}, effect {truth:+g}" if truth else f"rate {base:g}, no effect"
    if kind == "alike":
        return mixture(kind, name, (1.0, base + truth, base))
    return Population(kind, name, base, truth)


def _smooth() -> list[Population]:
    found = [of_kind("alike", base, 0.0) for base in (0.02, 0.1, 0.5, 0.9, 0.98)]
    found += [of_kind("alike", base, 0.2) for base in (0.1, 0.5, 0.9)]
    found += [of_kind("varied", base, effect) for base in (0.1, 0.5, 0.9) for effect in (0.0, 0.2)]
    return found


def _all_or_nothing() -> list[Population]:
    found = [of_kind("all-or-nothing", base, 0.0) for base in (0.02, 0.05, 0.5, 0.95, 0.98)]
    return found + [of_kind("all-or-nothing", base, 0.2) for base in (0.02, 0.05, 0.5, 0.95, 0.98, 1.0)]


def _rare() -> list[Population]:
    """A small share of tasks is broken or mended outright; nothing happens to the others."""
    found = []
    for share in (0.05, 0.08, 0.11, 0.2):
        rest = 1 - share
        found.append(
            mixture("rare", f"breaks {share:.0%} of sure tasks", (share, 0.0, 1.0), (rest, 1.0, 1.0))
        )
        found.append(mixture("rare", f"breaks {share:.0%}, rate 0.8", (share, 0.0, 0.8), (rest, 0.8, 0.8)))
        found.append(
            mixture("rare", f"mends {share:.0%} of hopeless tasks", (share, 1.0, 0.0), (rest, 0.0, 0.0))
        )
    return found


def _skewed() -> list[Population]:
    """Most tasks gain a little and a few lose all, or the other way round; the mean is 0 or the margin."""
    found = []
    for share, base in ((0.05, 0.95), (0.1, 0.9), (0.2, 0.8)):
        rest, name = 1 - share, f"{share:.0%} lose all of {base:g}"
        gain = share * base / rest
        found.append(mixture("skewed", f"{name}, mean 0", (share, 0.0, base), (rest, base + gain, base)))
        mirrored = (share, 1.0, 1 - base), (rest, 1 - base - gain, 1 - base)
        found.append(mixture("skewed", f"{share:.0%} gain all of {base:g}, mean 0", *mirrored))
    for share, base in ((0.1, 0.9), (0.2, 0.8)):
        gain = (share * base - 0.05) / (1 - share)
        name = f"{share:.0%} lose all of {base:g}, mean -0.05"
        found.append(mixture("skewed", name, (share, 0.0, base), (1 - share, base + gain, base)))
    return found


def _bimodal() -> list[Population]:
    """Two sorts of tasks, or a skill that does two things."""
    return [
        mixture("bimodal", "half +0.4, half -0.4", (0.5, 0.9, 0.5), (0.5, 0.1, 0.5)),
        mixture("bimodal", "half +0.9, half -0.9", (0.5, 0.95, 0.05), (0.5, 0.05, 0.95)),
        mixture("bimodal", "half mended, half broken outright", (0.5, 1.0, 0.0), (0.5, 0.0, 1.0)),
        mixture("bimodal", "half hard, half easy, no effect", (0.5, 0.05, 0.05), (0.5, 0.95, 0.95)),
        mixture("bimodal", "half +0.8, half unmoved", (0.5, 0.9, 0.1), (0.5, 0.9, 0.9)),
        mixture(
            "bimodal", "8% broken, 8% mended, rest easy", (0.08, 0.0, 1.0), (0.08, 1.0, 0.0), (0.84, 1.0, 1.0)
        ),
    ]


POPULATIONS: tuple[Population, ...] = (*_smooth(), *_all_or_nothing(), *_rare(), *_skewed(), *_bimodal())


def shares_below(means: Sequence[float], steps: Array, most: int) -> list[Array]:
    """For each draw's differences, given in steps of 1 / `most`, the share of their distribution up to each mean."""
    levels = np.arange(-most, most + 1)
    counts = np.stack([(steps == level).sum(axis=1) for level in levels], axis=1)
    rows, where = np.unique(counts, axis=0, return_inverse=True)
    weights = rows.astype(np.float64)
    weights[:, [0, -1]] += UNSEEN
    seen = weights.any(axis=0)
    values, weights = levels[seen] / most, weights[:, seen]
    found: dict[float, Array] = {}
    for mean in set(means):
        parts = [
            share_below(mean, values, weights[first : first + _BATCH])
            for first in range(0, len(rows), _BATCH)
        ]
        found[mean] = np.concatenate(parts)[where.ravel()]
    return [found[mean] for mean in means]

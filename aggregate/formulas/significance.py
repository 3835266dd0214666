"""Could chance alone have made this difference? p-values, and their corrections for asking more than once.

The headline's p-value goes with its interval (`two_sided`); the others are tests of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aggregate.formulas.intervals import (
    SMALLEST_TAIL,
    Floats,
    Numbers,
    PairedCounts,
    as_floats,
    beta_variance,
    by_task,
    difference_cdf,
    known_differences,
    posteriors,
    refuse,
    share_below,
    weighted,
)

EXACT_UP_TO = 17
DRAWS = 20_000
_SIGNS_AT_A_TIME = 2_000_000  # bounds memory to some 20 MB however many tasks there are


Order = NDArray[np.intp]


@dataclass(frozen=True)
class SignFlip:
    """p-values of a sign-flip test, for any difference and for a better candidate; NaN without data."""

    two_sided: float
    greater: float
    n: int
    exact: bool


@dataclass(frozen=True)
class TaskChanges:
    """Per task, in input order: Fisher's p-value, raw and after Benjamini-Hochberg; NaN if not judged."""

    p_values: list[float]
    adjusted: list[float]


def share_at_most_zero(differences: Numbers) -> float:
    """How likely the mean over tasks like these is 0 or less, under the distribution of `differences_interval`."""
    known = known_differences(differences)
    return float(share_below(0.0, *weighted(known))[0]) if known.size else math.nan


def suite_share_at_most_zero(counts: PairedCounts) -> float:
    """How likely the difference on exactly these tasks is 0 or less, under that of `fixed_suite_interval`."""
    if counts.tasks == 0:
        return math.nan
    (a, b), (c, d) = posteriors(counts)
    if beta_variance(a, b) < beta_variance(c, d):
        return 1 - difference_cdf(0.0, c, d, a, b)
    return difference_cdf(0.0, a, b, c, d)


def two_sided(share_at_most_zero: float) -> float:
    """The p-value that goes with an interval: it is below 1 - level just where the interval leaves out 0.

    It has twelve digits: the quadrature's last ones differ between two processes on one machine.
    """
    tail = min(share_at_most_zero, 1 - share_at_most_zero)
    return min(1.0, float(f"{2 * max(tail, SMALLEST_TAIL):.12g}")) if not math.isnan(tail) else math.nan


def sign_flip_test(d: Numbers, draws: int = DRAWS, seed: int = 0) -> SignFlip:
    """Test whether paired differences centre on zero by flipping signs (Fisher, Design of Experiments, 1935).

    NaN differences are dropped. Zeros have no sign, so all 2^n flips are counted while at most 17 differences
    are not zero; beyond that seeded draws with (hits + 1) / (draws + 1) (Phipson & Smyth, SAGMB 9 (2010) 39).
    """
    differences = as_floats(d, "d")
    differences = np.sort(differences[~np.isnan(differences)])  # sorted: the order of tasks must not matter
    if np.isinf(differences).any():
        raise ValueError("d: an infinite difference cannot be tested")
    if differences.size == 0:
        return SignFlip(math.nan, math.nan, 0, True)
    signed = differences[differences != 0]
    if signed.size == 0:
        return SignFlip(1.0, 1.0, differences.size, True)
    signed = signed / np.abs(signed).max()
    observed = float(signed.sum())
    tolerance = 1e-9 * float(np.abs(signed).sum())  # sums that are equal on paper differ in their last bits
    exact = signed.size <= EXACT_UP_TO
    if exact:
        above, beyond = _hits(_all_flips(signed), observed, tolerance)
        total = 2**signed.size
        return SignFlip(beyond / total, above / total, differences.size, exact)
    above, beyond = _drawn_hits(signed, observed, tolerance, draws, seed)
    return SignFlip((beyond + 1) / (draws + 1), (above + 1) / (draws + 1), differences.size, exact)


def _all_flips(signed: Floats) -> Floats:
    sums = np.zeros(1)
    for value in signed:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _hits(sums: Floats, observed: float, tolerance: float) -> tuple[int, int]:
    above = int(np.count_nonzero(sums >= observed - tolerance))
    beyond = int(np.count_nonzero(np.abs(sums) >= abs(observed) - tolerance))
    return above, beyond


def _drawn_hits(signed: Floats, observed: float, tolerance: float, draws: int, seed: int) -> tuple[int, int]:
    rng = np.random.default_rng(seed)
    sizes, counts = np.unique(np.round(np.abs(signed), 12), return_counts=True)
    few = sizes.size * 16 <= signed.size
    columns = sizes.size if few else signed.size
    rows = max(1, _SIGNS_AT_A_TIME // columns)
    above = beyond = 0
    for start in range(0, draws, rows):
        wanted = min(rows, draws - start)
        if few:  # differences of one size flip together, as a binomial number of plus signs
            sums = (2.0 * rng.binomial(counts, 0.5, (wanted, columns)) - counts) @ sizes
        else:
            packed = np.frombuffer(rng.bytes((wanted * columns + 7) // 8), dtype=np.uint8)
            bits = np.unpackbits(packed, count=wanted * columns).reshape(wanted, columns)
            sums = 2.0 * (bits @ signed) - observed
        more = _hits(sums, observed, tolerance)
        above, beyond = above + more[0], beyond + more[1]
    return above, beyond


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided exact p-value for b tasks that only one arm passed and c that only the other did.

    McNemar, Psychometrika 12 (1947) 153; the binomial form, twice the smaller tail. 1 when nothing changed.
    """
    for name, value in (("b", b), ("c", c)):
        if not value >= 0 or value != int(value):
            raise ValueError(f"{name}: {value} is not a count")
    if b + c == 0:
        return 1.0
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(b, c), int(b + c), 0.5)))


def holm(p_values: Sequence[float], comparisons: int | None = None) -> list[float]:
    """Adjust p-values so that one false alarm among all is rare (Holm, Scand. J. Statistics 6 (1979) 65).

    `comparisons` counts earlier candidates against the same baseline too. Their p-values are not at hand and
    are taken as larger than these, which is never less cautious. NaN stays NaN and counts for nothing.
    """
    values, order = _ordered(p_values)
    total = max(len(order), comparisons or 0)
    return _spread(values, order, np.maximum.accumulate((total - np.arange(len(order))) * values[order]))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that few reported changes are false (Benjamini & Hochberg, JRSS B 57 (1995) 289)."""
    values, order = _ordered(p_values)
    scaled = values[order] * len(order) / np.arange(1, len(order) + 1)
    return _spread(values, order, np.minimum.accumulate(scaled[::-1])[::-1])


def _ordered(p_values: Sequence[float]) -> tuple[Floats, Order]:
    values = as_floats(p_values, "p_values")
    refuse("p_values", values, (values < 0) | (values > 1), "is not between 0 and 1")
    order = np.argsort(values, kind="stable")  # NaN sorts last
    return values, order[: int(np.count_nonzero(~np.isnan(values)))]


def _spread(values: Floats, order: Order, adjusted: Floats) -> list[float]:
    result = np.full(len(values), math.nan)
    result[order] = np.minimum(1.0, adjusted)
    return [float(value) for value in result]


def fisher_by_task(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
) -> TaskChanges:
    """Which tasks changed: Fisher's exact test on each task's counts (JRSS 85 (1922) 87), corrected over all.

    With one attempt per arm no task can show a change; NaN where a task was not judged in both arms.
    """
    arrays = by_task(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    rows = np.column_stack(list(arrays.values()))
    passes, attempts, other_passes, other_attempts = rows.T
    judged = ~np.isnan(rows).any(axis=1) & (attempts != 0) & (other_attempts != 0)
    counts = (np.isfinite(rows) & (rows >= 0) & (rows == np.floor(rows))).all(axis=1)
    wrong = judged & ~(counts & (passes <= attempts) & (other_passes <= other_attempts))
    if wrong.any():
        task = int(np.argmax(wrong))
        listed = ", ".join(f"{count:g}" for count in rows[task])
        raise ValueError(f"task {task}: {listed} are not the passes and attempts of two arms")
    tables = zip(judged.tolist(), rows.tolist(), strict=True)
    p_values = [_fisher(*map(int, row)) if told else math.nan for told, row in tables]
    return TaskChanges(p_values, benjamini_hochberg(p_values))


@lru_cache(maxsize=65536)
def _fisher(passes: int, attempts: int, other_passes: int, other_attempts: int) -> float:
    """Two-sided: the probability of all tables no likelier than this one, given the margins."""
    from scipy.special import gammaln

    passed = passes + other_passes
    table = np.arange(max(0, passed - other_attempts), min(attempts, passed) + 1)
    cells = (table, attempts - table, passed - table, other_attempts - passed + table)
    weights = -sum(gammaln(cell + 1) for cell in cells)
    weights = np.exp(weights - weights.max())
    observed = weights[passes - table[0]]
    return min(1.0, float(weights[weights <= observed * (1 + 1e-7)].sum() / weights.sum()))

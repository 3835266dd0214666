"""Do the judges of a panel agree, and does one of them lean?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aggregate.formulas.intervals import Floats

Ratings = Sequence[Sequence[float]] | NDArray[np.float64]


def krippendorff_alpha(ratings: Ratings, level: Literal["interval", "nominal"] = "interval") -> float:
    """Agreement beyond chance of a judges × units table: 1 is perfect, 0 is chance, less is worse.

    alpha = 1 - observed / expected disagreement (Krippendorff, Content Analysis, 2004, ch. 11). NaN marks a
    missing rating; the result is NaN when no unit has two ratings, or all ratings are equal: nothing varies.
    """
    table = _table(ratings)
    rated = ~np.isnan(table)
    pairable = rated.sum(axis=0) >= 2
    table, rated = table[:, pairable], rated[:, pairable]
    if table.size == 0:
        return math.nan
    if level == "nominal":
        observed, expected = _nominal_disagreement(table, rated)
    elif level == "interval":
        observed, expected = _interval_disagreement(table, rated)
    else:
        raise ValueError(f"level: {level!r} is not interval or nominal")
    return 1 - observed / expected if expected > 0 else math.nan


def _interval_disagreement(table: Floats, rated: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean squared difference within units, and over all pairs; each sum of pairs is a sum of squares."""
    per_unit = rated.sum(axis=0)
    total = int(per_unit.sum())
    values = table[rated]
    if values.min() == values.max():
        return 0.0, 0.0
    scale = float(np.abs(values).max())
    scaled = np.where(rated, table / scale, 0.0)
    middle = scaled.sum(axis=0) / per_unit
    within = (np.where(rated, scaled - middle, 0.0) ** 2).sum(axis=0)
    observed = float((2 * per_unit * within / (per_unit - 1)).sum()) / total
    values = values / scale
    expected = 2 * float(((values - values.mean()) ** 2).sum()) / (total - 1)
    return observed, expected


def _nominal_disagreement(table: Floats, rated: NDArray[np.bool_]) -> tuple[float, float]:
    """Share of pairs that differ within units, and over all ratings."""
    per_unit = rated.sum(axis=0)
    total = int(per_unit.sum())
    same_in_unit = np.zeros(table.shape[1])
    same_overall = 0
    for value in np.unique(table[rated]):
        count = (table == value).sum(axis=0)
        same_in_unit += count * (count - 1)
        same_overall += int(count.sum()) * (int(count.sum()) - 1)
    observed = float(((per_unit * (per_unit - 1) - same_in_unit) / (per_unit - 1)).sum()) / total
    return observed, 1 - same_overall / (total * (total - 1))


def judge_bias(ratings: Ratings) -> list[float]:
    """How far each judge rates above the mean of its fellow judges, over the units it shares with any.

    In score units, one number a judge in input order; NaN for a judge that shares no unit.
    """
    table = _table(ratings)
    rated = ~np.isnan(table)
    filled = np.where(rated, table, 0.0)
    others = rated.sum(axis=0) - rated
    shared = rated & (others > 0)
    fellows = (filled.sum(axis=0) - filled) / np.maximum(others, 1)
    excess = np.where(shared, filled - fellows, 0.0).sum(axis=1)
    units = shared.sum(axis=1)
    return [float(e / u) if u else math.nan for e, u in zip(excess, units, strict=True)]


def _table(ratings: Ratings) -> Floats:
    try:
        table = np.asarray(ratings, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"ratings: {wrong}") from None
    if table.size == 0:
        return np.empty((len(table), 0))
    if table.ndim != 2:
        raise ValueError(f"ratings: a judges × units table is needed, not {table.ndim} dimensions")
    if np.isinf(table).any():
        judge, unit = np.argwhere(np.isinf(table))[0]
        raise ValueError(f"ratings[{judge}][{unit}]: an infinite rating")
    return table

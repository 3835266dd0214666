"""Pass counts of two arms, task by task, checked once and cut down to the tasks judged in both arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Sequence[float] | Sequence[int] | NDArray[np.float64] | NDArray[np.int64]

MOST_COUNTED = 1e12


@dataclass(frozen=True)
class PairedCounts:
    """Passes and judged attempts per task, over the tasks that have a judged attempt in both arms."""

    candidate_passes: Floats
    candidate_attempts: Floats
    baseline_passes: Floats
    baseline_attempts: Floats
    dropped: int

    @property
    def tasks(self) -> int:
        return len(self.candidate_passes)

    @property
    def candidate_rates(self) -> Floats:
        return self.candidate_passes / self.candidate_attempts

    @property
    def baseline_rates(self) -> Floats:
        return self.baseline_passes / self.baseline_attempts

    @property
    def differences(self) -> Floats:
        """d_i of SPEC 6.4: candidate rate minus baseline rate of each task."""
        return self.candidate_rates - self.baseline_rates


def paired_counts(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
) -> PairedCounts:
    """Check four arrays of counts and keep the tasks judged in both arms; a NaN count is no attempt."""
    arrays = by_task(
        candidate_passes=candidate_passes,
        candidate_attempts=candidate_attempts,
        baseline_passes=baseline_passes,
        baseline_attempts=baseline_attempts,
    )
    for name, values in arrays.items():
        _refuse(name, values, (values < 0) | (values > MOST_COUNTED), "is not a count")
    for arm in ("candidate", "baseline"):
        passes, attempts = arrays[f"{arm}_passes"], arrays[f"{arm}_attempts"]
        _refuse(f"{arm}_passes", passes, passes > attempts, "is more than the attempts of that task")
    known = np.isfinite(np.vstack(list(arrays.values()))).all(axis=0)
    kept = known & (arrays["candidate_attempts"] > 0) & (arrays["baseline_attempts"] > 0)
    return PairedCounts(**{name: values[kept] for name, values in arrays.items()}, dropped=int((~kept).sum()))


def by_task(**arrays: Numbers) -> dict[str, Floats]:
    """Arrays with an entry per task, as floats of the same length."""
    floats = {name: as_floats(values, name) for name, values in arrays.items()}
    lengths = {name: len(values) for name, values in floats.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"one entry per task is needed in each array; lengths are {lengths}")
    return floats


def as_floats(values: Numbers, name: str) -> Floats:
    """A one-dimensional float array; None becomes NaN, anything else that is no number is refused by name."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"{name}: {wrong}") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: a list of numbers is needed, not {array.ndim} dimensions")
    return array


def check_level(level: float) -> None:
    """Refuse a confidence level that is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level: {level} is not between 0 and 1")


def _refuse(name: str, values: Floats, bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(f"{name}[{first}]: {values[first]:g} {why}")

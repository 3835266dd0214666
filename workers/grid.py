"""Number every attempt of a run, breadth first, so that a message needs only integers.

Attempt 1 of all tasks in all arms comes first, then attempt 2, and so on; arms alternate fastest. A unit is a
(task, model, arm); the same unit's attempts lie `units` apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Cell(NamedTuple):
    """Where an attempt stands: positions of its task, model and arm in the manifest, and its number from 1."""

    task: int
    model: int
    arm: int
    number: int


@dataclass(frozen=True)
class Grid:
    """The sizes that fix every attempt's index."""

    tasks: int
    models: int
    arms: int
    pass_k: int

    @property
    def units(self) -> int:
        return self.tasks * self.models * self.arms

    @property
    def attempts(self) -> int:
        return self.units * self.pass_k

    def cell(self, index: int) -> Cell:
        if not 0 <= index < self.attempts:
            raise ValueError(f"attempt {index} is outside this run's {self.attempts} attempts")
        rest, arm = divmod(index, self.arms)
        rest, model = divmod(rest, self.models)
        number, task = divmod(rest, self.tasks)
        return Cell(task, model, arm, number + 1)

    def index(self, cell: Cell) -> int:
        return (
            ((cell.number - 1) * self.tasks + cell.task) * self.models + cell.model
        ) * self.arms + cell.arm


def batch_size(attempts: int) -> int:
    """Small runs spread over workers one attempt at a time; large ones save messages."""
    return max(1, min(20, attempts // 200))


def batches(indexes: list[int]) -> list[list[int]]:
    size = batch_size(len(indexes))
    return [indexes[start : start + size] for start in range(0, len(indexes), size)]

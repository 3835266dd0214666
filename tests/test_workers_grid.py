"""Attempts are numbered breadth first, and a number says everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.rounds.publish import batch_size, batches_of
from workers.store.messages import Cell, Grid


def test_first_attempts_of_all_tasks_come_first_and_arms_alternate():
    grid = Grid(tasks=2, models=1, arms=2, pass_k=2)
    assert [grid.cell(index) for index in range(grid.attempts)] == [
        Cell(0, 0, 0, 1),
        Cell(0, 0, 1, 1),
        Cell(1, 0, 0, 1),
        Cell(1, 0, 1, 1),
        Cell(0, 0, 0, 2),
        Cell(0, 0, 1, 2),
        Cell(1, 0, 0, 2),
        Cell(1, 0, 1, 2),
    ]


@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.data())
def test_a_cell_and_its_index_are_one(tasks, models, arms, pass_k, data):
    grid = Grid(tasks, models, arms, pass_k)
    index = data.draw(st.integers(0, grid.attempts - 1))
    assert grid.index(grid.cell(index)) == index
    assert index % grid.arms == grid.cell(index).arm


def test_attempts_of_one_unit_lie_a_round_apart():
    grid = Grid(tasks=3, models=2, arms=2, pass_k=4)
    same = {grid.cell(index)[:3] for index in range(5, grid.attempts, grid.units)}
    assert len(same) == 1


@pytest.mark.parametrize("index", [-1, 8, 10**9])
def test_an_index_outside_the_run_is_refused(index):
    with pytest.raises(ValueError, match="outside this run's 8 attempts"):
        Grid(2, 1, 2, 2).cell(index)


@pytest.mark.parametrize(
    ("attempts", "size"), [(1, 1), (199, 1), (200, 1), (400, 2), (2000, 10), (4000, 20), (100_000, 50)]
)
def test_batches_grow_with_the_run_up_to_fifty(attempts, size):
    assert batch_size(attempts) == size


def test_batches_hold_every_attempt_once_and_in_order():
    indexes = list(range(1000))
    cut = batches_of(indexes)
    assert [index for batch in cut for index in batch] == indexes
    assert {len(batch) for batch in cut} == {5}

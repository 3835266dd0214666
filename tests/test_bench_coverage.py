"""The simulations behind bench/coverage.md: their populations, and that they follow the public functions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed with the packages

from bench import coverage, early_stopping
from bench.simulated_tasks import POPULATIONS, Setting, of_kind, shares_below


@pytest.mark.parametrize(
    "population", POPULATIONS, ids=lambda population: f"{population.kind}: {population.name}"
)
def test_drawn_tasks_have_the_mean_difference_that_their_population_states(population):
    candidate, baseline = population.rates((100_000,), np.random.default_rng(1))
    assert min(candidate.min(), baseline.min()) >= 0
    assert max(candidate.max(), baseline.max()) <= 1
    assert float((candidate - baseline).mean()) == pytest.approx(population.truth, abs=0.012)


def test_every_population_has_a_seed_of_its_own():
    assert len({(population.kind, population.name) for population in POPULATIONS}) == len(POPULATIONS)


@pytest.mark.parametrize("population", POPULATIONS[::6], ids=lambda population: population.kind)
def test_the_shares_agree_with_the_intervals_that_users_get(population, monkeypatch):
    # Given that every draw is compared: a disagreement ends the simulation
    monkeypatch.setattr(coverage, "CHECKED", 20)
    monkeypatch.setattr(early_stopping, "CHECKED", 5)
    for setting in (Setting(population, 7, 2), Setting(population, 10, 3, 2)):
        assert 0.5 <= coverage.task_coverage(20, setting).holds[0] <= 1
    assert early_stopping.crossings(5, Setting(population, 10, 2)).above <= 1
    assert 0.5 <= coverage.suite_coverage(20, Setting(of_kind("varied", 0.25, 0.2), 7, 2)) <= 1


def test_a_simulation_that_strays_from_the_public_interval_ends_at_once(monkeypatch):
    monkeypatch.setattr(
        coverage, "shares_below", lambda means, steps, most: [np.zeros(len(steps))] * len(means)
    )
    with pytest.raises(SystemExit, match="differences_interval disagrees"):
        coverage.task_coverage(5, Setting(of_kind("varied", 0.5, 0.2), 10, 3))


def test_ties_in_every_draw_have_half_of_their_distribution_below_zero():
    found = shares_below((0.0, -1.0, 1.0), np.zeros((3, 8)), 5)
    assert np.array(found) == pytest.approx(np.array([[0.5] * 3, [0.0] * 3, [1.0] * 3]), abs=1e-12)

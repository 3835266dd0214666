"""Tests of difference and their corrections, against scipy, statsmodels and counting by hand."""

from __future__ import annotations

import gc
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from aggregate.formulas.significance import (
    benjamini_hochberg,
    fisher_by_task,
    holm,
    mcnemar_exact,
    sign_flip_test,
)

differences = st.lists(st.sampled_from([-1.0, -0.6, -0.2, 0.0, 0.1, 0.2, 0.4, 1.0]), min_size=1, max_size=10)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def by_flipping(values):
    """Both p-values by listing every choice of signs, in exact tenths so that no tie is missed."""
    tenths = [round(10 * value) for value in values]
    sums = [sum(s * v for s, v in zip(signs, tenths, strict=True)) for signs in _signs(len(tenths))]
    observed = sum(tenths)
    two_sided = sum(abs(total) >= abs(observed) for total in sums) / len(sums)
    return two_sided, sum(total >= observed for total in sums) / len(sums)


def _signs(count):
    return itertools.product((1, -1), repeat=count)


@settings(deadline=None)
@given(differences)
def test_the_sign_flip_test_counts_every_choice_of_signs_and_no_float_tie_is_lost(values):
    found = sign_flip_test(values)
    assert (found.two_sided, found.greater) == pytest.approx(by_flipping(values), abs=1e-12)
    assert found.exact


def test_five_tasks_that_all_improve_can_show_no_more_than_one_in_thirty_two():
    found = sign_flip_test([0.2, 0.4, 1.0, 0.3, 0.7])
    assert found.greater == 1 / 32
    assert found.two_sided == 2 / 32


def test_the_sign_flip_test_agrees_with_scipys_permutation_test():
    values = np.random.default_rng(3).normal(0.3, 1, 12)

    def mean(x, axis):
        return np.mean(x, axis=axis)

    for side, mine in (("two-sided", "two_sided"), ("greater", "greater")):
        other = stats.permutation_test(
            (values,), mean, permutation_type="samples", alternative=side, n_resamples=np.inf, vectorized=True
        )
        assert getattr(sign_flip_test(values), mine) == pytest.approx(other.pvalue)


def test_seventeen_differences_are_counted_and_eighteen_are_drawn_and_both_agree():
    rng = np.random.default_rng(11)
    values = rng.normal(0.25, 1, 18)
    counted, drawn = sign_flip_test(values[:17]), sign_flip_test(values)
    assert counted.exact
    assert not drawn.exact
    # Then the drawn p-value is near the one from listing all 2^18 signs
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    exact = np.mean(np.abs(sums) >= abs(values.sum()) - 1e-12)
    assert drawn.two_sided == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))


def test_many_equal_differences_are_drawn_together_and_agree_with_the_binomial_sign_test():
    # Given 55 tasks that improved and 30 that worsened by the same amount
    drawn = sign_flip_test([0.2] * 55 + [-0.2] * 30)
    exact = stats.binomtest(55, 85).pvalue
    assert drawn.two_sided == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))
    assert drawn.greater == pytest.approx(exact / 2, abs=4 * math.sqrt(exact / 40_000))


def test_drawn_p_values_are_never_zero_and_can_be_repeated():
    values = [0.5] * 40
    assert sign_flip_test(values).two_sided == 1 / 20_001
    noisy = np.random.default_rng(5).normal(0.1, 1, 60)
    assert sign_flip_test(noisy) == sign_flip_test(noisy)
    assert sign_flip_test(noisy) == sign_flip_test(noisy[::-1])


@given(st.lists(st.floats(-1, 1), max_size=12), st.integers(0, 4), st.integers(0, 4))
def test_missing_differences_and_zeros_move_no_p_value(values, missing, zeros):
    plain, padded = sign_flip_test(values), sign_flip_test([*values, *[math.nan] * missing])
    assert (plain.two_sided, plain.greater) == pytest.approx((padded.two_sided, padded.greater), nan_ok=True)
    if values:
        with_zeros = sign_flip_test([*values, *[0.0] * zeros])
        assert (plain.two_sided, plain.greater) == pytest.approx((with_zeros.two_sided, with_zeros.greater))


def test_no_difference_at_all_is_missing_and_only_zeros_are_no_evidence():
    assert math.isnan(sign_flip_test([]).two_sided)
    assert math.isnan(sign_flip_test([math.nan]).greater)
    assert sign_flip_test([0.0, 0.0]).two_sided == sign_flip_test([0.0, 0.0]).greater == 1


def test_huge_differences_do_not_overflow_and_infinite_ones_are_refused():
    assert sign_flip_test([1.7e308] * 3).greater == 1 / 8
    with pytest.raises(ValueError, match=r"^d: an infinite difference"):
        sign_flip_test([0.1, math.inf])


def test_ten_thousand_tasks_are_tested_in_little_memory():
    values = np.random.default_rng(1).normal(size=10_000)
    tracemalloc.start()
    sign_flip_test(values, draws=2_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_agrees_with_statsmodels(b, c):
    other = 1.0 if b + c == 0 else mcnemar([[0, b], [c, 0]], exact=True).pvalue
    assert mcnemar_exact(b, c) == pytest.approx(other)


def test_mcnemar_by_hand():
    # One task lost and eight gained: 2 · (1 + 9) / 2^9
    assert mcnemar_exact(1, 8) == pytest.approx(20 / 512)
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_exact(1_000_000, 1_000_000) == 1
    with pytest.raises(ValueError, match=r"^b: -1 is not a count"):
        mcnemar_exact(-1, 2)
    with pytest.raises(ValueError, match=r"^c: "):
        mcnemar_exact(1, math.nan)


@pytest.fixture(scope="module")
def nothing_to_collect():
    """Statsmodels collects garbage in every call, which takes long where thousands of tests are loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_to_collect")
@settings(max_examples=30)
@given(p_values)
def test_holm_and_benjamini_hochberg_agree_with_statsmodels_in_input_order(values):
    assert holm(values) == pytest.approx(list(multipletests(values, method="holm")[1]))
    assert benjamini_hochberg(values) == pytest.approx(list(multipletests(values, method="fdr_bh")[1]))


def test_holm_by_hand():
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1, never falling: 0.03, 0.06, 0.06
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert benjamini_hochberg([0.04, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == benjamini_hochberg([]) == []


def test_earlier_candidates_of_the_same_baseline_count_as_comparisons():
    # Three earlier candidates: the factors are 5 and 4 instead of 2 and 1
    assert holm([0.01, 0.02], comparisons=5) == pytest.approx([0.05, 0.08])
    assert holm([0.01, 0.02], comparisons=1) == holm([0.01, 0.02])


@given(p_values, st.integers(0, 4))
def test_an_untested_hypothesis_stays_missing_and_costs_the_others_nothing(values, missing):
    for adjust in (holm, benjamini_hochberg):
        padded = adjust([*values, *[math.nan] * missing])
        assert padded[: len(values)] == pytest.approx(adjust(values))
        assert all(math.isnan(value) for value in padded[len(values) :])


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.inf])
def test_a_p_value_that_is_none_is_refused_with_its_place(wrong):
    for adjust in (holm, benjamini_hochberg):
        with pytest.raises(ValueError, match=r"^p_values\[1\]: "):
            adjust([0.5, wrong])


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_each_task_is_tested_as_scipys_fisher_exact_does(n, m, data):
    c, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    found = fisher_by_task([c], [n], [b], [m])
    assert found.p_values == pytest.approx([stats.fisher_exact([[c, n - c], [b, m - b]]).pvalue], rel=1e-6)


def test_changed_tasks_are_corrected_over_all_tasks_and_unjudged_ones_are_missing():
    # 5 of 5 against 0 of 5: 2 / C(10, 5) = 2/252; of two tested tasks it is doubled
    found = fisher_by_task([5, 2, 1], [5, 5, 1], [0, 2, 0], [5, 5, 0])
    assert found.p_values == pytest.approx([2 / 252, 1, math.nan], nan_ok=True)
    assert found.adjusted == pytest.approx([4 / 252, 1, math.nan], nan_ok=True)


def test_one_attempt_per_arm_shows_no_change_in_any_task():
    assert fisher_by_task([1, 0], [1, 1], [0, 1], [1, 1]).p_values == [1, 1]


def test_a_task_with_more_passes_than_attempts_is_refused():
    with pytest.raises(ValueError, match=r"^task 1: 3, 2, 0, 1 are not"):
        fisher_by_task([1, 3], [1, 2], [0, 0], [1, 1])
    with pytest.raises(ValueError, match=r"^task 0: "):
        fisher_by_task([0.5], [1], [0], [1])

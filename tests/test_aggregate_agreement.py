"""Judge agreement and bias, against the krippendorff package and by hand."""

from __future__ import annotations

import math

import krippendorff
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aggregate.formulas.agreement import judge_bias, krippendorff_alpha

nan = math.nan
ratings = st.integers(2, 4).flatmap(
    lambda judges: st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, nan]), min_size=judges, max_size=judges),
        min_size=2,
        max_size=12,
    ).map(lambda units: np.array(units).T)
)


@pytest.mark.parametrize("level", ["interval", "nominal"])
@given(table=ratings)
def test_alpha_agrees_with_the_krippendorff_package(level, table):
    paired = table[:, (~np.isnan(table)).sum(axis=0) >= 2]
    assume(len(np.unique(paired[~np.isnan(paired)])) > 1)
    other = krippendorff.alpha(reliability_data=table, level_of_measurement=level)
    assert krippendorff_alpha(table, level) == pytest.approx(other, abs=1e-9)


def test_alpha_on_the_textbooks_four_coders():
    # Krippendorff, "Computing Krippendorff's alpha-reliability", 2011, example C: 0.743 and 0.849
    table = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, nan, nan, nan],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, nan, 3],
        [nan, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, nan],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, nan],
    ]
    assert krippendorff_alpha(table, "nominal") == pytest.approx(0.743, abs=0.001)
    assert krippendorff_alpha(table, "interval") == pytest.approx(0.849, abs=0.001)


def test_agreement_is_unknown_where_nothing_varies_or_nothing_is_shared():
    assert math.isnan(krippendorff_alpha([[1, 1], [1, 1]], "nominal"))
    assert math.isnan(krippendorff_alpha([[0.1, 0.1], [0.1, 0.1]], "interval"))
    assert math.isnan(krippendorff_alpha([[1, nan], [nan, 0]], "nominal"))
    assert math.isnan(krippendorff_alpha([[1, 0]], "nominal"))
    assert math.isnan(krippendorff_alpha([], "interval"))
    assert math.isnan(krippendorff_alpha([[], []], "interval"))


@given(ratings, st.integers(1, 3))
def test_units_that_one_judge_alone_rated_never_move_alpha(table, extra):
    lonely = np.full((len(table), extra), nan)
    lonely[0] = 0.9
    padded = np.hstack([table, lonely])
    assert krippendorff_alpha(padded) == pytest.approx(krippendorff_alpha(table), nan_ok=True)


def test_a_judges_bias_is_its_mean_distance_from_its_fellows():
    # Unit 1: 0.9 against mean(0.5, 0.7); unit 2: 0.4 against 0.2; the third judge missed unit 2
    found = judge_bias([[0.9, 0.4], [0.5, 0.2], [0.7, nan]])
    assert found == pytest.approx([(0.3 + 0.2) / 2, (-0.3 - 0.2) / 2, 0.0])


def test_a_judge_that_shares_no_unit_has_no_bias():
    assert judge_bias([[0.9, nan], [nan, 0.2]]) == pytest.approx([nan, nan], nan_ok=True)
    assert judge_bias([[], []]) == pytest.approx([nan, nan], nan_ok=True)
    assert judge_bias([]) == []


@given(ratings)
def test_two_judges_lean_by_opposite_amounts(table):
    two = table[:2]
    one, other = judge_bias(two)
    assert one == pytest.approx(-other, nan_ok=True)


def test_ratings_that_cannot_be_are_refused_with_their_place():
    with pytest.raises(ValueError, match=r"^ratings\[1\]\[0\]: an infinite rating"):
        krippendorff_alpha([[0.1, 0.2], [math.inf, 0.2]])
    with pytest.raises(ValueError, match=r"^ratings: a judges × units table"):
        judge_bias([0.1, 0.2])
    with pytest.raises(ValueError, match=r"^level: 'ordinal'"):
        krippendorff_alpha([[0.1, 0.2], [0.2, 0.2]], "ordinal")


def test_huge_ratings_do_not_overflow():
    assert krippendorff_alpha([[1e300, -1e300], [1e300, -1e300]]) == pytest.approx(1)

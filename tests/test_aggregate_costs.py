"""What runs cost: by arm, by task, by pass, and for each pass that the candidate adds."""

from __future__ import annotations

import pytest
from builders import a_record, both_arms, built


def test_an_extra_pass_is_priced_by_attempts_however_many_a_task_has():
    """Four tasks, five attempts: $0.20 more buys 8 passes more."""
    tasks = ("a", "b", "c", "d")
    records = [
        *both_arms(dict.fromkeys(tasks, "ppppf"), {}, completion={"cost_usd": 0.03}),
        *both_arms({}, dict.fromkeys(tasks, "ppfff"), completion={"cost_usd": 0.02}),
    ]
    assert built(records).cost.cost_per_extra_pass == pytest.approx(0.20 / 8)


def test_thirds_that_cancel_out_are_no_gain_and_have_no_price():
    """3/3 against 2/3 and 0/3 against 1/3: as many passes in both arms."""
    for mine, other in ((0.02, 0.01), (0.01, 0.02)):
        made = built(
            [
                *both_arms({"a": "ppp", "b": "fff"}, {}, completion={"cost_usd": mine}),
                *both_arms({}, {"a": "ppf", "b": "pff"}, completion={"cost_usd": other}),
            ]
        )
        assert made.attempt_delta == 0.0
        assert (made.cost.cost_per_extra_pass, made.cost.dominates) == (None, False)


def test_an_unknown_price_makes_nobody_cheaper():
    """The candidate's known price is 0.03 an attempt against 0.02: dearer, though its known sum is less."""
    tasks = ("a", "b", "c", "d")
    known = both_arms(dict.fromkeys(tasks, "p"), {}, completion={"cost_usd": 0.03})
    unknown = [
        record.model_copy(update={"attempt": 2, "completion": None})
        for record in both_arms(dict.fromkeys(tasks, "p"), {})
    ]
    made = built(
        [*known, *unknown, *both_arms({}, dict.fromkeys(tasks, "pf"), completion={"cost_usd": 0.02})]
    )
    assert made.cost.by_arm["candidate"].mean_cost_per_task is None
    assert made.cost.by_arm["candidate"].mean_cost_per_attempt == pytest.approx(0.03)
    assert made.cost.dominates is False


def test_cost_by_hand():
    candidate = [a_record(task, completion={"cost_usd": 0.03}) for task in "ab"]
    baseline = [a_record("a", "baseline", completion={"cost_usd": 0.01}, cached=True)]
    baseline += [a_record("b", "baseline", outcome="failed", completion={"cost_usd": 0.01}, cached=True)]
    made = built(candidate + baseline)
    cost = made.cost
    assert cost.by_arm["candidate"].mean_cost_per_task == 0.03
    assert cost.by_arm["baseline"].cop == pytest.approx(0.01 / 0.5)
    assert cost.frontier_cop == 0.02
    assert cost.cost_per_extra_pass == pytest.approx(0.02 / 0.5)
    assert cost.spent_usd == 0.06  # cached attempts were paid for earlier
    assert cost.cost_by_model == {"anthropic:some-model": 0.08}
    assert made.cost_weighted_advantage == pytest.approx(0.5 / 0.03, abs=1e-5)


def test_an_infinite_cost_of_pass_is_null_and_marked():
    made = built(both_arms({"a": "f"}, {"a": "f"}, completion={"cost_usd": 0.5}), weak_baseline="warn")
    assert made.arms["candidate"].cop is None
    assert made.arms["candidate"].no_pass is True


def costing(usd):
    return {"completion": {"cost_usd": usd}}


def test_an_error_that_was_billed_does_not_price_an_answer_that_was_not():
    records = both_arms({f"t{n}": "p" for n in range(3)}, {f"t{n}": "p" for n in range(3)}, **costing(0.1))
    records += [a_record("u", outcome="error", **costing(0.001)), a_record("u", attempt=2)]
    assert built(records).arms["candidate"].mean_cost_per_task == pytest.approx(0.1)


def test_nobody_is_cheaper_while_answers_have_no_price():
    tasks = [f"t{n}" for n in range(10)]
    records = [a_record(task, **(costing(0.01) if task == "t0" else {})) for task in tasks]
    halves = [both_arms({}, {task: "pf"[n % 2]}, **costing(0.02)) for n, task in enumerate(tasks)]
    cost = built(records + [record for half in halves for record in half]).cost
    assert (cost.dominates, cost.cost_per_extra_pass) == (False, None)
    assert (cost.by_arm["candidate"].n_cost_known, cost.by_arm["candidate"].n) == (1, 10)


def test_tasks_of_one_arm_do_not_make_an_extra_pass_dearer():
    records = [a_record("a", **costing(0.03)), a_record("a", "baseline", outcome="failed", **costing(0.01))]
    records += [a_record(f"t{n}", **costing(10.0)) for n in range(9)]
    assert built(records).cost.cost_per_extra_pass == pytest.approx(0.02)


# Published by another project for one model: runs, passes and total cost of each tier, and the frontier beside them.
TIERS = {
    "T0": (216, 202, 23.6480909),
    "T1": (90, 87, 10.19021705),
    "T2": (135, 132, 14.88760865),
    "T3": (369, 280, 41.61856425),
    "T4": (126, 81, 14.7050743),
    "T5": (135, 85, 15.91039435),
    "T6": (9, 6, 1.3489123),
}


def test_the_frontier_is_the_cheapest_pass_of_any_tier():
    records = [
        a_record(
            f"{tier}-{n}", tier=tier, outcome="passed" if n < passes else "failed", **costing(usd / runs)
        )
        for tier, (runs, passes, usd) in TIERS.items()
        for n in range(runs)
    ]
    cost = built(records).cost
    assert cost.by_arm["candidate"].cop == pytest.approx(0.140102, abs=1e-6)
    assert cost.frontier_cop == pytest.approx(0.112785, abs=1e-6)


def test_the_frontier_is_the_cheapest_pass_of_any_model():
    cheap = [a_record(task, model="cheap", **costing(0.01)) for task in "ab"]
    dear = [a_record(task, model="dear", **costing(0.05)) for task in "ab"]
    assert built([*cheap, *dear]).cost.frontier_cop == 0.01

"""Two runs of one suite, paired by task: what can be compared, what is decided, and what is told."""

from __future__ import annotations

import json

import pytest
from builders import a_record, both_arms

from aggregate import two_runs
from aggregate.standard_json import dumps


def test_two_runs_without_a_task_in_common_are_not_compared():
    first, second = (both_arms({task: "pp"}, {task: "ff"}) for task in ("a", "b"))
    with pytest.raises(ValueError, match="no task was judged in both runs"):
        two_runs.compare(first, second)


def test_two_runs_of_which_one_had_an_outage_are_not_decided():
    """Of 100 tasks the second run judged the 20 that the first failed; an outage is never an improvement."""
    names = [f"t{number}" for number in range(100)]
    first = both_arms({name: "f" if number < 20 else "p" for number, name in enumerate(names)}, {})
    second = both_arms({name: "p" if number < 20 else "e" for number, name in enumerate(names)}, {})
    made = two_runs.compare(first, second)
    assert made["decision"] == "inconclusive"
    assert "80 of 100 second-run attempts ended in error" in made["summary"]


def test_tasks_of_one_run_only_are_told():
    first, second = both_arms({"a": "p", "b": "p"}, {}), both_arms({"b": "p", "c": "p"}, {})
    assert (
        "not in the difference by attempts: 2 of their tasks." in two_runs.compare(first, second)["summary"]
    )


def test_two_runs_of_a_suite_are_compared_by_their_candidates():
    first = both_arms({"a": "f", "b": "p"}, {"a": "p", "b": "p"})
    second = both_arms({"a": "p", "b": "p", "c": "p"}, {"a": "f"}, run_id="run-2")
    result = two_runs.compare(first, second)
    assert (result["n_pairs"], result["n_dropped"]) == (2, 1)
    assert (result["baseline_pass_rate"], result["execution_pass_rate"]) == (0.5, 1.0)
    assert [change["task_id"] for change in result["changes"]] == ["a"]
    assert result["decision"] == "inconclusive"
    assert json.loads(dumps(result)) == result
    several = [a_record("a", "candidate:x"), a_record("a", "candidate:y")]
    with pytest.raises(ValueError, match="several candidates"):
        two_runs.compare(first, several)


def test_runs_of_a_model_each_are_paired_by_task_and_told_so():
    one, other = (both_arms({"a": "pf", "b": letters}, {}, model=f"m{letters}") for letters in ("ff", "pp"))
    made = two_runs.compare(one, other)
    assert (made["n_pairs"], made["models"], made["paired_by_model"]) == (2, ["mff", "mpp"], False)
    assert "2 tasks" in made["summary"]
    several = two_runs.compare([*one, *other], other)
    assert (several["n_pairs"], several["paired_by_model"]) == (2, True)
    assert "2 pairs of task and model" in several["summary"]


def test_a_run_that_stopped_at_its_verdict_is_compared_by_tasks_only():
    """Task b may still have passed in the attempts that were left out, so nobody knows it."""
    first = both_arms({"a": "p", "b": "f", "c": "ff"}, {})
    second = both_arms({"a": "pp", "b": "pp", "c": "pf"}, {})
    made = two_runs.compare(first, second, curtailed_at=(2, None))
    assert (made["baseline_pass_rate"], made["execution_pass_rate"], made["delta"]) == (0.5, 1.0, 0.5)
    assert (made["decision"], made["curtailed"]) == ("inconclusive", True)
    unknown = ("attempt_delta", "score_delta", "interval", "p_value", "min_detectable_effect", "needed")
    assert all(made[name] is None for name in unknown)
    assert made["changes"] == []
    assert "The first run left out attempts" in made["summary"]
    assert two_runs.compare(first, second)["attempt_delta"] == pytest.approx((0 + 1 + 0.5) / 3)

"""Two runs of one suite, paired by task: what can be compared, what is decided, and what is told."""

from __future__ import annotations

import json

import pytest
from builders import a_record, both_arms

from aggregate import comparison
from aggregate.standard_json import dumps


def test_two_runs_without_a_task_in_common_are_not_compared():
    first, second = (both_arms({task: "pp"}, {task: "ff"}) for task in ("a", "b"))
    with pytest.raises(ValueError, match="no task was judged in both runs"):
        comparison.compare(first, second)


def test_two_runs_of_which_one_had_an_outage_are_not_decided():
    """Of 100 tasks the second run judged the 20 that the first failed; an outage is never an improvement."""
    names = [f"t{number}" for number in range(100)]
    first = both_arms({name: "f" if number < 20 else "p" for number, name in enumerate(names)}, {})
    second = both_arms({name: "p" if number < 20 else "e" for number, name in enumerate(names)}, {})
    made = comparison.compare(first, second)
    assert made["decision"] == "inconclusive"
    assert "80 of 100 second-run attempts ended in error" in made["summary"]


def test_tasks_of_one_run_only_are_told():
    first, second = both_arms({"a": "p", "b": "p"}, {}), both_arms({"b": "p", "c": "p"}, {})
    assert (
        "not in the difference by attempts: 2 of their tasks." in comparison.compare(first, second)["summary"]
    )


def test_two_runs_of_a_suite_are_compared_by_their_candidates():
    first = both_arms({"a": "f", "b": "p"}, {"a": "p", "b": "p"})
    second = both_arms({"a": "p", "b": "p", "c": "p"}, {"a": "f"}, run_id="run-2")
    result = comparison.compare(first, second)
    assert (result["n_pairs"], result["n_dropped"]) == (2, 1)
    assert (result["baseline_pass_rate"], result["execution_pass_rate"]) == (0.5, 1.0)
    assert [change["task_id"] for change in result["changes"]] == ["a"]
    assert result["decision"] == "inconclusive"
    assert json.loads(dumps(result)) == result
    several = [a_record("a", "candidate:x"), a_record("a", "candidate:y")]
    with pytest.raises(ValueError, match="several candidates"):
        comparison.compare(first, several)

"""Two runs of one suite, paired by task: what can be compared, what is decided, and what is told."""

from __future__ import annotations

import pytest
from builders import a_record, both_arms

from aggregate.artifact import comparison
from aggregate.artifact.model import RunsCompared


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
    assert made.decision == "inconclusive"
    assert "80 of 100 second-run attempts ended in error" in made.summary


def test_tasks_of_one_run_only_are_told():
    """b is all that they share: neither a nor c may move a rate."""
    first, second = both_arms({"a": "f", "b": "pf"}, {}), both_arms({"b": "pp", "c": "f"}, {})
    made = comparison.compare(first, second)
    assert (made.baseline_pass_rate, made.execution_pass_rate, made.n_dropped) == (1.0, 1.0, 2)
    assert (made.delta, made.attempt_delta) == (0.0, 0.5)
    assert "Left out, as not judged in both runs: 2 tasks." in made.summary


def test_models_of_one_run_only_move_nothing():
    one, other = (both_arms({"a": letters, "b": letters}, {}, model=f"m-{letters}") for letters in "pf")
    made = comparison.compare([*one, *other], one)
    assert (made.delta, made.attempt_delta, made.n_pairs, made.n_dropped) == (0.0, 0.0, 2, 2)
    assert "2 pairs of task and model." in made.summary
    third = both_arms({"a": "p"}, {}, model="another")
    with pytest.raises(ValueError, match="no task was judged in both runs with the same model"):
        comparison.compare([*one, *other], third)


def test_a_run_without_a_candidate_is_compared_by_its_baseline_and_says_so():
    first, second = both_arms({"a": "p"}, {"a": "p"}), both_arms({}, {"a": "f"})
    assert (
        "The second run has no candidate: its baseline is compared."
        in comparison.compare(first, second).summary
    )
    skipped = both_arms({"a": "s"}, {"a": "f"})
    with pytest.raises(ValueError, match="no task was judged in both runs"):
        comparison.compare(first, skipped)


def test_errors_are_the_reason_where_the_interval_alone_would_decide():
    tasks = {f"t{number}": "pp" for number in range(60)}
    broken = {name: "ee" if number < 6 else "pp" for number, name in enumerate(tasks)}
    made = comparison.compare(both_arms(tasks, {}), both_arms(broken, {}))
    assert made.interval.tasks_like_these.low > -0.05
    assert (made.decision, "12 of 120 second-run attempts" in made.summary) == ("inconclusive", True)


def test_scores_are_means_over_the_tasks_that_both_runs_scored():
    first = [a_record("a", score=0.2), a_record("b", score=None)]
    second = [a_record("a", score=0.6), a_record("b", score=1.0)]
    made = comparison.compare(first, second)
    assert (made.first_run.mean_score, made.second_run.mean_score) == (0.2, 0.6)
    assert made.score_delta == pytest.approx(0.4)


def test_names_of_candidates_cannot_write_on_the_terminal():
    several = [a_record("a", "candidate:\x1b[31mred\nuplift: fake"), a_record("a", "candidate:y")]
    with pytest.raises(ValueError, match="several candidates") as caught:
        comparison.compare(both_arms({"a": "p"}, {}), several)
    assert str(caught.value).isprintable()


def test_two_runs_of_a_suite_are_compared_by_their_candidates():
    first = both_arms({"a": "f", "b": "p"}, {"a": "p", "b": "p"})
    second = both_arms({"a": "p", "b": "p", "c": "p"}, {"a": "f"}, run_id="run-2")
    result = comparison.compare(first, second)
    assert (result.n_pairs, result.n_dropped) == (2, 1)
    assert (result.baseline_pass_rate, result.execution_pass_rate) == (0.5, 1.0)
    assert [change.task_id for change in result.changes] == ["a"]
    assert result.decision == "inconclusive"
    assert RunsCompared.model_validate_json(result.model_dump_json()) == result
    several = [a_record("a", "candidate:x"), a_record("a", "candidate:y")]
    with pytest.raises(ValueError, match="several candidates"):
        comparison.compare(first, several)


def test_runs_of_a_model_each_are_paired_by_task_and_told_so():
    one, other = (both_arms({"a": "pf", "b": letters}, {}, model=f"m{letters}") for letters in ("ff", "pp"))
    made = comparison.compare(one, other)
    assert (made.n_pairs, made.models, made.paired_by_model) == (2, ["mff", "mpp"], False)
    assert "2 tasks" in made.summary
    several = comparison.compare([*one, *other], other)
    assert (several.n_pairs, several.paired_by_model) == (2, True)
    assert "2 pairs of task and model" in several.summary

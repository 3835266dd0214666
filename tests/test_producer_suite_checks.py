"""What a suite may say about several checks a task, and where it is told that it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from producer.suites import suite
from producer.suites.suite import InvalidSuite

A = {"type": "contains", "expected": ["a"]}
RUBRIC = {"type": "llm-rubric", "rubric": "kind?"}


def problems(folder: Path, *tasks: dict[str, Any], version: str = "1.1") -> list[str]:
    """Places and messages, without the file's name, line and column."""
    try:
        load(folder, *tasks, version=version)
    except InvalidSuite as invalid:
        return [f"{problem.where}: {problem.message}" for problem in invalid.problems]
    return []


def load(folder: Path, *tasks: dict[str, Any], version: str = "1.1") -> suite.Suite:
    filled = [{"id": f"t{number}", "prompt": "p", **task} for number, task in enumerate(tasks)]
    (folder / "suite.yaml").write_text(json.dumps({"skill_id": "s", "version": version, "tasks": filled}))
    return suite.load(folder / "suite.yaml")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"judge": A, "checks": [A]}, "checks: stands beside judge; a task has one of the two"),
        ({"judge": A, "threshold": 0.5}, "threshold: needs checks, whose mean score it is compared with"),
        ({"checks": []}, "checks: is an empty list; must hold at least one entry"),
        ({"checks": A}, "checks: is a mapping; must be a list"),
        ({"checks": ["x"]}, "checks[0]: is the text 'x'; must be a mapping with keys such as type"),
        ({"checks": [A, {"type": "regx"}]}, "checks[1].type: unknown judge 'regx'; allowed: contains, "),
        (
            {"checks": [{**A, "wieght": 2}]},
            "checks[0].wieght: unknown key 'wieght'; allowed: name, weight, required, type, expected, forbidden "
            "(did you mean weight?)",
        ),
        ({"checks": [{**A, "weight": -1}]}, "checks[0].weight: is the number -1; must be at least 0"),
        (
            {"checks": [{**A, "name": "n"}, {**A, "name": "n"}]},
            "checks[1].name: duplicate name 'n'; must be unique",
        ),
        (
            {"checks": [{**A, "weight": 0}]},
            "checks: have no weight at all; give one of them a weight above 0",
        ),
        (
            {"checks": [{**A, "required": False}]},
            "checks: are all not required, so that every output passes; add a threshold",
        ),
        (
            {"checks": [{"any": [A, {"not": {"type": "regex", "pattern": "("}}]}]},
            "checks[0].any[1].not.pattern: is the text '('; not a regular expression: ",
        ),
        (
            {"checks": [{"not": {"type": "contains", "expectd": []}}]},
            "checks[0].not.expected: is missing; this key is required",
        ),
        (
            {"checks": [{"not": {**A, "weight": 2}}]},
            "checks[0].not: is a mapping; must not have weight, which only an entry of checks: can have",
        ),
        ({"judge": {**A, "name": "x"}}, "judge: is a mapping; must not have name, which only an entry of"),
        (
            {"checks": [{"any": [{"any": [{"any": [{"any": [{"any": [A]}]}]}]}]}]},
            "checks[0].any: is a list; must not be nested more than 4 deep",
        ),
        ({"checks": [A], "threshold": 1.5}, "threshold: is the number 1.5; must be at most 1"),
        ({"checks": [A], "threshold": None}, "threshold: is nothing; must be a number"),
        (
            {"checks": [{"type": "python", "function": "fixtures/none.py:f"}]},
            "checks[0].function: 'fixtures/none.py' does not exist; put the file there",
        ),
        (
            {"judge": {"type": "command", "argv": ["python", "fixtures/none.py"]}},
            "judge.argv[1]: 'fixtures/none.py' does not exist; put the file there",
        ),
        (
            {"judge": {"not": {"type": "json-schema", "schema": {"type": "objekt"}}}},
            "judge.not.schema.type: not a JSON Schema: ",
        ),
        (
            {"judge": {"type": "files", "unchanged": ["x.csv"]}},
            "judge.unchanged[0]: 'x.csv' is not there at the start; add fixtures/x.csv to the task's files",
        ),
        (
            {"judge": {"type": "files", "contains": {"../x": "y"}}},
            "judge.contains['../x']: key '../x'; must be a path inside the agent's folder",
        ),
        (
            {"judge": {"type": "files", "contains": {"x": 5}}},
            "judge.contains.x: is the number 5; must be a list",
        ),
    ],
)
def test_mistakes_are_told_where_they_are(tmp_path: Path, task: dict[str, Any], said: str) -> None:
    told = problems(tmp_path, task)
    assert any(one.startswith(f"tasks[0].{said}") for one in told), told


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = problems(
        tmp_path, {"checks": [{**A, "weight": -1}, {"any": []}]}, {}, {"judge": A, "threshold": 0}
    )
    assert [one.partition(":")[0] for one in told] == [
        "tasks[0].checks[0].weight",
        "tasks[0].checks[1].any",
        "tasks[1].judge",
        "tasks[2].threshold",
    ]


def test_only_checks_and_threshold_need_version_1_1(tmp_path: Path) -> None:
    assert problems(tmp_path, {"checks": [A], "threshold": 0.5}, version="1.0") == [
        'tasks[0].checks: needs version: "1.1" at the top of the suite',
        'tasks[0].threshold: needs version: "1.1" at the top of the suite',
    ]
    combined = {"any": [{"not": A}, {"type": "length", "max_words": 3}]}
    seeing = {**RUBRIC, "sees": ["prompt", "output"], "reference": "so"}
    assert problems(tmp_path, {"judge": combined}, {"judge": seeing}, version="1.0") == []


def test_two_benchmarks_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "fixtures").mkdir()
    for name in ("b.py", "o.py"):
        (tmp_path / "fixtures" / name).write_text("")
    timed = {"type": "benchmark", "benchmark_file": "fixtures/b.py", "original_file": "fixtures/o.py"}
    assert problems(tmp_path, {"checks": [timed, A, timed]}) == [
        "tasks[0].checks[2]: is a second benchmark; a task can have one"
    ]


def test_a_rubric_sees_the_prompt_since_1_1_also_inside_others(tmp_path: Path) -> None:
    tasks = ({"judge": RUBRIC}, {"judge": {"not": {"any": [RUBRIC, {**RUBRIC, "sees": ["output"]}]}}})
    newer, older = load(tmp_path, *tasks), load(tmp_path, *tasks, version="1.0")
    assert [[rubric.sees for rubric in task.rubrics] for task in newer.tasks] == [
        [["prompt", "output"]],
        [["prompt", "output"], ["output"]],
    ]
    assert {tuple(rubric.sees) for task in older.tasks for rubric in task.rubrics} == {("output",)}
    assert newer.hints == ()
    assert [hint.partition("  ")[2].partition(":")[0] for hint in older.hints] == [
        "tasks[0].judge",
        "tasks[1].judge.not.any[0]",
    ]


def test_a_contains_check_that_nothing_can_pass_is_doubted_wherever_it_stands(tmp_path: Path) -> None:
    never = {"type": "contains", "expected": ["abc"], "forbidden": ["B"]}
    (doubt,) = load(tmp_path, {"checks": [A, {"any": [never]}]}).warnings
    assert "tasks[0].checks[1].any[0].forbidden[0]: forbidden 'B' is part of an expected string" in doubt

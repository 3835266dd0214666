"""The suite's JSON Schema and `uplift validate` agree wherever a schema can say it."""

import json
from pathlib import Path
from typing import Any

import pytest
import test_producer_suite_hostile as hostile
import test_producer_suite_mistakes as mistakes
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from running import uplift
from suites import TASK, a_fixture, a_task

from producer.suites import rules, suite
from producer.suites.rules import JUDGE_TYPES

REPOSITORY = Path(__file__).parent.parent
VALIDATOR = Draft202012Validator(json.loads(rules.schema_text()))
# What only `validate` can know: whether files exist, schemas and patterns work, names repeat, and how YAML was written.
BEYOND = (
    *("does not exist", "leaves fixtures/", "cannot be used", "not a regular expression", "times at least"),
    *("not a JSON Schema", "leads outside", "without end", "long way round", "duplicate id", "invalid YAML"),
    *("is not allowed", "duplicate key", "not a finite number", "is not text", "forbidden character"),
    *("second YAML document", "nested", "must have different names", "is neither", "composed form"),
)


def a_suite(**changes: Any) -> dict[str, Any]:
    return yaml.safe_load(hostile.VALID) | changes


def both_say(folder: Path, text: str) -> tuple[bool, bool, list[str]]:
    """Whether the schema accepts, whether `validate` does, and what the latter complains of."""
    for name in ("a", "t.py"):
        a_fixture(folder, name, "{}")
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    problems = [str(problem) for problem in suite.validate([path])]
    return VALIDATOR.is_valid(yaml.safe_load(text)), not problems, problems


def test_the_published_file_is_the_one_that_the_code_makes() -> None:
    assert (REPOSITORY / "docs" / rules.SCHEMA_FILE).read_text(encoding="utf-8") == rules.schema_text(), (
        "write it anew: uplift validate --schema > docs/suite.schema.json"
    )


def test_the_command_prints_it(tmp_path: Path) -> None:
    done = uplift("validate", "--schema", cwd=tmp_path)
    assert (done.code, done.out) == (0, rules.schema_text())


def test_it_is_a_json_schema_and_knows_every_judge() -> None:
    Draft202012Validator.check_schema(json.loads(rules.schema_text()))
    text = rules.schema_text()
    assert all(json.dumps(name) in text for name in JUDGE_TYPES)


def test_the_page_about_the_format_names_every_field() -> None:
    page = (REPOSITORY / "docs" / "suite-format.md").read_text(encoding="utf-8")
    made = json.loads(rules.schema_text())
    names = {name for part in [made, *made["$defs"].values()] for name in part["properties"]}
    assert {"skill_id", "should_trigger", "should_match", "oracle_file"} <= names
    assert [name for name in sorted(names) if name not in page] == []


def test_suites_of_the_examples_satisfy_it() -> None:
    suites = list(REPOSITORY.glob("examples/*/suite.yaml"))
    assert len(suites) >= 3
    for path in suites:
        assert list(VALIDATOR.iter_errors(yaml.safe_load(path.read_text()))) == [], path


def cases(test: Any) -> list[Any]:
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return [tuple(case) for case in mark.args[1]]


@pytest.mark.parametrize(
    ("fields", "said"), cases(mistakes.test_a_task_is_checked_strictly_and_nothing_is_coerced)
)
def test_it_rejects_the_tasks_that_validate_rejects(
    tmp_path: Path, fields: dict[str, str], said: str
) -> None:
    text = 'skill_id: s\nversion: "1.0"\ntasks:' + a_task(**fields)
    # Words that YAML 1.1 reads as true, a date or a number in base 60 are another matter.
    if fields.get("should_trigger") == "no" or "timeout_seconds" in fields:
        text = text.replace(": no\n", ": 'no'\n").replace("1_000", "'1_000'").replace("1:30", "'1:30'")
    # In JSON Schema `$` is the very end; Python's `re`, which stands in for it here, allows a newline behind it.
    text = text.replace('"a\\n"', '"a\\nb"')
    accepted = VALIDATOR.is_valid(yaml.safe_load(text))
    assert accepted is any(words in said for words in BEYOND)


@pytest.mark.parametrize(("head", "said"), cases(mistakes.test_a_suite_says_its_skill_version_and_defaults))
def test_it_rejects_the_heads_that_validate_rejects(head: str, said: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(f"{head}tasks:{TASK}"))


@pytest.mark.parametrize(("content", "said"), cases(mistakes.test_a_suite_is_a_mapping_with_tasks))
def test_it_rejects_what_is_no_suite(content: str, said: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(content))


@pytest.mark.parametrize(
    "judge",
    [
        {"type": "regex", "pattern": "a", "ignore_case": True, "multiline": False, "should_match": False},
        {"type": "equals", "text": "a", "ignore_whitespace": True},
        {"type": "json-schema", "schema": {"type": "object"}},
        {"type": "json-schema", "schema": None, "schema_file": "fixtures/a"},
        {"type": "contains", "expected": ["a"], "forbidden": []},
        {"type": "pytest", "test_file": "fixtures/t.py", "timeout_seconds": 5},
        {
            "type": "llm-rubric",
            "rubric": "r",
            "criteria": [{"name": "n", "max_points": 0.5}],
            "judges": ["mock"],
        },
        {
            "type": "benchmark",
            "benchmark_file": "fixtures/a",
            "original_file": "fixtures/a",
            "oracle_file": None,
        },
    ],
)
def test_both_accept_every_judge(tmp_path: Path, judge: dict[str, Any]) -> None:
    content = a_suite(tasks=[{"id": "a", "prompt": "p", "judge": judge}])
    assert both_say(tmp_path, yaml.safe_dump(content)) == (True, True, [])


@pytest.mark.parametrize("name", ["任务-1", "हिन्दी", "字" * 64, "a.b_c-D9"])
def test_both_accept_ids_in_any_script(tmp_path: Path, name: str) -> None:
    content = a_suite(tasks=[{"id": name, "prompt": "p", "judge": {"type": "equals", "text": "a"}}])
    assert both_say(tmp_path, yaml.safe_dump(content, allow_unicode=True)) == (True, True, [])


@pytest.mark.parametrize(
    "name", ["字" * 65, "任 务", "任/务", "-a", "_a", ".a", "a:b", "a@b", "a[b", "a^b", "a`b", "a{b", "a,b"]
)
def test_both_reject_other_ids(tmp_path: Path, name: str) -> None:
    content = a_suite(tasks=[{"id": name, "prompt": "p", "judge": {"type": "equals", "text": "a"}}])
    assert both_say(tmp_path, yaml.safe_dump(content, allow_unicode=True))[:2] == (False, False)


PLACES = st.sampled_from(
    [("skill_id",), ("version",), ("description",), ("defaults",), ("defaults", "tags"), ("tasks",)]
    + [
        ("tasks", n, key)
        for n in range(3)
        for key in ("id", "prompt", "judge", "files", "replies", "tags", "tier")
    ]
    + [("tasks", n, "judge", key) for n in range(3) for key in ("type", "expected", "criteria", "extra")]
)


@given(PLACES, hostile.wrong_values)
@settings(deadline=None, max_examples=150)
def test_any_value_in_any_place_is_accepted_by_both_or_by_neither(
    tmp_path_factory: pytest.TempPathFactory, steps: tuple[Any, ...], value: Any
) -> None:
    content = a_suite()
    holder = content
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    folder = tmp_path_factory.getbasetemp() / "both"
    accepted, valid, problems = both_say(folder, yaml.safe_dump(content, allow_unicode=True))
    # What the schema rejects, `validate` rejects; and the other way round for all that a schema can say.
    if not accepted:
        assert not valid
    elif not valid:
        assert all(any(words in problem for words in BEYOND) for problem in problems), problems

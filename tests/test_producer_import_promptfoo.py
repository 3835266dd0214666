"""Importing a promptfoo configuration: what becomes which judge, what is left out by name, and hostile files."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import SKILL, standalone, uplift

from judges import judge
from judges.judgment import Completion, Workspace
from producer.importers import imported, promptfoo
from producer.importers.imported import Found, Unimportable
from producer.suites import suite

# Written after promptfoo's public documentation: prompts inline and in a file, defaults, variables, many assertions.
CONFIG = """# yaml-language-server: $schema=https://promptfoo.dev/config-schema.json
description: Questions about cities
prompts:
  - 'Answer briefly: {{question}}'
  - file://prompts/guide.txt
providers:
  - openai:gpt-5-mini
defaultTest:
  assert:
    - type: latency
      threshold: 30000
assertionTemplates:
  polite:
    type: llm-rubric
    value: Is polite
tests:
  - description: Capital of France
    vars:
      question: What is the capital of France?
    assert:
      - type: contains
        value: Paris
      - type: icontains
        value: france
      - type: contains-all
        value: [capital, city]
      - type: not-contains
        value: Lyon
      - type: cost
        threshold: 0.002
  - vars:
      question: [What is 2+2?, What is 3+1?]
    assert:
      - type: equals
        value: 4
  - vars: {question: Which year?}
    assert:
      - type: regex
        value: 'in 1889'
  - vars: {question: 'Rome as JSON'}
    assert:
      - type: is-json
        value: {type: object}
      - type: javascript
        value: output.length < 200
  - vars: {question: 'A long story'}
    assert:
      - type: python
        value: len(output) < 200
      - $ref: '#/assertionTemplates/polite'
      - type: llm-rubric
        value: 'Answers {{question}}'
        threshold: 0.9
  - vars: {question: 'Nothing to judge'}
"""


def a_config(folder: Path, text: str = CONFIG) -> Path:
    home = folder / "cities"
    (home / "prompts").mkdir(parents=True)
    (home / "prompts" / "guide.txt").write_text("You are a guide.\n{{question}}\n")
    path = home / "promptfooconfig.yaml"
    path.write_text(text)
    return path


def a_test(*assertions: str, prompt: str = "p", more: str = "") -> str:
    """A configuration with one prompt and one test, whose assertions are YAML mappings; they start on line 4."""
    lines = [
        f"prompts: ['{prompt}']",
        f"tests: [{{vars: {{}}, {more}assert: [",
        "",
        *[f"{{{a}}}," for a in assertions],
    ]
    return "\n".join([*lines, "]}]\n"])


def found_in(folder: Path, text: str) -> Found:
    return promptfoo.convert(a_config(folder, text))


def judge_of(folder: Path, *assertions: str) -> dict[str, Any]:
    (task,) = found_in(folder, a_test(*assertions)).tasks
    made: dict[str, Any] = task.fields["judge"]
    return made


def left_out(found: Found) -> list[str]:
    return [str(item).removeprefix(f"{found.source}:") for item in found.left_out]


def test_every_prompt_is_taken_with_every_test_and_every_choice_of_variables(tmp_path: Path) -> None:
    found = found_in(tmp_path, CONFIG)
    prompts = [task.fields["prompt"] for task in found.tasks]
    assert prompts[:4] == [
        "Answer briefly: What is the capital of France?",
        "You are a guide.\nWhat is the capital of France?",
        "Answer briefly: What is 2+2?",
        "Answer briefly: What is 3+1?",
    ]
    # Two prompts with 1 + 2 + 1 + 1 + 1 + 1 questions; the last one has nothing to judge by.
    assert (found.task_count, found.tasks_left_out) == (14, 2)
    # The python test with its two rubrics became two tasks for each prompt.
    assert len(found.tasks) == 12 + 2


def test_all_assertions_are_counted_and_those_without_an_equivalent_are_named_with_their_line(
    tmp_path: Path,
) -> None:
    found = found_in(tmp_path, CONFIG)
    # latency; contains, icontains, contains-all, not-contains, cost; equals; regex; is-json, javascript;
    # python and two rubrics.
    assert found.assertion_count == 13
    assert found.assertions_left_out == 2
    assert left_out(found) == [
        "29:9  cost: costs are measured for every run and not judged by task; see --budget-usd",
        "44:9  javascript: no equivalent among Uplift's judges",
        f"54:5  tests[5] with the prompt of {found.source}:4:5: it has only a time limit to judge by",
        f"54:5  tests[5] with the prompt of {found.source}:5:5: it has only a time limit to judge by",
    ]


def test_strings_of_one_test_become_one_contains_judge(tmp_path: Path) -> None:
    first = found_in(tmp_path, CONFIG).tasks[0].fields
    assert first["judge"] == {
        "type": "contains",
        "expected": ["Paris", "france", "capital", "city"],
        "forbidden": ["Lyon"],
    }
    assert first["timeout_seconds"] == 30
    assert first["id"] == "capital-of-france"


@pytest.mark.parametrize(
    ("assertion", "made"),
    [
        ("type: regex, value: 'a+b'", {"type": "regex", "pattern": "a+b"}),
        ("type: not-regex, value: sorry", {"type": "regex", "pattern": "sorry", "should_match": False}),
        ("type: contains-any, value: [a.b, c]", {"type": "regex", "pattern": r"a\.b|c"}),
        ("type: icontains-any, value: [a]", {"type": "regex", "pattern": "a", "ignore_case": True}),
        ("type: not-contains, value: a", {"type": "regex", "pattern": "a", "should_match": False}),
        (
            "type: not-icontains, value: a",
            {"type": "regex", "pattern": "a", "ignore_case": True, "should_match": False},
        ),
        ("type: starts-with, value: Dear", {"type": "regex", "pattern": r"\ADear"}),
        ("type: equals, value: hi", {"type": "equals", "text": "hi"}),
        ("type: equals, value: {a: 1}", {"type": "json-schema", "schema": {"const": {"a": 1}}}),
        ("type: is-json", {"type": "json-schema", "schema": {}}),
        (
            "type: contains-json, value: {type: array}",
            {"type": "json-schema", "schema": {"type": "array"}},
        ),
        ("type: llm-rubric, value: polite", {"type": "llm-rubric", "rubric": "polite"}),
        (
            "type: llm-rubric, value: polite, threshold: 0.9",
            {"type": "llm-rubric", "rubric": "polite", "pass_threshold": 0.9},
        ),
        ("type: contains, value: 5", {"type": "contains", "expected": ["5"]}),
    ],
)
def test_a_single_assertion_becomes_the_judge_that_means_the_same(
    tmp_path: Path, assertion: str, made: dict[str, Any]
) -> None:
    assert judge_of(tmp_path, assertion) == made


def test_several_rubrics_are_criteria_that_must_all_hold(tmp_path: Path) -> None:
    made = judge_of(tmp_path, "type: llm-rubric, value: Is kind", "type: llm-rubric, value: Is short")
    assert made["pass_threshold"] == 1.0
    assert [c["name"] for c in made["criteria"]] == ["is-kind", "is-short"]


def test_a_set_of_assertions_is_taken_apart(tmp_path: Path) -> None:
    inner = "{type: contains, value: a}, {type: contains, value: b}"
    found = found_in(tmp_path, a_test(f"type: assert-set, assert: [{inner}]"))
    assert found.tasks[0].fields["judge"] == {"type": "contains", "expected": ["a", "b"]}
    assert (found.assertion_count, found.assertions_left_out) == (2, 0)


MIXED = (
    "type: contains, value: Ada",
    "type: not-contains, value: ada",
    "type: regex, value: '^[^0-9]*$'",
    "type: python, value: 'len(output) < 20'",
    'type: python, value: \'context["vars"]["x"] in output\', threshold: 0.5',
    "type: python, value: \"return {'pass': 'A' in output, 'score': 1}\\n\"",
    "type: python, value: file://check.py:fine, config: {least: 2}",
)


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        ("Ada B", []),
        ("Ada ada B", ["contains_2"]),
        ("Ada B 1", ["matches_3"]),
        ("Ada B" + "x" * 20, ["python_4"]),
        ("Ada", ["python_5"]),
        ("da B", ["contains_1", "python_6"]),
    ],
)
async def test_a_mixture_becomes_one_pytest_judge_with_a_test_for_each_assertion(
    tmp_path: Path, text: str, failing: list[str]
) -> None:
    async def no_model(model: str, prompt: str, *, system: str = "") -> Completion:
        raise AssertionError("nobody is to be asked")

    config = a_test(*MIXED, prompt="about {{x}}").replace("vars: {}", "vars: {x: B}")
    path = a_config(tmp_path, config)
    (path.parent / "check.py").write_text(
        "def fine(output, context):\n    return len(output) >= context['config']['least']\n"
    )
    found = promptfoo.convert(path)
    assert (found.assertion_count, found.assertions_left_out) == (7, 0)
    made = suite.load(imported.write(found, tmp_path / "out"))
    (task,) = made.tasks
    judgment = await judge(task.judge, Completion(text=text), no_model, Workspace(suite=tmp_path / "out"))
    assert judgment.score == pytest.approx((7 - len(failing)) / 7), judgment.details
    assert all(name in judgment.details for name in failing)
    assert judgment.passed is (not failing)


@pytest.mark.parametrize(
    ("assertion", "why"),
    [
        ("type: javascript, value: x", "no equivalent"),
        ("type: similar, value: x, threshold: 0.8", "no equivalent"),
        ("type: not-is-json", "no equivalent"),
        ("type: not-contains-all, value: [a]", "no equivalent"),
        ("type: assert-set, threshold: 0.5, assert: [{type: contains, value: a}]", "no equivalent"),
        ("type: contains", "value is missing; must be text"),
        ("type: contains, value: '{{none}}'", "the variable none has no value"),
        ("type: contains, value: '{{x | upper}}'", "no filters and no conditions"),
        ("type: contains, value: x, transform: output.trim()", "transform changes what is judged"),
        ("type: contains, value: x, weight: 0", "has weight 0"),
        ("type: contains-any, value: a", "must be a list of texts"),
        ("type: regex, value: '(a'", "its pattern cannot be used"),
        ("type: is-json, value: {type: strin}", "its schema cannot be used: type: not a JSON Schema"),
        ("type: is-json, value: file://none.json", "'none.json' does not exist"),
        ("type: is-json, value: file://../secret.json", "leaves the source's folder"),
        ("type: python, value: 'output ==='", "its Python code cannot be read"),
        ("type: python, value: file://none.py", "'none.py' does not exist"),
        ("type: python, value: file://bad.rb", "is no Python file"),
        ("type: latency, threshold: 200", "200 ms cannot be a task's timeout_seconds"),
        ("type: latency", "has no threshold"),
        ("type: cost, threshold: 1", "see --budget-usd"),
        ("type: llm-rubric, value: [a]", "value is a list; must be text"),
        ("type: contains, value: x, threshold: high", "threshold is the text 'high'; must be a number"),
    ],
)
def test_an_assertion_without_an_equivalent_is_named_with_its_line_and_the_reason(
    tmp_path: Path, assertion: str, why: str
) -> None:
    found = found_in(tmp_path, a_test("type: contains, value: ok", assertion))
    assert (found.assertion_count, found.assertions_left_out, len(found.tasks)) == (2, 1, 1)
    (said,) = left_out(found)
    assert said.startswith(f"5:1  {assertion.split(',')[0].removeprefix('type: ')}: ")
    assert why in said


def test_settings_that_are_not_carried_over_are_named(tmp_path: Path) -> None:
    text = "scenarios: []\nevaluateOptions: {repeat: 3}\n" + a_test(
        "type: contains, value: a", more="threshold: 0.5, "
    )
    assert left_out(found_in(tmp_path, text)) == [
        "4:31  threshold: every assertion must hold here",
        "1:12  scenarios: Uplift has no such setting",
        "2:18  evaluateOptions: Uplift has no such setting",
    ]


def test_prompts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    text = "prompts: [ok, file://p.py, file://chat.json, file://../x.txt]\n"
    text += "tests: [{assert: [{type: contains, value: a}]}]\n"
    found = found_in(tmp_path, text)
    assert len(found.tasks) == 1
    assert [line.split(":")[1].split("  ")[0] for line in left_out(found)] == ["15", "28", "46"]


def test_a_file_of_prompts_is_taken_apart_at_its_dashes(tmp_path: Path) -> None:
    path = a_config(tmp_path, "prompts: file://two.txt\ntests: [{assert: [{type: contains, value: a}]}]\n")
    (path.parent / "two.txt").write_text("First\n---\nSecond\n")
    assert [task.fields["prompt"] for task in promptfoo.convert(path).tasks] == ["First", "Second"]


def test_tests_may_stand_in_files_and_keep_their_places(tmp_path: Path) -> None:
    path = a_config(
        tmp_path, "prompts: ['{{q}}']\ntests: [file://a.yaml, file://b.json, file://c.csv, file://d.yaml]\n"
    )
    (path.parent / "a.yaml").write_text("- vars: {q: one}\n  assert: [{type: contains, value: a}]\n")
    b = [
        {
            "vars": {"q": "two"},
            "assert": [{"type": "javascript", "value": "x"}, {"type": "contains", "value": "b"}],
        }
    ]
    (path.parent / "b.json").write_text(json.dumps(b))
    found = promptfoo.convert(path)
    assert [task.fields["prompt"] for task in found.tasks] == ["one", "two"]
    assert [str(item).split("cities/")[1].split(":")[0] for item in found.left_out] == [
        "b.json",
        "promptfooconfig.yaml",
        "promptfooconfig.yaml",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1  is empty; must be a mapping with prompts and tests"),
        ("- a\n", "1:1  is a list; must be a mapping with prompts and tests"),
        ("tests: []\n", "1:1  prompts: is missing; a configuration needs one prompt or more"),
        ("prompts: [7]\n", "1:11  prompts[0]: is the number 7; must be text, or a mapping with raw or id"),
        ("prompts: [a]\ntests: [7]\n", "2:9  tests: is the number 7; must be a mapping or a file's name"),
        ("prompts: [a]\ntests: [{assert: x}]\n", "2:18  tests[0].assert: is the text 'x'; must be a list"),
        ("prompts: [a]\ntests: [{assert: [x]}]\n", "2:19  assert: is the text 'x'; must be a mapping"),
        (
            "prompts: [a]\ntests: [{assert: [{value: x}]}]\n",
            "2:19  tests[0].assert: an assertion has no type",
        ),
        ("prompts: [a]\ntests: [{vars: x.csv}]\n", "2:16  vars: is the text 'x.csv'; must be a mapping"),
        (
            "prompts: [a]\ntests: [{assert: [{$ref: '#/assertionTemplates/x'}]}]\n",
            "2:19  assert: $ref '#/assertionTemplates/x' leads to no assertion template",
        ),
        ("prompts: [a]\ntests: &t []\n", "2:8  tests: anchor '&t' is not allowed"),
        ("prompts: [a\n", "2:1  prompts[1]: invalid YAML"),
        ("prompts: [!!python/object:os.system x]\n", "1:11  prompts[0]: tag"),
        ("[" * 400, "1:33  "),
        (
            f"prompts: ['{{{{a}}}}{{{{b}}}}']\ntests: [{{vars: {{a: [{'x, ' * 101}], b: [{'y, ' * 100}]}}}}]\n",
            "2:9  tests[0]: makes more than 10,000 tasks",
        ),
    ],
)
def test_a_broken_or_hostile_configuration_is_told_where(tmp_path: Path, text: str, said: str) -> None:
    path = a_config(tmp_path, text)
    with pytest.raises(Unimportable) as caught:
        promptfoo.convert(path)
    assert str(caught.value.problems[0]).removeprefix(f"{path}:").startswith(said)


def test_a_configuration_of_which_nothing_remains_writes_nothing(tmp_path: Path) -> None:
    a_config(tmp_path, a_test("type: javascript, value: x"))
    done = uplift("import", "cities/promptfooconfig.yaml", "--output", "out", cwd=tmp_path)
    assert done.code == 2
    assert "no task can be imported" in done.err
    assert "promptfooconfig.yaml:4:1  javascript: no equivalent among Uplift's judges" in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["cities"]


@pytest.mark.slow
def test_a_configuration_converts_and_runs_with_the_simulated_model(tmp_path: Path) -> None:
    a_config(tmp_path)
    done = uplift("import", "cities/promptfooconfig.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "14 tasks found, 12 imported, 2 left out\n" in done.out
    assert "13 assertions found, 11 imported, 2 left out\n" in done.out
    assert "wrote cities-suite/suite.yaml with 14 tasks\n" in done.out
    made = tmp_path / "cities-suite"
    assert uplift("validate", made / "suite.yaml", cwd=tmp_path).code == 0
    # Given what sim must say for the generated pytest judges, as docs/importing.md says
    (made / "fixtures" / "short.txt").write_text("short")
    text = (made / "suite.yaml").read_text()
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if line.startswith("      test_file: "):
            lines.append("    replies: {pass: fixtures/short.txt, fail: fixtures/long.txt}")
    (made / "fixtures" / "long.txt").write_text("long " * 100)
    (made / "suite.yaml").write_text("\n".join(lines) + "\n")
    (made / "skill").mkdir()
    (made / "skill" / "SKILL.md").write_text(SKILL)
    ran = uplift(*standalone(made / "suite.yaml", "--model", "sim:baseline=0,candidate=1"), cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert (ran.line["execution_pass_rate"], ran.line["baseline_pass_rate"]) == (1.0, 0.0)

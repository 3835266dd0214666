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


def a_rubric(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "llm-rubric", "rubric": text, "sees": ["output"], **more}


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
    assert len(found.tasks) == 12
    # The python test with its two rubrics has three checks.
    assert [len(task.fields.get("checks", [])) for task in found.tasks[-2:]] == [3, 3]


def test_all_assertions_are_counted_and_those_without_an_equivalent_are_named_with_their_line(
    tmp_path: Path,
) -> None:
    found = found_in(tmp_path, CONFIG)
    # latency; contains, icontains, contains-all, not-contains, cost; equals; regex; is-json, javascript;
    # python and two rubrics.
    assert found.assertion_count == 13
    assert found.counts["assertion"]["lost"] == 2
    assert left_out(found) == [
        "29:9  cost: costs are measured for every run and not judged by task; see --budget-usd",
        "44:9  javascript: no equivalent among Uplift's judges",
        f"54:5  tests[5] with the prompt of {found.source}:4:5: it has only a time limit to judge by",
        f"54:5  tests[5] with the prompt of {found.source}:5:5: it has only a time limit to judge by",
    ]


def test_each_assertion_of_a_test_becomes_a_check(tmp_path: Path) -> None:
    first = found_in(tmp_path, CONFIG).tasks[0].fields
    assert first["checks"] == [
        {"type": "regex", "pattern": "Paris"},
        {"type": "contains", "expected": ["france"]},
        {"type": "regex", "pattern": r"(?s)\A(?=.*capital)(?=.*city)"},
        {"type": "regex", "pattern": "Lyon", "should_match": False},
    ]
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
            {"not": {"type": "contains", "expected": ["a"]}},
        ),
        ("type: contains, value: 'a (b) 1.0'", {"type": "regex", "pattern": r"a \(b\) 1\.0"}),
        ("type: icontains-all, value: 'a, \"b, c\"'", {"type": "contains", "expected": ["a", "b, c"]}),
        (
            "type: not-contains-all, value: [a, b]",
            {"type": "regex", "pattern": r"(?s)\A(?=.*a)(?=.*b)", "should_match": False},
        ),
        ("type: not-is-json", {"not": {"type": "json-schema", "schema": {}}}),
        ("type: word-count, value: 20", {"type": "length", "min_words": 20, "max_words": 20}),
        ("type: not-word-count, value: {max: 9}", {"not": {"type": "length", "max_words": 9}}),
        ("type: not-equals, value: hi", {"not": {"type": "equals", "text": "hi"}}),
        ("type: not-llm-rubric, value: rude", {"not": a_rubric("rude")}),
        ("type: model-graded-closedqa, value: polite", a_rubric("polite")),
        ("type: g-eval, value: [kind, short], threshold: 0.5", a_rubric("kind\nshort", pass_threshold=0.5)),
        (
            "type: factuality, value: It is Paris",
            a_rubric(
                "The output does not contradict the reference.",
                sees=["prompt", "output"],
                reference="It is Paris",
            ),
        ),
        ("type: starts-with, value: Dear", {"type": "regex", "pattern": r"\ADear"}),
        ("type: equals, value: hi", {"type": "equals", "text": "hi"}),
        ("type: equals, value: {a: 1}", {"type": "json-schema", "schema": {"const": {"a": 1}}}),
        ("type: is-json", {"type": "json-schema", "schema": {}}),
        (
            "type: contains-json, value: {type: array}",
            {"type": "json-schema", "schema": {"type": "array"}},
        ),
        ("type: llm-rubric, value: polite", a_rubric("polite")),
        ("type: llm-rubric, value: polite, threshold: 0.9", a_rubric("polite", pass_threshold=0.9)),
        ("type: contains, value: 5", {"type": "regex", "pattern": "5"}),
    ],
)
def test_a_single_assertion_becomes_the_judge_that_means_the_same(
    tmp_path: Path, assertion: str, made: dict[str, Any]
) -> None:
    assert judge_of(tmp_path, assertion) == made


def checks_of(folder: Path, *assertions: str, more: str = "") -> dict[str, Any]:
    """What the one task of a test is judged by."""
    (task,) = found_in(folder, a_test(*assertions, more=more)).tasks
    return {key: task.fields[key] for key in ("judge", "checks", "threshold") if key in task.fields}


def test_all_that_ignores_case_is_one_judge_with_expected_and_forbidden(tmp_path: Path) -> None:
    made = checks_of(
        tmp_path,
        "type: icontains-all, value: [a, b]",
        "type: not-icontains-any, value: [c, d]",
        "type: not-icontains, value: e",
    )
    assert made == {"judge": {"type": "contains", "expected": ["a", "b"], "forbidden": ["c", "d", "e"]}}


def test_names_and_weights_are_those_of_the_assertions(tmp_path: Path) -> None:
    made = checks_of(
        tmp_path,
        "type: llm-rubric, value: kind, weight: 2, metric: tone",
        "type: llm-rubric, value: brief, metric: tone",
        "type: icontains, value: x, weight: 0",
    )
    assert made["checks"] == [
        {**a_rubric("kind"), "name": "tone", "weight": 2},
        {**a_rubric("brief"), "name": "tone-2"},
        {"type": "contains", "expected": ["x"], "weight": 0, "required": False},
    ]


A, B, C = (f"type: contains, value: {text}" for text in "abc")


def of_set(*assertions: str, more: str = "") -> str:
    return f"type: assert-set, {more}assert: [{', '.join(f'{{{each}}}' for each in assertions)}]"


def counted_in(made: dict[str, Any]) -> list[tuple[str, float, bool]]:
    return [(one["pattern"], one.get("weight", 1), one.get("required", True)) for one in made["checks"]]


def test_the_mean_that_a_test_must_reach_is_that_of_its_checks(tmp_path: Path) -> None:
    made = checks_of(tmp_path, f"{A}, weight: 3", B, more="threshold: 0.6, ")
    assert (counted_in(made), made["threshold"]) == ([("a", 3, False), ("b", 1, False)], 0.6)


def test_a_set_without_a_threshold_is_taken_apart(tmp_path: Path) -> None:
    found = found_in(tmp_path, a_test(of_set(A, B)))
    assert [one["pattern"] for one in found.tasks[0].fields["checks"]] == ["a", "b"]
    assert found.counts["assertion"] == {"found": 2, "kept": 2, "changed": 0, "lost": 0}


def test_in_a_mean_the_parts_of_a_set_share_its_weight(tmp_path: Path) -> None:
    made = checks_of(tmp_path, of_set(f"{A}, weight: 3", B, more="weight: 2, "), C, more="threshold: 0.5, ")
    # The set counts 2, of which a has three quarters.
    assert counted_in(made) == [("a", 1.5, False), ("b", 0.5, False), ("c", 1, False)]


def test_beside_a_set_with_a_threshold_all_else_is_required_and_has_no_weight(tmp_path: Path) -> None:
    made = checks_of(tmp_path, of_set(A, B, more="threshold: 0.5, "), C)
    assert (counted_in(made), made["threshold"]) == ([("a", 1, False), ("b", 1, False), ("c", 0, True)], 0.5)


def test_a_second_set_with_a_threshold_is_lost_and_said(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, a_test(of_set(A, more="threshold: 1, "), of_set(B, more="threshold: 0.5, "), C)
    )
    assert found.counts["assertion"] == {"found": 3, "kept": 2, "changed": 0, "lost": 1}
    assert "one set with a threshold, and this is the second" in left_out(found)[0]


def test_where_a_part_of_a_mean_is_lost_the_others_are_changed(tmp_path: Path) -> None:
    found = found_in(tmp_path, a_test(A, "type: javascript, value: x", B, more="threshold: 0.5, "))
    assert found.counts["assertion"] == {"found": 3, "kept": 0, "changed": 2, "lost": 1}
    assert {item.why for item in found.changed} == {"the mean is that of the others that were kept"}


def test_where_a_whole_set_is_lost_what_is_left_must_hold(tmp_path: Path) -> None:
    found = found_in(tmp_path, a_test(of_set("type: javascript, value: x", more="threshold: 0.5, "), A))
    assert found.tasks[0].fields["judge"] == {"type": "regex", "pattern": "a"}


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
        ("Ada ada B", [1]),
        ("Ada B 1", [2]),
        ("Ada B" + "x" * 20, [3]),
        ("Ada", [4]),
        ("da B", [0, 5]),
    ],
)
async def test_every_check_passes_and_fails_what_the_assertion_did(
    tmp_path: Path, text: str, failing: list[int]
) -> None:
    async def no_model(model: str, prompt: str, *, system: str = "") -> Completion:
        raise AssertionError("nobody is to be asked")

    config = a_test(*MIXED, prompt="about {{x}}").replace("vars: {}", "vars: {x: B}")
    path = a_config(tmp_path, config)
    (path.parent / "check.py").write_text(
        "from least import LEAST\n\ndef fine(output, context):\n"
        "    return {'pass': len(output) >= LEAST + context['config']['least'], 'score': 0.1}\n"
    )
    (path.parent / "least.py").write_text("LEAST = 1\n")
    found = promptfoo.convert(path)
    assert found.counts["assertion"] == {"found": 7, "kept": 7, "changed": 0, "lost": 0}
    made = suite.load(imported.write(found, tmp_path / "out"))
    checks = made.tasks[0].checks
    judgments = [
        await judge(check, Completion(text=text), no_model, Workspace(suite=tmp_path / "out"))
        for check in checks
    ]
    assert [number for number, one in enumerate(judgments) if not one.passed] == failing, judgments


@pytest.mark.parametrize(
    ("code", "threshold", "passed", "score"),
    [
        ("True", None, True, 1.0),
        ("0.2", None, True, 0.2),
        ("0.2", 0.3, False, 0.2),
        ("0", None, False, 0.0),
        ("{'pass': False, 'score': 0.9}", None, False, 0.9),
        ("{'pass': True, 'score': 0.2}", 0.3, False, 0.2),
    ],
)
async def test_a_python_assertion_passes_or_counts_its_score_in_a_mean(
    tmp_path: Path, code: str, threshold: float | None, passed: bool, score: float
) -> None:
    more = "" if threshold is None else f", threshold: {threshold}"
    for name, test in (("alone", ""), ("mean", "threshold: 0.5, ")):
        text = a_test(f'type: python, value: "{code}"{more}', more=test)
        made = suite.load(imported.write(found_in(tmp_path / name, text), tmp_path / f"{name}-out"))
        (check,) = made.tasks[0].judges
        where = Workspace(suite=tmp_path / f"{name}-out")
        judged = await judge(check, Completion(text="x"), None, where)  # type: ignore[arg-type]  # nobody is asked
        assert (judged.passed if name == "alone" else judged.score) == (passed if name == "alone" else score)


@pytest.mark.parametrize(
    ("assertion", "why"),
    [
        ("type: javascript, value: x", "no equivalent"),
        ("type: similar, value: x, threshold: 0.8", "no equivalent"),
        ("type: not-latency, threshold: 2000", "no equivalent"),
        ("type: contains", "value is missing; must be text"),
        ("type: contains, value: '{{none}}'", "the variable none has no value"),
        ("type: contains, value: '{{x | upper}}'", "no filters and no conditions"),
        ("type: contains, value: x, transform: output.trim()", "transform changes what is judged"),
        ("type: llm-rubric, value: x, threshold: 5", "threshold is the number 5; must be from 0 to 1"),
        ("type: contains, value: x, weight: -1", "weight is the number -1; must be from 0 to 1,000,000"),
        ("type: contains, value: x, weight: lots", "weight is the text 'lots'; must be a number"),
        ("type: word-count, value: {min: -1}", "must be a number of words"),
        ("type: python, value: file://bad.py", "'bad.py' does not exist"),
        ("type: contains-any, value: 7", "must be a list of texts"),
        pytest.param(f"type: contains-any, value: {'x' * 200_000}", "cannot be taken apart", id="long"),
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
    assert (found.assertion_count, found.counts["assertion"]["lost"], len(found.tasks)) == (2, 1, 1)
    (said,) = left_out(found)
    assert said.startswith(f"5:1  {assertion.split(',')[0].removeprefix('type: ')}: ")
    assert why in said


def test_settings_that_are_not_carried_over_are_named(tmp_path: Path) -> None:
    text = "outputPath: out\nevaluateOptions: {repeat: 3}\n" + a_test(
        "type: contains, value: a", more="options: {provider: x}, "
    )
    assert left_out(found_in(tmp_path, text)) == [
        "4:40  options.provider: Uplift has no such setting",
        "1:13  outputPath: Uplift has no such setting",
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


def test_a_table_has_a_test_to_a_row_and_assertions_in_its_cells(tmp_path: Path) -> None:
    path = a_config(tmp_path, "prompts: ['{{q}} {{w}}']\ntests: tests.csv\n")
    (path.parent / "tests.csv").write_text(
        "q,w,__expected1, __expected2 ,__description,__prefix,__metadata:of,__config:__expected2:threshold\n"
        'one,"a\nb","icontains-any: ""x, y""",grade: is kind,First,Say ,us,0.9\n'
        "two,c,not-contains:no,similar(0.8): yes,,,,\n"
        "three,d,plain words,fn:output.length < 9,,,,\n"
    )
    found = promptfoo.convert(path)
    assert [task.fields["prompt"] for task in found.tasks] == ["Say one a\nb", "two c", "three d"]
    assert [task.fields["id"] for task in found.tasks] == ["first", "test-2", "test-3"]
    assert found.tasks[0].fields["checks"] == [
        {"type": "regex", "pattern": "x, y", "ignore_case": True},
        a_rubric("is kind", pass_threshold=0.9),
    ]
    assert [task.fields["judge"] for task in found.tasks[1:]] == [
        {"type": "regex", "pattern": "no", "should_match": False},
        {"type": "equals", "text": "plain words"},
    ]
    assert found.counts["assertion"] == {"found": 6, "kept": 3, "changed": 1, "lost": 2}
    # The second test begins on line 4, as the first one's value has two lines.
    assert [str(item).split("tests.csv:")[1].split(":")[0] for item in found.left_out] == ["4", "5"]


@pytest.mark.parametrize(
    ("cell", "assertion"),
    [
        ("similar(0.8): hello", {"type": "similar", "value": "hello", "threshold": 0.8}),
        ("not-llm-rubric: is rude", {"type": "not-llm-rubric", "value": "is rude"}),
        ("eval: output.x", {"type": "javascript", "value": "output.x"}),
        ("file://checks.py:fine", {"type": "python", "value": "file://checks.py:fine"}),
        ("is-json", {"type": "is-json"}),
        ("latency", {"type": "latency", "threshold": 0.75}),
        ("note: this", {"type": "equals", "value": "note: this"}),
        ("Contains: this", {"type": "equals", "value": "Contains: this"}),
    ],
)
def test_a_cell_says_which_assertion_it_is(cell: str, assertion: dict[str, Any]) -> None:
    assert promptfoo.assertion_of_cell(cell) == assertion


def test_a_file_of_json_lines_has_a_test_to_a_line(tmp_path: Path) -> None:
    path = a_config(tmp_path, "prompts: ['{{q}}']\ntests: file://./tests.jsonl\n")
    lines = [{"vars": {"q": q}, "assert": [{"type": "icontains", "value": "x"}] * 2} for q in "ab"]
    (path.parent / "tests.jsonl").write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    found = promptfoo.convert(path)
    assert [task.fields["prompt"] for task in found.tasks] == ["a", "b"]
    assert found.counts["assertion"]["kept"] == 4
    (path.parent / "tests.jsonl").write_text('{"vars": {}}\n{"vars": \n')
    with pytest.raises(Unimportable, match=r"tests\.jsonl:2:"):
        promptfoo.convert(path)


def test_what_is_written_once_and_repeated_is_read(tmp_path: Path) -> None:
    text = """
prompts: ['{{q}}']
defaultTest: &same {assert: [{type: icontains, value: ok}]}
tests:
  - &first {vars: {q: one}, assert: [{type: icontains, value: x}]}
  - {<<: *first, vars: {q: two}}
"""
    found = found_in(tmp_path, text)
    assert [task.fields["prompt"] for task in found.tasks] == ["one", "two"]
    assert [task.fields["judge"]["expected"] for task in found.tasks] == [["ok", "x"]] * 2
    assert found.counts["assertion"] == {"found": 2, "kept": 2, "changed": 0, "lost": 0}


def test_every_scenario_tries_its_tests_with_each_of_its_values(tmp_path: Path) -> None:
    text = """
prompts: ['{{q}} in {{language}}']
scenarios:
  - config: [{vars: {language: French}}, {vars: {language: Thai}}]
    tests: [{vars: {q: Hello}, assert: [{type: icontains, value: '{{language}}'}]}]
"""
    found = found_in(tmp_path, text)
    assert [task.fields["judge"]["expected"] for task in found.tasks] == [["French"], ["Thai"]]
    assert [task.fields["prompt"] for task in found.tasks] == ["Hello in French", "Hello in Thai"]


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"q": "{{q}}"}, "the variable q holds itself"),
        ({"q": "{{a}}", "a": "{{q}}"}, "the variable q holds itself"),
        (
            {"q": "{{v0}}", **{f"v{n}": f"{{{{v{n + 1}}}}}" for n in range(2000)}},
            "variables hold variables more than 10 deep, or themselves",
        ),
        (
            {"q": "{{v0}}" * 99, **{f"v{n}": f"{{{{v{n + 1}}}}}" * 99 for n in range(8)}, "v8": "x"},
            "longer than 1,000,000 characters with its variables filled in",
        ),
    ],
)
def test_variables_that_never_end_are_refused(tmp_path: Path, variables: dict[str, str], why: str) -> None:
    test = {"vars": variables, "assert": [{"type": "icontains", "value": "a"}]}
    path = a_config(tmp_path, json.dumps({"prompts": ["{{q}}"], "tests": [test]}))
    found = promptfoo.convert(path)
    assert [item.why for item in found.left_out if item.kind == "task"] == [why]


def test_no_file_is_written_outside_of_the_suite(tmp_path: Path) -> None:
    path = a_config(tmp_path, a_test(A, "type: python, value: file://deep/../../../x.py:f"))
    (path.parent / "one" / "two" / "three").mkdir(parents=True)
    (path.parent / "deep").symlink_to("one/two/three")
    (path.parent / "x.py").write_text("def f(output, context):\n    return True\n")
    found = promptfoo.convert(path)
    assert found.counts["assertion"]["lost"] == 1
    assert "is no Python file of the source's folder" in left_out(found)[0]


CHAT = '[{"role": "system", "content": "Be {{how}}"}, {"role": "user", "content": "{{q}}"}]'


def test_a_prompt_in_chat_form_becomes_messages_and_one_message_a_prompt(tmp_path: Path) -> None:
    path = a_config(
        tmp_path,
        f"""
prompts: ['{CHAT}', file://chat.yaml, file://one.json]
tests: [{{vars: {{how: brief, q: 'Is it {{{{how}}}}?'}}, assert: [{{type: icontains, value: a}}]}}]
""",
    )
    (path.parent / "chat.yaml").write_text(
        "- {role: user, content: '{{q}}'}\n- {role: assistant, content: Hm}\n"
    )
    (path.parent / "one.json").write_text('[{"role": "user", "content": "Only {{q}}"}]')
    found = promptfoo.convert(path)
    assert found.left_out == []
    first, second, third = (task.fields for task in found.tasks)
    assert first["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Is it brief?"},
    ]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"]
    assert (third["prompt"], "messages" in third) == ("Only Is it brief?", False)
    written = suite.load(imported.write(found, tmp_path / "out"))
    assert written.tasks[0].messages[0].content == "Be brief"


def test_files_are_read_inside_the_folder_only_and_as_text(tmp_path: Path) -> None:
    path = a_config(
        tmp_path,
        """
prompts: ['{{q}}']
tests:
  - {vars: {q: file://prompts/guide.txt, question: file://data.json}, assert: &any [{type: icontains, value: a}]}
  - {vars: {q: file://../secret.txt}, assert: *any}
  - {vars: {q: file://picture.png}, assert: *any}
  - file://tests.js
""",
    )
    (tmp_path / "secret.txt").write_text("secret")
    (path.parent / "data.json").write_text('{"a": [1, "é"]}')
    found = promptfoo.convert(path)
    prompts = [task.fields["prompt"] for task in found.tasks]
    assert prompts == ['You are a guide.\n{"a":[1,"é"]}']
    assert [item.why for item in found.left_out] == [
        "'../secret.txt' leaves the source's folder; nothing outside is read",
        "'picture.png' is no text file",
        "only tests in .yaml, .yml, .json, .jsonl, .csv files can be read; write them out",
    ]


def with_skill(text: str) -> str:
    return f"---\nname: {text}\ndescription: How to be {text}\n---\n# Be {text}\n\nRequest: {{{{q}}}}\n"


@pytest.mark.parametrize(
    ("prompts", "skills"),
    [
        ("[file://a/SKILL.md]", {"candidate": "a"}),
        ("['Request: {{q}}', file://a/SKILL.md]", {"candidate": "a"}),
        ("[file://a/SKILL.md, file://b/SKILL.md]", {"baseline": "a", "candidate": "b"}),
    ],
)
def test_a_prompt_that_begins_as_a_skill_is_compared_and_not_asked(
    tmp_path: Path, prompts: str, skills: dict[str, str]
) -> None:
    path = a_config(
        tmp_path,
        f"prompts: {prompts}\ntests: [{{vars: {{q: Hi}}, assert: [{{type: icontains, value: x}}]}}]\n",
    )
    for name in ("a", "b"):
        (path.parent / name).mkdir()
        (path.parent / name / "SKILL.md").write_text(with_skill(name))
    found = promptfoo.convert(path)
    assert [task.fields["prompt"] for task in found.tasks] == ["Request: Hi"]
    assert found.left_out == []
    imported.write(found, tmp_path / "out")
    written = {arm: (tmp_path / "out" / arm / "SKILL.md").read_text() for arm in found.skills}
    assert written == {arm: with_skill(name).split("Request")[0] for arm, name in skills.items()}


PROVIDERS = """
prompts: ['{{q}}']
x-shared: &shared {model: m}
providers:
  - {id: an-agent, label: v1, config: {<<: *shared, working_dir: '{{ env.V1 | default("./fixtures/v1") }}'}}
  - {id: an-agent, label: v2, config: {<<: *shared, working_dir: ./fixtures/v2}}
tests: [{vars: {q: Hi}, assert: [{type: icontains, value: x}]}]
"""


def test_providers_that_differ_by_a_skill_become_baseline_and_candidate(tmp_path: Path) -> None:
    path = a_config(tmp_path, PROVIDERS)
    for name in ("v1", "v2"):
        skill = path.parent / "fixtures" / name / ".agents" / "skills" / "review"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(f"---\nname: review\ndescription: {name}\n---\n{name}\n")
        (path.parent / "fixtures" / name / "auth.ts").write_text("code")
        (path.parent / "fixtures" / name / "of.txt").write_text(name)
    done = uplift("import", "cities/promptfooconfig.yaml", "--output", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "--skill-path out/candidate --baseline out/baseline --mock" in done.out
    texts = [(tmp_path / "out" / arm / "SKILL.md").read_text() for arm in ("baseline", "candidate")]
    assert [text.split()[-1] for text in texts] == ["v1", "v2"]
    # What both agents work on comes with each task, but nothing of the skills.
    assert suite.load(tmp_path / "out" / "suite.yaml").tasks[0].files == ("fixtures/auth.ts",)


def test_a_system_prompt_that_one_provider_has_alone_becomes_the_candidates_skill(tmp_path: Path) -> None:
    text = (
        PROVIDERS.split("x-shared")[0]
        + "providers: [openai:gpt-5-mini, {id: openai:gpt-5-mini, label: Pirate, "
    )
    text += "config: {system_prompt: Talk like a pirate.}}]\n" + "tests:" + PROVIDERS.split("tests:")[1]
    found = found_in(tmp_path, text)
    assert found.skills == {
        "candidate": {"SKILL.md": b'---\nname: pirate\ndescription: "Pirate"\n---\n\nTalk like a pirate.\n'}
    }


@pytest.mark.parametrize(
    ("was", "now", "skills"),
    [
        ("id: an-agent, label: v2", "id: another", 0),
        ("./fixtures/v2", "./fixtures/v1", 0),
        ("./fixtures/v2", "../..", 0),
    ],
)
def test_providers_that_differ_by_more_or_by_nothing_are_no_arms(
    tmp_path: Path, was: str, now: str, skills: int
) -> None:
    found = found_in(tmp_path, PROVIDERS.replace(was, now))
    assert (len(found.tasks), len(found.skills)) == (1, skills)


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
        ("prompts: [a]\ntests: *t\n", "2:8  tests: alias '*t' has no anchor before it"),
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
    assert "1 assertion found: 0 kept, 0 changed, 1 lost" in done.err
    told = json.loads(uplift("import", "cities/promptfooconfig.yaml", "--json", cwd=tmp_path).out)
    assert (told["suite"], told["assertions"]) == (None, {"found": 1, "kept": 0, "changed": 0, "lost": 1})


@pytest.mark.slow
def test_a_configuration_converts_and_runs_with_the_simulated_model(tmp_path: Path) -> None:
    a_config(tmp_path)
    done = uplift("import", "cities/promptfooconfig.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "14 tasks found: 12 imported, 2 left out\n" in done.out
    assert "13 assertions found: 8 kept, 3 changed, 2 lost\n" in done.out
    assert "wrote cities-suite/suite.yaml with 12 tasks\n" in done.out
    made = tmp_path / "cities-suite"
    assert uplift("validate", made / "suite.yaml", cwd=tmp_path).code == 0
    # Given what sim must say for the python judges, as docs/importing.md says
    (made / "fixtures" / "short.txt").write_text("short")
    text = (made / "suite.yaml").read_text()
    replies = "    replies: {pass: fixtures/short.txt, fail: fixtures/long.txt}\n"
    text = text.replace("        pass_threshold: 0.9\n", f"        pass_threshold: 0.9\n{replies}")
    (made / "fixtures" / "long.txt").write_text("long " * 100)
    (made / "suite.yaml").write_text(text)
    (made / "skill").mkdir()
    (made / "skill" / "SKILL.md").write_text(SKILL)
    ran = uplift(*standalone(made / "suite.yaml", "--model", "sim:baseline=0,candidate=1"), cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert (ran.line["execution_pass_rate"], ran.line["baseline_pass_rate"]) == (1.0, 0.0)

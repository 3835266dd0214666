"""What a suite may say, what its tasks become, and which of them are chosen."""

import gc
from pathlib import Path

import pytest
from running import uplift
from suites import a_fixture, a_suite, a_task, problem_of, problems_of

from judges.spec import Benchmark, Contains, Equals, JsonSchema, Pytest, Regex, Rubric
from producer import plan
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.suites import suite
from workers.store.messages import DEFAULT_TIMEOUT_SECONDS, Task


def test_a_small_suite_becomes_tasks(tmp_path: Path) -> None:
    path = a_suite(tmp_path)
    loaded = suite.load(path)
    assert loaded == suite.Suite(
        path=path,
        folder=tmp_path,
        skill_id="notes",
        tasks=(
            Task(
                id="names-the-platform",
                prompt="Write release notes.",
                judge=Contains(type="contains", expected=["iOS"]),
            ),
        ),
        warnings=(),
    )
    assert loaded.tasks[0].timeout_seconds == DEFAULT_TIMEOUT_SECONDS == 300


def test_every_field_and_every_judge_of_the_format_is_read(tmp_path: Path) -> None:
    for name in ("in.csv", "good.txt", "bad.txt", "sub/test_it.py", "bench.py", "original.py", "oracle.py"):
        a_fixture(tmp_path, name)
    path = a_suite(
        tmp_path,
        """
- id: A.b_c-9
  description: all of it
  prompt: |
    Two
    lines
  judge: {type: contains, expected: [iOS, no], forbidden: [2026-01-01]}
  timeout_seconds: 30
  tier: T1
  tags: [format, on]
  files: [fixtures/in.csv]
  replies: {pass: fixtures/good.txt, fail: fixtures/bad.txt}
  should_trigger: true
- {id: b, prompt: x, judge: {type: pytest, test_file: fixtures/sub/test_it.py, timeout_seconds: 1.5}}
- id: c
  prompt: x
  judge:
    type: llm-rubric
    rubric: polite?
    pass_threshold: 1
    criteria: [{name: tone, max_points: 3, description: kind}]
    judges: ["anthropic:a", mock]
- id: d
  prompt: x
  judge:
    type: benchmark
    benchmark_file: fixtures/bench.py
    original_file: fixtures/original.py
    oracle_file: fixtures/oracle.py
- {id: e, prompt: x, judge: {type: regex, pattern: "^v[0-9]+", ignore_case: true, multiline: true, should_match: false}}
- {id: f, prompt: x, judge: {type: equals, text: "42", ignore_case: true, ignore_whitespace: true}}
- {id: g, prompt: x, judge: {type: json-schema, schema: {type: object, required: [a]}}}
""",
        head='skill_id: notes\nversion: "1.0"\ndescription: about\n',
    )
    loaded = suite.load(path)
    first, second, third, fourth, *small = loaded.tasks
    assert loaded.skill_id == "notes"
    assert first.prompt == "Two\nlines\n"
    assert first.judge == Contains(type="contains", expected=["iOS", "no"], forbidden=["2026-01-01"])
    assert (first.timeout_seconds, first.tier, first.tags, first.should_trigger) == (
        30,
        "T1",
        ("format", "on"),
        True,
    )
    assert first.files == ("fixtures/in.csv",)
    assert first.replies is not None
    assert (first.replies.passing, first.replies.failing) == ("fixtures/good.txt", "fixtures/bad.txt")
    assert isinstance(second.judge, Pytest)
    assert isinstance(third.judge, Rubric)
    assert isinstance(fourth.judge, Benchmark)
    assert second.judge.timeout_seconds == 1.5
    assert [task.judge for task in small] == [
        Regex(type="regex", pattern="^v[0-9]+", ignore_case=True, multiline=True, should_match=False),
        Equals(type="equals", text="42", ignore_case=True, ignore_whitespace=True),
        JsonSchema(type="json-schema", inline={"type": "object", "required": ["a"]}),
    ]


def test_a_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = a_suite(tmp_path)
    plain = suite.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert suite.load(path) == plain


def test_defaults_fill_in_what_a_task_does_not_say(tmp_path: Path) -> None:
    head = 'skill_id: s\nversion: "1.0"\ndefaults: {timeout_seconds: 120, tier: T2, tags: [all]}\n'
    tasks = a_task(id="plain") + a_task(id="own", timeout_seconds="5", tier="T1", tags="[]")
    plain, own = suite.load(a_suite(tmp_path, tasks, head=head)).tasks
    assert (plain.timeout_seconds, plain.tier, plain.tags) == (120, "T2", ("all",))
    assert (own.timeout_seconds, own.tier, own.tags) == (5, "T1", ())


def test_a_conversation_stands_in_place_of_a_prompt_and_has_a_text(tmp_path: Path) -> None:
    said = "[{role: system, content: Be brief.}, {role: user, content: Hi}]"
    (task,) = suite.load(a_suite(tmp_path, a_task(prompt="-", messages=said))).tasks
    assert [(message.role, message.content) for message in task.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert task.prompt == "system: Be brief.\n\nuser: Hi"
    assert Task.model_validate_json(task.model_dump_json(by_alias=True, exclude_defaults=True)) == task
    # Digests of tasks that have a prompt are those of versions without messages.
    assert "messages" not in Task(id="a", prompt="p", judge=task.judge).model_dump()


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("[]", "messages: is an empty list; must hold a message whose role is user"),
        ("7", "messages: is the number 7; must be a list"),
        ("[7]", "messages[0]: is the number 7; must be a mapping with keys such as role"),
        ("[{role: user}]", "messages[0].content: is missing; this key is required"),
        ("[{role: tool, content: x}]", "messages[0].role: is the text 'tool'; must be the text"),
        ("[{role: user, content: ' '}]", "messages[0].content: is blank; must hold some text"),
        (
            "[{role: system, content: x}]",
            "messages: is a list; must hold a message whose role is user",
        ),
    ],
)
def test_a_conversation_that_asks_nothing_is_told_where(tmp_path: Path, messages: str, said: str) -> None:
    (problem,) = problems_of(a_suite(tmp_path, a_task(prompt="-", messages=messages)))
    assert f"tasks[0].{said}" in problem


def test_a_prompt_beside_messages_is_a_mistake(tmp_path: Path) -> None:
    path = a_suite(tmp_path, a_task(messages="[{role: user, content: Hi}]"))
    assert problems_of(path) == ["7:3  tasks[0].messages: stands beside prompt; a task has one of the two"]


def test_only_api_models_are_asked_conversations(tmp_path: Path) -> None:
    path = a_suite(tmp_path, a_task(prompt="-", messages="[{role: user, content: Hi}]"))
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "SKILL.md").write_text("---\nname: skill\ndescription: d\n---\nBe kind.\n")
    asked = {"task_suite": path, "skill_path": tmp_path / "skill", "standalone": True}
    for model in ("openai:gpt-5-mini", "anthropic:claude", "mock"):
        assert plan.make(RunSettings.checked({**asked, "models": [model]})).suite.tasks[0].messages
    with pytest.raises(InvalidOption) as caught:
        plan.make(RunSettings.checked({**asked, "models": ["mock", "claude-code"]}))
    assert str(caught.value) == (
        f"{path}:4:7  tasks[0]: messages are for API models (anthropic:, openai:); claude-code needs a prompt"
    )


def test_loading_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    path = a_suite(tmp_path)
    suite.load(path)
    assert gc.isenabled()
    suite.validate([tmp_path / "none.yaml"])
    assert gc.isenabled()


def test_a_contains_task_that_no_output_can_pass_is_a_warning(tmp_path: Path) -> None:
    path = a_suite(tmp_path, a_task(judge="{type: contains, expected: [iOS 26], forbidden: [x, IOS]}"))
    assert suite.load(path).warnings == (
        f"{path}:6:62  tasks[0].judge.forbidden[1]: "
        "forbidden 'IOS' is part of an expected string; no output can pass",
    )


def test_a_missing_suite_is_told_in_these_words(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert problem_of(path) == f"Task suite not found: {path}"


def test_a_problem_shows_the_path_as_the_user_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_suite(tmp_path, "\n- {}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(suite.InvalidSuite) as caught:
        suite.load(Path("suite.yaml"))
    assert str(caught.value.problems[0]) == "suite.yaml:4:3  tasks[0].id: is missing; this key is required"
    assert caught.value.problems[0] == suite.Problem(
        file="suite.yaml", line=4, column=3, where="tasks[0].id", message="is missing; this key is required"
    )


@pytest.fixture
def three(tmp_path: Path) -> suite.Suite:
    tasks = (
        a_task(id="one", tier="T1", tags="[format, long]")
        + a_task(id="two", tier="T2", tags="[format]")
        + a_task(id="three", tier="T1")
    )
    return suite.load(a_suite(tmp_path, tasks))


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, ["one", "two", "three"]),
        ({"tasks": ["three", "one"]}, ["one", "three"]),
        ({"tags": ["format"]}, ["one", "two"]),
        ({"tags": ["long", "format"]}, ["one", "two"]),
        ({"tiers": ["T1"]}, ["one", "three"]),
        ({"tags": ["format"], "tiers": ["T1"]}, ["one"]),
        ({"tasks": ["two", "three"], "tiers": ["T1"]}, ["three"]),
    ],
)
def test_names_of_one_kind_are_alternatives_and_kinds_narrow_each_other(
    three: suite.Suite, asked: dict[str, list[str]], chosen: list[str]
) -> None:
    assert [task.id for task in suite.select(three, **asked).tasks] == chosen


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tasks": ["thre"]}, "unknown task 'thre'; known tasks: one, two, three (did you mean three?)"),
        ({"tags": ["formal"]}, "unknown tag 'formal'; known tags: format, long (did you mean format?)"),
        ({"tiers": ["9"]}, "unknown tier '9'; known tiers: T1, T2"),
        (
            {"tags": ["long"], "tiers": ["T2"]},
            "no task has all that was asked for; drop one of --task, --tag and --tier",
        ),
    ],
)
def test_what_the_suite_does_not_have_is_named(
    three: suite.Suite, asked: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(suite.UnknownSelection) as caught:
        suite.select(three, **asked)
    assert str(caught.value) == said


def test_a_suite_without_tags_says_so(tmp_path: Path) -> None:
    with pytest.raises(suite.UnknownSelection, match="unknown tag 'x'; the suite has no tags"):
        suite.select(suite.load(a_suite(tmp_path)), tags=["x"])


def test_validate_names_test_files_that_do_not_use_the_helper_and_accepts_them(tmp_path: Path) -> None:
    a_fixture(tmp_path, "test_old.py", "import os, not_uplift_judge  # from uplift_judge\n")
    a_fixture(tmp_path, "test_new.py", "def test_it():\n    from uplift_judge import output\n")
    tests = {name: f"{{type: pytest, test_file: fixtures/test_{name}.py}}" for name in ("old", "new")}
    path = a_suite(tmp_path, "".join(a_task(id=name, judge=judge) for name, judge in tests.items()))
    told = uplift("validate", path, cwd=tmp_path)
    assert (told.code, told.out) == (0, "")
    assert f"note: 1 test file without uplift_judge ({path.parent}/fixtures/test_old.py): code" in told.err

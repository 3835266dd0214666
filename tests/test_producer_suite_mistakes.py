"""How a suite is told what is wrong: every mistake at once, each with its place and remedy."""

import os
from pathlib import Path
from typing import Any

import pytest
from suites import a_fixture, a_suite, a_task, problem_of, problems_of

from producer.suites import suite


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        """skil_id: s
version: 1.0
tasks:
  - id: a
    promt: hi
    judge: {type: contians}
  - id: a
    prompt: "  "
    judge: {type: contains, expected: [42, ""], forbid: []}
    timeout_seconds: "30"
    should_trigger: yes
    files: [fixtures/none.csv]
    id: b
  - 7
"""
    )
    task_keys = (
        "id, description, prompt, messages, judge, checks, threshold, timeout_seconds, tier, tags, files, network, "
        "replies, should_trigger"
    )
    assert problems_of(path) == [
        "1:1  skil_id: unknown key 'skil_id'; allowed: skill_id, version, description, defaults, tasks "
        "(did you mean skill_id?)",
        "1:1  skill_id: is missing; this key is required",
        '2:10  version: is the number 1.0; must be the text "1.0" or "1.1" (quote it: "1.0")',
        "4:5  tasks[0].prompt: is missing; this key is required",
        f"5:5  tasks[0].promt: unknown key 'promt'; allowed: {task_keys} (did you mean prompt?)",
        "6:19  tasks[0].judge.type: unknown judge 'contians'; allowed: contains, pytest, llm-rubric, benchmark, "
        "regex, equals, json-schema, length, python, command, files, tools, steps, skill-loaded "
        "(did you mean contains?)",
        "7:9  tasks[1].id: duplicate id 'a', first on line 4; must be unique",
        "8:13  tasks[1].prompt: is blank; must hold some text",
        '9:40  tasks[1].judge.expected[0]: is the number 42; must be text (quote it: "42")',
        "9:44  tasks[1].judge.expected[1]: is empty; must hold at least one character",
        "9:49  tasks[1].judge.forbid: unknown key 'forbid'; allowed: type, expected, forbidden "
        "(did you mean forbidden?)",
        "10:22  tasks[1].timeout_seconds: is the text '30'; must be a number (write it without quotes)",
        "11:21  tasks[1].should_trigger: is the text 'yes'; must be true or false",
        "12:13  tasks[1].files[0]: 'fixtures/none.csv' does not exist; put the file there",
        "13:5  tasks[1].id: duplicate key 'id', first on line 7; keep one of them",
        "14:5  tasks[2]: is the number 7; must be a mapping with keys such as id",
    ]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('skill_id: ""\nversion: "1.0"\n', "1:11  skill_id: is empty; must hold some text"),
        ('skill_id: 7\nversion: "1.0"\n', '1:11  skill_id: is the number 7; must be text (quote it: "7")'),
        (
            'skill_id: s\nversion: "2.0"\n',
            '2:10  version: is the text \'2.0\'; must be the text "1.0" or "1.1"',
        ),
        (
            "skill_id: s\nversion: 1.10\n",
            '2:10  version: is the number 1.10; must be the text "1.0" or "1.1" (quote it: "1.10")',
        ),
        ("skill_id: s\n", "1:1  version: is missing; this key is required"),
        ('skill_id: s\nversion: "1.0"\ndescription:\n', "3:13  description: is nothing; must be text"),
        (
            'skill_id: s\nversion: "1.0"\ndefaults: {timeout: 3}\n',
            "3:12  defaults.timeout: unknown key 'timeout'; allowed: timeout_seconds, tier, tags "
            "(did you mean timeout_seconds?)",
        ),
        (
            'skill_id: s\nversion: "1.0"\ndefaults: {prompt: x}\n',
            "3:12  defaults.prompt: unknown key 'prompt'; allowed: timeout_seconds, tier, tags",
        ),
        (
            'skill_id: s\nversion: "1.0"\ndefaults: {timeout_seconds: 0}\n',
            "3:29  defaults.timeout_seconds: is the number 0; must be at least 1",
        ),
        (
            'skill_id: s\nversion: "1.0"\ndefaults: [1]\n',
            "3:11  defaults: is a list; must be a mapping with keys such as timeout_seconds",
        ),
    ],
)
def test_a_suite_says_its_skill_version_and_defaults(tmp_path: Path, head: str, said: str) -> None:
    assert problem_of(a_suite(tmp_path, head=head)) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "1:1  is empty; must be a mapping with skill_id, version and tasks"),
        ("# nothing\n\n", "1:1  is empty; must be a mapping with skill_id, version and tasks"),
        ("---\n", "1:1  is empty; must be a mapping with skill_id, version and tasks"),
        ("- a\n", "1:1  is a list; must be a mapping with skill_id, version and tasks"),
        ("\nhello\n", "2:1  is a single value; must be a mapping with skill_id, version and tasks"),
        ('skill_id: s\nversion: "1.0"\n', "1:1  tasks: is missing; this key is required"),
        (
            'skill_id: s\nversion: "1.0"\ntasks: []\n',
            "3:8  tasks: is an empty list; must hold at least one entry",
        ),
        ('skill_id: s\nversion: "1.0"\ntasks: {a: 1}\n', "3:8  tasks: is a mapping; must be a list"),
    ],
)
def test_a_suite_is_a_mapping_with_tasks(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(content)
    assert problem_of(path) == said


def test_a_suite_that_cannot_be_parsed_is_told_where(tmp_path: Path) -> None:
    path = a_suite(tmp_path, "\n- {id: a, prompt: [}\n")
    assert problem_of(path).startswith("4:20  tasks[0].prompt[0]: invalid YAML: ")


ID_RULE = (
    "must be 1 to 64 letters or digits of any alphabet, '.', '_' or '-', and start with a letter or digit"
)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "a b"}, f"4:7  tasks[0].id: is the text 'a b'; {ID_RULE}"),
        ({"id": "../x"}, f"4:7  tasks[0].id: is the text '../x'; {ID_RULE}"),
        ({"id": '"a\\n"'}, f"4:7  tasks[0].id: is the text 'a\\n'; {ID_RULE}"),
        ({"id": "5"}, '4:7  tasks[0].id: is the number 5; must be text (quote it: "5")'),
        ({"prompt": "-"}, "4:3  tasks[0].prompt: is missing; this key is required"),
        ({"prompt": ""}, "5:10  tasks[0].prompt: is nothing; must be text"),
        ({"prompt": "[a]"}, "5:11  tasks[0].prompt: is a list; must be text"),
        ({"judge": "-"}, "4:3  tasks[0].judge: is missing; this key is required"),
        (
            {"judge": "contains"},
            "6:10  tasks[0].judge: is the text 'contains'; must be a mapping with keys such as type",
        ),
        (
            {"judge": "{expected: [x]}"},
            "6:10  tasks[0].judge.type: is missing; must be one of contains, pytest, llm-rubric, benchmark, "
            "regex, equals, json-schema, length, python, command, files, tools, steps, skill-loaded",
        ),
        (
            {"judge": "{tpye: contains}"},
            "6:10  tasks[0].judge.type: is missing; must be one of contains, pytest, llm-rubric, benchmark, "
            "regex, equals, json-schema, length, python, command, files, tools, steps, skill-loaded "
            "(is 'tpye' meant as type?)",
        ),
        (
            {"judge": "{type: [a]}"},
            "6:17  tasks[0].judge.type: is a list; must be one of contains, pytest, llm-rubric, benchmark, "
            "regex, equals, json-schema, length, python, command, files, tools, steps, skill-loaded",
        ),
        (
            {"judge": "{type: contains, expected: []}"},
            "6:37  tasks[0].judge.expected: is an empty list; must hold at least one entry",
        ),
        (
            {"judge": "{type: contains, expected: x}"},
            "6:37  tasks[0].judge.expected: is the text 'x'; must be a list",
        ),
        (
            {"judge": "{type: contains, expected: [x], contains: 1}"},
            "6:42  tasks[0].judge.contains: unknown key 'contains'; allowed: type, expected, forbidden",
        ),
        (
            {"judge": "{type: llm-rubric, rubric: ' '}"},
            "6:37  tasks[0].judge.rubric: is blank; must not be blank",
        ),
        (
            {"judge": "{type: llm-rubric, rubric: r, pass_threshold: 1.01}"},
            "6:56  tasks[0].judge.pass_threshold: is the number 1.01; must be at most 1",
        ),
        (
            {"judge": "{type: llm-rubric, rubric: r, criteria: [{name: n, max_points: 0}]}"},
            "6:73  tasks[0].judge.criteria[0].max_points: is the number 0; must be more than 0",
        ),
        (
            {
                "judge": "{type: llm-rubric, rubric: r, criteria: [{name: n, max_points: 1}, "
                "{name: n, max_points: 2}]}"
            },
            "6:50  tasks[0].judge.criteria: is a list; must have different names; 'n' is there more than once",
        ),
        (
            {"judge": "{type: llm-rubric, rubric: r, criteria: [{name: n, max_points: 1, descripton: d}]}"},
            "6:76  tasks[0].judge.criteria[0].descripton: unknown key 'descripton'; "
            "allowed: name, max_points, description (did you mean description?)",
        ),
        (
            {"judge": "{type: regex, pattern: '(a'}"},
            "6:33  tasks[0].judge.pattern: is the text '(a'; not a regular expression: missing ) at position 2",
        ),
        (
            {"judge": "{type: regex, pattern: '(?:(?:a{999}){999}){999}'}"},
            "6:33  tasks[0].judge.pattern: is the text '(?:(?:a{999}){999}){999}'; "
            "repeats more than 1,000,000 times at least; lower its counts",
        ),
        ({"judge": "{type: equals, text: ' '}"}, "6:31  tasks[0].judge.text: is blank; must hold some text"),
        (
            {"judge": "{type: json-schema}"},
            "6:10  tasks[0].judge: is a mapping; must have either schema or schema_file",
        ),
        (
            {"judge": "{type: json-schema, schema: {}, schema_file: fixtures/ok.json}"},
            "6:10  tasks[0].judge: is a mapping; must have either schema or schema_file",
        ),
        (
            {"judge": "{type: json-schema, schema: {properties: {a: {type: strin}}}}"},
            "6:62  tasks[0].judge.schema.properties.a.type: not a JSON Schema: "
            "'strin' is not valid under any of the given schemas",
        ),
        (
            {"judge": "{type: json-schema, schema: {items: {$ref: 'https://example.com/s.json'}}}"},
            "6:53  tasks[0].judge.schema.items['$ref']: 'https://example.com/s.json' leads outside, "
            "and nothing is fetched; copy it into $defs",
        ),
        (
            {"judge": "{type: json-schema, schema: {$ref: '#'}}"},
            "6:38  tasks[0].judge.schema: refers to itself without end",
        ),
        (
            {"judge": "{type: json-schema, schema: {pattern: '(a'}}"},
            "6:48  tasks[0].judge.schema.pattern: not a regular expression: missing ) at position 2",
        ),
        (
            {"judge": "{type: json-schema, schema: 5}"},
            "6:38  tasks[0].judge.schema: is the number 5; must be a mapping",
        ),
        (
            {"judge": "{type: json-schema, schema_file: fixtures/broken.json}"},
            "6:43  tasks[0].judge.schema_file: 'fixtures/broken.json' cannot be used, line 2, column 1: "
            "invalid JSON: expecting ':' delimiter",
        ),
        (
            {"judge": "{type: json-schema, schema_file: fixtures/wrong.json}"},
            "6:43  tasks[0].judge.schema_file: 'fixtures/wrong.json' cannot be used, line 1, column 10: "
            "type: not a JSON Schema: 7 is not valid under any of the given schemas",
        ),
        ({"timeout_seconds": "0.5"}, "7:20  tasks[0].timeout_seconds: is the number 0.5; must be at least 1"),
        (
            {"timeout_seconds": "3601"},
            "7:20  tasks[0].timeout_seconds: is the number 3601; must be at most 3600",
        ),
        ({"timeout_seconds": "true"}, "7:20  tasks[0].timeout_seconds: is true; must be a number"),
        (
            {"timeout_seconds": "1_000"},
            "7:20  tasks[0].timeout_seconds: is the text '1_000'; must be a number",
        ),
        ({"timeout_seconds": "1:30"}, "7:20  tasks[0].timeout_seconds: is the text '1:30'; must be a number"),
        ({"tier": "1"}, '7:9  tasks[0].tier: is the number 1; must be text (quote it: "1")'),
        ({"tier": "''"}, "7:9  tasks[0].tier: is empty; must hold some text"),
        ({"tags": "format"}, "7:9  tasks[0].tags: is the text 'format'; must be a list"),
        ({"tags": "[true]"}, '7:10  tasks[0].tags[0]: is true; must be text (quote it: "true")'),
        ({"tags": "{a: 1}"}, "7:9  tasks[0].tags: is a mapping; must be a list"),
        ({"should_trigger": "1"}, "7:19  tasks[0].should_trigger: is the number 1; must be true or false"),
        ({"should_trigger": "no"}, "7:19  tasks[0].should_trigger: is the text 'no'; must be true or false"),
        (
            {"replies": "{pas: fixtures/x}"},
            "7:13  tasks[0].replies.pas: unknown key 'pas'; allowed: pass, fail (did you mean pass?)",
        ),
        (
            {"files": "[input.csv]"},
            "7:11  tasks[0].files[0]: is the text 'input.csv'; "
            "must be a file under fixtures/, such as 'fixtures/input.csv'",
        ),
        *(
            (
                {"network": f"['{host}']"},
                f"7:13  tasks[0].network[0]: is the text '{host}'; "
                "must be a host, such as docs.example.org or docs.example.org:8443",
            )
            for host in ("https://a.org", "*.a.org", "a.org:0", "a.org:999999", "user@a.org", "a.org/x")
        ),
        ({"description": "1"}, '7:16  tasks[0].description: is the number 1; must be text (quote it: "1")'),
    ],
)
def test_a_task_is_checked_strictly_and_nothing_is_coerced(
    tmp_path: Path, fields: dict[str, str], said: str
) -> None:
    a_fixture(tmp_path, "ok.json", "{}")
    a_fixture(tmp_path, "broken.json", '{"type"\n"string"}')
    a_fixture(tmp_path, "wrong.json", '{"type": 7}')
    assert problem_of(a_suite(tmp_path, a_task(**fields))) == said


@pytest.mark.parametrize("good", ["a", "9", "A.b_c-d", "x" * 64])
def test_an_id_may_be_up_to_64_letters_digits_dots_dashes_and_underscores(tmp_path: Path, good: str) -> None:
    assert suite.load(a_suite(tmp_path, a_task(id=f"'{good}'"))).tasks[0].id == good


@pytest.mark.parametrize("bad", ["", "-a", ".a", "_a", "x" * 65, "a/b", "a\\n"])
def test_other_ids_are_refused(tmp_path: Path, bad: str) -> None:
    assert ID_RULE in problem_of(a_suite(tmp_path, a_task(id=f'"{bad}"')))


@pytest.mark.parametrize(
    "good", ["任务-1", "Übung_2", "Задача.3", "हिन्दी", "مهمة-٤", "한국어", "字" * 64, "𝒂"]
)
def test_an_id_may_be_in_any_script(tmp_path: Path, good: str) -> None:
    loaded = suite.load(a_suite(tmp_path, a_task(id=good)))
    assert [task.id for task in loaded.tasks] == [good]


@pytest.mark.parametrize(
    "bad",
    ["字" * 65, "任务 1", "任/务", "\u093f1", "a\u200bb", "a\u202eb", "½", "task🙂", "a\u2028b", "\ue000"],
)
def test_an_id_holds_nothing_but_letters_and_digits_in_any_script(tmp_path: Path, bad: str) -> None:
    assert ID_RULE in problem_of(a_suite(tmp_path, a_task(id=f'"{bad}"')))


def test_two_ways_to_write_a_letter_do_not_make_two_ids(tmp_path: Path) -> None:
    said = problem_of(a_suite(tmp_path, a_task(id="cafe\u0301")))
    assert said.endswith("must be in Unicode's composed form, NFC; write it anew as caf\u00e9")


def test_what_yaml_itself_forbids_is_told_once_and_not_again_as_a_wrong_value(tmp_path: Path) -> None:
    path = a_suite(
        tmp_path,
        """
- &one {id: a, prompt: hi, judge: {type: contains, expected: [.nan]}}
- *one
- {<<: *one, id: c}
- {id: d, prompt: !!int "5", judge: {type: contains, expected: [x]}, timeout_seconds: 1e999}
""",
    )
    assert [line.split("; ")[0] for line in problems_of(path)] == [
        "4:3  tasks[0]: anchor '&one' is not allowed",
        "4:63  tasks[0].judge.expected[0]: .nan is not a finite number",
        "5:3  tasks[1]: alias '*one' is not allowed",
        "6:4  tasks[2]: merge key << is not allowed",
        "6:8  tasks[2]['<<']: alias '*one' is not allowed",
        "7:19  tasks[3].prompt: tag '!!int' is not allowed",
        "7:87  tasks[3].timeout_seconds: 1e999 is not a finite number",
    ]


def test_a_flood_of_mistakes_in_one_task_is_one_problem(tmp_path: Path) -> None:
    path = a_suite(tmp_path, a_task(judge="{type: contains, expected: [" + "1, " * 10_001 + "]}"))
    assert problem_of(path) == "4:3  tasks[0]: has more than 10,000 mistakes; write it anew"


def test_a_flood_of_mistaken_tasks_is_cut(tmp_path: Path) -> None:
    said = problems_of(a_suite(tmp_path, "\n" + "- {id: a}\n" * 3000))
    assert len(said) == 1001
    assert said[-1].endswith("more than 1,000 problems; mend these first")


def test_validate_tells_of_several_suites_in_the_order_given(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    missing = tmp_path / "none.yaml"
    paths = [a_suite(bad, a_task(id="a b")), a_suite(good), missing]
    assert [(problem.file, problem.line) for problem in suite.validate(paths)] == [
        (str(paths[0]), 4),
        (str(missing), 0),
    ]
    assert suite.validate([paths[1]]) == []


@pytest.fixture(
    params=[
        *("test_file", "benchmark_file", "original_file", "oracle_file", "schema_file"),
        *("files", "pass", "fail"),
    ]
)
def naming(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that writes a suite which names a file in one of the eight places for it."""
    place = request.param
    a_fixture(tmp_path, "ok.py", "{}")

    def write(name: str) -> Path:
        files = {"benchmark_file": "fixtures/ok.py", "original_file": "fixtures/ok.py"}
        if place == "test_file":
            return a_suite(tmp_path, a_task(judge=f"{{type: pytest, test_file: '{name}'}}"))
        if place == "schema_file":
            return a_suite(tmp_path, a_task(judge=f"{{type: json-schema, schema_file: '{name}'}}"))
        if place == "files":
            return a_suite(tmp_path, a_task(files=f"['{name}']"))
        if place in {"pass", "fail"}:
            return a_suite(tmp_path, a_task(replies=f"{{{place}: '{name}'}}"))
        listed = ", ".join(f"{key}: '{value}'" for key, value in (files | {place: name}).items())
        return a_suite(tmp_path, a_task(judge=f"{{type: benchmark, {listed}}}"))

    return write


def test_a_file_inside_fixtures_is_accepted_wherever_it_is_named(naming: Any) -> None:
    assert suite.load(naming("fixtures/ok.py")).tasks


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fixtures/none.py", "does not exist"),
        ("fixtures/ok.py/x", "does not exist"),
        ("fixtures/../secret", "leaves fixtures/"),
        ("fixtures/..", "leaves fixtures/"),
        ("fixtures/sub/../ok.py", "goes the long way round; write 'fixtures/ok.py'"),
        ("fixtures//ok.py", "goes the long way round"),
        ("fixtures/.", "leaves fixtures/"),
        ("fixtures/link", "leads out of fixtures/ by a symbolic link"),
        ("fixtures/up/secret", "leads out of fixtures/ by a symbolic link"),
        ("fixtures/loop", "cannot be read"),
        ("fixtures/folder", "is a folder; must be a file"),
        ("fixtures/pipe", "is not a regular file; must be a file"),
        ("fixtures/" + "x" * 300, "cannot be read"),
        ("/etc/passwd", "must be a file under fixtures/"),
        ("fixtures/", "must be a file under fixtures/"),
        ("fixturesx/a", "must be a file under fixtures/"),
        ("./fixtures/ok.py", "must be a file under fixtures/"),
        ("../fixtures/ok.py", "must be a file under fixtures/"),
    ],
)
def test_a_file_that_is_not_the_suites_own_is_refused_wherever_it_is_named(
    naming: Any, tmp_path: Path, name: str, said: str
) -> None:
    fixtures = tmp_path / "fixtures"
    (tmp_path / "secret").write_text("key")
    (fixtures / "link").symlink_to(tmp_path / "secret")
    (fixtures / "up").symlink_to("..")
    (fixtures / "loop").symlink_to("loop")
    (fixtures / "folder").mkdir()
    os.mkfifo(fixtures / "pipe")
    assert said in problem_of(naming(name))


def test_a_link_that_stays_inside_fixtures_is_accepted(tmp_path: Path) -> None:
    a_fixture(tmp_path, "real/a.csv")
    (tmp_path / "fixtures" / "linked").symlink_to("real")
    assert suite.load(a_suite(tmp_path, a_task(files="[fixtures/linked/a.csv]"))).tasks


def test_fixtures_itself_may_not_be_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    (away / "a.csv").write_text("secret")
    (home / "fixtures").symlink_to(away)
    assert "leads out of fixtures/" in problem_of(a_suite(home, a_task(files="[fixtures/a.csv]")))


def test_the_folder_of_a_suite_may_be_reached_by_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    a_fixture(real, "a.csv")
    a_suite(real, a_task(files="[fixtures/a.csv]"))
    (tmp_path / "linked").symlink_to(real)
    assert suite.load(tmp_path / "linked" / "suite.yaml").tasks

"""Importing evals.json: both dialects, files, and what broken or hostile files are told."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import standalone, uplift

from judges.spec import Rubric
from producer.importers import evals_json
from producer.importers import imported as writing
from producer.importers.imported import Unimportable
from producer.suites import suite

SKILL_CREATOR = {
    "skill_name": "csv-cleaner",
    "evals": [
        {
            "id": 1,
            "prompt": "Clean data/customers.csv and say how many e-mail addresses were missing.",
            "expected_output": "A cleaned table and a count.",
            "files": ["evals/files/customers.csv"],
            "expectations": ["Says that 2 were missing", "Keeps the header row"],
        },
        {
            "id": 2,
            "prompt": "Which month sold most?",
            "expected_output": "March, with its revenue.",
            "files": [],
        },
    ],
}
AGENT_SKILLS = {
    "skill_name": "csv-cleaner",
    "evals": [
        {
            "id": 7,
            "name": "Top months",
            "prompt": "Find the top 3 months.",
            "assertions": ["Names exactly 3 months", {"text": "Mentions revenue"}],
        }
    ],
}


def a_skill(folder: Path, evals: Any, *, text: str | None = None) -> Path:
    """A skill's folder with an evals.json and one input file; returns the path of evals.json."""
    path = folder / "csv-cleaner" / "evals" / "evals.json"
    (path.parent / "files").mkdir(parents=True)
    (path.parent / "files" / "customers.csv").write_text("name,email\nAda,\n")
    path.write_text(text if text is not None else json.dumps(evals, indent=1))
    (folder / "csv-cleaner" / "SKILL.md").write_text("---\nname: csv-cleaner\ndescription: d\n---\nClean.\n")
    return path


def imported(path: Path, to: Path) -> suite.Suite:
    return suite.load(writing.write(evals_json.convert(path), to))


def problems_of(path: Path) -> list[str]:
    with pytest.raises(Unimportable) as caught:
        evals_json.convert(path)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_each_expectation_becomes_a_check_and_files_become_fixtures(tmp_path: Path) -> None:
    made = imported(a_skill(tmp_path, SKILL_CREATOR), tmp_path / "out")
    assert made.skill_id == "csv-cleaner"
    first, second = made.tasks
    assert (first.id, second.id) == ("eval-1", "eval-2")
    assert [(check.name, check.rubric) for check in first.checks if isinstance(check, Rubric)] == [
        ("Says that 2 were missing",) * 2,
        ("Keeps the header row",) * 2,
    ]
    assert {check.reference for check in first.rubrics} == {"A cleaned table and a count."}
    assert [check.sees for check in (*first.rubrics, *second.rubrics)] == [["prompt", "output"]] * 3
    assert first.files == ("fixtures/customers.csv",)
    assert (tmp_path / "out/fixtures/customers.csv").read_text() == "name,email\nAda,\n"
    assert isinstance(second.judge, Rubric)
    assert second.judge.criteria == []
    assert second.judge.rubric == "The output should be: March, with its revenue."


def test_assertions_are_read_like_expectations(tmp_path: Path) -> None:
    found = evals_json.convert(a_skill(tmp_path, AGENT_SKILLS))
    (task,) = found.tasks
    assert task.fields["id"] == "top-months"
    assert [check["rubric"] for check in task.fields["checks"]] == [
        "Names exactly 3 months",
        "Mentions revenue",
    ]
    assert (found.task_count, found.assertion_count, found.left_out) == (1, 2, [])


@pytest.mark.parametrize("key", ["text", "description", "statement"])
def test_an_assertion_with_a_name_is_what_it_says_of_itself(tmp_path: Path, key: str) -> None:
    evals = {
        "skill_name": "s",
        "evals": [{"id": 1, "prompt": "a", "assertions": [{"name": "n", key: "Is short"}]}],
    }
    found = evals_json.convert(a_skill(tmp_path, evals))
    assert found.tasks[0].fields["judge"]["rubric"] == "Is short"
    assert found.left_out == []


def test_the_suite_says_where_each_task_came_from(tmp_path: Path) -> None:
    path = a_skill(tmp_path, SKILL_CREATOR)
    text = writing.suite_text(evals_json.convert(path))
    assert f"# from {path}:4:3 (evals[0])\n  - id: eval-1\n" in text
    assert f"# from {path}:16:3 (evals[1])\n  - id: eval-2\n" in text


def test_what_cannot_be_judged_is_left_out_by_name_and_counted(tmp_path: Path) -> None:
    evals = {
        "skill_name": "s",
        "author": "me",
        "evals": [
            {"id": 1, "prompt": "a"},
            {"id": 2, "prompt": "b", "weight": 2, "assertions": [{"check": "x"}, "Is short"]},
        ],
    }
    path = a_skill(tmp_path, evals)
    found = evals_json.convert(path)
    assert (found.task_count, found.tasks_left_out, len(found.tasks)) == (2, 1, 1)
    assert (found.assertion_count, found.counts["assertion"]["lost"]) == (2, 1)
    assert [str(item).removeprefix(f"{path}:") for item in found.left_out] == [
        "5:3  evals[0]: no expectations, assertions or expected_output to judge by; add some",
        "14:5  evals[1].assertions[0]: a mapping without text; write the statement as text",
        "12:14  evals[1].weight: Uplift has no such setting",
        "3:12  author: Uplift has no such setting",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1  invalid JSON: expecting value"),
        ('{"evals": [}', "1:12  invalid JSON: expecting value"),
        ('{\n "evals": [1,]\n}', "2:1"),
        ('{"evals": [NaN]}', "1:12  invalid JSON: NaN is no value; texts need quotes"),
        ('{"evals": []} x', "1:15  invalid JSON: extra data"),
        (
            '{"evals": [], "evals": []}',
            "1:15  evals: duplicate key 'evals', first on line 1; keep one of them",
        ),
        ("[" * 50 + "]" * 50, "1:33  [0][0][0]"),
        ("[" * 100_000, "1:1  nested too deeply"),
        ("[1]", "1:1  is a list; must be a mapping with skill_name and evals"),
        ("{}", "1:1  evals: is missing; must be a list of evals"),
        ('{"evals": {}}', "1:11  evals: is a mapping; must be a list"),
        ('{"evals": [7]}', "1:12  evals[0]: is the number 7; must be a mapping"),
        ('{"evals": [{"id": 1}]}', "1:12  evals[0].prompt: is missing; every eval needs one"),
        (
            '{"evals": [{"prompt": 5, "assertions": ["x"]}]}',
            "1:23  evals[0].prompt: is the number 5; must be text",
        ),
        (
            '{"evals": [{"prompt": "a\\u0007b", "assertions": ["x"]}]}',
            "1:23  evals[0].prompt: forbidden character U+0007; remove it",
        ),
        (
            '{"evals": [{"prompt": "\\ud800", "assertions": ["x"]}]}',
            "1:23  evals[0].prompt: forbidden character U+D800",
        ),
        (
            '{"evals": [{"prompt": "a\nb"}]}',
            "1:25  invalid JSON: invalid control character",
        ),
        (
            '{"evals": [{"prompt": "a", "assertions": ["x"], "files": ["../../secret"]}]}',
            "1:59  evals[0].files[0]: '../../secret' leaves the source's folder; nothing outside is read",
        ),
        (
            '{"evals": [{"prompt": "a", "assertions": ["x"], "files": ["/etc/passwd"]}]}',
            "1:59  evals[0].files[0]: '/etc/passwd' is not a path inside",
        ),
        (
            '{"evals": [{"prompt": "a", "assertions": ["x"], "files": ["none.csv"]}]}',
            "1:59  evals[0].files[0]: 'none.csv' does not exist",
        ),
        (
            '{"evals": [{"prompt": "a", "assertions": ["x"], "files": ["evals/link"]}]}',
            "1:59  evals[0].files[0]: 'evals/link' leaves the source's folder",
        ),
    ],
)
def test_a_broken_or_hostile_file_is_told_where(tmp_path: Path, text: str, said: str) -> None:
    path = a_skill(tmp_path, None, text=text)
    (tmp_path / "secret").write_text("key")
    (path.parent / "link").symlink_to(tmp_path / "secret")
    (problem,) = problems_of(path)
    assert problem.startswith(said)


def test_nothing_is_written_of_a_broken_file(tmp_path: Path) -> None:
    path = a_skill(tmp_path, {"evals": [{"prompt": "a", "assertions": ["x"], "files": ["none.csv"]}]})
    done = uplift("import", path, "--output", "out", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "evals[0].files[0]: 'none.csv' does not exist" in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["csv-cleaner"]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = a_skill(tmp_path, {"evals": [{"prompt": ""}, {"prompt": 1, "files": "x"}]})
    assert len(problems_of(path)) == 3


def test_a_missing_source_is_told(tmp_path: Path) -> None:
    done = uplift("import", "none.json", cwd=tmp_path)
    assert (done.code, done.err) == (2, "uplift: nothing to import at none.json\n")


def test_an_existing_folder_is_never_written_into(tmp_path: Path) -> None:
    path = a_skill(tmp_path, SKILL_CREATOR)
    (tmp_path / "out").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("out", "dangling"):
        done = uplift("import", path, "--output", name, cwd=tmp_path)
        assert done.code == 2
        assert f"{name} exists already and is left as it is" in done.err
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_different_files_of_one_name_all_become_fixtures_whatever_the_ids_say(tmp_path: Path) -> None:
    evals = {
        "evals": [
            {"id": 1, "prompt": "a", "assertions": ["x"], "files": ["evals/files/customers.csv"]},
            {"id": "../../../out", "prompt": "b", "assertions": ["x"], "files": ["customers.csv"]},
            {"id": "../../../out", "prompt": "c", "assertions": ["x"], "files": ["files/customers.csv"]},
        ]
    }
    path = a_skill(tmp_path, evals)
    (tmp_path / "csv-cleaner/customers.csv").write_text("other")
    (tmp_path / "csv-cleaner/files").mkdir()
    (tmp_path / "csv-cleaner/files/customers.csv").write_text("third")
    before = sorted(path.name for path in tmp_path.iterdir())
    first, second, third = imported(path, tmp_path / "suite").tasks
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "suite"])
    held = {task.id: (tmp_path / "suite" / task.files[0]).read_text() for task in (first, second, third)}
    assert held == {"eval-1": "name,email\nAda,\n", "out": "other", "out-2": "third"}


def test_texts_come_through_unchanged_whatever_they_hold(tmp_path: Path) -> None:
    prompts = [
        "# no comment",
        "a: b",
        "- x",
        "  indented\n\n\ttab\n",
        "yes",
        "1.0",
        "{{x}}",
        "ü – \U0001f600",
        "'\"",
        "x \n",
    ]
    evals = {"evals": [{"id": i, "prompt": text, "assertions": ["x"]} for i, text in enumerate(prompts)]}
    assert [task.prompt for task in imported(a_skill(tmp_path, evals), tmp_path / "out").tasks] == prompts


@pytest.mark.slow
def test_both_dialects_convert_and_run_with_the_simulated_model(tmp_path: Path) -> None:
    for number, evals in enumerate((SKILL_CREATOR, AGENT_SKILLS)):
        path = a_skill(tmp_path / str(number), evals)
        done = uplift("import", path, "--output", f"suite-{number}", cwd=tmp_path)
        count = len(evals["evals"])
        assert done.code == 0, done.err
        assert f"{count} task{'s' * (count != 1)} found: {count} imported, 0 left out\n" in done.out
        assert "2 assertions found: 2 kept, 0 changed, 0 lost\n" in done.out
        made = tmp_path / f"suite-{number}"
        assert uplift("validate", made / "suite.yaml", cwd=tmp_path).code == 0
        (made / "skill").symlink_to(path.parent.parent)
        ran = uplift(*standalone(made / "suite.yaml", "--model", "sim:baseline=0,candidate=1"), cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert ran.line["execution_pass_rate"] == 1.0
        assert ran.line["baseline_pass_rate"] == 0.0

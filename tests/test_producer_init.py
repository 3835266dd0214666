"""`uplift init`, tried as a new user would: what it writes, what it leaves alone, and that its words work."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]  # the same
from jsonschema import Draft7Validator
from running import uplift

from producer import init, skills, suite
from producer.skills import InvalidSkill
from workers.bundles import unpack

SKILL = "---\nname: haiku-writer\ndescription: 'Write short: poems @suite@.'\n---\nWrite three lines.\n"
WRITTEN = (
    "evals/fixtures/input.txt",
    "evals/fixtures/good_summary.txt",
    "evals/fixtures/test_summary.py",
    "evals/suite.schema.json",
    "evals/suite.yaml",
    ".github/workflows/uplift.yml",
)


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_skills_name_and_purpose_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    started = init.start(tmp_path)
    assert (started.made, started.kept) == (WRITTEN, ())
    made = suite.load(tmp_path / "evals/suite.yaml")
    assert made.skill_id == "haiku-writer"
    assert "The skill is for: Write short: poems @suite@." in made.tasks[0].prompt
    assert made.warnings == ()


def test_an_empty_folder_gets_a_draft_of_a_skill(tmp_path: Path) -> None:
    folder = tmp_path / "My Poems"
    folder.mkdir()
    started = init.start(folder)
    assert started.made == ("SKILL.md", *WRITTEN)
    loaded = skills.load(folder)
    assert (loaded.name, loaded.warnings) == ("my-poems", ())


def test_nothing_that_exists_is_overwritten_and_nothing_else_appears(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals/suite.yaml").write_text("mine")
    (tmp_path / "secret").write_text("key")
    (tmp_path / "evals/suite.schema.json").symlink_to(tmp_path / "secret")
    started = init.start(tmp_path)
    assert started.kept == ("evals/suite.schema.json", "evals/suite.yaml")
    assert (tmp_path / "evals/suite.yaml").read_text() == "mine"
    assert (tmp_path / "secret").read_text() == "key"
    # A second time, everything is there already.
    again = init.start(tmp_path)
    assert (again.made, again.kept) == ((), WRITTEN)
    assert files_below(tmp_path) == sorted(["SKILL.md", "secret", *WRITTEN])


def test_a_skill_that_cannot_be_read_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("")
    with pytest.raises(InvalidSkill, match="is empty"):
        init.start(tmp_path)
    assert files_below(tmp_path) == ["SKILL.md"]


@pytest.mark.parametrize("name", ["a: b", "'quoted\"", "ünï", "- x", "# y", "yes"])
def test_any_name_makes_a_valid_suite(tmp_path: Path, name: str) -> None:
    (tmp_path / "SKILL.md").write_text(
        f"---\nname: {json.dumps(name)}\ndescription: '{{x}} *y &z'\n---\nDo.\n"
    )
    init.start(tmp_path)
    assert suite.load(tmp_path / "evals/suite.yaml").skill_id == name


def test_the_workflow_is_one_that_github_accepts(tmp_path: Path) -> None:
    init.start(tmp_path)
    workflow = yaml.safe_load((tmp_path / init.WORKFLOW).read_text())
    # YAML 1.1, as Python reads it, takes the word `on` for true; GitHub does not.
    workflow["on"] = workflow.pop(True)
    errors = Draft7Validator(get_builtin_schema("vendor.github-workflows")).iter_errors(workflow)
    assert [error.message for error in errors] == []


def test_the_suites_first_line_leads_editors_to_the_schema_beside_it(tmp_path: Path) -> None:
    init.start(tmp_path)
    first = (tmp_path / "evals/suite.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / "evals" / name).read_text())["title"] == "Uplift task suite, version 1.0"


def test_what_the_skill_is_judged_by_is_not_part_of_the_skill(tmp_path: Path) -> None:
    folder = tmp_path / "haiku"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "evals.md").write_text("about evaluations")
    (folder / ".uplift").mkdir()
    (folder / ".uplift" / "record").write_text("earlier run")
    before = skills.bundle(skills.load(folder))
    init.start(folder)
    after = skills.bundle(skills.load(folder))
    assert after.digest == before.digest
    unpack(after.data, tmp_path / "there")
    assert [Path(name).name for name in files_below(tmp_path / "there")] == ["SKILL.md", "evals.md"]


def test_a_skill_inside_a_repository_is_told_where_workflows_belong(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "skills" / "haiku").mkdir(parents=True)
    done = uplift("init", cwd=tmp_path / "skills" / "haiku")
    assert done.code == 0
    assert "GitHub reads workflows at the top of a repository only" in done.out


@pytest.mark.slow
def test_a_new_user_goes_from_an_empty_folder_to_a_report_by_what_is_on_the_screen(tmp_path: Path) -> None:
    folder = tmp_path / "my-skill"
    folder.mkdir()
    # Given `uplift init` in an empty folder
    done = uplift("init", cwd=folder)
    assert done.code == 0, done.err
    # When the command that it prints is run as it stands
    (command,) = [line.strip() for line in done.out.splitlines() if line.startswith("  uplift ")]
    ran = uplift(*shlex.split(command)[1:], cwd=folder)
    # Then there is a result, an artifact and a report, and the screen says where
    assert ran.code == 0, ran.err
    assert ran.line["verdict"] == "pass"
    (report,) = [
        line.removeprefix("report: ") for line in ran.err.splitlines() if line.startswith("report: ")
    ]
    assert Path(report).read_text().startswith("<!")
    assert len(list((folder / ".uplift/evaluations").glob("*.json"))) == 1
    # And the same command works again, and with a simulated model
    assert uplift(*shlex.split(command)[1:], cwd=folder).code == 0
    simulated = [word for word in shlex.split(command)[1:] if word != "--mock"]
    again = uplift(*simulated, "--model", "sim:baseline=0,candidate=1", cwd=folder)
    assert (again.line["execution_pass_rate"], again.line["baseline_pass_rate"]) == (1.0, 0.0)

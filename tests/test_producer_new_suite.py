"""`uplift init`, tried as a new user would: what it writes, what it leaves alone, and that its words work."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]  # the same
from jsonschema import Draft7Validator
from running import a_suite, uplift

from producer.setup import skill_folder
from producer.skills import skill
from producer.skills.skill import InvalidSkill
from producer.suites import suite
from workers.store.bundles import unpack

SKILL = "---\nname: haiku-writer\ndescription: 'Write short: poems @suite@.'\n---\nWrite three lines.\n"
WORKFLOW = ".github/workflows/uplift.yml"
WRITTEN = (
    "evals/fixtures/input.txt",
    "evals/fixtures/good_summary.txt",
    "evals/fixtures/test_summary.py",
    "evals/suite.schema.json",
    "evals/suite.yaml",
    WORKFLOW,
)


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_skills_name_and_purpose_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    started = skill_folder.start(tmp_path)
    assert (started.made, started.kept) == (WRITTEN, ())
    made = suite.load(tmp_path / "evals/suite.yaml")
    assert made.skill_id == "haiku-writer"
    assert "# The skill is for: Write short: poems @suite@." in made.path.read_text()
    assert made.warnings == ()


def test_an_empty_folder_gets_a_draft_of_a_skill(tmp_path: Path) -> None:
    folder = tmp_path / "My Poems"
    folder.mkdir()
    started = skill_folder.start(folder)
    assert started.made == ("SKILL.md", *WRITTEN)
    loaded = skill.load(folder)
    assert (loaded.name, loaded.warnings) == ("my-poems", ())


def test_nothing_that_exists_is_overwritten_and_nothing_else_appears(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals/suite.yaml").write_text("mine")
    (tmp_path / "secret").write_text("key")
    (tmp_path / "evals/suite.schema.json").symlink_to(tmp_path / "secret")
    started = skill_folder.start(tmp_path)
    assert started.kept == ("evals/suite.schema.json", "evals/suite.yaml")
    assert (tmp_path / "evals/suite.yaml").read_text() == "mine"
    assert (tmp_path / "secret").read_text() == "key"
    # A second time, everything is there already.
    again = skill_folder.start(tmp_path)
    assert (again.made, again.kept) == ((), WRITTEN)
    assert files_below(tmp_path) == sorted(["SKILL.md", "secret", *WRITTEN])


def test_a_skill_that_cannot_be_read_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("")
    with pytest.raises(InvalidSkill, match="is empty"):
        skill_folder.start(tmp_path)
    assert files_below(tmp_path) == ["SKILL.md"]


@pytest.mark.parametrize("name", ["a: b", "'quoted\"", "ünï", "- x", "# y", "yes"])
def test_any_name_makes_a_valid_suite(tmp_path: Path, name: str) -> None:
    (tmp_path / "SKILL.md").write_text(
        f"---\nname: {json.dumps(name)}\ndescription: '{{x}} *y &z'\n---\nDo.\n"
    )
    skill_folder.start(tmp_path)
    assert suite.load(tmp_path / "evals/suite.yaml").skill_id == name


def test_the_workflow_is_one_that_github_accepts(tmp_path: Path) -> None:
    skill_folder.start(tmp_path)
    workflow = yaml.safe_load((tmp_path / WORKFLOW).read_text())
    # YAML 1.1, as Python reads it, takes the word `on` for true; GitHub does not.
    workflow["on"] = workflow.pop(True)
    errors = Draft7Validator(get_builtin_schema("vendor.github-workflows")).iter_errors(workflow)
    assert [error.message for error in errors] == []


def test_the_suites_first_line_leads_editors_to_the_schema_beside_it(tmp_path: Path) -> None:
    skill_folder.start(tmp_path)
    first = (tmp_path / "evals/suite.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert (
        json.loads((tmp_path / "evals" / name).read_text())["title"]
        == "Uplift task suite, versions 1.0 and 1.1"
    )


def test_what_the_skill_is_judged_by_is_not_part_of_the_skill(tmp_path: Path) -> None:
    folder = tmp_path / "haiku"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "evals.md").write_text("about evaluations")
    (folder / ".uplift").mkdir()
    (folder / ".uplift" / "record").write_text("earlier run")
    before = skill.bundle(skill.load(folder))
    skill_folder.start(folder)
    after = skill.bundle(skill.load(folder))
    assert after.digest == before.digest
    unpack(after.data, tmp_path / "there")
    assert [Path(name).name for name in files_below(tmp_path / "there")] == ["SKILL.md", "evals.md"]


def test_the_workflow_of_a_skill_inside_a_repository_is_written_at_its_top(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for place in ("skills/haiku", "skills/sonnet"):
        (tmp_path / place).mkdir(parents=True)
        assert skill_folder.start(tmp_path / place).made[-1] == (
            f"../../.github/workflows/uplift-{place.replace('/', '-')}.yml"
        )
    below = tmp_path / ".github/workflows"
    assert files_below(below) == ["uplift-skills-haiku.yml", "uplift-skills-sonnet.yml"]
    workflow = yaml.safe_load((below / "uplift-skills-haiku.yml").read_text())
    assert workflow[True]["pull_request"]["paths"] == ["skills/haiku/**"]
    assert workflow["jobs"]["evaluate"]["env"]["SUITE"] == "skills/haiku/evals/suite.yaml"


def test_nothing_is_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / ".git").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (top / ".github").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidSkill, match="leads out of"):
        skill_folder.start(top)
    assert files_below(tmp_path / "outside") == []


def test_an_evals_json_is_the_suite_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals/evals.json").write_text('{"evals": [{"prompt": "p", "expectations": ["e"]}]}')
    started = skill_folder.start(tmp_path)
    assert (started.made, started.kept) == (("SKILL.md", WORKFLOW), ("evals/evals.json",))
    assert started.suite == "evals/evals.json"
    workflow = yaml.safe_load((tmp_path / WORKFLOW).read_text())
    assert workflow["jobs"]["evaluate"]["env"]["SUITE"] == "evals/evals.json"
    assert uplift("validate", "evals/evals.json", cwd=tmp_path).code == 0
    (tmp_path / "evals/evals.json").write_text('{"evals": [{"expectations": ["e"]}]}')
    wrong = uplift("validate", "evals/evals.json", cwd=tmp_path)
    assert (wrong.code, wrong.out.split("  ")[0]) == (2, "evals/evals.json:1:12")


def test_a_promptfoo_configuration_becomes_the_suite(tmp_path: Path) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(
        "prompts: ['Say {{word}}.']\ntests:\n- vars: {word: iOS}\n  assert:\n  - {type: icontains, value: iOS}\n"
        "  - {type: similar, value: iOS}\n"
    )
    started = skill_folder.start(tmp_path)
    assert "evals/suite.yaml" in started.made
    assert "evals/fixtures/input.txt" not in started.made
    (task,) = suite.load(tmp_path / "evals/suite.yaml").tasks
    assert task.prompt == "Say iOS."
    assert any("similar" in note for note in started.notes)


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
    (report,) = [line.split()[1] for line in ran.err.splitlines() if line.startswith("  page: ")]
    assert (folder / report).read_text().startswith("<!")
    assert len(list((folder / ".uplift/evaluations").glob("*.json"))) == 1
    # And the same command works again, and with a simulated model
    assert uplift(*shlex.split(command)[1:], cwd=folder).code == 0
    simulated = [word for word in shlex.split(command)[1:] if word != "--mock"]
    again = uplift(*simulated, "--model", "sim:baseline=0,candidate=1", cwd=folder)
    assert (again.line["execution_pass_rate"], again.line["baseline_pass_rate"]) == (1.0, 0.0)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "ab" * 32


def installed_from(folder: Path, came_from: dict[str, Any] | None) -> dict[str, str]:
    """Surroundings in which Uplift says that it was installed from there, as an installer notes it."""
    about = folder / "site" / "skill_uplift-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: skill-uplift\nVersion: 0.1.0\n")
    if came_from is not None:
        (about / "direct_url.json").write_text(json.dumps(came_from))
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    }


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def a_clone(folder: Path, remote: str, *, pushed: bool = True) -> str:
    """A checkout whose remote has its commit, or has not; returns the commit."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "file").write_text("text")
    git(folder, "add", "file")
    git(folder, "commit", "-qm", "one")
    git(folder, "remote", "add", "origin", remote)
    if pushed:
        git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return git(folder, "rev-parse", "HEAD")


def the_source(folder: Path, came_from: dict[str, Any] | None) -> tuple[str, str]:
    """What the workflow installs, and what `init` prints."""
    skill = folder / "my-skill"
    skill.mkdir()
    done = uplift("init", cwd=skill, env=installed_from(folder, came_from))
    assert done.code == 0, done.err
    workflow = yaml.safe_load((skill / WORKFLOW).read_text())
    return workflow["jobs"]["evaluate"]["env"]["UPLIFT"], done.out


@pytest.mark.parametrize(
    ("came_from", "address"),
    [
        (
            {"url": "https://example.org/u.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"git+https://example.org/u.git@{COMMIT}",
        ),
        (
            {"url": "https://example.org/u.whl", "archive_info": {"hashes": {"sha256": DIGEST}}},
            f"https://example.org/u.whl#sha256={DIGEST}",
        ),
    ],
)
def test_the_workflow_installs_this_copy_from_where_it_came(
    tmp_path: Path, came_from: dict[str, Any], address: str
) -> None:
    source, out = the_source(tmp_path, came_from)
    assert source == f"skill-uplift[anthropic] @ {address}"
    assert "fill in" not in out


@pytest.mark.parametrize(
    "remote", ["https://me:s3cret@example.org/u.git", "git@example.org:u.git", "https://example.org/u.git"]
)
def test_a_checkout_is_installed_from_its_remote_without_anybodys_password(
    tmp_path: Path, remote: str
) -> None:
    commit = a_clone(tmp_path / "clone", remote)
    source, _ = the_source(tmp_path, {"url": f"file://{tmp_path / 'clone'}", "dir_info": {"editable": True}})
    assert source == f"skill-uplift[anthropic] @ git+https://example.org/u.git@{commit}"


@pytest.mark.parametrize("how", ["index", "file", "no repository", "changed", "not pushed", "hostile"])
def test_a_copy_that_nobody_else_can_get_leaves_one_line_to_fill_in_and_says_so(
    tmp_path: Path, how: str
) -> None:
    remote = "https://example.org/$(id)" if how == "hostile" else "https://example.org/u.git"
    if how != "no repository":
        a_clone(tmp_path / "clone", remote, pushed=how != "not pushed")
    if how == "changed":
        (tmp_path / "clone" / "file").write_text("other text")
    came_from: dict[str, Any] | None = {"url": f"file://{tmp_path / 'clone'}", "dir_info": {}}
    if how == "file":
        came_from = {"url": f"file://{tmp_path / 'u.whl'}", "archive_info": {}}
    source, out = the_source(tmp_path, None if how == "index" else came_from)
    assert source == ""
    assert "fill in UPLIFT in .github/workflows/uplift.yml" in out
    (marked,) = re.findall("FILL IN.*", (tmp_path / "my-skill" / WORKFLOW).read_text())
    assert "skill-uplift[anthropic] @ " in marked, "without that extra the job could not ask its model"
    installing = step(tmp_path / "my-skill", "Install", {"UPLIFT": ""})
    assert installing.returncode == 1
    assert "::error::" in installing.stdout


def step(
    folder: Path, name: str, env: dict[str, str], *, job: str = "evaluate"
) -> "subprocess.CompletedProcess[str]":
    """Run one step of the workflow as GitHub does, at the top of a repository, with `uplift` on PATH."""
    (workflow,) = (folder / ".github/workflows").glob("*.yml")
    of_job = yaml.safe_load(workflow.read_text())["jobs"][job]
    (chosen,) = [one for one in of_job["steps"] if one.get("name") == name]
    script = chosen["run"]
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    warm.program(tools)
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            **of_job.get("env", {}),
            **chosen.get("env", {}),
            "GITHUB_BASE_REF": "main",
            **env,
            "PATH": f"{tools}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", [".", "skills/haiku writer"])
def test_the_workflow_runs_on_changes_to_the_skill_and_fails_when_it_got_worse(
    tmp_path: Path, place: str
) -> None:
    # Given a repository with a skill, and a change of that skill on top
    top = tmp_path / "repository"
    skill = top / place
    skill.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    (skill / "SKILL.md").write_text(SKILL)
    skill_folder.start(skill)
    a_suite(skill / "evals", 2)
    git(top, "add", ".")
    git(top, "commit", "-qm", "before")
    git(top, "update-ref", "refs/remotes/origin/main", "HEAD")
    (skill / "SKILL.md").write_text(SKILL + "Be brief.\n")
    git(top, "commit", "-qam", "change the skill")
    # Then it is compared with what it was before, and a worse one fails
    worse = step(top, "Evaluate", {"MODEL": "sim:baseline=1,candidate=0"})
    assert (worse.returncode, json.loads(worse.stdout.splitlines()[-1])["delta"]) == (1, -1.0), worse.stderr
    (artifact,) = (top / ".uplift/evaluations").glob("*.json")
    before = git(top, "rev-parse", "origin/main")
    assert json.loads(artifact.read_text())["environment"]["baseline_commit"] == before
    assert f"uplift: the baseline is the skill at git:merge-base, commit {before}" in worse.stderr
    # An unchanged baseline is not asked again
    as_good = step(top, "Evaluate", {"MODEL": "sim:baseline=1,candidate=1"})
    assert (as_good.returncode, "come from the cache" in as_good.stderr) == (0, False), as_good.stderr
    as_good = step(top, "Evaluate", {"MODEL": "sim:baseline=1,candidate=1"})
    assert (as_good.returncode, "6 baseline attempts come from the cache" in as_good.stderr) == (0, True)
    assert step(top, "Report", {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}).returncode == 0
    assert (tmp_path / "summary.md").read_text() == (top / ".uplift/report.md").read_text() != ""
    # And without a key nothing is measured, which is no pass
    nothing = step(top, "Evaluate", {"ANTHROPIC_API_KEY": ""})
    assert (nothing.returncode, "export ANTHROPIC_API_KEY=" in nothing.stderr) == (3, True), nothing.stderr
    # And a change of the suite alone is no change of the skill
    (skill / "evals" / "note.md").write_text("a note")
    git(top, "add", ".")
    git(top, "commit", "-qm", "note")
    git(top, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    assert step(top, "Evaluate", {}).stdout == "the skill did not change\n"


@pytest.mark.slow
def test_the_workflow_compares_with_the_bare_model_only_where_the_skill_is_new(tmp_path: Path) -> None:
    # Given a new skill in a repository that had another one
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "README.md").write_text("skills")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    (tmp_path / "SKILL.md").write_text(SKILL)
    skill_folder.start(tmp_path)
    a_suite(tmp_path / "evals", 2)
    (tmp_path / "table.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a skill")
    model = {"MODEL": "sim:baseline=1,candidate=0"}
    assert step(tmp_path, "Evaluate", model).returncode == 1
    # Then a baseline that git has, and cannot give, is an error: nothing else may take its place
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    (tmp_path / "SKILL.md").write_text(SKILL + "Be brief.\n")
    git(tmp_path, "commit", "-qam", "change the skill")
    refused = step(tmp_path, "Evaluate", model)
    assert (refused.returncode, "Git LFS" in refused.stderr) == (2, True), refused.stderr


GH = """#!/bin/sh
echo "$@" >> calls
case "$*" in *--paginate*) cat earlier;; esac
"""


def test_the_workflow_keeps_one_comment_up_to_date(tmp_path: Path) -> None:
    top, tools = tmp_path / "top", tmp_path / "tools"
    top.mkdir()
    tools.mkdir()
    skill_folder.start(top)
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    surroundings = {"GITHUB_REPOSITORY": "o/r", "COMMENTS": "repos/o/r/issues/7/comments"}
    # Where nothing was run, nothing is said
    assert step(top, "Comment", surroundings, job="comment").returncode == 0
    assert not (top / "calls").exists()
    (top / "report.md").write_text("é" * 40_000)
    for earlier, said in (
        ("", "--method POST repos/o/r/issues/7/comments"),
        ("12\n", "PATCH repos/o/r/issues/comments/12"),
    ):
        (top / "earlier").write_text(earlier)
        assert step(top, "Comment", surroundings, job="comment").returncode == 0
        assert said in (top / "calls").read_text().splitlines()[-1]
    comment = (top / "comment.md").read_text()  # whole characters, and no more than a comment may have
    assert (comment.splitlines()[0], len(comment.splitlines()[1])) == ("<!-- uplift -->", 30_000)


@pytest.mark.parametrize(
    ("description", "shown"),
    [
        ("word " * 60, "word " * 40 + "…"),
        ("é" * 300, "é" * 200 + " …"),
        ("short", "short"),
    ],
)
def test_a_long_description_ends_with_a_whole_word(tmp_path: Path, description: str, shown: str) -> None:
    (tmp_path / "SKILL.md").write_text(f"---\nname: a\ndescription: {description}\n---\nDo.\n")
    skill_folder.start(tmp_path)
    lines = suite.load(tmp_path / "evals/suite.yaml").path.read_text().splitlines()
    assert f"    # The skill is for: {shown}" in lines


def test_no_prompt_of_the_draft_quotes_the_skill(tmp_path: Path) -> None:
    """Whoever tries the draft should not be told at once that it is wrong."""
    purpose = "turns the notes of a long meeting into a short list of what was decided and by whom"
    (tmp_path / "SKILL.md").write_text(f"---\nname: a\ndescription: {purpose}\n---\nDo.\n")
    skill_folder.start(tmp_path)
    made = suite.load(tmp_path / "evals/suite.yaml")
    assert not skill.quoting(skill.load(tmp_path), {task.id: task.prompt for task in made.tasks})

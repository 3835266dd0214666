"""`uplift evaluate` without flags: what is found, what wins, what is said, and what to type where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import SKILL, a_suite, uplift

from producer.importers import evals_json
from producer.plan import make
from producer.settings import config_file
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.setup import skill_folder
from producer.state_root import nearest_state_root
from workers.models.choose import parse, usable
from workers.models.model import UnknownModel
from workers.store.messages import ModelSettings

EVALS = '{"skill_name": "haiku", "evals": [{"id": 1, "prompt": "p", "expectations": ["e"], "files": ["evals/a.txt"]}]}'


def a_skill(folder: Path, *, evals: str = "suite.yaml") -> Path:
    (folder / "evals").mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    if evals == "suite.yaml":
        a_suite(folder / "evals", 1)
    elif evals:
        (folder / "evals" / evals).write_text(EVALS)
        (folder / "evals/a.txt").write_text("text")
    return folder


def complete(path: Path | None = None, **given: object) -> tuple[RunSettings, str]:
    config = config_file.load(environment={})
    return skill_folder.complete(config.with_flags(given), config, given, path)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    return tmp_path


def test_a_skills_folder_needs_no_flags(here: Path) -> None:
    a_skill(here / "a")
    os.chdir(here / "a")
    options, told = complete()
    assert (options.skill_path, options.task_suite) == (Path(), Path("evals/suite.yaml"))
    assert told == (
        "skill . (found); suite evals/suite.yaml (found); model claude-code (default); baseline bare"
    )
    assert make(options.model_copy(update={"models": ("mock",)})).grid.attempts == 2


@pytest.mark.parametrize("name", ["a", "a/SKILL.md"])
def test_a_path_names_the_skill_and_wins_over_the_config(here: Path, name: str) -> None:
    a_skill(here / "a")
    (here / "uplift.toml").write_text(
        'skill_path = "b"\ntask_suite = "b.yaml"\npass_k = 3\nmodels = ["mock"]'
    )
    options, told = complete(Path(name), gate="decision")
    assert (options.skill_path, options.task_suite) == (Path(name), Path("a/evals/suite.yaml"))
    assert told == (
        f"skill {name} (given); suite a/evals/suite.yaml (found); model mock ({here}/uplift.toml); baseline bare; "
        f"pass_k ({here}/uplift.toml)"
    )


def test_what_flags_and_config_name_is_not_looked_for(here: Path) -> None:
    a_skill(here / "a")
    a_suite(here / "other", 1)
    given = {"skill_path": Path("a"), "task_suite": Path("other/suite.yaml")}
    assert complete(**given)[1] == ""
    assert complete(skill_path=Path("a"))[0].task_suite == Path("a/evals/suite.yaml")
    (here / "uplift.toml").write_text('skill_path = "a"\ntask_suite = "other/suite.yaml"')
    assert complete()[0].task_suite == here / "other/suite.yaml"
    assert f"suite {here}/other/suite.yaml ({here}/uplift.toml)" in complete()[1]


def test_an_evals_json_becomes_a_suite_in_memory(here: Path) -> None:
    a_skill(here / "a", evals="evals.json")
    options, told = complete(Path("a"), models=("mock",), baseline="none")
    assert "suite a/evals/evals.json (found, imported); model mock (flag); baseline none" in told
    before = sorted(here.rglob("*"))
    plan = make(options)
    assert sorted(here.rglob("*")) == before
    assert (plan.suite.path, plan.suite.skill_id) == (Path("a/evals/evals.json"), "haiku")
    assert plan.suite.tasks[0].files == ("fixtures/a.txt",)
    assert plan.fixtures is not None
    assert evals_json.load(plan.suite.path).tasks == plan.suite.tasks


def test_a_suite_of_its_own_wins_over_an_evals_json(here: Path) -> None:
    a_skill(here / "a")
    (here / "a/evals/evals.json").write_text("broken")
    assert complete(Path("a"))[0].task_suite == Path("a/evals/suite.yaml")


def test_what_is_missing_is_said_with_what_to_type(here: Path) -> None:
    with pytest.raises(
        InvalidOption, match=r"no SKILL\.md in .*: uplift evaluate PATH; or start one .*uplift init"
    ):
        complete()
    a_skill(here / "skills/b", evals="")
    a_skill(here / "skills/a")
    with pytest.raises(InvalidOption, match=r"uplift evaluate skills/a \(there is: skills/a, skills/b\)"):
        complete()
    with pytest.raises(InvalidOption, match=r"or write one: cd skills/b && uplift init"):
        complete(Path("skills/b"))
    (here / "evals").mkdir()
    (here / "evals/evals.json").write_text(EVALS)  # as in repositories whose skills lie below skills/
    with pytest.raises(
        InvalidOption, match=r"evaluate skills/b --task-suite evals/evals\.json; or write one"
    ):
        complete(Path("skills/b"))
    with pytest.raises(InvalidOption, match="name two skills; leave one out"):
        complete(Path("skills/a"), skill_path=Path("skills/b"))
    with pytest.raises(InvalidOption, match="the ranking names its skills"):
        complete(Path("skills/a"), ranking=Path("r.json"))
    os.chdir(here / "skills/a/evals")
    with pytest.raises(InvalidOption, match=r"uplift evaluate \.\. "):
        complete()


def test_the_state_root_is_found_upwards_as_far_as_the_repository(here: Path) -> None:
    (here / ".uplift").mkdir()
    below = here / "top/a/b"
    below.mkdir(parents=True)
    os.chdir(below)
    assert nearest_state_root() == Path("../../../.uplift")
    (here / "top/.git").mkdir()
    assert nearest_state_root() == Path(".uplift")
    (here / "top/.uplift").mkdir()
    assert complete_root() == Path("../../.uplift")
    assert complete_root(state_root=Path("mine")) == Path("mine")


def complete_root(**given: object) -> Path:
    return config_file.load(environment={}).with_flags(given).state_root


def test_a_state_root_in_a_folder_that_others_share_is_not_taken(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    (here / ".uplift").mkdir()
    (here / "below").mkdir()
    os.chdir(here / "below")
    assert nearest_state_root() == Path(".uplift")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("gpt-4o", "openai:gpt-4o"), ("o3-mini", "openai:o3-mini"), ("openai/gpt-4o", "openai:gpt-4o")),
        *(("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"), ("sonnet", "claude-code:sonnet")),
        *(("gemini-2.5-pro", "command:gemini:gemini-2.5-pro"), ("codex", "command:codex")),
        *(("anthropics:x", "anthropic"), ("claude-cod", "claude-code")),
    ],
)
def test_a_model_without_its_kind_is_asked_about(written: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=rf"did you mean {meant}\?"):
        parse(written)


def test_a_usable_model_has_its_program_or_its_key(tmp_path: Path) -> None:
    assert usable(ModelSettings(), {"PATH": str(tmp_path)}) == []
    (tmp_path / "codex").write_text("#!/bin/sh\n")
    (tmp_path / "codex").chmod(0o755)
    found = usable(ModelSettings(), {"PATH": str(tmp_path), "OPENAI_API_KEY": "k", "CODEX_API_KEY": "k"})
    assert found == ["command:codex (CODEX_API_KEY set)", "openai:NAME (OPENAI_API_KEY set)"]


def test_without_a_usable_model_the_error_says_which_are_and_how_to_choose(here: Path) -> None:
    a_skill(here / "a")
    done = uplift("evaluate", "a", cwd=here, env={"OPENAI_API_KEY": "k", "UPLIFT_CLAUDE": "no-such-program"})
    assert done.code == 3
    said = "models usable here: openai:NAME (OPENAI_API_KEY set); choose with --model SPEC, or models in uplift.toml"
    assert said in done.err

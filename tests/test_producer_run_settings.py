"""A run's settings: each is defined once, and flags, messages, keywords and help follow from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from running import a_suite
from typer.testing import CliRunner

from aggregate.records.run_info import RunInfo
from aggregate.records.settings import ResultSettings
from producer import library, plan
from producer.cli import app
from producer.commands.flags import takes_settings
from producer.commands.flags import typed as typed_flags
from producer.settings.run_settings import (
    InvalidOption,
    RunSettings,
    described,
    of_model_settings,
    part,
)
from workers.store.messages import (
    CommandSpec,
    Limits,
    Manifest,
    ModelSettings,
    Price,
    ServeSettings,
    WorkerSettings,
)

# No value is the default, so that one that gets lost is missed.
OTHERS: dict[str, Any] = {
    "models": ("mock", "sim"),
    "pass_k": 3,
    "stop_early": True,
    "budget_usd": 7.0,
    "effect": 0.2,
    "margin": 0.1,
    "gate": "decision",
    "gate_cost": "+10%",
    "weak_baseline": "warn",
    "eval_threshold": 2.5,
    "judge_model": "mock",
    "skill_mode": "mount",
    "sandbox": "off",
    "priority": "high",
    "spare_checks": True,
    "trajectory": "failed",
    "trajectory_mb": 7.0,
    "unloaded": "warn",
}


def typed(*words: str | Path) -> dict[str, Any]:
    """What a command with every flag of `evaluate` is given by a command line."""
    made = typer.Typer()
    seen: list[dict[str, Any]] = []
    names = [name for name, setting in described().items() if setting.in_evaluate]

    @made.command()
    @takes_settings(*names)
    def command(context: typer.Context, **flags: Any) -> None:
        seen.append(typed_flags(context, flags))

    ended = CliRunner().invoke(made, [*map(str, words)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    (given,) = seen
    return given


def test_every_field_is_described_and_has_its_own_flag() -> None:
    assert set(RunSettings.model_fields) | set(Limits.model_fields) == set(described())
    assert all(setting.help.endswith(".") for setting in described().values())
    assert len({setting.flag for setting in described().values()}) == len(described())


def test_workers_and_numbers_get_every_setting_that_they_need(tmp_path: Path) -> None:
    assert set(OTHERS) == {*WorkerSettings.model_fields, *ResultSettings.model_fields}
    suite = a_suite(tmp_path)
    options = RunSettings(task_suite=suite, skill_path=tmp_path / "skill", **OTHERS)
    assert not [name for name, value in OTHERS.items() if value == RunSettings.model_fields[name].default]
    made = plan.make(options)
    manifest, info = made.manifest("lane"), made.info()
    assert (type(manifest), type(info)) == (Manifest, RunInfo)
    assert part(manifest, WorkerSettings) == {name: OTHERS[name] for name in WorkerSettings.model_fields}
    assert part(info, ResultSettings) == {name: OTHERS[name] for name in ResultSettings.model_fields}


def test_only_what_is_typed_is_given_in_its_own_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uplift.toml").write_text('pass_k = 5\ntask_suite = "of-the-config.yaml"\ntools = ["Read"]')
    assert typed() == {}
    words = ("--pass-k", "2", "--model", "mock", "--model", "sim", "--skill-path", "here", "--no-retry")
    words += ("--rpm", "60", "--tools", "Read,Edit", "--param", "a=1", "--standalone", "--gate", "decision")
    assert typed(*words) == {
        "pass_k": 2,
        "models": ["mock", "sim"],
        "skill_path": Path("here"),
        "retry": False,
        "rpm": 60.0,
        "tools": "Read,Edit",
        "params": ["a=1"],
        "standalone": True,
        "gate": "decision",
    }


def test_the_help_of_evaluate_has_a_heading_for_each_group() -> None:
    said = CliRunner().invoke(app, ["evaluate", "--help"]).output
    headings = [line.rstrip(":") for line in said.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert headings == [
        *("What to compare", "Models", "How often", "Limits and money", "Gate", "Where it runs", "Output"),
        "Other",
    ]


def test_settings_of_workers_given_as_one_value_mean_the_same() -> None:
    given = ModelSettings(
        params={"temperature": 0},
        tools=("Read",),
        retry=False,
        prices={"openai:m": Price(input=1, output=2)},
        commands={"mine": CommandSpec(argv=("mine",))},
        default_limits=Limits(rpm=60),
        limits={"openai:m": Limits(rpm=60, max_in_flight=2)},
    )
    assert RunSettings.checked(of_model_settings(given)).settings == given


def test_every_setting_is_a_keyword_but_for_arguments_and_rankings() -> None:
    left_out = set(RunSettings.model_fields) - set(library.keywords().values())
    rankings = {"ranking", "candidate_ids", "eval_threshold", "standalone"}
    assert left_out == {"task_suite", "skill_path", "baseline_path", *rankings, *ServeSettings.model_fields}
    assert {"model", "baseline", "priority", "budget_usd", "prices"} <= set(library.keywords())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pass_k": 0}, "--pass-k is 0; must be at least 1"),
        ({"budget_usd": float("inf")}, "--budget-usd is Infinity; must be a finite number"),
        ({"effect": 2}, "--effect is 2; must be at most 1"),
        ({"limits": {"rpm": 0}}, "--rpm is 0; must be above 0"),
        ({"prices": {"m": {"input": 1}}}, "prices.m.output is missing"),
        ({"sandbox": "on", "pass_k": 0}, "--pass-k is 0; must be at least 1; --sandbox is"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_by_its_flag(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        RunSettings.checked(values)
    assert str(refused.value).startswith(words)

"""Which specs name a model, and what people are told about those that do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workers.models.choose import is_agent, is_simulated, model_for, mounts_skills, parse
from workers.models.model import UnknownModel
from workers.store.messages import CommandSpec, ModelSettings

NO_SETTINGS = ModelSettings()


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("claude-code", "claude-code", ""),
        ("claude-code:opus", "claude-code", "opus"),
        ("anthropic:some-model", "anthropic", "some-model"),
        ("openai:org/model:tag", "openai", "org/model:tag"),
        ("command:codex", "command", "codex"),
        ("mock", "mock", ""),
        ("sim", "sim", ""),
        ("sim:candidate=0.9,seed=3", "sim", "candidate=0.9,seed=3"),
        ("replay:out/records.jsonl", "replay", "out/records.jsonl"),
    ],
)
def test_a_spec_is_a_kind_and_what_follows_its_first_colon(spec: str, kind: str, name: str) -> None:
    parsed = parse(spec)
    assert (parsed.kind, parsed.name) == (kind, name)


def test_an_unknown_kind_is_answered_with_all_known_ones() -> None:
    with pytest.raises(UnknownModel) as caught:
        parse("gtp-5")
    assert str(caught.value) == (
        "unknown model 'gtp-5'; known kinds: claude-code, anthropic:, openai:, command:, mock, sim, replay:"
    )


def test_a_misspelt_kind_is_answered_with_a_guess() -> None:
    with pytest.raises(UnknownModel, match="did you mean anthropic"):
        parse("antropic:some-model")


@pytest.mark.parametrize(
    "spec", ["anthropic", "openai:", "command", "replay: ", "sim:", "claude-code:", "mock:x", ""]
)
def test_a_spec_with_a_name_missing_or_too_much_is_refused(spec: str) -> None:
    with pytest.raises(UnknownModel):
        parse(spec)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("candidat=1", "did you mean candidate"),
        ("candidate", "candidate lacks a value"),
        ("candidate=high", "candidate is 'high'; a number is needed"),
        ("candidate=1.1", "between 0 and 1"),
        ("latency=nan", "finite"),
        ("latency=-1", "not negative"),
        ("seed=1.5", "an integer is needed"),
        ("spread=normal", "allowed: fixed, exp"),
        ("seed=1,seed=2", "given twice"),
    ],
)
def test_a_wrong_sim_setting_is_named_with_its_value_and_remedy(settings: str, complaint: str) -> None:
    with pytest.raises(UnknownModel, match=complaint):
        parse(f"sim:{settings}")


def test_only_programs_with_a_workspace_are_agents() -> None:
    filter_program = CommandSpec(argv=("tr", "a", "b"), agent=False)
    settings = ModelSettings(commands={"upper": filter_program})
    assert is_agent("claude-code", settings)
    assert is_agent("command:codex", settings)
    assert not is_agent("command:upper", settings)
    assert not is_agent("anthropic:some-model", settings)


def test_a_skill_can_be_mounted_where_the_program_has_a_place_for_it() -> None:
    settings = ModelSettings(commands={"bare": CommandSpec(argv=("it",))})
    assert mounts_skills("claude-code", settings)
    assert mounts_skills("command:gemini", settings)
    assert not mounts_skills("command:bare", settings)
    assert not mounts_skills("openai:some-model", settings)


def test_mock_and_sim_are_simulated_and_recordings_are_not() -> None:
    assert is_simulated("mock")
    assert is_simulated("sim:seed=1")
    assert not is_simulated("replay:x.jsonl")
    assert not is_simulated("openai:some-model")


def test_an_undeclared_command_is_answered_with_the_declared_ones() -> None:
    settings = ModelSettings(commands={"aider": CommandSpec(argv=("aider",))})
    with pytest.raises(UnknownModel, match=r"unknown command 'aidr'; .*\(did you mean aider\?\)"):
        model_for("command:aidr", settings)


def test_choosing_a_mock_imports_no_vendor() -> None:
    script = (
        "import sys; from workers.models.choose import model_for; "
        "from workers.store.messages import ModelSettings; "
        "model_for('mock', ModelSettings()); "
        "sys.exit(any(name in sys.modules for name in ('anthropic', 'openai', 'genai_prices', 'redis')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

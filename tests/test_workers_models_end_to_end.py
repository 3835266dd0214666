"""Whole runs through real workers against the stand-in: both SDKs and the real Claude Code CLI."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Ended, uplift
from standing_in import Provider, provider_process

from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord, KeptSteps
from judges.trajectory import Trajectory

pytestmark = pytest.mark.slow

CLAUDE = shutil.which(os.environ.get("UPLIFT_CLAUDE") or "claude")
KEY = "sk-canary-0123456789"
SDKS = ("anthropic:claude-sonnet-4-5", "openai:gpt-4o")
SKILL = "---\nname: zebra\ndescription: Say zebra.\n---\nALWAYS-SAY-ZEBRA\n"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_process() as made:
        yield made


def evaluate(
    folder: Path,
    provider: Provider,
    *models: str,
    seconds: int = 20,
    tasks: int = 3,
    flags: tuple[str, ...] = (),
    skill: str = SKILL,
) -> Ended:
    """Evaluate a small skill with an embedded server and worker, asking each of the models."""
    (folder / "skill").mkdir(exist_ok=True)
    (folder / "skill/SKILL.md").write_text(skill)
    lines = [
        f"  - {{id: t{i}, prompt: 'question {i}', judge: {{type: contains, expected: [hello]}}}}"
        for i in range(tasks)
    ]
    head = f"skill_id: zebra\nversion: '1.0'\ndefaults: {{timeout_seconds: {seconds}}}\ntasks:\n"
    (folder / "suite.yaml").write_text(head + "\n".join(lines) + "\n")
    environment = {
        "ANTHROPIC_BASE_URL": provider.url,
        "OPENAI_BASE_URL": f"{provider.url}/v1",
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_API_KEY": KEY,
    }
    standalone = (
        "--standalone",
        "--task-suite",
        "suite.yaml",
        "--skill-path",
        "skill",
        "--state-root",
        "state",
    )
    asked = [word for model in models for word in ("--model", model)]
    return uplift("evaluate", *standalone, *asked, *flags, cwd=folder, env=environment)


def the_artifact(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "state/evaluations").glob("*.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def prompts(provider: Provider) -> list[str]:
    return [json.dumps(one["body"]["messages"]) for one in provider.asked()]


def test_a_run_survives_429_500_and_dropped_connections_and_pays_only_for_answers(
    tmp_path: Path, provider: Provider
) -> None:
    storm = [{"status": 429, "retry_after": "1"}, {"status": 500}, {"drop": True}, {"status": 529}]
    provider.script(*2 * storm, {"text": "hello", "input_tokens": 1000, "output_tokens": 100})
    ended = evaluate(tmp_path, provider, *SDKS)
    assert ended.code == 0, ended.err
    assert len(provider.asked()) == 2 * (3 * 2 + len(storm))
    # Published per million tokens: 3 and 15 for the first model, 2.50 and 10 for the second.
    each = [(1000 * 3 + 100 * 15) / 1e6, (1000 * 2.5 + 100 * 10) / 1e6]
    cost = the_artifact(tmp_path)["cost"]
    assert cost["spent_usd"] == pytest.approx(6 * sum(each))
    assert [cost["cost_by_model"][model] for model in SDKS] == pytest.approx([6 * one for one in each])
    said = prompts(provider)
    assert sum("ALWAYS-SAY-ZEBRA" in prompt for prompt in said) >= 2 * 3
    assert sum("ALWAYS-SAY-ZEBRA" not in prompt for prompt in said) >= 2 * 3


def test_a_cached_baseline_that_another_model_answered_for_is_used_with_a_warning_that_names_both(
    tmp_path: Path, provider: Provider
) -> None:
    for number, served in enumerate(("gpt-of-last-week", "gpt-of-today")):
        provider.script({"text": "hello", "model": served})
        flags = ("--baseline-cache-dir", "cache", "--output", f"{number}.json")
        ended = evaluate(tmp_path, provider, "openai:gpt-4o", tasks=2, flags=flags)
        assert ended.code == 0, ended.err
    assert len(provider.asked()) == 2 * 2 + 2
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    words = "openai:gpt-4o: gpt-of-today answered for the candidate, gpt-of-last-week for the baseline"
    assert not any("answered for" in one for one in first["warnings"])
    assert any(one.startswith(f"{words}, which is cached;") for one in second["warnings"])
    assert words in " ".join(ended.err.split())


def test_a_model_that_hangs_ends_in_timeouts(tmp_path: Path, provider: Provider) -> None:
    provider.script({"hang": True})
    evaluate(tmp_path, provider, *SDKS, seconds=2, tasks=1)
    results = the_artifact(tmp_path)["candidate_results"]
    assert {result["model"]: result["passed"] for result in results} == dict.fromkeys(SDKS, False)
    assert all("no answer within 2 s" in json.dumps(result) for result in results)


def test_a_hundred_megabytes_are_judged_by_their_first_four(tmp_path: Path, provider: Provider) -> None:
    provider.script({"text": "hello", "pad_bytes": 100_000_000})
    ended = evaluate(tmp_path, provider, *SDKS, tasks=1)
    assert ended.line["execution_pass_rate"] == 1.0
    assert [one["finished"] for one in provider.asked()] == [False] * 4
    left = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert left < 2 * 60_000_000


def test_the_key_is_in_nothing_that_a_run_leaves(tmp_path: Path, provider: Provider) -> None:
    provider.script({"status": 400, "message": f"your key {KEY} is bad"})
    ended = evaluate(tmp_path, provider, *SDKS, tasks=1)
    assert KEY not in ended.out + ended.err
    left = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert left == []


@pytest.mark.skipif(
    CLAUDE is None, reason="no claude on PATH and no UPLIFT_CLAUDE; npm install @anthropic-ai/claude-code"
)
def test_claude_code_runs_both_arms_and_only_the_candidate_is_offered_the_skill(
    tmp_path: Path, provider: Provider
) -> None:
    provider.script({"text": "hello", "input_tokens": 1000, "output_tokens": 100})
    # The stand-in answers at once and loads nothing.
    ended = evaluate(tmp_path, provider, "claude-code:claude-sonnet-4-5", flags=("--unloaded", "warn"))
    assert ended.code == 0, ended.err
    offered = ["Say zebra." in json.dumps(one["body"]) for one in provider.asked()]
    assert sorted(offered) == [False] * 3 + [True] * 3
    assert the_artifact(tmp_path)["cost"]["spent_usd"] == pytest.approx(6 * (1000 * 3 + 100 * 15) / 1e6)


def kept(folder: Path) -> list[tuple[AttemptRecord, Trajectory | None]]:
    """The records that came home, each with its steps."""
    (run,) = (folder / "state/runs").iterdir()
    steps = KeptSteps(run / "steps.zip")
    return [(record, steps.of(record)) for record in read_jsonl(run / "records.jsonl.gz")]


def test_the_exchange_with_a_model_comes_home_as_it_was_sent_and_the_skills_text_once(
    tmp_path: Path, provider: Provider
) -> None:
    long = SKILL + "Say zebra, always and everywhere. " * 20
    asked = evaluate(tmp_path, provider, *SDKS, tasks=2, flags=("--param", "system=be kind"), skill=long)
    assert asked.code in (0, 1), asked.err
    sent = sorted(prompts(provider))
    said = []
    for record, steps in kept(tmp_path):
        assert steps is not None
        assert record.completion is not None
        system, user, answer = steps.steps
        assert (system.source, system.text, user.source) == ("system", "be kind", "user")
        said.append(user.text)
        assert answer.text == record.completion.text
        assert answer.input_tokens == record.completion.input_tokens
        assert record.completion.stop_reason in ("end_turn", "stop")
    told = [json.loads(one)[-1]["content"] for one in sent]
    assert sorted(said) == sorted(told)
    archive = zipfile.ZipFile(next((tmp_path / "state/runs").iterdir()) / "steps.zip")
    packed = [gzip.decompress(archive.read(name)).decode() for name in archive.namelist()]
    assert [text.count("everywhere") for text in packed if "everywhere" in text] == [20]


@pytest.mark.parametrize(("which", "count"), [("failed", 2), ("off", 0)])
def test_steps_of_failed_attempts_only_or_of_none_are_kept_where_the_run_says_so(
    tmp_path: Path, provider: Provider, which: str, count: int
) -> None:
    provider.script({"text": "hello"}, {"text": "hello"}, {"text": "bye"})
    evaluate(tmp_path, provider, SDKS[0], tasks=2, flags=("--trajectory", which, "--in-flight", "1"))
    told = kept(tmp_path)
    assert len(told) == 4
    assert sum(steps is not None for _, steps in told) == count
    assert all(record.outcome == "failed" for record, steps in told if steps is not None)


def test_steps_beyond_the_room_of_a_run_are_left_out_whole_and_the_run_says_so_once(
    tmp_path: Path, provider: Provider
) -> None:
    (tmp_path / "uplift.toml").write_text("trajectory_mb = 0.001\n")
    evaluate(tmp_path, provider, SDKS[0], tasks=4)
    told = kept(tmp_path)
    left_out = [record.trajectory for record, steps in told if steps is None]
    assert 0 < len(left_out) < len(told)
    assert set(left_out) == {"not kept: the run's steps have 0.001 MB (trajectory_mb) already"}
    warnings = [one for one in the_artifact(tmp_path)["warnings"] if "steps" in one]
    assert warnings == [
        f"the steps of {len(left_out)} attempts are not kept: limit 0.001 MB a run (trajectory_mb)"
    ]

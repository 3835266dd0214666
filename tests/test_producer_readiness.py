"""A missing key, package or program is found before a run starts, and takes two lines: what, and what to type."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from running import Ended, a_suite, standalone, start_uplift, the_artifact, uplift, worker

from producer.runs.submit import CannotAsk, check_there
from workers.models.choose import lacking
from workers.store.messages import CommandSpec, ModelSettings
from workers.store.redis_client import sign_of_life

NO_KEYS = {"CODEX_API_KEY": "", "GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": ""}
RUBRIC = """skill_id: haiku
version: "1.0"
tasks:
  - {id: polite, prompt: Say hello., judge: {type: llm-rubric, rubric: "Is it polite?", judges: [JUDGE]}}
"""


def surroundings(folder: Path, **more: str) -> dict[str, str]:
    """No key, and no program on PATH but the ones that a test puts into a folder."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    return {**NO_KEYS, "UPLIFT_CLAUDE": "", "PATH": str(programs), **more}


def is_refused(ended: Ended, folder: Path, missing: str, remedy: str) -> None:
    """Two lines, and for a private worker what is usable here; nothing on standard output, and nothing left behind."""
    assert ended.code == 3, ended.err
    what, how, *usable = ended.err.splitlines()
    assert [line.split(": ")[0] for line in usable] in ([], ["models usable here"])
    assert missing in what
    assert how.startswith("type")
    assert remedy in how
    assert ended.out == ""
    assert not (folder / "state").exists()


@pytest.mark.parametrize("more", [[], ["--detach"], ["--quiet"]])
@pytest.mark.parametrize(
    ("model", "missing", "remedy"),
    [
        ("claude-code", "claude not found; none of", "npm install -g @anthropic-ai/claude-code"),
        ("anthropic:m", "none of ANTHROPIC_API_KEY", "export ANTHROPIC_API_KEY=…"),
        ("openai:m", "openai:m cannot be asked here: OPENAI_API_KEY is not set", "export OPENAI_API_KEY=…"),
        ("command:codex", "codex not found; CODEX_API_KEY is not set", "npm install -g @openai/codex"),
        ("command:mine", "no-such-program not found", "correct argv in [commands.mine]"),
    ],
)
def test_what_a_model_lacks_is_told_before_anything_starts(
    tmp_path: Path, model: str, missing: str, remedy: str, more: list[str]
) -> None:
    (tmp_path / "uplift.toml").write_text('[commands.mine]\nargv = ["no-such-program"]\n')
    words = standalone(a_suite(tmp_path), "--model", "mock", "--model", model, *more)
    is_refused(uplift(*words, cwd=tmp_path, env=surroundings(tmp_path)), tmp_path, missing, remedy)


def test_the_key_alone_is_missing_where_the_program_is_there(tmp_path: Path) -> None:
    env = surroundings(tmp_path)
    (tmp_path / "programs" / "claude").symlink_to(sys.executable)
    ended = uplift(*standalone(a_suite(tmp_path)), cwd=tmp_path, env=env)
    is_refused(ended, tmp_path, "claude-code cannot be asked here: none of ANTHROPIC_API_KEY", "; or try it")
    assert "npm" not in ended.err


def test_a_model_that_only_judges_needs_its_key_too(tmp_path: Path) -> None:
    suite = a_suite(tmp_path)
    suite.write_text(RUBRIC.replace("JUDGE", "openai:grader"))
    (tmp_path / "said.jsonl").write_text(
        '{"task": "polite", "arm": "candidate", "attempt": 1, "text": "Hi."}\n'
    )
    words = standalone(suite, "--model", f"replay:{tmp_path / 'said.jsonl'}", "--no-baseline")
    ended = uplift(*words, cwd=tmp_path, env=surroundings(tmp_path))
    is_refused(
        ended, tmp_path, "openai:grader cannot be asked here: OPENAI_API_KEY", "export OPENAI_API_KEY=…"
    )


@pytest.mark.slow
def test_judging_again_needs_the_judges_key_and_not_the_models(tmp_path: Path) -> None:
    suite = a_suite(tmp_path, 1)
    (tmp_path / "uplift.toml").write_text('[commands.mine]\nargv = ["cat"]\n')
    uplift(*standalone(suite, "--model", "command:mine", "--no-baseline"), cwd=tmp_path)
    run = the_artifact(tmp_path)["run_id"]
    (tmp_path / "uplift.toml").write_text('[commands.mine]\nargv = ["no-such-program"]\n')
    words = ["rejudge", run, "--state-root", tmp_path / "state", "--sandbox", "off"]
    assert uplift(*words, cwd=tmp_path, env=surroundings(tmp_path)).code in (0, 1)

    before = sorted((tmp_path / "state").rglob("*"))
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(RUBRIC.replace("polite,", "task-0,").replace("JUDGE", "anthropic:grader"))
    ended = uplift(*words, "--task-suite", rubric, cwd=tmp_path, env=surroundings(tmp_path))
    assert ended.code == 3
    assert [line.split(" ")[0] for line in ended.err.splitlines()] == ["anthropic:grader", "type:"]
    assert sorted((tmp_path / "state").rglob("*")) == before


@pytest.mark.slow
def test_a_run_that_is_resumed_without_its_program_stays_as_it_was(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    program = tmp_path / "slow-program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nsleep 2\necho word0 word1\n")
    program.chmod(0o755)
    (tmp_path / "uplift.toml").write_text(f'sandbox = "off"\n[commands.mine]\nargv = ["{program}"]\n')
    suite = a_suite(tmp_path, 2)
    words = standalone(suite, "--model", "command:mine", "--run-id", "r1", "--in-flight", "1")
    process = start_uplift(*words, cwd=tmp_path)
    eventually((tmp_path / "begun").exists)
    process.terminate()
    process.communicate(timeout=60)
    program.rename(tmp_path / "elsewhere")
    again = ["resume", "r1", "--state-root", tmp_path / "state"]
    ended = uplift(*again, cwd=tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (3, 2), ended.err
    assert "slow-program not found" in ended.err
    (tmp_path / "elsewhere").rename(program)
    ended = uplift(*again, cwd=tmp_path)
    assert (ended.code, ended.line["execution_pass_rate"]) == (0, 1.0), ended.err


def test_a_dry_run_tells_what_is_missing_and_plans_all_the_same(tmp_path: Path) -> None:
    words = standalone(a_suite(tmp_path), "--model", "openai:m", "--dry-run", "--json")
    env = surroundings(tmp_path)
    facts = json.loads(uplift(*words, cwd=tmp_path, env=env).out)
    assert (facts["missing"], facts["model_calls"]) == ("OPENAI_API_KEY is not set", 8)
    own = uplift(*words, "--param", 'base_url="http://127.0.0.1:9/v1"', cwd=tmp_path, env=env)
    assert json.loads(own.out)["missing"] == "none"
    elsewhere = uplift(*words, "--broker", "redis://127.0.0.1:9/0", cwd=tmp_path, env=env)
    assert json.loads(elsewhere.out)["missing"] is None


def test_variables_that_a_program_may_see_need_not_be_set(tmp_path: Path) -> None:
    settings = ModelSettings(commands={"mine": CommandSpec(argv=("sh",), environment=("PERHAPS",))})
    assert lacking(["command:mine"], settings, {"PATH": "/usr/bin:/bin"}) == []


def test_a_preset_that_the_config_declares_anew_needs_what_the_config_says() -> None:
    settings = ModelSettings(commands={"codex": CommandSpec(argv=("sh",))})
    assert lacking(["command:codex"], settings, {"PATH": "/usr/bin:/bin"}) == []


def test_a_program_may_come_with_a_tasks_files() -> None:
    settings = ModelSettings(commands={"mine": CommandSpec(argv=("./fixtures/agent",))})
    assert lacking(["command:mine"], settings, {"PATH": ""}) == []


def test_one_worker_that_can_serve_a_model_is_enough_and_an_old_one_may(client: redis.Redis) -> None:
    settings = ModelSettings()
    check_there(["openai:m"], settings, client)  # nobody there: the run waits
    sign_of_life(client, "a:1", {"name": "a:1", "lacks": ["key for openai", "claude"]})
    with pytest.raises(CannotAsk, match="by the broker's only worker; missing there: key for openai\n"):
        check_there(["anthropic:m", "openai:m"], settings, client)
    check_there(["openai:m"], ModelSettings(params={"base_url": "http://127.0.0.1:9"}), client)
    sign_of_life(client, "b:1", {"name": "b:1", "lacks": ["openai package"]})
    with pytest.raises(CannotAsk, match="any of the broker's 2 workers; missing there: openai package, key"):
        check_there(["openai:m"], settings, client)
    sign_of_life(client, "c:1", {"name": "c:1"})
    check_there(["openai:m"], settings, client)


@pytest.mark.slow
def test_a_broker_whose_workers_lack_the_key_is_told_from_one_without_workers(
    valkey: str, client: redis.Redis, short_tmp: Path
) -> None:
    words = standalone(a_suite(short_tmp), "--broker", valkey, "--model", "openai:m")
    ours = {"OPENAI_API_KEY": "here-and-not-there"}
    with worker(valkey, short_tmp):
        ended = uplift(*words, cwd=short_tmp, env=ours)
        is_refused(ended, short_tmp, "missing there: key for openai", "export OPENAI_API_KEY=…")
        assert client.keys("uplift:*state*") == []
    # A worker that has left does not count.
    assert uplift(*words, "--detach", cwd=short_tmp).code == 0
    deaf = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    with worker(valkey, short_tmp, **deaf):
        assert uplift(*words, "--detach", cwd=short_tmp).code == 0

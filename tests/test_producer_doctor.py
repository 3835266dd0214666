"""`uplift doctor`: what is set, what is there, and how to mend what is not; never a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import start_server
from redis import Redis
from running import Ended, uplift, worker

from judges.sandbox import command
from workers.store.redis_client import sign_of_life

KEY = "sk-canary-0123456789"


def examined(
    folder: Path, *words: str | Path, code: int = 0, **environment: str
) -> dict[str, dict[str, Any]]:
    """The checks by name, from a run in `folder` with nothing around but what is given."""
    ended = doctor(folder, *words, "--json", **environment)
    assert ended.code == code, ended.out + ended.err
    return {check["name"]: check for check in json.loads(ended.out)["checks"]}


def doctor(folder: Path, *words: str | Path, **environment: str) -> Ended:
    no_keys = {name: "" for name in os.environ if name.endswith(("_KEY", "_TOKEN"))}
    return uplift("doctor", *words, cwd=folder, env={**no_keys, **environment})


def settings(ended: Ended) -> dict[str, tuple[str, str]]:
    return {one["key"]: (one["value"], one["origin"]) for one in json.loads(ended.out)["settings"]}


def test_with_nothing_configured_nothing_is_a_problem_and_nothing_is_written(tmp_path: Path) -> None:
    checks = examined(tmp_path)
    assert {check["status"] for check in checks.values()} <= {"ok", "warning"}
    assert "each run starts its own" in checks["server"]["found"]
    assert [checks[name]["status"] for name in ("celery", "kombu", "redis")] == ["ok"] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have less to tell")
@pytest.mark.parametrize(("wanted", "lack"), [("auto", "warning"), ("required", "problem")])
def test_what_of_the_sandbox_holds_here_is_told_part_by_part(tmp_path: Path, wanted: str, lack: str) -> None:
    # A bubblewrap that does not work, found first; what needs none holds all the same.
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    code = 3 if lack == "problem" else 0
    checks = examined(tmp_path, code=code, UPLIFT_SANDBOX=wanted, PATH=path)
    assert checks["sandbox"]["status"] == lack
    assert "no namespaces here" in checks["sandbox"]["found"]
    assert "with the worker's network" in checks["agents"]["found"]
    assert "network" not in checks
    if command.probe().bubblewrap:
        checks = examined(tmp_path, UPLIFT_SANDBOX=wanted)
        assert checks["sandbox"]["status"] == "ok"
        assert "their provider" in checks["network"]["found"]
        assert ("nobody" in checks["rights"]["found"]) == (os.geteuid() == 0)
    assert [checks[name]["status"] for name in ("rights", "system calls", "cgroup")] == ["ok"] * 3


def test_what_is_set_is_shown_with_its_origin_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "uplift.toml").write_text(
        'pass_k = 2\nmodels = ["mock"]\nstate_root = "there"\n[limits]\nrpm = 9'
    )
    ended = doctor(tmp_path, "--json", "--state-root", "here", UPLIFT_PASS_K="3")
    file = str(tmp_path / "uplift.toml")
    assert settings(ended) == {
        "broker": ("none: each run has a private server", "default"),
        "limits.rpm": ("9.0", file),
        "models": ('["mock"]', file),
        "pass_k": ("3", "UPLIFT_PASS_K"),
        "state_root": ("here", "flag"),
    }


def test_a_broken_config_is_the_first_problem_and_the_rest_is_still_examined(tmp_path: Path) -> None:
    (tmp_path / "uplift.toml").write_text("pass_k = 0")
    checks = examined(tmp_path, code=3)
    assert next(iter(checks)) == "config"
    assert "pass_k: is 0; must be at least 1" in checks["config"]["found"]
    assert checks["server"]["status"] == "ok"


def test_keys_and_passwords_are_found_and_never_shown(tmp_path: Path) -> None:
    secrets = {"ANTHROPIC_API_KEY": KEY, "UPLIFT_BROKER": "redis://:hunter2hunter2@127.0.0.1:1/0"}
    for words in ([], ["--json"]):
        ended = doctor(tmp_path, *words, **secrets)
        assert ended.code == 3
        assert "ANTHROPIC_API_KEY set" in ended.out
        assert KEY not in ended.out + ended.err
        assert "hunter2" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-code", "key for claude-code"),
        ("openai:gpt-4o", "key for openai"),
        ("command:codex", "codex"),
        ("command:gemini:gemini-2.5-pro", "key for command:gemini"),
        ("command:mine", "command:mine"),
    ],
)
def test_what_a_configured_model_lacks_is_a_problem_with_a_remedy(
    tmp_path: Path, model: str, name: str
) -> None:
    declared = '[commands.mine]\nargv = ["no-such-program"]\nenvironment = ["MINE_KEY"]'
    (tmp_path / "uplift.toml").write_text(f'models = ["{model}"]\n{declared}')
    checks = examined(tmp_path, code=3, PATH=str(tmp_path))
    assert checks[name]["status"] == "problem"
    assert checks[name]["remedy"]


def test_what_a_shared_brokers_workers_may_have_is_only_a_warning_here(tmp_path: Path, valkey: str) -> None:
    (tmp_path / "uplift.toml").write_text('models = ["openai:gpt-4o"]')
    assert examined(tmp_path, "--broker", valkey)["key for openai"]["status"] == "warning"


def test_an_own_server_for_openai_needs_no_key(tmp_path: Path) -> None:
    (tmp_path / "uplift.toml").write_text('models = ["openai:local"]')
    checks = examined(tmp_path, OPENAI_BASE_URL="http://127.0.0.1:8000/v1")
    assert checks["key for openai"]["status"] == "ok"


def test_a_program_tells_its_version(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\necho '2.1.197 (Claude Code)'\n")
    program.chmod(0o755)
    checks = examined(tmp_path, UPLIFT_CLAUDE=str(program))
    assert checks["claude"]["found"] == f"2.1.197 (Claude Code) ({program})"


def test_a_misspelt_variable_is_noticed(tmp_path: Path) -> None:
    check = examined(tmp_path, UPLIFT_PASSK="3")["UPLIFT_PASSK"]
    assert (check["status"], "did you mean UPLIFT_PASS_K?" in check["remedy"]) == ("warning", True)


def test_a_state_root_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = examined(tmp_path, "--state-root", tmp_path / "file", code=3)["state root"]
    assert check["status"] == "problem"
    assert "--state-root" in check["remedy"]


def test_a_good_broker_is_told_with_its_version_and_that_nobody_works_there(
    tmp_path: Path, valkey: str
) -> None:
    checks = examined(tmp_path, "--broker", valkey)
    assert checks["server"]["found"].startswith("Valkey ")
    assert [checks[name]["status"] for name in ("eviction", "persistence")] == ["ok", "ok"]
    assert checks["workers"]["status"] == "warning"
    assert "uplift worker" in checks["workers"]["remedy"]


@pytest.mark.slow
def test_workers_of_a_broker_are_counted(tmp_path: Path, valkey: str) -> None:
    with worker(valkey, tmp_path, UPLIFT_IN_FLIGHT="7"):
        found = examined(tmp_path, "--broker", valkey)["workers"]
    assert (found["status"], found["found"].startswith("1 with 7 slots")) == ("ok", True)


def test_workers_of_another_version_are_told_with_what_they_cannot_do(
    tmp_path: Path, valkey: str, client: Redis
) -> None:
    sign_of_life(client, "old:1", {"name": "old:1"})  # as 0.1.0 tells of itself
    check = examined(tmp_path, "--broker", valkey)["versions"]
    assert check["status"] == "warning"
    assert check["found"] == "1 of Uplift 0.1.0, which cannot serve runs of this version"
    assert "start workers of this version" in check["remedy"]


def test_a_server_that_evicts_or_forgets_is_told_with_the_setting_to_change(short_tmp: Path) -> None:
    process, url = start_server(short_tmp, "--appendonly", "no")
    try:
        check = examined(short_tmp, "--broker", url)["persistence"]
        assert (check["status"], check["remedy"]) == ("warning", "set appendonly yes")
        configure(url, "maxmemory-policy", "allkeys-lru")
        check = examined(short_tmp, "--broker", url, code=3)["eviction"]
        assert (check["status"], check["remedy"]) == ("problem", "set maxmemory-policy noeviction")
        configure(url, "requirepass", "right")
        assert (
            "password" in examined(short_tmp, "--broker", url + "?password=wrong", code=3)["server"]["found"]
        )
    finally:
        stop(process)


def configure(url: str, name: str, value: str) -> None:
    import redis

    client = redis.Redis.from_url(url)
    client.config_set(name, value)
    client.close()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_an_insecure_broker_is_a_problem_unless_allowed(tmp_path: Path) -> None:
    found = examined(tmp_path, "--broker", "redis://198.51.100.7:6379", code=3)["server"]["found"]
    assert "without password or TLS" in found

"""compose.yaml and Dockerfile: valid, closed by default, and every service's own command run as a plain process.

No container engine is needed: what an engine would do to compose.yaml (fill in variables, start commands with
exactly the declared environment) is done here, with hosts, ports and folders replaced by this machine's.
"""

import json
import os
import re
import signal
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path

import containers
import jsonschema
import pytest
import redis
from browsing import ask
from compose_stack import (
    COMPOSE,
    EVALUATE,
    KEY,
    PASSWORDS,
    PROMPT,
    ROOT,
    SERVICES,
    SKILL,
    TABLE,
    Missing,
    Stack,
    filled,
    instructions,
    last,
    seconds,
    write_suite,
)
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.models import command
from workers.models.model import KEYS
from workers.store.keys import LANES, UNACKED, WORKERS, waiting_keys
from workers.store.process_settings import ProcessSettings

# Together on one process of a parallel run: these tests share the started services, and the last one stops a worker.
pytestmark = pytest.mark.xdist_group("compose")


# --- the files themselves -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valid():
    schema = json.loads(
        files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    )
    return jsonschema.Draft202012Validator(schema)


def test_compose_yaml_follows_the_compose_specification(valid):
    assert [error.message for error in valid.iter_errors(COMPOSE)] == []
    assert [error.message for error in valid.iter_errors(filled(COMPOSE, PASSWORDS))] == []


@pytest.mark.parametrize(
    "mistake", [{"comand": ["x"]}, {"read_only": [1]}, {"depends_on": {"redis": {"when": "now"}}}]
)
def test_the_schema_would_notice_a_mistake(valid, mistake):
    assert not valid.is_valid({"services": {"worker": {**SERVICES["worker"], **mistake}}})


@pytest.mark.parametrize("name", PASSWORDS)
def test_nothing_starts_without_a_password(name):
    for without in ({}, {name: ""}):
        given = {**{other: value for other, value in PASSWORDS.items() if other != name}, **without}
        with pytest.raises(Missing, match=name):
            filled(COMPOSE, given)


def test_every_variable_of_compose_yaml_is_explained():
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    explained = (ROOT / "docs" / "deployment.md").read_text()
    assert {name for name in used if f"`{name}`" not in explained} == set()
    assert len(used) >= 7


def test_only_flower_is_published_and_only_on_loopback():
    assert {
        name: filled(service["ports"], {}) for name, service in SERVICES.items() if "ports" in service
    } == {"flower": ["127.0.0.1:5555:5555"]}
    assert COMPOSE["networks"]["queue"] == {"internal": True}
    assert SERVICES["redis"]["networks"] == ["queue"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_can_become_it_or_change_its_own_image(name):
    service = SERVICES[name]
    user = filled(service.get("user", last("USER")), {}).split(":")[0]
    assert user not in ("0", "root")
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode", "devices"} & set(service)


def test_only_workers_give_up_the_default_confinement_which_bubblewrap_needs():
    given_up = {
        name: [option for option in service["security_opt"] if "unconfined" in option]
        for name, service in SERVICES.items()
    }
    assert given_up.pop("worker") == ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"]
    assert not any(given_up.values())


def test_a_worker_can_be_scaled_because_nothing_of_it_is_unique():
    assert not {"container_name", "hostname", "ports", "scale"} & set(SERVICES["worker"])
    assert SERVICES["worker"]["command"] == ["uplift", "worker"]


def test_a_worker_gets_every_key_that_models_read_by_name_only():
    environment = SERVICES["worker"]["environment"]
    used = {
        *KEYS["claude-code"],
        *(name for preset in command.PRESETS.values() for name in preset.environment),
    }
    assert used | {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"} <= set(environment)
    own = {"UPLIFT_BROKER", "UPLIFT_STATE_ROOT"}
    assert {environment[name] for name in environment if name not in own} == {None}
    for name in set(SERVICES) - {"worker"}:
        assert not used & set(SERVICES[name].get("environment", {}))


def test_whoever_sets_a_prefix_sets_it_for_all_and_the_lease_for_workers():
    told = {name: set(service.get("environment", {})) for name, service in SERVICES.items()}
    assert [name for name in told if "UPLIFT_PREFIX" in told[name]] == ["worker", "flower", "cli"]
    assert [name for name in told if "UPLIFT_LEASE_SECONDS" in told[name]] == ["worker"]
    explained = (ROOT / "docs" / "deployment.md").read_text().partition("## Three machines")[0]
    assert {
        name for name in ("UPLIFT_PREFIX", "UPLIFT_LEASE_SECONDS") if f"`{name}`" not in explained
    } == set()


def test_a_worker_is_given_longer_to_stop_than_it_takes_to_hand_back_its_work():
    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= ProcessSettings(broker="").drain_seconds + 5


def test_images_are_pinned_and_named_without_a_registry_host():
    assert re.fullmatch(r"redis:\d+\.\d+", SERVICES["redis"]["image"])
    for _, image in [pair for pair in instructions() if pair[0] == "FROM"]:
        assert re.fullmatch(r"python:3\.11-slim( AS build)?", image)


def test_make_containers_looks_for_the_images_that_are_used():
    used = {rest.split()[0] for name, rest in instructions() if name == "FROM"} | {SERVICES["redis"]["image"]}
    assert set(containers.IMAGES) == used


@pytest.mark.parametrize("engine", ["none", "exit 1", "exec sleep 60"])
def test_make_containers_is_one_line_and_no_failure_without_an_engine(engine, monkeypatch, capsys, tmp_path):
    if engine != "none":
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{engine}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if engine != "none" else str(tmp_path))
    monkeypatch.setattr(containers, "ANSWER_SECONDS", 0.5)
    assert containers.main() == 0
    assert re.fullmatch(r"containers: skipped, [^\n]+\n", capsys.readouterr().out)


def test_the_image_is_installed_from_locked_files_alone_and_passes_signals_on():
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert len(installs) == 1
    assert re.findall(r"pip install (.*?) *(?:&&|$)", installs[0]) == [
        "--require-hashes --no-deps -r requirements.lock",
        "--no-deps --no-build-isolation .",
    ]
    assert json.loads(last("ENTRYPOINT")) == ["tini", "--"]
    assert json.loads(last("CMD"))[0] == "uplift"
    assert last("USER") == "10001:10001"


def test_the_image_holds_no_secret():
    told = " ".join(rest for name, rest in instructions() if name in ("ENV", "ARG", "COPY", "ADD"))
    assert not re.search(r"(?i)key|token|secret|password|\.env", told)
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {pattern.removesuffix("*") for pattern in found}
    modules = {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    needed = (
        packages | modules | {"pyproject.toml", "requirements.lock", project["project"]["readme"], "LICENSE"}
    )
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == needed


# --- the services' own commands, as processes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """All services started, and one suite evaluated through them by the command line's container."""
    made = Stack(tmp_path_factory.mktemp("compose"))
    write_suite(made.folder / "work")
    try:
        made.start("redis")
        made.await_(lambda: made.healthy("redis"), "redis is not healthy")
        made.start("worker")
        made.start("flower")
        made.await_(lambda: made.healthy("flower"), "flower is not healthy")
        with redis.Redis.from_url(made.url) as client:
            made.await_(lambda: client.zcard("uplift:workers"), "no worker")
        made.evaluated = made.run(
            *EVALUATE, "--model", "sim:candidate=1,baseline=0.5,seed=1", "--pass-k", "2", "--json"
        )
        yield made
    finally:
        made.stop()


@pytest.mark.slow
def test_the_health_check_of_redis_needs_the_right_password(stack):
    assert stack.healthy("redis")
    assert not stack.healthy("redis", REDISCLI_AUTH="wrong")


@pytest.mark.slow
def test_the_health_check_of_a_worker_needs_a_sign_of_life_and_not_only_a_process(stack):
    assert stack.healthy("worker")
    assert not stack.healthy("worker", UPLIFT_BROKER=stack.url.replace("0badc0ffee", "wrong"))
    with redis.Redis.from_url(stack.url) as client:
        beats = client.zrange(WORKERS, 0, -1, withscores=True)
        stack.started["worker"].send_signal(signal.SIGSTOP)
        try:
            client.delete(WORKERS)  # as half a minute later
            assert not stack.healthy("worker"), "its process is still up"
        finally:
            client.zadd(WORKERS, dict(beats))
            stack.started["worker"].send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_doctor_finds_no_problem_in_a_workers_container(stack):
    words = stack.here([*json.loads(last("ENTRYPOINT")), "uplift", "doctor", "--json"])
    told = subprocess.run(
        words, env=stack.environment("worker"), capture_output=True, text=True, check=False, timeout=60
    )
    checks = {check["name"]: check["status"] for check in json.loads(told.stdout)["checks"]}
    assert checks["state root"] == "ok", told.stdout
    assert SERVICES["worker"]["environment"]["UPLIFT_STATE_ROOT"].startswith("/tmp/")
    assert SERVICES["worker"]["tmpfs"][0].startswith("/tmp:")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that belongs to somebody else")
def test_a_folder_of_somebody_else_is_told_with_the_variable_that_helps(stack, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, 4711, 4712)
    for folder_above in (tmp_path, *tmp_path.parents[:3]):
        folder_above.chmod(0o755)
    words = stack.here([word for word in SERVICES["cli"]["entrypoint"] if word not in ("tini", "--")])
    words = [*words[:-1], "sh", "--version"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "uplift").write_text('#!/bin/sh\necho "uplift $@"\n')
    (tmp_path / "uplift").chmod(0o755)
    for user, expected in ((1000, "set UPLIFT_USER=4711:4712"), (4711, "")):
        told = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            user=user,
            group=user,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "uplift --version\n"
        assert expected in told.stderr
        assert bool(told.stderr) == bool(expected)


@pytest.mark.slow
def test_redis_keeps_what_it_is_told_and_refuses_strangers(stack):
    with redis.Redis.from_url(stack.url) as client:
        assert client.config_get("appendonly", "appendfsync", "maxmemory-policy") == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
    with (
        redis.Redis(port=stack.redis_port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


@pytest.mark.slow
def test_the_command_line_evaluates_a_suite_through_the_workers(stack):
    artifact = json.loads(stack.evaluated.stdout)
    assert stack.evaluated.returncode == 0, stack.evaluated.stderr
    assert (artifact["execution_pass_rate"], artifact["verdict"]) == (1.0, "pass")
    assert [name.rsplit(":")[-1].split("-")[0] for name in artifact["environment"]["workers"]] == [
        str(stack.started["worker"].pid)
    ]
    assert (stack.folder / "work" / ".uplift" / "evaluations" / f"{artifact['run_id']}.json").exists()


@pytest.mark.slow
def test_flower_lists_the_runs_batches_by_run_batch_and_tasks(stack):
    run_id = json.loads(stack.evaluated.stdout)["run_id"]
    stack.await_(lambda: len(json.loads(stack.flower("/api/tasks")[1])) >= 12, "batches are missing")
    batches = json.loads(stack.flower("/api/tasks")[1]).values()
    assert {batch["name"] for batch in batches} == {"uplift.run_batch"}
    assert {batch["state"] for batch in batches} == {"SUCCESS"}
    # Breadth first, arms alternating: three tasks twice each, and all of it twice.
    expected = [
        f"run {run_id} batch {number + 1}/12: tasks names-it-{number % 6 // 2}" for number in range(12)
    ]
    assert sorted(batch["args"] for batch in batches) == sorted(expected)
    assert json.loads(stack.flower(f"{TABLE}&search[value]=args:{run_id}")[1])["recordsFiltered"] == 12
    assert json.loads(stack.flower(f"{TABLE}&search[value]=args:another-run")[1])["recordsFiltered"] == 0


@pytest.mark.slow
def test_flower_refuses_without_the_password(stack):
    for path in ("/", "/tasks", "/api/tasks", "/api/workers", "/metrics"):
        assert ask(f"http://127.0.0.1:{stack.flower_port}{path}")[0] == 401


@pytest.mark.slow
def test_nothing_that_flower_shows_holds_a_prompt_a_skill_a_key_or_a_password(stack):
    stack.await_(lambda: json.loads(stack.flower("/api/workers?refresh=1")[1]), "flower knows no worker")
    (worker,) = json.loads(stack.flower("/api/workers")[1])
    batch = next(iter(json.loads(stack.flower("/api/tasks")[1])))
    paths = ["/", "/tasks", "/broker", "/metrics", "/workers?json=1"]
    paths += [f"/worker/{worker}", f"/task/{batch}", TABLE]
    paths += ["/api/tasks", "/api/workers?refresh=1", "/api/task/types", "/api/queues/length"]
    paths += [f"/api/task/info/{batch}", f"/api/task/result/{batch}"]
    shown = {path: stack.flower(path) for path in paths}
    assert {path: status for path, (status, _) in shown.items() if status != 200} == {}
    assert "redis://:**" in shown["/broker"][1], "the broker's address is shown, and its password is not"
    for path, (_, text) in shown.items():
        for secret in (PROMPT, SKILL, KEY, *PASSWORDS.values()):
            assert secret not in text, (path, secret)


@pytest.mark.slow
def test_no_log_and_no_command_line_of_a_service_holds_a_secret(stack):
    for name, process in stack.started.items():
        told = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode() + stack.logs()[name]
        for secret in (PROMPT, SKILL, KEY, *PASSWORDS.values()):
            assert secret not in told, (name, secret)


@pytest.mark.slow
def test_a_worker_with_work_under_way_stops_inside_its_grace_period_and_hands_the_work_back(stack):
    with redis.Redis.from_url(stack.url) as client:
        stack.run(*EVALUATE, "--model", "sim:latency=600", "--detach")
        stack.await_(lambda: client.hlen(UNACKED) > 0, "no batch was taken")
        worker = stack.started.pop("worker")
        worker.terminate()
        # An engine would kill it now.
        assert worker.wait(timeout=seconds(SERVICES["worker"]["stop_grace_period"])) == 0, stack.logs()[
            "worker"
        ]
        assert sum(client.llen(key) for lane in LANES for key in waiting_keys(lane)) == 6
        assert client.hlen(UNACKED) == 0

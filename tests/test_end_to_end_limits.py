"""Whole runs under limits, budgets and outages, through real workers against the stand-in."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from conftest import start_server
from running import Ended, a_suite, standalone, start_uplift, the_artifact, uplift, worker
from standing_in import Provider, provider_process

from aggregate.records.jsonl import read_jsonl
from aggregate.text.formats import usd

pytestmark = pytest.mark.slow

MODEL = "anthropic:claude-sonnet-4-5"
KEY = "sk-canary-0123456789"
GATEWAY, PROXY = "canary-of-the-gateway", "canary-of-the-proxy"
USAGE = {"text": "word0 word1 word2 word3 word4 word5", "input_tokens": 1000, "output_tokens": 100}
# Published per million tokens: 3 for input and 15 for output.
COST = (1000 * 3 + 100 * 15) / 1e6


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_process() as made:
        made.script(USAGE)
        yield made


def keys(provider: Provider) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": KEY}


def evaluate(folder: Path, provider: Provider, *flags: str | Path, tasks: int = 6) -> Ended:
    """Evaluate with an embedded server and worker."""
    words = standalone(a_suite(folder, tasks), "--model", MODEL, *flags)
    return uplift(*words, cwd=folder, env=keys(provider))


def arrivals(provider: Provider) -> list[tuple[float, str]]:
    """When each call came and for which arm: the candidate's hold the skill."""
    calls = [(one["at"], json.dumps(one["body"]["messages"])) for one in provider.asked()]
    return sorted((at, "candidate" if "three lines" in prompt else "baseline") for at, prompt in calls)


def most_within(times: list[float], seconds: float) -> int:
    """The largest number of calls in any window of so many seconds."""
    return max(sum(start <= other < start + seconds for other in times) for start in times)


def lead(arms: list[str]) -> int:
    """By how many calls one arm was ever ahead of the other."""
    ahead, most = 0, 0
    for arm in arms:
        ahead += 1 if arm == "candidate" else -1
        most = max(most, abs(ahead))
    return most


@pytest.fixture(scope="module")
def broker_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Provider]]:
    """A server with two workers, and the provider that both ask."""
    folder = tmp_path_factory.mktemp("b")
    process, url = start_server(folder)
    try:
        with (
            provider_process() as asked,
            worker(url, folder, **keys(asked)),
            worker(url, folder, **keys(asked)),
        ):
            yield url, asked
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def two_workers(broker_of_two: tuple[str, Provider]) -> tuple[str, Provider]:
    """The same as if nothing had been asked yet: limits hold over runs, for a minute."""
    url, asked = broker_of_two
    with redis.Redis.from_url(url) as client:
        client.delete("none", *client.keys("uplift:limits:*"))
    asked.forget()
    asked.script(USAGE)
    return broker_of_two


@pytest.mark.xdist_group("two-workers")
def test_two_workers_together_stay_within_the_rate_and_both_arms_progress_evenly(
    two_workers: tuple[str, Provider], short_tmp: Path
) -> None:
    broker, provider = two_workers
    words = standalone(a_suite(short_tmp, 40), "--broker", broker, "--model", MODEL, "--rpm", "600")
    ended = uplift(*words, cwd=short_tmp)
    assert ended.code == 0, ended.err
    came = arrivals(provider)
    times = [at for at, _ in came]
    assert len(came) == 80
    # Ten calls a second. A call may reach the stand-in up to two seconds after its turn: so many more may meet.
    assert most_within(times, 3.0) <= 30 + 1 + 20
    assert times[-1] - times[0] >= 79 * 0.1 - 2
    # One arm after the other would be 40; calls that come late on a busy machine change places.
    assert lead([arm for _, arm in came]) <= 20
    assert len(the_artifact(short_tmp)["environment"]["workers"]) == 2


@pytest.mark.xdist_group("two-workers")
def test_sixty_a_minute_is_one_a_second(two_workers: tuple[str, Provider], short_tmp: Path) -> None:
    broker, provider = two_workers
    words = standalone(a_suite(short_tmp, 4), "--broker", broker, "--model", MODEL, "--rpm", "60")
    uplift(*words, cwd=short_tmp)
    times = [at for at, _ in arrivals(provider)]
    assert len(times) == 8
    # The first may have come up to two seconds late.
    assert all(at - times[0] >= number - 2 for number, at in enumerate(times))


@pytest.mark.xdist_group("two-workers")
def test_two_workers_together_stay_within_the_calls_in_flight(
    two_workers: tuple[str, Provider], short_tmp: Path
) -> None:
    broker, provider = two_workers
    provider.script({**USAGE, "latency": 0.2})
    words = standalone(a_suite(short_tmp, 12), "--broker", broker, "--model", MODEL, "--max-in-flight", "3")
    uplift(*words, cwd=short_tmp)
    calls = [(one["at"], one["answered"]) for one in provider.asked()]
    assert len(calls) == 24
    # Some machines' clocks step back by milliseconds: one call's end may seem to come after the next one's start.
    overlaps = [sum(at <= start < answered - 0.05 for at, answered in calls) for start, _ in calls]
    assert max(overlaps) <= 3


def test_a_wrong_key_ends_the_run_after_a_few_attempts_with_one_message_and_it_can_be_resumed(
    tmp_path: Path, provider: Provider
) -> None:
    provider.script({"status": 401, "message": "invalid x-api-key"})
    ended = evaluate(tmp_path, provider, "--in-flight", "4", tasks=20)
    assert ended.code == 3
    assert ended.line["verdict"] == "error"
    made = the_artifact(tmp_path)
    assert made["status"] == "hopeless"
    assert made["reason"] == (
        f"the run was given up: {MODEL} cannot answer: "
        "ModelFailed: HTTP 401: scripted_error: invalid x-api-key"
    )
    # Five failures are enough; what was in flight by then fails too.
    assert len(provider.asked()) <= 5 + 4
    provider.script(USAGE)
    resumed = uplift(
        "resume", made["run_id"], "--state-root", tmp_path / "state", cwd=tmp_path, env=keys(provider)
    )
    assert the_artifact(tmp_path)["status"] == "finished", resumed.err


def test_a_worker_without_the_extra_ends_the_run_and_says_what_to_install(
    tmp_path: Path, provider: Provider
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "anthropic.py").write_text("raise ImportError('none', name='anthropic')")
    words = standalone(a_suite(tmp_path, 6), "--model", MODEL)
    ended = uplift(*words, cwd=tmp_path, env={**keys(provider), "PYTHONPATH": str(tmp_path / "broken")})
    assert ended.code == 3
    assert "pip install 'anthropic[aiohttp]>=2'" in the_artifact(tmp_path)["reason"]


def test_an_endless_storm_of_errors_is_an_error_and_never_a_pass(tmp_path: Path, provider: Provider) -> None:
    provider.script({"status": 500, "message": "on fire"})
    ended = evaluate(tmp_path, provider, "--no-retry", tasks=2)
    assert (ended.code, ended.line["verdict"]) == (3, "error")
    made = the_artifact(tmp_path)
    assert (made["status"], made["decision"]) == ("finished", "inconclusive")
    assert (made["execution_pass_rate"], made["baseline_pass_rate"]) == (None, None)
    assert "2 of 2 candidate attempts ended in error" in made["reason"]
    assert "on fire" in made["reason"]
    # Without retries in the attempt, the run's own two further tries are all there is.
    assert len(provider.asked()) == 2 * 2 * 3


def test_a_budget_stops_new_attempts_and_the_overshoot_is_bounded_and_stated(
    tmp_path: Path, provider: Provider
) -> None:
    provider.script({**USAGE, "latency": 1})
    # Answers are longer than allowed here, so that each attempt costs more than was reserved for it.
    reserved, budget = 100 * 15 / 1e6, 0.008
    flags = ("--budget-usd", str(budget), "--param", "max_tokens=100", "--in-flight", "4")
    ended = evaluate(tmp_path, provider, *flags, tasks=8)
    made = the_artifact(tmp_path)
    assert (ended.code, made["status"], made["verdict"]) == (3, "over_budget", "error")
    spent = made["cost"]["spent_usd"]
    assert spent == pytest.approx(len(provider.asked()) * COST, abs=1e-6)
    assert budget < spent <= budget + 4 * (COST - reserved)
    assert made["cost"]["over_budget_usd"] == pytest.approx(spent - budget, abs=1e-6)
    assert f"{usd(spent)} of {usd(budget)} spent" in made["reason"]
    assert "too much by attempts that were in flight" in made["reason"]

    # It can be resumed, with a larger budget only; what is paid for is not asked again.
    provider.script(USAGE)

    def resume(*more: str) -> Ended:
        return uplift(
            "resume", made["run_id"], "--state-root", "state", *more, cwd=tmp_path, env=keys(provider)
        )

    refused = resume("--budget-usd", str(budget))
    assert (refused.code, f"has spent {spent:.6g} already" in refused.err) == (2, True), refused.err
    assert resume("--budget-usd", "1").code == 0
    made = the_artifact(tmp_path)
    assert (made["status"], made["cost"]["budget_usd"]) == ("finished", 1)
    assert len(provider.asked()) == 2 * 8
    assert made["cost"]["spent_usd"] == pytest.approx(2 * 8 * COST, abs=1e-6)


def test_a_generous_budget_is_not_used_up_by_what_is_only_reserved(
    tmp_path: Path, provider: Provider
) -> None:
    # An answer of 8192 tokens would cost 0.12: two of them would not fit, and none is that long.
    ended = evaluate(tmp_path, provider, "--budget-usd", "0.2")
    made = the_artifact(tmp_path)
    assert (ended.code, made["status"]) == (0, "finished"), ended.err
    assert made["cost"]["spent_usd"] == pytest.approx(12 * COST, abs=1e-6)
    assert made["cost"]["over_budget_usd"] == 0


def test_a_recording_reaches_workers_that_cannot_see_its_file(valkey: str, short_tmp: Path) -> None:
    suite = a_suite(short_tmp, 2)
    elsewhere = short_tmp / "elsewhere"
    elsewhere.mkdir()
    answers = {"baseline": ["no", "no"], "candidate": ["word0", "no"]}
    lines = [
        json.dumps({"task": f"task-{number}", "arm": arm, "attempt": 1, "text": text})
        for arm, texts in answers.items()
        for number, text in enumerate(texts)
    ]
    (short_tmp / "recording.jsonl").write_text("\n".join(lines))
    with worker(valkey, elsewhere):
        words = standalone(suite, "--broker", valkey, "--model", "replay:recording.jsonl")
        ended = uplift(*words, cwd=short_tmp)
        assert ended.line["execution_pass_rate"] == 0.5, ended.err
        # What a run leaves is a recording, too.
        (records,) = (short_tmp / "state" / "runs").glob("*/records.jsonl.gz")
        again = uplift(*words[:-1], f"replay:{records}", cwd=short_tmp)
    assert again.line == ended.line


def test_what_a_recording_lacks_is_an_error_and_what_it_has_keeps_its_tokens(short_tmp: Path) -> None:
    completion = {"text": "word0", "input_tokens": 9, "output_tokens": -1, "cost_usd": 0.5}
    line = {"task": "task-0", "arm": "candidate", "attempt": 1, "completion": completion}
    (short_tmp / "recording.jsonl").write_text(json.dumps(line))
    words = standalone(a_suite(short_tmp, 2), "--no-baseline", "--model", "replay:recording.jsonl")
    ended = uplift(*words, cwd=short_tmp)
    assert ended.code in (0, 1, 3), ended.err
    (records,) = (short_tmp / "state" / "runs").glob("*/records.jsonl.gz")
    there, missing = sorted(read_jsonl(records), key=lambda record: record.task)
    assert there.completion is not None
    assert (there.outcome, there.model_ms, there.retries) == ("passed", 0.0, 0)
    assert (there.completion.input_tokens, there.completion.output_tokens) == (9, None)
    assert (there.completion.cost_usd, there.completion.cost_source) == (0.5, "replay")
    told = "replay:recording.jsonl holds no completion of task 'task-1', arm 'candidate', attempt 1"
    assert (missing.outcome, missing.error) == ("error", told)
    assert the_artifact(short_tmp)["cost"]["spent_usd"] == 0


def test_a_recording_that_cannot_be_read_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"task": "a"')
    for name, words in {"missing.jsonl": "cannot be read", "broken.jsonl": "broken.jsonl:1"}.items():
        ended = uplift(*standalone(a_suite(tmp_path), "--model", f"replay:{name}"), cwd=tmp_path)
        assert (ended.code, words in ended.err) == (2, True), ended.err
        assert not (tmp_path / "state").exists()


def test_a_workers_key_is_in_no_message_record_log_artifact_or_value(
    valkey: str, short_tmp: Path, provider: Provider
) -> None:
    """Even where the vendor repeats it in answers and errors, and an agent prints it and writes it to a file."""
    said = {**USAGE, "text": f"word0 your key is {KEY}, your gateway's {GATEWAY}, your proxy's {PROXY}"}
    provider.script({"status": 500, "message": f"bad {KEY}"}, {"status": 400, "message": f"no {KEY}"}, said)
    program = "echo word0 $AGENT_KEY; echo $AGENT_KEY > leaked.txt; mkdir of-$AGENT_KEY; echo x > of-$AGENT_KEY/file"
    declared = {"argv": ["sh", "-c", program], "environment": ["AGENT_KEY"], "skill_folder": "{home}/skills"}
    suite = a_suite(short_tmp, 2)
    models = ["--model", MODEL, "--model", "command:leaky"]
    commands = {"UPLIFT_COMMANDS": json.dumps({"leaky": declared})}
    environment = {
        **keys(provider),
        **commands,
        "AGENT_KEY": KEY,
        "ANTHROPIC_CUSTOM_HEADERS": f"X-Team: research\nX-Gateway: Bearer {GATEWAY}",
        "FTP_PROXY": f"http://me:{PROXY}@proxy.invalid:3128",
    }
    with (short_tmp / "worker.log").open("w") as log:
        process = start_uplift(
            "worker", "--broker", valkey, cwd=short_tmp, env=environment, stdout=log, stderr=log
        )
        try:
            words = standalone(suite, "--broker", valkey, *models)
            ended = uplift(*words, cwd=short_tmp, env=commands)
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert ended.line["execution_pass_rate"] == 0.5, ended.err
    for secret in (KEY, GATEWAY, PROXY):
        wanted = secret.encode()
        assert secret not in ended.out + ended.err
        found = [path for path in short_tmp.rglob("*") if path.is_file() and holds(path.read_bytes(), wanted)]
        assert found == []
        assert [name for name, value in everything(valkey) if holds(value, wanted)] == []
    # The search does find one: what an agent left is there, but for the key.
    assert any(holds(value, b"[redacted]") for name, value in everything(valkey) if b":bundle:" in name)


def holds(value: bytes, wanted: bytes = KEY.encode()) -> bool:
    """Whether bytes hold something, plain or in one of our two ways of packing."""
    unpacked: list[Callable[[bytes], bytes]] = [bytes, zlib.decompress, gzip.decompress]
    for unpack in unpacked:
        try:
            if wanted in unpack(value):
                return True
        except (zlib.error, OSError, EOFError):
            continue
    return False


def everything(url: str) -> Iterator[tuple[bytes, bytes]]:
    """Every value that a server holds, one by one."""
    client = redis.Redis.from_url(url)
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": lambda key: [client.get(key)],
        b"hash": lambda key: [part for pair in client.hgetall(key).items() for part in pair],
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": lambda key: client.smembers(key),
        b"zset": lambda key: client.zrange(key, 0, -1),
    }
    for key in client.scan_iter():
        yield key, key
        for value in readers[client.type(key)](key):
            yield key, value
    client.close()

"""Workers that trust nobody: whoever can write to the broker can forge manifests, tasks, bundles and messages.

Each is left to others, ended or thrown away with one line and the reason; nothing of it is run, read or sent.
"""

import io
import json
import logging
import tarfile
import zlib
from base64 import b64encode
from hashlib import sha256
from uuid import uuid4

import pytest
from running import a_suite, standalone, start_uplift, uplift, worker
from submitting import RUN, a_server, a_stored_run

from producer.settings.run_settings import RunSettings
from workers.attempts.run_context import Runs
from workers.models.command import PRESETS
from workers.models.policy import refuses, serves
from workers.process import celery_app
from workers.process.celery_app import App
from workers.process.engine import Batch, Engine
from workers.rounds.mend import UNSERVED_SECONDS, Mender
from workers.store.bundles import pack_files
from workers.store.keys import LANES, PROTOCOL, Keys, bundle, waiting_keys
from workers.store.messages import Arm, CommandSpec, Manifest, ModelSettings, Policy, Task
from workers.store.process_settings import InvalidSetting, ProcessSettings, from_environment
from workers.store.redis_client import held_messages, serving, sign_of_life, tell_held, workers
from workers.store.run_store import NotServed, OtherVersion, read_manifest, read_task

OWN = CommandSpec(argv=("true",), environment=("AGENT_KEY",))
POLICY = Policy(commands={"own": OWN})
STEALS = {"argv": ["/bin/sh", "-c", "env > /tmp/stolen"], "environment": ["ANTHROPIC_API_KEY"]}


def a_manifest(**fields) -> Manifest:
    settings = {
        "models": ("sim",),
        "arms": (Arm(name="baseline"),),
        "task_count": 1,
        "lane": LANES[0],
        **fields,
    }
    return Manifest(run_id=RUN, created_at="2026-01-01T00:00:00Z", **settings)


def a_task(judge=None, **fields) -> Task:
    judge = judge or {"type": "contains", "expected": ["it"]}
    return Task.model_validate({"id": "t", "prompt": "Say it.", "judge": judge, **fields})


def asking(*models, params=None, **commands) -> Manifest:
    return a_manifest(models=models, settings=ModelSettings(params=params or {}, commands=commands))


@pytest.fixture
def keys(monkeypatch):
    """A worker with the key and the package for both vendors, and without any program."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-something-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-something-secret")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("UPLIFT_CLAUDE", raising=False)


# What a manifest may ask


@pytest.mark.parametrize(
    "manifest",
    [
        asking("mock"),
        asking("sim:candidate=0.8"),
        asking("replay:records.jsonl"),
        asking("anthropic:claude-x"),
        asking("openai:gpt-x", "anthropic:claude-x"),
        asking("openai:gpt-x", params={"base_url": "https://api.openai.com/v1"}),
        asking("anthropic:claude-x", params={"base_url": "", "temperature": 0}),
        asking("sim", params={"base_url": "http://elsewhere.example"}),  # nobody is asked there
        asking("command:own", own=OWN),
        asking("sim", other=CommandSpec(argv=("sh",))),  # declared, and not asked for
        a_manifest(sandbox="required"),
        a_manifest(arms=(Arm(name="baseline"), Arm(name="candidate", bundle="0" * 64, folder="haiku"))),
        a_manifest(pass_k=1_000_000),
    ],
)
def test_by_default_a_worker_serves_what_it_can_do_safely(keys, manifest):
    assert refuses(POLICY, manifest) is None


FOREIGN = [
    "http://169.254.169.254/v1",
    "https://api.openai.com@elsewhere.example/v1",
    "https://api.openai.com.elsewhere.example/v1",
    "https://api.openai.com/v1/../v2",
    "https://api.openai.com/v1\n",
    "HTTPS://elsewhere.example",
    "//elsewhere.example",
    ["https://elsewhere.example"],
    {"": "https://elsewhere.example"},
    7,
    True,
]
DECLARED = "is not declared, in the same words, in the config of this worker"
FORGED = [
    (asking("command:evil", evil=CommandSpec(**STEALS)), DECLARED),
    (asking("command:codex", codex=CommandSpec(**STEALS)), DECLARED),
    (asking("command:gemini:x", gemini=CommandSpec(**{**STEALS, "model_argv": ["{model}"]})), DECLARED),
    (asking("command:own", own=CommandSpec(**STEALS)), DECLARED),
    (asking("command:own"), DECLARED),
    (asking("command:own", own=OWN.model_copy(update={"argv": ("true", "--more")})), DECLARED),
    (
        asking("command:own", own=OWN.model_copy(update={"environment": ("AGENT_KEY", "OPENAI_API_KEY")})),
        DECLARED,
    ),
    (asking("command:own", own=OWN.model_copy(update={"readable": ("/",)})), DECLARED),
    (asking("command:own", own=OWN.model_copy(update={"skill_folder": "../../.ssh"})), DECLARED),
    (asking("command:own", own=OWN.model_copy(update={"agent": False})), DECLARED),
    (asking("sim", "command:evil", evil=CommandSpec(**STEALS)), DECLARED),
    (asking("command:nobody"), DECLARED),
    (asking("command:codex"), "cannot be asked here: codex not found"),
    (asking("claude-code"), "cannot be asked here: claude not found"),
    (asking("no-model"), "unknown model 'no-model'"),
    (asking("sim:candidate=x"), "sim"),
    *((asking("openai:gpt-x", params={"base_url": one}), "neither a vendor's nor") for one in FOREIGN),
    (asking("anthropic:claude-x", params={"base_url": FOREIGN[0]}), "neither a vendor's nor"),
    *(
        (asking("openai:x", params={name: "openai:dear"}), "name another model")
        for name in ("model", "models")
    ),
    (asking("claude-code", params={"base_url": FOREIGN[0]}), "neither a vendor's nor"),
    (asking("command:codex", params={"base_url": FOREIGN[0]}), "neither a vendor's nor"),
    (a_manifest(sandbox="off"), "it asks for no sandbox, and auto is the least"),
    (a_manifest(pass_k=1_000_001), "it has 1,000,001 attempts, and 1,000,000 are allowed"),
    (
        a_manifest(settings=ModelSettings(network="open")),
        "serve_hosts does not allow",
    ),
    *(
        (a_manifest(arms=(Arm(name="baseline", folder=one),)), "leaves its bundle")
        for one in ("..", "/etc", "../../etc", "a/../../b", "a/b")
    ),
]


@pytest.mark.parametrize(("manifest", "why"), FORGED)
def test_what_a_manifest_asks_beyond_that_is_left_to_others(keys, manifest, why):
    assert why in (refuses(POLICY, manifest) or "served")


def test_a_model_without_its_key_is_left_to_others(monkeypatch):
    assert "anthropic:x cannot be asked here: none of ANTHROPIC_API_KEY" in refuses(
        POLICY, asking("anthropic:x")
    )
    assert "OPENAI_API_KEY is not set" in refuses(POLICY, asking("openai:x"))


def test_a_preset_that_the_worker_declares_otherwise_is_its_own_and_no_other(keys):
    mine = PRESETS["codex"].model_copy(update={"argv": ("true",)})
    policy = Policy(commands={"codex": mine})
    assert DECLARED in refuses(policy, asking("command:codex"))
    assert refuses(policy, asking("command:codex", codex=mine)) is None


def test_a_worker_sends_to_addresses_of_its_own(keys, monkeypatch):
    here = asking("openai:x", params={"base_url": "http://127.0.0.1:8000/v1"})
    assert refuses(POLICY, here)
    assert refuses(Policy(serve_base_urls=("http://127.0.0.1:8000/v1",)), here) is None
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert refuses(POLICY, here) is None


@pytest.mark.parametrize(
    ("allowed", "spec", "served"),
    [
        (("anthropic",), "anthropic:claude-x", True),
        (("anthropic",), "openai:gpt-x", False),
        (("anthropic:claude-x",), "anthropic:claude-x", True),
        (("anthropic:claude-x",), "anthropic:claude-x-dear", False),
        (("anthropic:*-cheap",), "anthropic:x-cheap", True),
        (("sim",), "mock", False),
        ((), "mock", False),
        (("command:own",), "command:own", True),
        (("command",), "command:own", True),
        (("sim", "mock"), "command:own", False),
    ],
)
def test_only_the_models_that_a_worker_is_told_to_serve(keys, allowed, spec, served):
    policy = Policy(commands={"own": OWN}, serve_models=allowed)
    assert (refuses(policy, asking(spec, own=OWN)) is None) == served


def test_a_worker_may_be_told_to_do_more(keys):
    policy = Policy(least_sandbox="off", largest_run=10_000_000, serve_hosts=("*",))
    assert refuses(policy, a_manifest(sandbox="off", pass_k=2_000_000)) is None
    open_network = ModelSettings(network="open")
    assert refuses(policy, a_manifest(settings=open_network)) is None


# What a task may ask


def a_rubric(*judges: str) -> dict:
    return {"type": "llm-rubric", "rubric": "polite?", "judges": list(judges)}


ESCAPES = ["fixtures/../../../etc/shadow", "fixtures//x", "fixtures/./x", "fixtures/.."]
NAMED = [
    *({"files": [path]} for path in ("/etc/shadow", "../x", "x", "", *ESCAPES)),
    *({"replies": {"pass": path}} for path in ("/etc/shadow", *ESCAPES)),
    *({"replies": {"fail": path}} for path in ("/etc/shadow", *ESCAPES)),
    *({"judge": {"type": "pytest", "test_file": path}} for path in ESCAPES),
    *({"judge": {"type": "json-schema", "schema_file": path}} for path in ESCAPES),
    *({"judge": {"type": "command", "argv": ["cat", path]}} for path in ESCAPES),
    {"judge": {"type": "python", "function": "fixtures/../../x.py:f"}},
    *(
        {
            "judge": {
                "type": "benchmark",
                **dict.fromkeys(("benchmark_file", "original_file"), "fixtures/x"),
                one: path,
            }
        }
        for one in ("benchmark_file", "original_file", "oracle_file")
        for path in ESCAPES
    ),
    {"judge": {"not": {"type": "pytest", "test_file": ESCAPES[0]}}},
    {
        "judge": {
            "any": [{"type": "contains", "expected": ["x"]}, {"type": "pytest", "test_file": ESCAPES[0]}]
        }
    },
]


@pytest.mark.parametrize("fields", NAMED)
@pytest.mark.parametrize("policy", [POLICY, None])
def test_a_file_that_is_not_the_suites_is_read_by_no_worker(policy, fields):
    assert "which is no file under fixtures/" in refuses(policy, a_manifest(), a_task(**fields))


def test_a_file_of_the_suite_is(keys):
    judge = {"type": "pytest", "test_file": "fixtures/deep/test_it.py"}
    task = a_task(judge, files=["fixtures/..data/x"], replies={"pass": "fixtures/yes.txt"})
    assert refuses(POLICY, a_manifest(), task) is None


@pytest.mark.parametrize(
    ("policy", "manifest", "task", "why"),
    [
        (POLICY, {"judge_model": "command:evil"}, a_task(a_rubric()), DECLARED),
        (POLICY, {}, a_task(a_rubric("openai:x", "command:evil")), DECLARED),
        (POLICY, {}, a_task({"not": a_rubric("command:evil")}), DECLARED),
        (POLICY, {"judge_model": "?"}, a_task(a_rubric()), "unknown model '?'"),
        (
            Policy(serve_models=("anthropic",)),
            {"judge_model": "openai:x"},
            a_task(a_rubric()),
            "openai:x is not among",
        ),
        (
            Policy(serve_judges=("contains",)),
            {},
            a_task({"type": "command", "argv": ["sh"]}),
            "judge command of task t",
        ),
        (
            Policy(serve_judges=("contains",)),
            {},
            a_task({"not": {"type": "command", "argv": ["sh"]}}),
            "judge command",
        ),
        (Policy(serve_hosts=("docs.example.org",)), {}, "evil.example", "host evil.example of task t"),
        (
            Policy(serve_hosts=("*.example.org",)),
            {},
            "docs.example.org.evil.example",
            "host docs.example.org.evil",
        ),
    ],
)
def test_what_a_task_asks_beyond_the_policy_is_left_to_others(keys, policy, manifest, task, why):
    commands = {"evil": CommandSpec(**STEALS)}
    fields = {"models": ("anthropic:x",), "settings": ModelSettings(commands=commands), **manifest}
    if isinstance(task, str):
        task = a_task(network=[task])
    assert why in (refuses(policy, a_manifest(**fields), task) or "served")


def test_a_host_that_the_policy_names_is_open(keys):
    task = a_task(network=["Docs.example.org"])
    assert refuses(POLICY, a_manifest(), task)
    for allowed in ("docs.example.org", "*.EXAMPLE.org", "*"):
        assert refuses(Policy(serve_hosts=(allowed,)), a_manifest(), task) is None


def test_who_judges_a_simulated_answer_is_never_asked_and_so_not_refused():
    assert (
        refuses(Policy(serve_models=("sim",)), a_manifest(judge_model="openai:x"), a_task(a_rubric())) is None
    )


# What no producer can have written


def forged(**fields) -> bytes:
    return json.dumps({**a_manifest().model_dump(mode="json", by_alias=True), **fields}).encode()


UNREADABLE = [
    *(b"", b"\xff\xfe", b"null", b"[]", b"7", b"{}", b"{" * 100_000, b"[" * 100_000 + b"]" * 100_000),
    forged(run_id="run-2"),
    forged(colour="blue"),
    forged(task_count=-1),
    forged(task_count=0),
    forged(task_count=10**18),
    forged(task_count="many"),
    forged(pass_k=10**9),
    forged(arms=[]),
    forged(arms="baseline"),
    forged(arms=[{"name": 1}]),
    forged(models=[]),
    forged(models={"sim": 1}),
    forged(sandbox="none"),
    forged(sandbox=None),
    forged(format_version=1),
    forged(budget_usd=-1),
    forged(settings=[]),
    forged(settings={"commands": {"x": {"argv": []}}}),
    forged(settings={"commands": {"x": {"argv": "sh -c env"}}}),
    forged(settings={"commands": {"x": {"argv": ["env"], "environment": ["A=B"]}}}),
    forged(settings={"commands": {"x": {"argv": ["env"], "shell": True}}}),
    forged(settings={"params": [1]}),
    forged(settings={"limits": {"sim": {"rpm": -1}}}),
    forged().replace(b'"task_count": 1', b'"task_count": NaN'),
    forged(lane=None),
    forged(**{"evil\nWARNING forged line": 1}),
]


@pytest.mark.parametrize("data", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_manifest_that_no_producer_wrote_is_one_line(data):
    with pytest.raises(OtherVersion) as problem:
        read_manifest(data, RUN)
    assert len(str(problem.value).splitlines()) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        zlib.compress(b"{}"),
        zlib.compress(b"null"),
        zlib.compress(b'{"id": 1}'),
        zlib.compress(b"[" * 100_000),
        zlib.compress(bytes(80 << 20)),
        zlib.compress(a_task().model_dump_json().encode())[:-4],
        zlib.compress(json.dumps({**a_task().model_dump(mode="json"), "run": "sh"}).encode()),
    ],
    ids=["empty", "garbage", "nothing", "null", "wrong types", "deep", "bomb", "cut", "unknown field"],
)
def test_a_task_that_no_producer_wrote_is_one_line(data):
    with pytest.raises(OtherVersion) as problem:
        read_task(data, RUN)
    assert len(str(problem.value).splitlines()) == 1


# In a worker


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.disconnect()
    made.app.close()
    made.store.client.close()


@pytest.fixture
def engine(valkey):
    made = Engine(ProcessSettings(valkey, policy=POLICY))
    yield made
    made.close()


def a_forged_tar(name: str) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return plain.getvalue()


ESCAPING, BOMB = a_forged_tar("../../escaped"), bytes(80 << 20)
BUNDLES = {
    "missing": (b"", b"", "no longer in the store"),
    "escaping": (ESCAPING, zlib.compress(ESCAPING), "not a path inside the folder"),
    "another's content": (b"x", zlib.compress(ESCAPING), "not that of digest"),
    "garbage": (b"x", b"garbage", "not a bundle"),
    "cut": (ESCAPING, zlib.compress(ESCAPING)[:-4], "not a bundle"),
    "a bomb": (BOMB, zlib.compress(BOMB), "unpacks to more than"),
}


@pytest.mark.parametrize("place", ["fixtures", "skill"])
@pytest.mark.parametrize("wrong", BUNDLES)
def test_a_bundle_that_cannot_be_had_is_a_reason(server, engine, wrong, place):
    plain, data, why = BUNDLES[wrong]
    digest = sha256(plain).hexdigest()
    a_stored_run(server.store, 1, **({"fixtures": digest} if place == "fixtures" else {}))
    if place == "skill":
        arms = (Arm(name="baseline"), Arm(name="candidate", bundle=digest, folder="haiku"))
        manifest = server.store.manifest(RUN).model_copy(update={"arms": arms})
        server.store.client.set(Keys(RUN).manifest, manifest.model_dump_json())
    if data:
        server.store.client.set(bundle(digest), data)
    with pytest.raises(NotServed, match=why):
        engine.run_batch(Batch(RUN, 1, (0,)))


def test_a_bundle_above_the_policys_size_is_left_to_others(valkey, server):
    packed = pack_files({"fixtures/large": bytes(3 << 20)})
    server.store.put_bundle(packed.digest, packed.data)
    a_stored_run(server.store, 1, fixtures=packed.digest)
    small = Engine(ProcessSettings(valkey, policy=Policy(largest_bundle_mb=0.5)))
    with pytest.raises(NotServed, match="unpacks to more than"):
        small.run_batch(Batch(RUN, 1, (0,)))
    small.close()
    large = Engine(ProcessSettings(valkey, policy=Policy(largest_bundle_mb=4)))
    assert large.run_batch(Batch(RUN, 1, (0,))) == 1
    large.close()


async def test_a_least_sandbox_confines_runs_that_leave_it_open(server, valkey):
    import redis.asyncio

    a_stored_run(server.store, 1)
    client = redis.asyncio.Redis.from_url(valkey)
    runs = Runs(client, "host:1-a", lease_seconds=30, policy=Policy(least_sandbox="required"))
    async with runs.use(RUN) as run:
        assert run.manifest.sandbox == "required"
    await runs.close()
    await client.aclose()


def test_a_forged_program_never_starts_and_the_line_names_it_once(server, engine, tmp_path, caplog):
    stolen = tmp_path / "stolen"
    evil = CommandSpec(argv=("/usr/bin/touch", str(stolen)))
    a_stored_run(server.store, 1, models=("command:evil",), settings=ModelSettings(commands={"evil": evil}))
    with caplog.at_level(logging.WARNING):
        for quarantined in (False, True, False):
            with pytest.raises(NotServed, match="command:evil") as problem:
                celery_app._ran(Batch(RUN, 1, (0,), quarantined), engine)
            assert engine.leave_to_others(RUN, problem.value)
    assert not stolen.exists()
    assert [line.endswith("left to other workers") for line in caplog.messages if RUN in line] == [True]


def test_a_task_beyond_the_policy_is_found_before_anything_of_its_batch_is_asked(server, valkey):
    a_stored_run(server.store, 2)
    judged = a_task({"type": "command", "argv": ["sh"]}).model_dump_json(by_alias=True)
    server.store.client.hset(Keys(RUN).tasks, "1", zlib.compress(judged.encode()))
    engine = Engine(ProcessSettings(valkey, policy=Policy(serve_judges=("contains",))))
    with pytest.raises(NotServed, match="judge command of task t is not among serve_judges"):
        engine.run_batch(Batch(RUN, 1, (0, 1, 2, 3)))
    assert server.store.progress(RUN).recorded == 0
    engine.close()


def test_a_private_worker_does_what_its_run_asks(server, valkey, tmp_path):
    program = CommandSpec(argv=("sh", "-c", "echo it"), agent=False)
    settings = ModelSettings(commands={"mine": program})
    a_stored_run(server.store, 1, models=("command:mine",), settings=settings, sandbox="off")
    engine = Engine(ProcessSettings(valkey, policy=None))
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    (record,) = server.store.records(RUN)
    assert (record.outcome, record.completion.text.strip()) == ("passed", "it")
    engine.close()


MESSAGES = [
    (),
    (RUN,),
    (RUN, 1),
    (RUN, 1, [0], False, "more"),
    (None, 1, [0]),
    ({"a": 1}, 1, [0]),
    (RUN, "1", [0]),
    (RUN, None, [0]),
    (RUN, 1, None),
    (RUN, 1, 7),
    (RUN, 1, "0"),
    (RUN, 1, ["0"]),
    (RUN, 1, [0.5]),
    (RUN, 1, [True]),
    (RUN, 1, [None]),
    (RUN, 1, [[0]]),
    (RUN, 1, {"0": 0, "1": 1}),
    (RUN, 1, [0] * 100_000),
    (RUN, 1, [-1]),
    (RUN, 1, [10**30]),
    (RUN, 1, [0, 10**9]),
]


@pytest.mark.parametrize("told", MESSAGES, ids=range(len(MESSAGES)))
def test_a_batch_that_no_producer_sent_is_thrown_away_with_a_line(server, valkey, told, caplog):
    a_stored_run(server.store, 1)
    app = App(ProcessSettings(valkey))
    with caplog.at_level(logging.WARNING):
        assert app.tasks["uplift.run_batch"](*told) == 0
    assert len([line for line in caplog.messages if line.endswith("thrown away")]) == 1
    assert server.store.progress(RUN).recorded == 0
    app.engine.close()
    app.close()


def test_a_run_that_every_worker_leaves_ends_with_the_reason_and_one_that_is_served_does_not(server):
    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    client, clock = server.store.client, Clock()
    a_stored_run(server.store)
    names = ("host:1-a", "host:2-b")
    for name in names:
        sign_of_life(client, name, {"name": name, "protocol": PROTOCOL, "serves": "mock, sim"})
    server.store.refuse(
        RUN, names[0], NotServed(f"run {RUN} is not served here: openai:x is not among serve_models")
    )
    mender = Mender(server.app, names[0], client, 30, clock)

    def look(seconds):
        for _ in range(int(seconds)):
            mender.look()
            clock.now += 1

    look(2 * UNSERVED_SECONDS)
    assert server.store.state(RUN).trouble is None  # the other one may serve it
    server.store.refuse(
        RUN, names[1], NotServed(f"run {RUN} is not served here: openai:x is not among serve_models")
    )
    look(UNSERVED_SECONDS)
    assert server.store.state(RUN).trouble is None
    look(3)
    trouble = server.store.state(RUN).trouble
    assert trouble.startswith("no worker serves this run; there are 2 for mock, sim: ")
    assert trouble.endswith(f"run {RUN} is not served here: openai:x is not among serve_models")


def test_whoever_serves_a_run_after_all_has_not_left_it(server, engine):
    packed = pack_files({"fixtures/a": b"x"})
    a_stored_run(server.store, 1, fixtures=packed.digest)
    with pytest.raises(NotServed) as problem:
        engine.run_batch(Batch(RUN, 1, (0,)))
    engine.leave_to_others(RUN, problem.value)
    server.store.put_bundle(packed.digest, packed.data)
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    assert server.store.client.exists(Keys(RUN).refused) == 0


def test_forged_numbers_of_a_run_are_bounded_by_its_plan(server):
    manifest = a_stored_run(server.store, 2)
    server.store.client.hset(Keys(RUN).state, "published", 10**15)
    (look,) = server.store.open_runs().values()
    assert server.store.missing(manifest, look) == [0, 1, 2, 3]
    assert server.store.unfinished(server.store.run(RUN), 10**15) == [0, 1, 2, 3]


@pytest.mark.parametrize("beat", [b"", b"\xff", b"null", b"[]", b"{}", b'{"name": []}', b"[" * 100_000])
def test_a_forged_sign_of_life_is_nobodys(client, beat):
    sign_of_life(client, "host:1-a", {"name": "host:1-a", "protocol": PROTOCOL})
    sign_of_life(client, "host:2-b", {"name": "host:2-b"})
    client.set("uplift:worker:host:2-b", beat)
    assert [one["name"] for one in workers(client)] == ["host:1-a"]


def test_forged_names_and_lists_hold_up_no_mending(server, client):
    a_stored_run(server.store)
    client.zadd("uplift:runs", {b"\xff\xfe": 1.0, "nothing": 2.0})
    sign_of_life(client, "host:1-a", {"name": "host:1-a", "protocol": PROTOCOL})
    tell_held(client, "host:1-a", ["tag"], 30)
    for name, held in (("b", b"?"), ("c", b"7"), ("d", b"[[1]]"), ("e", b"\xff")):
        sign_of_life(client, name, {"name": name})
        client.set(f"uplift:held:{name}", held)
    client.hset(f"uplift:v{PROTOCOL}.unacked", "tag", "?")
    assert Mender(server.app, "host:1-a", client, 30).look()
    assert list(server.store.open_runs()) == server.store.runs() == [RUN]
    assert "tag" in held_messages(client)


# How it is set and shown


def test_what_a_worker_serves_comes_from_its_config_and_travels_in_its_environment():
    settings = RunSettings.checked(
        {
            "serve_models": ["anthropic", "command:own"],
            "serve_base_urls": ["http://127.0.0.1:1/v1"],
            "params": {"base_url": "http://127.0.0.1:2/v1"},
            "commands": {"own": {"argv": ["true"], "environment": ["AGENT_KEY"]}},
            "least_sandbox": "required",
            "models": ["mock"],
        }
    )
    told = from_environment({"UPLIFT_POLICY": settings.policy.model_dump_json(exclude_defaults=True)}).policy
    assert told == Policy(
        serve_models=("anthropic", "command:own"),
        serve_base_urls=("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"),
        commands={"own": OWN},
        least_sandbox="required",
    )
    assert from_environment({}).policy == Policy()
    assert from_environment({"UPLIFT_POLICY": "null"}).policy is None


@pytest.mark.parametrize(
    "text", ["none", "[]", '{"serve": 1}', '{"largest_run": 0}', '{"serve_models": "sim"}']
)
def test_a_policy_that_cannot_be_read_starts_no_worker(text):
    with pytest.raises(InvalidSetting, match="UPLIFT_POLICY"):
        from_environment({"UPLIFT_POLICY": text})


def test_a_policy_tells_in_a_line_what_it_serves(keys):
    assert serves(None) == "whatever is asked"
    assert serves(POLICY) == "mock, sim, replay, anthropic:NAME, openai:NAME, command:own; sandbox auto"
    narrow = Policy(serve_models=("sim",), serve_judges=("contains",), serve_hosts=("a.example",))
    assert serves(narrow) == "sim; judges contains; hosts a.example; sandbox auto"
    beats = [{"serves": "sim"}, {"serves": "sim"}, {"serves": "mock\x1b[2J\nfake"}, {}]
    assert serving(beats) == "1 for mock fake, 2 for sim, 1 for whatever is asked"


@pytest.mark.slow
def test_doctor_and_runs_show_who_serves_what(valkey, short_tmp):
    with worker(valkey, short_tmp, UPLIFT_SERVE_MODELS="sim,mock"):
        for command in ("doctor", "runs"):
            ended = uplift(command, "--broker", valkey, "--state-root", short_tmp / "state", cwd=short_tmp)
            assert "1 for sim, mock; sandbox auto" in ended.out + ended.err, (command, ended)


@pytest.mark.slow
def test_a_run_goes_to_the_worker_whose_config_declares_its_program(valkey, short_tmp):
    """One worker serves simulated models only; the other has the program in a config of its own."""
    suite = a_suite(short_tmp, 2)
    (short_tmp / "uplift.toml").write_text('[commands.echo]\nargv = ["cat"]\nagent = false\n')
    (short_tmp / "poor").mkdir()
    (short_tmp / "poor" / "uplift.toml").touch()
    with worker(valkey, short_tmp / "poor") as poor, worker(valkey, short_tmp) as rich:
        ended = uplift(
            *standalone(suite, "--model", "command:echo", "--broker", valkey, "--no-baseline"), cwd=short_tmp
        )
        assert ended.code in (0, 1), ended.err
        (run,) = (short_tmp / "state" / "runs").iterdir()
        told = json.loads((short_tmp / "state" / "evaluations" / f"{run.name}.json").read_text())
        served_by = told["environment"]["workers"]
    assert [f":{rich.pid}-" in name for name in served_by] == [True]
    assert poor.returncode == 0


@pytest.mark.slow
def test_a_worker_outlives_what_is_no_message_and_goes_on_with_a_run(valkey, client, short_tmp, eventually):
    log = (short_tmp / "log").open("w")
    process = start_uplift("worker", "--broker", valkey, cwd=short_tmp, stdout=log, stderr=log)
    try:
        lane = waiting_keys(LANES[0])[0]
        for message in NO_MESSAGES:
            client.lpush(lane, message)
        eventually(lambda: client.llen(lane) == 0)
        ended = uplift(
            *standalone(a_suite(short_tmp, 2), "--model", "sim", "--broker", valkey), cwd=short_tmp
        )
        assert ended.code in (0, 1), ended.err
        eventually(lambda: client.hlen(f"uplift:v{PROTOCOL}.unacked") == 0)
    finally:
        process.terminate()
        process.wait(30)
        log.close()
    assert process.returncode == 0
    assert "Traceback" not in (short_tmp / "log").read_text()


A_CHORD = {
    "task": "uplift.finish_run",
    "args": [RUN, 1, 1],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
}


def a_message(told=((), {}, {}), body=None, **changes) -> bytes:
    """A job as Celery sends it, and what is wrong with it."""
    headers = {"lang": "py", "task": "uplift.run_batch", "id": "7", "root_id": "7", "eta": None, "retries": 0}
    properties = {
        "correlation_id": "7",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "uplift", "routing_key": LANES[0]},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": uuid4().hex,
    }
    whole = {
        "body": b64encode(json.dumps(told).encode()).decode() if body is None else body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {**headers, **changes.pop("also", {})},
        "properties": {**properties, **changes.pop("proper", {})},
    }
    return json.dumps({**whole, **changes}).encode()


NO_MESSAGES = [
    b"",
    b"\xff",
    b"null",
    b"{}",
    b"[]",
    b"[" * 1000,
    b'{"properties": []}',
    b'{"properties": {"delivery_tag": 7}}',
    b'{"properties": {"delivery_tag": "x"}}',
    a_message(),
    a_message(["unknown-run", 1, [0]]),
    a_message([["unknown-run", 1, [0]], {}, {}]),
    a_message([["unknown-run", 1, [0]], {}, {"chord": "x", "callbacks": 7, "chain": "y"}]),
    a_message([["unknown-run", 1, [0]], {"quarantine": {}}, {}]),
    *(
        a_message([["unknown-run", 1, [0]], {}, {"chord": {**A_CHORD, **wrong}}])
        for wrong in (
            *({"task": "os.system"}, {"args": 7}, {"args": {}}, {"kwargs": {"x": 1}}, {"options": 7}),
            *({"options": {"queue": {}}}, {"subtask_type": "chord"}, {"options": {"countdown": 10**9}}),
        )
    ),
    *(
        a_message([["unknown-run", 1, [0]], {}, {name: value}])
        for name in ("callbacks", "errbacks", "chain")
        for value in (7, "x", [7], {"task": "x"}, [A_CHORD])
    ),
    a_message({}),
    a_message([[], [], []]),
    a_message([None, None, None]),
    a_message(body="!!!"),
    a_message(body=None, told=7),
    a_message(body=7),
    a_message(also={"task": "os.system"}),
    a_message(also={"task": "celery.backend_cleanup"}),
    a_message(also={"task": None}),
    a_message(also={"task": {"a": 1}}),
    a_message(also={"id": None}),
    a_message(also={"id": [1]}),
    a_message(also={"eta": "tomorrow"}),
    a_message(also={"expires": "garbage"}),
    a_message(also={"retries": "many"}),
    a_message(also={"timelimit": "x"}),
    a_message(also={"group": [1]}),
    a_message(also={"group": "g", "group_index": "x"}),
    a_message(
        also={"root_id": {}, "parent_id": [], "argsrepr": 7, "kwargsrepr": [], "origin": {}, "shadow": 7}
    ),
    a_message(also={"stamped_headers": 7, "stamps": "x"}),
    a_message(also={"replaced_task_nesting": "x", "ignore_result": "x"}),
    a_message(headers=None),
    a_message(headers={}),
    a_message(headers=[1]),
    a_message(proper={"priority": "x"}),
    a_message(proper={"delivery_info": None}),
    a_message(proper={"correlation_id": {}, "reply_to": 7}),
    a_message(proper={"body_encoding": "rot13"}),
    a_message(proper={"delivery_mode": "x"}),
    a_message(**{"content-type": "application/x-python-serialize"}),
    a_message(**{"content-encoding": "no-such"}),
    a_message(properties=None),
]

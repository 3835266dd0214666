"""What cannot be stored is made storable; a batch that comes back again and again ends as errors, never in a loop."""

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError
from submitting import RUN, a_stored_run

from aggregate.records.record import AttemptRecord
from judges.judgment import BenchmarkTimes, Completion, Criterion, Judgment
from judges.safe_text import storable
from workers.attempts.attempt import kept
from workers.attempts.run_context import Bill, Run
from workers.models.model import ModelFailed
from workers.process import celery_app, quarantine
from workers.process.bootsteps import Finisher
from workers.process.celery_app import App
from workers.process.engine import Batch, Drained, Engine
from workers.rounds.publish import send_finish
from workers.store.keys import FINISH, Keys, waiting_keys
from workers.store.messages import CommandSpec, Limits, ModelSettings
from workers.store.process_settings import ProcessSettings
from workers.store.run_store import Store, pack, unpack

ANY_TEXT = st.text(st.characters(codec=None, categories=["L", "Cs", "Cc", "So"]), max_size=20)


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_in_a_judgment_can_be_stored_and_read_again(text, other):
    member = Judgment(judge="llm-rubric", details=other, criteria=(Criterion(name=text, achieved=1.0),))
    judgment = Judgment(
        judge="panel",
        details=text,
        error=other,
        matched=(text, other),
        panel=(member,),
        benchmarks=(BenchmarkTimes(name=text),),
    )
    made = storable(judgment)
    record = AttemptRecord(task="t", arm="candidate", attempt=1, outcome="failed", judgments=(made,))
    assert unpack(pack(record)) == record
    if not any("\ud800" <= letter <= "\udfff" for letter in text + other):
        assert made is judgment


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_tokens", 10**5000),
        ("output_tokens", -1),
        ("cache_read_tokens", 10**13),
        ("turns", 10**400),
        ("cost_usd", 1e300),
        ("cost_usd", -0.5),
    ],
    ids=["too long to be written", "negative", "too many", "no float", "too dear", "a gift"],
)
def test_a_number_that_nobody_can_have_measured_is_unknown(field, value):
    made = kept(Completion(text="hi", **{field: value}))
    assert getattr(made, field) is None
    assert made.text == "hi"


def test_every_text_of_a_completion_can_be_stored():
    made = kept(
        Completion(text="a\ud83d\0", warnings=("tool \udfff denied",), agent_version="1\ud800", cost_usd=0.5)
    )
    record = AttemptRecord(task="t", arm="candidate", attempt=1, outcome="passed", completion=made)
    assert unpack(pack(record)).completion == Completion(
        text="a?\0", warnings=("tool ? denied",), agent_version="1?", cost_usd=0.5
    )


@pytest.fixture
def store(client):
    made = Store(client)
    a_stored_run(made, 2, models=("sim:latency=0,cost=0.5",))
    return made


@pytest.fixture
def engine(valkey):
    made = Engine(ProcessSettings(valkey, policy=None))
    yield made
    made.close()


def test_a_record_that_is_too_long_is_an_error_that_keeps_its_cost(store, engine, monkeypatch):
    monkeypatch.setattr("workers.attempts.attempt.MOST_RECORD_BYTES", 10)
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    record = dict(store.indexed_records(RUN))[0]
    assert (record.outcome, record.score, record.judgments) == ("error", None, ())
    assert "cannot be stored" in record.error
    assert (record.completion.text, record.completion.cost_usd) == ("", 0.5)
    assert store.state(RUN).spent == 0.5


def test_a_record_that_cannot_be_written_down_is_an_error_that_keeps_its_cost(store, engine, monkeypatch):
    async def unstorable(*_):
        return Judgment(judge="contains", passed=False, score=0.0, details="\ud83d"), 0.0

    monkeypatch.setattr("workers.attempts.attempt.Attempt.judge", unstorable)
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    record = dict(store.indexed_records(RUN))[0]
    assert record.outcome == "error"
    assert "UnicodeEncodeError" in record.error
    assert store.state(RUN).spent == 0.5


WRITER = """
echo start >> "$1"
echo "a file" > left.txt
echo '{"text": "a poem", "cost": 0.5}'
"""


@pytest.fixture
def writer(client, tmp_path):
    """A run of two attempts by a program that leaves a file and costs 0.5; gives the store and its book."""
    book = tmp_path / "book"
    paths = {"output": "json", "text_path": "text", "cost_path": "cost"}
    program = CommandSpec(argv=("/bin/sh", "-c", WRITER, "sh", str(book)), **paths)
    settings = ModelSettings(commands={"writer": program})
    made = Store(client)
    a_stored_run(made, 1, models=("command:writer",), settings=settings, sandbox="off")
    return made, book


def judging(monkeypatch, *judgments):
    """Let judges say these, one an attempt, each for 0.125; gives the files that each of them saw."""
    said, seen = list(judgments), []

    async def judge(attempt, answer, left):
        seen.append((answer.completion.text, sorted(path.name for path in left.iterdir())))
        answer.bill.include_judging(Bill(usd=0.125))
        return said.pop(0), 0.0

    monkeypatch.setattr("workers.attempts.attempt.Attempt.judge", judge)
    return seen


UNREADABLE = Judgment(judge="llm-rubric", error="unreadable grade: no JSON", cost_usd=0.125)
GOOD = Judgment(judge="llm-rubric", passed=True, score=1.0, cost_usd=0.125)


def test_an_answer_that_no_judge_could_grade_is_kept_with_its_files(writer, engine, monkeypatch):
    store, book = writer
    seen = judging(monkeypatch, UNREADABLE, UNREADABLE, GOOD)
    for number in (1, 2, 3):
        assert engine.run_batch(Batch(RUN, number, (0,))) == 1
    assert book.read_text() == "start\n"
    assert seen == [("a poem", ["left.txt"])] * 3
    record, state = dict(store.indexed_records(RUN))[0], store.state(RUN)
    assert (record.outcome, record.completion.cost_usd, record.completion.cost_source) == (
        "passed",
        0.5,
        "provider",
    )
    assert record.workspace is not None
    assert record.model_ms > 0
    assert (state.spent, state.wasted) == (0.5 + 3 * 0.125, 2 * 0.125)


def test_a_model_that_gave_no_answer_is_asked_again(writer, engine, monkeypatch):
    store, book = writer
    judging(monkeypatch, GOOD)
    monkeypatch.setattr("workers.models.command.Command.complete", raises(ModelFailed("no answer")))
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    monkeypatch.undo()
    judging(monkeypatch, GOOD)
    assert engine.run_batch(Batch(RUN, 2, (0,))) == 1
    assert (dict(store.indexed_records(RUN))[0].outcome, book.read_text()) == ("passed", "start\n")


def raises(problem):
    async def complete(*_):
        raise problem

    return complete


def breaking(engine, monkeypatch, *problems):
    """Let the engine's next batches raise these, the last one for ever; giving up works."""
    left, run_batch = list(problems), engine.run_batch

    def breaks(batch, *, give_up=None):
        if give_up is not None:
            return run_batch(batch, give_up=give_up)
        raise left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(engine, "run_batch", breaks)


def times_raised(batch, engine, most=10):
    """How often the batch is handed back until it returns, and what it returns."""
    for times in range(most):
        try:
            return times, celery_app._ran(batch, engine)
        except Exception:
            continue
    return most, None


def test_a_batch_that_breaks_three_times_for_one_reason_becomes_errors(store, engine, monkeypatch, client):
    breaking(engine, monkeypatch, OSError("at 1"), OSError("at 2"), OSError("at 3 \ud83d"))
    assert times_raised(Batch(RUN, 1, (0, 1)), engine) == (2, 2)
    records = list(store.records(RUN))
    assert [record.outcome for record in records] == ["error", "error"]
    assert all("given up after 3 tries: OSError: at 3" in record.error for record in records)
    assert client.hlen(Keys(RUN).owners) == 0
    assert engine.held() == {RUN: {}}
    assert client.ttl(Keys(RUN).handed_back) > 0


def test_other_reasons_other_batches_and_other_runs_are_counted_apart(store, engine, monkeypatch):
    breaking(engine, monkeypatch, OSError(), ValueError(), OSError(), ValueError(), KeyError())
    a_stored_run(store, 2, run_id="run-2")
    assert times_raised(Batch("run-2", 1, (0,)), engine, most=2) == (2, None)
    assert times_raised(Batch(RUN, 1, (0,)), engine, most=2) == (2, None)
    assert times_raised(Batch(RUN, 1, (1,)), engine, most=2) == (2, None)
    assert times_raised(Batch(RUN, 2, (0,)), engine, most=2) == (2, None)
    assert list(store.records(RUN)) == list(store.records("run-2")) == []


def refused_by_a_queue():
    problem = OperationalError("what kombu makes of it")
    problem.__cause__ = redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
    return problem


PASSING = [
    redis.ConnectionError(),
    redis.TimeoutError(),
    redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    redis.ReadOnlyError("You can't write against a read only replica."),
    redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
    redis.ResponseError("user_script:7: OOM command not allowed when used memory > 'maxmemory'. script: 1"),
    redis.exceptions.MasterDownError("Link with MASTER is down"),
    refused_by_a_queue(),
]


@pytest.mark.parametrize("gone", [Drained(), *PASSING], ids=lambda problem: type(problem).__name__)
def test_a_worker_that_stops_and_a_server_that_is_away_are_no_reason_to_give_up(
    store, engine, monkeypatch, gone
):
    breaking(engine, monkeypatch, gone)
    assert times_raised(Batch(RUN, 1, (0,)), engine) == (10, None)
    assert list(store.records(RUN)) == []


def test_errors_that_a_full_server_does_not_take_are_written_when_there_is_room(store, engine, monkeypatch):
    def breaks(batch, *, give_up=None):
        raise OSError if give_up is None else redis.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_batch", breaks)
        assert times_raised(Batch(RUN, 1, (0,)), engine) == (10, None)
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1


@pytest.mark.parametrize("problem", PASSING, ids=lambda problem: type(problem).__name__)
def test_an_attempt_alone_that_meets_a_full_server_has_not_died_of_it(engine, monkeypatch, problem):
    def breaks(*_):
        raise problem

    monkeypatch.setattr(quarantine.Engine, "run_batch", breaks)
    monkeypatch.setattr(quarantine, "from_environment", lambda: engine.settings)
    monkeypatch.setattr(quarantine, "leave_with_parent", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        quarantine.main('["run-1", 1, [0]]')
    assert left.value.code == quarantine.TRY_AGAIN


def test_a_child_that_met_a_full_server_is_asked_again(engine, monkeypatch):
    monkeypatch.setattr(quarantine.sys, "executable", "/bin/false")
    with pytest.raises(quarantine.Died):
        quarantine.run_alone(Batch(RUN, 1, (0,), quarantine=True), engine)
    monkeypatch.setattr(quarantine, "TRY_AGAIN", 1)
    with pytest.raises(redis.ConnectionError):
        quarantine.run_alone(Batch(RUN, 1, (0,), quarantine=True), engine)


def test_a_batch_that_cannot_even_be_recorded_is_left_out(store, engine, monkeypatch):
    questions = Run.questions

    async def breaks(run, indexes):
        if 0 in indexes:
            raise ValueError("no question")
        return await questions(run, indexes)

    monkeypatch.setattr(Run, "questions", breaks)
    assert times_raised(Batch(RUN, 1, (0,)), engine) == (2, 0)
    assert engine.held() == {RUN: {}}
    assert engine.run_batch(Batch(RUN, 1, (2,))) == 1


def test_a_cancelled_run_ends_though_its_batches_were_handed_back(store, engine, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(engine, patch, OSError())
        assert times_raised(Batch(RUN, 1, (0,)), engine, most=2) == (2, None)
    store.halt(RUN, "cancelled")
    assert times_raised(Batch(RUN, 1, (0,)), engine) == (0, 0)


def test_whoever_resumes_a_run_gets_three_tries_again(store, engine, monkeypatch):
    breaking(engine, monkeypatch, OSError())
    assert times_raised(Batch(RUN, 1, (0,)), engine, most=2) == (2, None)
    store.next_generation(RUN)
    assert times_raised(Batch(RUN, 1, (0,)), engine, most=2) == (2, None)


def test_a_run_that_cannot_be_finished_says_so_instead_of_being_tried_for_ever(
    store, engine, client, monkeypatch
):
    def broken(*_):
        raise KeyError("lost")

    app = App(engine.settings)
    app.engine = engine
    monkeypatch.setattr(app.tasks["uplift.finish_run"], "run", broken)
    send_finish(app, RUN, 0, 1)
    _, message = client.brpop(waiting_keys(FINISH), 10)
    finisher = Finisher(SimpleNamespace(app=app, steps=[]))
    for _ in range(3):
        finisher.finish(message)  # whoever mends asks again
    assert store.state(RUN).trouble == "finishing failed: KeyError: 'lost'"
    app.close()


def test_a_detached_run_whose_server_is_full_is_finished_when_there_is_room(
    store, engine, client, monkeypatch
):
    app = App(engine.settings)
    app.engine = engine
    assert engine.run_batch(Batch(RUN, 1, (0, 1, 2, 3))) == 4
    store.set_published(RUN, 0, 4)
    send_finish(app, RUN, 0, 1)
    _, message = client.brpop(waiting_keys(FINISH), 10)
    finisher = Finisher(SimpleNamespace(app=app, steps=[]))
    # Small writes of others pass meanwhile: what is in use goes up and down.
    with monkeypatch.context() as patch:
        patch.setattr(Store, "seal", raises_now(redis.OutOfMemoryError("used memory > 'maxmemory'")))
        for _ in range(5):
            finisher.finish(message)
    assert store.state(RUN).trouble is None
    client.config_set("maxmemory", 1)
    finisher.finish(message)
    client.config_set("maxmemory", 0)
    finisher.finish(message)
    assert store.artifacts(RUN)
    app.close()


def raises_now(problem):
    def fails(*_):
        raise problem

    return fails


def test_a_batch_that_comes_again_waits_for_no_limit_of_its_model(valkey, client):
    settings = ModelSettings(default_limits=Limits(rpm=0.001))
    a_stored_run(Store(client), 1, settings=settings)
    engine = Engine(ProcessSettings(valkey))
    try:
        assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
        begun = time.monotonic()
        assert engine.run_batch(Batch(RUN, 1, (0,))) == 0
        assert time.monotonic() - begun < 60  # the next permission is a thousand minutes away
    finally:
        engine.close()


def until_drained(engine, batch):
    with suppress(Drained):
        engine.run_batch(batch)


def test_a_run_that_waits_for_budget_leaves_the_slots_to_others(valkey, client):
    a_stored_run(Store(client), 5, run_id="dear", models=("sim:latency=30,cost=1",), budget_usd=1.5)
    a_stored_run(Store(client), 5, run_id="cheap")
    engine = Engine(ProcessSettings(valkey, in_flight=4))
    thread = threading.Thread(target=until_drained, args=[engine, Batch("dear", 1, tuple(range(10)))])
    try:
        thread.start()
        while len(client.hgetall(Keys("dear").owners)) < 1:
            time.sleep(0.01)
        time.sleep(0.5)
        assert client.hlen(Keys("dear").owners) == 1  # the others wait for what it will really cost
        used = [engine.in_flight for _ in range(50) if time.sleep(0.01) is None]
        assert sorted(used)[25] == 1
        begun = time.monotonic()
        assert engine.run_batch(Batch("cheap", 1, tuple(range(10)))) == 10
        assert time.monotonic() - begun < 20
    finally:
        engine.drain()
        thread.join()
        engine.close()

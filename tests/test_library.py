"""Uplift from Python: typed results, no output, no signals, nothing left behind; in plain and in async code."""

import asyncio
import gc
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import regex
from running import SKILL, a_suite, processes_below, worker

import producer
import uplift
from judges import safe_patterns
from producer import Result, aevaluate, evaluate
from producer.runs.watch import Interrupted
from producer.server import NoServer, open_server
from producer.settings.run_settings import InvalidOption
from producer.suites.suite import InvalidSuite, from_values
from workers.store.keys import FINISH, queue

PAGE = (Path(__file__).parent.parent / "docs" / "library.md").read_text()
BETTER = "sim:baseline=0,candidate=1,cost=0.01"
SUITE = {
    "skill_id": "haiku",
    "version": "1.0",
    "tasks": [
        {
            "id": f"task-{n}",
            "prompt": f"Sag wört{n} 🎈",
            "judge": {"type": "contains", "expected": [f"wört{n}"]},
        }
        for n in range(3)
    ],
}


@pytest.fixture
def folder(short_tmp, monkeypatch, eventually):
    """A folder with a skill; whatever a run leaves running would be seen."""
    (short_tmp / "tmp").mkdir()
    (short_tmp / "skill").mkdir()
    (short_tmp / "skill/SKILL.md").write_text(SKILL)
    monkeypatch.setenv("TMPDIR", str(short_tmp / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield short_tmp
    eventually(lambda: not processes_below(short_tmp), 30)


def keywords(folder, **more):
    return {"model": BETTER, "state_root": folder / "state", **more}


# What is checked before anything runs


def test_importing_the_package_imports_nothing_heavy():
    code = "import producer, sys; print([m for m in ('pandas', 'celery', 'redis', 'pydantic') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
    assert set(producer.__all__) == {"Interval", "Result", "aevaluate", "evaluate"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = producer.nothing


def test_a_suite_in_memory_is_held_to_the_rules_of_files_and_named_by_value():
    broken = {
        **SUITE,
        "tasks": [{"id": "a", "prompt": "x", "judge": {"type": "contians", "expected": ["y"]}}],
    }
    with pytest.raises(InvalidSuite) as refused:
        from_values(broken, Path())
    assert str(refused.value).startswith("tasks[0].judge.type: unknown judge 'contians'")


@pytest.mark.parametrize(
    "values",
    [
        {**SUITE, "tasks": [object()]},
        {**SUITE, "skill_id": float("nan")},
        {**SUITE, "skill_id": "\ud800"},
        {**SUITE, "skill_id": "a\x07b"},
        {},
    ],
)
def test_values_that_no_suite_can_hold_are_refused_as_such(values):
    with pytest.raises(InvalidSuite):
        from_values(values, Path())


def test_a_suite_in_memory_reads_like_the_same_suite_in_a_file(tmp_path):
    assert [task.prompt for task in from_values(SUITE, tmp_path).tasks] == [
        f"Sag wört{n} 🎈" for n in range(3)
    ]


def test_invalid_options_are_raised_and_nothing_is_written(tmp_path):
    a_suite(tmp_path)
    with pytest.raises(InvalidOption, match="--pass-k is 0"):
        evaluate(tmp_path / "suite.yaml", tmp_path / "skill", state_root=tmp_path / "state", pass_k=0)
    with pytest.raises(InvalidOption, match='--gate is "Regression"; allowed: verdict'):
        evaluate(
            tmp_path / "suite.yaml", tmp_path / "skill", state_root=tmp_path / "state", gate="Regression"
        )
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [("budget", " (did you mean budget_usd?)"), ("models", " (did you mean model?)"), ("xyz", "")],
)
def test_an_unknown_keyword_is_refused_and_the_known_one_is_named(tmp_path, keyword, hint):
    a_suite(tmp_path)
    with pytest.raises(TypeError, match=re.escape(f"unexpected keyword '{keyword}'{hint}") + "$"):
        evaluate(tmp_path / "suite.yaml", tmp_path / "skill", **{keyword: 0.01})
    with pytest.raises(TypeError, match=f"unexpected keyword '{keyword}'"):
        asyncio.run(aevaluate(tmp_path / "suite.yaml", tmp_path / "skill", **{keyword: 0.01}))


# Whole runs


@pytest.mark.slow
def test_a_suite_in_memory_gives_a_typed_result_without_a_word_or_a_handler(folder, capfd):
    views, words = [], []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def on_progress(view):
        views.append(view)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    result = evaluate(
        SUITE, folder / "skill", **keywords(folder), on_progress=on_progress, on_message=words.append
    )
    assert isinstance(result, Result)
    assert (result.verdict, result.ok, result.delta) == ("pass", True, 1.0)
    assert (result.execution_pass_rate, result.baseline_pass_rate) == (1.0, 0.0)
    assert result.interval is not None
    assert -1 <= result.interval.low < result.interval.high <= 1
    assert result.spent_usd == pytest.approx(0.06)
    assert result.artifact_path.is_file()
    assert {(record.task, record.outcome) for record in result.records() if record.arm == "candidate"} == {
        (f"task-{n}", "passed") for n in range(3)
    }
    assert views[-1].progress.recorded == 6
    assert capfd.readouterr() == ("", "")
    assert not list((folder / "state" / "embedded").iterdir())


@pytest.mark.slow
def test_a_failed_gate_is_a_result_and_no_exception(folder):
    suite = a_suite(folder, 3)
    result = evaluate(suite, folder / "skill", **keywords(folder, model="sim:baseline=1,candidate=0"))
    assert (result.verdict, result.ok, result.delta) == ("fail", False, -1.0)


@pytest.mark.slow
def test_two_runs_go_on_at_once_in_one_loop_which_stays_free(folder):
    messages: list[threading.Thread] = []

    async def both():
        here = threading.current_thread()
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(
            *(
                aevaluate(
                    SUITE,
                    folder / "skill",
                    **keywords(folder, state_root=folder / f"state{number}", model=f"{BETTER},seed={number}"),
                    on_progress=lambda view: messages.append(threading.current_thread()),
                )
                for number in range(2)
            )
        )
        ticking.cancel()
        assert set(messages) == {here}
        return results, ticks

    results, ticks = asyncio.run(both())
    assert [result.delta for result in results] == [1.0, 1.0]
    assert len({result.run_id for result in results}) == 2
    assert ticks > 20


@pytest.mark.slow
def test_a_cancelled_run_ends_its_server_and_worker_at_once_and_can_be_resumed(folder):
    async def cancelled():
        begun = asyncio.Event()
        running = asyncio.create_task(
            aevaluate(
                SUITE,
                folder / "skill",
                **keywords(folder, model="sim:latency=200"),
                on_progress=lambda view: begun.set() if view.progress.in_flight else None,
            )
        )
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(cancelled(), 100))
    assert not processes_below(folder)
    assert len(list((folder / "state" / "embedded").iterdir())) == 1  # what resuming needs


@pytest.mark.slow
def test_a_stop_that_is_asked_for_raises_interrupted_and_names_the_run(folder):
    asked = threading.Event()
    with pytest.raises(Interrupted, match="uplift resume 2"):
        evaluate(
            SUITE,
            folder / "skill",
            **keywords(folder, model="sim:latency=0.5", in_flight=1),
            on_progress=lambda view: asked.set() if view.progress.recorded else None,
            stop=asked.is_set,
        )


@pytest.mark.slow
def test_runs_in_pool_threads_that_come_and_go_each_keep_their_server_to_the_end(folder):
    results, opened = [], []
    for number in range(3):
        with ThreadPoolExecutor(1) as pool:  # its thread ends with the block
            more = keywords(folder, state_root=folder / f"state{number}", model=f"{BETTER},latency=0.3")
            results.append(pool.submit(lambda more=more: evaluate(SUITE, folder / "skill", **more)).result())
        gc.collect()
        opened.append(len(list(Path("/proc/self/fd").iterdir())))
    assert [result.verdict for result in results] == ["pass"] * 3
    assert opened[2] <= opened[1]  # no connection outlives its run


@pytest.mark.slow
def test_a_shared_broker_serves_runs_that_end_one_after_the_other(folder, valkey):
    async def both():
        models = [f"{BETTER},latency={seconds}" for seconds in (0.1, 1.5)]
        runs = [
            aevaluate(SUITE, folder / "skill", **keywords(folder, broker=valkey, model=model))
            for model in models
        ]
        return await asyncio.gather(*runs)

    with worker(valkey, folder):
        results = asyncio.run(both())
    assert [result.verdict for result in results] == ["pass", "pass"]
    assert not (folder / "state" / "embedded").exists()


def test_a_run_that_ends_leaves_the_connections_of_another_on_the_same_broker_alone(valkey):
    ending, going_on = open_server(valkey), open_server(valkey)
    with ending.app.connection_or_acquire() as connection:
        queue(FINISH).bind(connection.default_channel).declare()
    with going_on.app.connection_or_acquire() as connection:
        channel = connection.default_channel
        ending.close()
        queue(FINISH).bind(channel).declare()
    going_on.close()


def test_threads_that_are_the_first_to_need_the_settings_all_get_them():
    code = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from producer.settings.run_settings import RunSettings
together = threading.Barrier(8)
def first(number):
    together.wait()
    return RunSettings.checked({"pass_k": number, "task_suite": "suite.yaml"}).pass_k
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(8) as pool:
    print(list(pool.map(first, range(1, 9))))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(list(range(1, 9)))


def test_runs_that_check_patterns_at_once_leave_the_programs_warnings_as_they_were(monkeypatch):
    before, compiling = list(warnings.filters), regex.compile
    began, may_end = ({name: threading.Event() for name in ("first", "second")} for _ in range(2))

    def slowly(pattern, flags):
        began[pattern].set()
        may_end[pattern].wait(30)
        return compiling(pattern, flags)

    monkeypatch.setattr(regex, "compile", slowly)
    with ThreadPoolExecutor(2) as pool:
        ended = {}
        for name in ("first", "second"):
            ended[name] = pool.submit(safe_patterns.compiled, name)
            assert began[name].wait(30)
        for name in ("first", "second"):
            may_end[name].set()
            ended[name].result(30)
    assert warnings.filters == before


@pytest.mark.slow
def test_the_pages_example_runs_and_prints_what_the_page_says(folder):
    a_suite(folder, 12)
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)[:2]
    (folder / "example.py").write_text(code)
    ran = subprocess.run([sys.executable, "example.py"], cwd=folder, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == printed


@pytest.mark.slow
def test_the_pages_async_example_runs(folder):
    a_suite(folder, 2)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    (folder / "example.py").write_text(code)
    ran = subprocess.run([sys.executable, "example.py"], cwd=folder, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 2


def test_the_front_door_names_all_that_is_public_and_loads_none_of_it_before_it_is_asked_for():
    assert sorted(uplift.__all__) == sorted(uplift._HOMES)
    for name in uplift.__all__:
        assert f"\n    {name} " in uplift.__doc__
        assert getattr(uplift, name).__module__ == uplift._HOMES[name]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = uplift.nothing
    code = "import uplift, sys; print([m for m in ('pandas', 'celery', 'redis', 'pydantic') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_an_error_tells_programs_its_kind_what_is_wrong_and_what_to_do(tmp_path):
    with pytest.raises(uplift.UpliftError) as caught:
        uplift.evaluate(tmp_path / "none.yaml", tmp_path, model="mock")
    assert (caught.value.code, caught.value.exit_code) == ("invalid_suite", 2)
    problem = InvalidOption("--pass-k is 0; give a whole number from 1")
    assert (problem.code, problem.exit_code) == ("invalid_option", 2)
    assert (problem.message, problem.remedy) == ("--pass-k is 0", "give a whole number from 1")
    assert NoServer("no server").exit_code == 3
    assert (NoServer("no server").message, NoServer("no server").remedy) == ("no server", "")

"""The baseline cache: what shares an entry and what never does, how long it lasts, what cannot break it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from aggregate.records.record import AttemptRecord
from judges.judgment import Completion
from judges.spec import Benchmark, Contains, Pytest, Rubric
from producer.baselines import fingerprints
from producer.baselines.cache import BaselineCache, UnusableCache
from producer.baselines.fingerprints import fixture_digests, served
from workers.store.messages import (
    CommandSpec,
    Limits,
    ModelSettings,
    Price,
    Replies,
    Task,
    WorkerSettings,
)

NOW = 1_760_000_000.0
WEEK = 604_800
KEY = "ab" * 32


def a_task(**fields: Any) -> Task:
    judge = Contains(type="contains", expected=["iOS"])
    return Task(**{"id": "t1", "prompt": "Name the platform.", "judge": judge, **fields})


def a_tested_task(name: str, test_file: str, **fields: Any) -> Task:
    return a_task(id=name, judge=Pytest(type="pytest", test_file=test_file), **fields)


def a_record(**fields: Any) -> AttemptRecord:
    completion = Completion(text="iOS", cost_usd=0.25)
    values = {"task": "t1", "arm": "baseline", "attempt": 1, "outcome": "passed", "completion": completion}
    return AttemptRecord(**{**values, **fields})


def a_key(**fields: Any) -> str:
    values = {
        "skill": "5" * 64,
        "task": a_task(),
        "fixtures": "f" * 64,
        "model": "mock",
        "settings": ModelSettings(),
        "judge_model": None,
        "skill_mode": "prepend",
        "agent_version": None,
        "attempt": 1,
    }
    return fingerprints.key(**{**values, **fields})


def a_suite(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        place = folder / "fixtures" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def entry_file(folder: Path) -> Path:
    (found,) = folder.rglob("*.json")
    return found


def test_the_same_ingredients_have_the_same_key() -> None:
    assert a_key() == a_key()
    assert a_key(settings=ModelSettings(params={"a": 1, "b": 2})) == a_key(
        settings=ModelSettings(params={"b": 2, "a": 1})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"skill": None},
        {"skill": "6" * 64},
        {"task": a_task(id="t2")},
        {"task": a_task(prompt="Name it.")},
        {"task": a_task(timeout_seconds=5)},
        {"task": a_task(judge=Contains(type="contains", expected=["iOS"], forbidden=["Windows"]))},
        {"task": a_task(judge=Rubric(type="llm-rubric", rubric="iOS?"))},
        {"task": a_task(files=("fixtures/a.csv",))},
        {"fixtures": "e" * 64},
        {"model": "sim:baseline=0.5"},
        {"model": "sim:baseline=0.6"},
        {"model": "anthropic:one"},
        {"settings": ModelSettings(params={"temperature": 0.2})},
        {"settings": ModelSettings(tools=("Read",))},
        {"judge_model": "mock"},
        {"skill_mode": "mount"},
        {"skill_mode": None},
        {"agent_version": "2.1.0"},
        {"attempt": 2},
    ],
    ids=str,
)
def test_whatever_changes_the_question_or_the_judging_changes_the_key(change: dict[str, Any]) -> None:
    assert a_key(**change) != a_key()


def test_a_new_format_shares_nothing_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_key()
    monkeypatch.setattr(fingerprints, "FORMAT_VERSION", 2)

    assert a_key() != old


def test_labels_prices_and_limits_do_not_change_the_key() -> None:
    labelled = a_task(description="Easy.", tier="T1", tags=("format",))
    settings = ModelSettings(
        prices={"mock": Price(input=1, output=1)}, default_limits=Limits(rpm=60), retry=False
    )

    assert a_key(task=labelled, settings=settings) == a_key()


def test_a_setting_of_calls_that_a_later_version_adds_changes_the_key_once_it_is_set() -> None:
    class Later(ModelSettings):
        opening: str = ""

    assert a_key(settings=Later()) == a_key()
    assert a_key(settings=Later(opening="Think first.")) != a_key()


def test_each_setting_that_reaches_workers_is_known_to_change_answers_or_not_to() -> None:
    """A cached baseline beside a candidate that was asked something else would be a wrong comparison."""
    calls = {"params", "tools", "commands", "network"} | fingerprints.CHANGES_NO_ANSWER
    assert set(ModelSettings.model_fields) - calls == set(), "put it among CHANGES_NO_ANSWER, or here"
    in_keys = {"models", "judge_model", "skill_mode", "spare_checks", "sandbox"}
    change_no_answer = {"pass_k", "stop_early", "priority", "budget_usd", "trajectory", "trajectory_mb"}
    assert set(WorkerSettings.model_fields) - in_keys - change_no_answer == set(), (
        "where it changes answers, it belongs into `fingerprints.key` and `Grounds`"
    )


@pytest.mark.parametrize("model", ["claude-code", "claude-code:opus", "command:codex:gpt-5", "command:x"])
def test_what_an_agent_may_reach_changes_its_key_and_no_other_models(model: str) -> None:
    settings = {"commands": {"x": CommandSpec(argv=("x",))}}
    closed, opened = (ModelSettings(**settings, network=network) for network in ("provider", "open"))
    keys = [
        a_key(model=model, settings=closed),
        a_key(model=model, settings=opened),
        a_key(model=model, settings=closed, sandbox="off"),
        a_key(model=model, settings=closed, task=a_task(network=("docs.example.org",))),
    ]
    assert len(set(keys)) == 4
    assert a_key(settings=closed, judge_model=model) != a_key(settings=opened, judge_model=model)
    for other in ("anthropic:opus", "openai:gpt-5", "mock"):
        assert a_key(model=other, settings=closed) == a_key(model=other, settings=opened, sandbox="off")


def test_an_agents_answer_is_not_judged_again_where_it_could_reach_something_else() -> None:
    keys = [
        a_key(model="claude-code", judged=False, task=a_task(network=hosts))
        for hosts in ((), ("docs.example.org",), ("docs.example.org", "more.example.org"))
    ]
    assert len(set(keys)) == 3


def test_entries_of_agents_of_version_0_1_0_are_run_again_and_those_of_others_are_not() -> None:
    before = fingerprints.digest({"params": {}, "tools": None})
    assert fingerprints.digest(fingerprints.used_settings(ModelSettings(), "auto", "openai:gpt-5")) == before
    assert fingerprints.digest(fingerprints.used_settings(ModelSettings(), "auto", "claude-code")) != before


def test_a_declared_program_counts_only_for_the_model_that_it_is() -> None:
    slow, fast = (ModelSettings(commands={"x": CommandSpec(argv=("x", how))}) for how in ("--slow", "--fast"))

    assert a_key(model="command:x", settings=slow) != a_key(model="command:x", settings=fast)
    assert a_key(judge_model="command:x", settings=slow) != a_key(judge_model="command:x", settings=fast)
    assert a_key(settings=slow) == a_key(settings=fast)


def test_a_recording_counts_by_its_content(tmp_path: Path) -> None:
    recording = tmp_path / "records.jsonl"
    recording.write_text("one")
    before = a_key(model=f"replay:{recording}")
    recording.write_text("two")

    assert a_key(model=f"replay:{recording}") != before


def test_a_baseline_has_one_key_whatever_the_order_of_its_attempts() -> None:
    assert fingerprints.baseline_key(["a", "b"]) == fingerprints.baseline_key(["b", "a"])
    assert fingerprints.baseline_key(["a", "b"]) != fingerprints.baseline_key(["ab"])


def changed_tasks(tasks: list[Task], folder: Path, name: str) -> set[str]:
    """Ids of the tasks whose digest changes when this fixture is edited."""
    before = fixture_digests(tasks, folder)
    place = folder / "fixtures" / name
    place.write_text(place.read_text() + "edited")
    after = fixture_digests(tasks, folder)
    return {task.id for task in tasks if before[task.id] != after[task.id]}


def test_editing_a_file_concerns_the_tasks_that_name_it_or_may_import_it(tmp_path: Path) -> None:
    names = ["test_a.py", "test_b.py", "helper.py", "data.csv", "good.txt", "bench.py", "slow.py"]
    folder = a_suite(tmp_path, **dict.fromkeys(names, "x"))
    benchmark = Benchmark(
        type="benchmark", benchmark_file="fixtures/bench.py", original_file="fixtures/slow.py"
    )
    tasks = [
        a_tested_task("a", "fixtures/test_a.py", replies=Replies(**{"pass": "fixtures/good.txt"})),
        a_tested_task("b", "fixtures/test_b.py", files=("fixtures/data.csv",)),
        a_task(id="words", files=("fixtures/data.csv",)),
        a_task(id="faster", judge=benchmark),
    ]

    assert changed_tasks(tasks, folder, "test_a.py") == {"a"}
    assert changed_tasks(tasks, folder, "data.csv") == {"b", "words"}
    assert changed_tasks(tasks, folder, "good.txt") == {"a"}
    assert changed_tasks(tasks, folder, "slow.py") == {"faster"}
    assert changed_tasks(tasks, folder, "helper.py") == {"a", "b", "faster"}


def test_a_files_name_and_executable_bit_count_and_its_times_do_not(tmp_path: Path) -> None:
    tasks = [a_tested_task("a", "fixtures/test_a.py")]
    folder = a_suite(tmp_path, **{"test_a.py": "x", "helper.py": "y"})
    helper = folder / "fixtures/helper.py"
    first = fixture_digests(tasks, folder)["a"]

    helper.write_text("y")
    assert fixture_digests(tasks, folder)["a"] == first
    helper.chmod(0o755)
    assert fixture_digests(tasks, folder)["a"] != first
    helper.chmod(0o644)
    helper.rename(helper.with_name("other.py"))
    assert fixture_digests(tasks, folder)["a"] != first


def test_a_suite_without_fixtures_has_digests_too(tmp_path: Path) -> None:
    assert set(fixture_digests([a_task(), a_task(id="t2")], tmp_path)) == {"t1", "t2"}


def test_a_kept_record_comes_back_as_cached_with_its_cost(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path / "cache")

    assert cache.put(KEY, a_record(), NOW)

    found = cache.get(KEY, NOW + 1)
    assert found == a_record(cached=True)
    assert found.completion == Completion(text="iOS", cost_usd=0.25)
    assert cache.get("cd" * 32, NOW) is None


def test_a_cached_record_takes_the_run_and_the_labels_of_today() -> None:
    record = served(a_record(run_id="old", tier="T1"), run_id="new", task=a_task(tier="T2", tags=("x",)))

    assert (record.run_id, record.tier, record.tags, record.cached) == ("new", "T2", ("x",), True)
    assert record.completion == a_record().completion


@pytest.mark.parametrize(
    ("age", "kept"), [(0, True), (WEEK, True), (WEEK + 1, False), (WEEK + 0.5, False), (-1, False)]
)
def test_a_record_lasts_seven_days_to_the_second(tmp_path: Path, age: float, kept: bool) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)

    assert (cache.get(KEY, NOW + age) is not None) == kept


def test_keeping_a_record_again_renews_it(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)
    cache.put(KEY, a_record(outcome="failed"), NOW + WEEK)

    found = cache.get(KEY, NOW + WEEK + 5)

    assert found is not None
    assert found.outcome == "failed"


@pytest.mark.parametrize("outcome", ["passed", "failed", "timeout"])
def test_judged_outcomes_are_kept(tmp_path: Path, outcome: str) -> None:
    assert BaselineCache(tmp_path).put(KEY, a_record(outcome=outcome), NOW)


@pytest.mark.parametrize("fields", [{"outcome": "error"}, {"outcome": "skipped"}, {"cached": True}], ids=str)
def test_errors_and_cached_records_are_not_kept(tmp_path: Path, fields: dict[str, Any]) -> None:
    cache = BaselineCache(tmp_path)

    assert not cache.put(KEY, a_record(**fields), NOW)
    assert cache.get(KEY, NOW) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b"[" * 100_000,
        b'{"created": NaN}',
        b'{"format": 1, "key": "' + KEY.encode() + b'", "created": 1760000000, "record": {}}',
    ],
    ids=lambda data: repr(data[:12]),
)
def test_a_file_that_is_no_entry_is_a_miss(tmp_path: Path, data: bytes) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)
    entry_file(tmp_path).write_bytes(data)

    assert cache.get(KEY, NOW) is None
    assert cache.put(KEY, a_record(), NOW)
    assert cache.get(KEY, NOW) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [("key", "cd" * 32), ("format", 0), ("created", "yesterday"), ("created", None), ("signed", "x")],
)
def test_a_foreign_or_altered_entry_is_a_miss(tmp_path: Path, name: str, value: object) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)
    file = entry_file(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))

    assert cache.get(KEY, NOW) is None


def test_an_error_that_somebody_put_there_is_a_miss(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)
    file = entry_file(tmp_path)
    entry = json.loads(file.read_text())
    entry["record"]["outcome"] = "error"
    file.write_text(json.dumps(entry))

    assert cache.get(KEY, NOW) is None


def test_a_folder_in_an_entrys_place_is_a_miss_and_keeping_says_that_it_failed(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.put(KEY, a_record(), NOW)
    file = entry_file(tmp_path)
    file.unlink()
    file.mkdir()

    assert cache.get(KEY, NOW) is None
    assert not cache.put(KEY, a_record(), NOW)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_reader_sees_a_whole_entry_or_none_while_others_write(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    long = "x" * 200_000
    records = [a_record(outcome=outcome, details=outcome + long) for outcome in ("passed", "failed")]
    cache.put(KEY, records[0], NOW)
    done = threading.Event()
    seen: list[AttemptRecord | None] = []

    def read() -> None:
        seen.append(cache.get(KEY, NOW))
        while not done.is_set():
            seen.append(cache.get(KEY, NOW))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(60):
        cache.put(KEY, records[number % 2], NOW)
    done.set()
    reader.join()

    whole = {f"{outcome}{long}" for outcome in ("passed", "failed")}
    assert seen
    assert all(record is not None and record.details in whole for record in seen)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_folder_that_cannot_be_a_cache_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(
        UnusableCache, match=r"baseline cache folder .*file/cache cannot be written: Not a directory"
    ):
        BaselineCache(tmp_path / "file/cache")


def test_different_candidates_that_met_a_baseline_are_counted_once_each(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)

    assert cache.note_comparison("b1", "c1", NOW) == 1
    assert cache.note_comparison("b1", "c2", NOW + 1) == 2
    assert cache.note_comparison("b1", "c1", NOW + 2) == 2
    assert cache.note_comparison("b2", "c1", NOW + 2) == 1
    assert BaselineCache(tmp_path).note_comparison("b1", "c3", NOW + 3) == 3


def test_comparisons_are_forgotten_with_the_baseline_that_they_were_made_with(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.note_comparison("b1", "c1", NOW)

    assert cache.note_comparison("b1", "c2", NOW + WEEK) == 2
    assert cache.note_comparison("b1", "c3", NOW + WEEK + 1) == 2


def test_notes_made_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    threads = [
        threading.Thread(target=cache.note_comparison, args=("b1", f"c{number}", NOW)) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert cache.note_comparison("b1", "c0", NOW) == 20


def test_a_note_that_is_not_readable_does_not_count(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    cache.note_comparison("b1", "c1", NOW)
    (tmp_path / "comparisons/b1/c1").write_text("yesterday")

    assert cache.note_comparison("b1", "c2", NOW) == 1


def test_a_pipe_in_a_shared_cache_is_a_miss_and_not_waited_for(tmp_path: Path) -> None:
    cache = BaselineCache(tmp_path)
    key = "ab" + 62 * "0"
    cache.put(key, a_record(), NOW)
    assert cache.get(key, NOW) is not None
    (entry,) = tmp_path.glob("ab/*.json")
    entry.unlink()
    os.mkfifo(entry)
    (tmp_path / "comparisons/b1").mkdir(parents=True)
    os.mkfifo(tmp_path / "comparisons/b1/c1")

    assert cache.get(key, NOW) is None
    assert cache.note_comparison("b1", "c2", NOW) == 1

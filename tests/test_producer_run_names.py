"""How a run is named: `last`, `last~1`, how it begins, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import a_suite, uplift

from aggregate.records.record import AttemptRecord
from judges.judgment import Completion
from producer.display import progress
from producer.display.attempts import failure_texts
from producer.runs.evaluate import RunContext, named
from producer.state_root import InvalidId, Places
from workers.store.run_store import UnknownRun

FIRST, SECOND, THIRD = "20260101-120000-aaaaaa", "20260101-120001-bbbbbb", "20270101-120000-cccccc"


def where(root: Path, broker: str | None = None) -> RunContext:
    return RunContext(Places(root), broker, progress.choose(quiet=True))


def with_runs(root: Path, *run_ids: str) -> RunContext:
    for run_id in run_ids:
        (root / "runs" / run_id).mkdir(parents=True)
    return where(root)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *((None, THIRD), ("last", THIRD), ("last~0", THIRD), ("last~1", SECOND), ("last~2", FIRST)),
        *(("2027", THIRD), ("20260101-120001", SECOND), (FIRST, FIRST), ("20990101-000000-ffffff",) * 2),
    ],
)
def test_a_run_is_named_by_place_or_by_how_it_begins(tmp_path: Path, text: str | None, meant: str) -> None:
    assert named(with_runs(tmp_path, THIRD, FIRST, SECOND), text) == meant


def test_a_run_under_way_and_one_with_a_name_of_its_own_have_their_place(tmp_path: Path) -> None:
    there = with_runs(tmp_path, FIRST, "mine")
    (tmp_path / "embedded" / THIRD).mkdir(parents=True)
    os.utime(tmp_path / "runs/mine", (1_800_000_000, 1_800_000_000))  # 15 January 2027
    assert [named(there, f"last~{number}") for number in range(3)] == ["mine", THIRD, FIRST]


def test_what_names_no_run_or_several_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun, match="there is none; start one: uplift evaluate"):
        named(where(tmp_path), None)
    there = with_runs(tmp_path, FIRST, SECOND, THIRD)
    with pytest.raises(UnknownRun, match=r"no run last~3 under .*: there are only 3"):
        named(there, "last~3")
    with pytest.raises(UnknownRun, match=f"2 runs begin with '2026': {SECOND}, {FIRST}; type more"):
        named(there, "2026")
    for hostile in ("../x", "last~", "", "-x", "last~9999999", "\udcff"):
        if hostile:
            with pytest.raises(InvalidId):
                named(there, hostile)


def test_a_run_whose_name_is_a_word_is_that_run(tmp_path: Path) -> None:
    assert named(with_runs(tmp_path, THIRD, "last"), "last") == "last"


def test_of_what_failed_each_task_and_arm_is_a_line() -> None:
    failed = [
        AttemptRecord(
            task="t", arm="candidate", attempt=number, outcome="failed", completion=Completion(text="x")
        )
        for number in (1, 2)
    ]
    assert failure_texts([], "c") == "every attempt passed\n"
    assert failure_texts(failed, "uplift show R") == (
        "t, candidate: 2 not passed: failed\n\nall attempts of a task: uplift show R TASK\n"
    )


@pytest.mark.slow
def test_commands_take_the_latest_run_from_any_folder_below(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    a_suite(tmp_path, 2)
    words = ["evaluate", "skill", "--task-suite", "suite.yaml", "--model", "sim:baseline=0,candidate=1"]
    assert uplift(*words, cwd=tmp_path).code == 0
    shown = uplift("show", cwd=tmp_path / "skill")
    assert [line.split(":")[0] for line in shown.out.splitlines()[:2]] == [
        "task-0, baseline",
        "task-1, baseline",
    ]
    assert "all attempts of a task: uplift show " in shown.out
    assert "--state-root" not in shown.out
    assert len(uplift("show", "last", "task-0", cwd=tmp_path).out.split("attempt 1")) == 3
    for command in ("report", "status", "watch", "resume", "bless"):
        done = uplift(command, cwd=tmp_path / "skill")
        assert done.code == 0, (command, done.err)
    assert uplift("runs", "--delete", "last", cwd=tmp_path / "skill").code == 0
    assert "there is none" in uplift("report", cwd=tmp_path).err

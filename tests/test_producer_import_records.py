"""Other tools' results as records: figures that their authors published come out again; hostile files end well."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import uplift

from aggregate.artifact.model import Artifact
from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord
from producer.importers import records
from producer.importers.imported import Unimportable
from producer.runs.from_records import aggregate_file
from producer.settings.run_settings import RunSettings
from producer.state_root import Places

# How many of tau-bench's 50 airline tasks gpt-4o passed in 0, 1, 2, 3 and 4 of 4 trials: the one split of 50
# that gives the four figures that its authors published.
PASSES = (14, 12, 10, 4, 10)
# Runs, passes, mean score and USD of each tier, as ProjectScylla published them (docs/arxiv/haiku/data/summary.json).
TIERS = {
    "T0": (216, 202, 0.7758659611992945, 23.6480909),
    "T1": (90, 87, 0.8162396296296298, 10.190217050000001),
    "T2": (135, 132, 0.8020991358024693, 14.887608649999995),
    "T3": (369, 360, 0.8137006323396567, 42.0433972),
    "T4": (126, 123, 0.82040582010582, 14.94690935),
    "T5": (135, 130, 0.8178054320987654, 16.12463125),
    "T6": (9, 9, 0.8283333333333334, 1.4562759),
}


def trials() -> Iterator[dict[str, Any]]:
    passes = [count for count, tasks in enumerate(PASSES) for _ in range(tasks)]
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Done"}]
    for task, trial in product(range(len(passes)), range(4)):
        reward = float(trial < passes[task])
        yield {"task_id": task, "trial": trial, "reward": reward, "info": {"source": "user"}, "traj": said}


def runs() -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(
        ["experiment", "agent_model", "tier", "subtest", "run_number", "score", "passed", "cost_usd"]
    )
    for tier, (count, passes, score, usd) in TIERS.items():
        for run in range(count):
            subtest, number = divmod(run, 3)
            passed = run < passes
            table.writerow(["test-001", "haiku", tier, subtest, number + 1, score, passed, usd / count])
    return text.getvalue()


def a_sample(**fields: Any) -> dict[str, Any]:
    usage = {"openai/m": {"input_tokens": 60, "output_tokens": 9, "total_tokens": 99}}
    plain = {"id": "a", "epoch": 1, "scores": {"match": {"value": "C", "explanation": "as wanted"}}}
    return {**plain, "output": {"completion": "Yes"}, "model_usage": usage, "working_time": 1.5, **fields}


def a_log(*samples: dict[str, Any]) -> str:
    return json.dumps({"version": 2, "eval": {"model": "openai/m"}, "samples": samples})


def packed(path: Path, *samples: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps({"eval": {"model": "openai/m"}}))
    return path


def a_source(folder: Path, text: str, name: str = "results.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def imported(source: Path) -> list[AttemptRecord]:
    output = source.parent / "records.jsonl"
    output.unlink(missing_ok=True)
    records.write(source, output)
    return list(read_jsonl(output))


def artifact_of(source: Path, output: Path) -> Artifact:
    records.write(source, output)
    (made,) = aggregate_file(output, Places(output.parent / "state"), RunSettings())
    return made


def test_the_published_pass_hat_of_tau_bench_comes_out(tmp_path: Path) -> None:
    made = artifact_of(a_source(tmp_path, json.dumps(list(trials()))), tmp_path / "airline.jsonl")
    assert made.arms is not None
    pass_hat = made.arms["candidate"].pass_hat
    assert [round(pass_hat[k], 3) for k in "1234"] == [0.420, 0.273, 0.220, 0.200]  # type: ignore[index, arg-type]  # all there


def test_the_published_figures_of_project_scylla_come_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    a_source(tmp_path / "data", runs(), "runs.csv")
    made = artifact_of(tmp_path / "data", tmp_path / "haiku.jsonl")
    assert made.arms is not None
    arm = made.arms["candidate"]
    assert (arm.n, arm.n_tasks) == (1080, 360)
    assert arm.attempt_pass_rate == pytest.approx(0.965741, abs=5e-7)
    assert arm.mean_score == pytest.approx(0.806312, abs=5e-7)
    assert arm.cop == pytest.approx(0.118214, abs=5e-7)
    assert made.cost is not None
    assert made.cost.frontier_cop == pytest.approx(0.112785, abs=5e-7)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_log_of_inspect_has_a_record_for_each_sample_and_epoch(tmp_path: Path, is_packed: bool) -> None:
    samples = [
        a_sample(),
        a_sample(epoch=2, scores={"match": {"value": "P"}}),
        a_sample(id=7, scores={"match": {"value": True}, "other": {"value": "I"}}),
        a_sample(id=8, scores={"match": {"value": float("nan")}}),
        a_sample(id=9, scores={"graded": {"value": {"a": 1}}}),
        a_sample(id=10, scores={}, error={"message": "out of \ud800 money"}, working_time=1e12),
    ]
    source = packed(tmp_path / "l.eval", *samples) if is_packed else a_source(tmp_path, a_log(*samples))
    made = imported(source)
    assert [(one.task, one.attempt, one.outcome, one.score) for one in made] == [
        ("a", 1, "passed", 1.0),
        ("a", 2, "failed", 0.5),
        ("7", 1, "passed", 1.0),
        ("8", 1, "error", None),
        ("9", 1, "error", None),
        ("10", 1, "error", None),
    ]
    assert [one.error for one in made[3:]] == [
        "no score between 0 and 1 of match",
        "no score between 0 and 1 of graded",
        "out of ? money",
    ]
    first = made[0]
    assert (first.arm, first.model, first.details, first.model_ms) == (
        "candidate",
        "openai/m",
        "as wanted",
        1500,
    )
    # What was cached is part of the total, and is no output.
    assert first.completion is not None
    assert (first.completion.text, first.completion.input_tokens, first.completion.output_tokens) == (
        "Yes",
        90,
        9,
    )


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([], ": no results in it"),
        ([7], ": result 1: task None and attempt None do not tell it from others"),
        ([{"task_id": 1, "trial": -2, "reward": 1}], ": result 1: task 1 and attempt None do not tell"),
        (
            [{"task_id": 1, "trial": 0, "reward": 1}] * 2,
            ": result 2 is attempt 1 of '1' once more",
        ),
        ({"samples": []}, ": cannot be read: it is no log of Inspect"),
        (7, ": cannot be read: it is no log of Inspect"),
    ],
)
def test_results_that_cannot_be_told_apart_are_named(tmp_path: Path, results: Any, said: str) -> None:
    path = a_source(tmp_path, json.dumps(results))
    with pytest.raises(Unimportable) as caught:
        records.write(path, tmp_path / "o.jsonl")
    assert str(caught.value).startswith(f"{path}{said}")
    assert not (tmp_path / "o.jsonl").exists()


def test_a_reward_that_is_none_is_an_error_and_no_zero(tmp_path: Path) -> None:
    rewards = [None, "1", True, 2, -0.5, float("inf"), 0.999, 1]
    results = [{"task_id": 1, "trial": n, "reward": reward} for n, reward in enumerate(rewards)]
    results.append({"task_id": 2, "trial": 0, "reward": 0.0, "info": {"error": "it broke"}})
    made = imported(a_source(tmp_path, json.dumps(results)))
    outcomes = ["error", "passed", *["error"] * 4, "failed", "passed", "error"]
    assert [one.outcome for one in made] == outcomes
    assert all(one.score is None for one in made if one.outcome == "error")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("a,b\n1,2\n", "result 1: the table has no column experiment, tier, subtest, run_number, passed"),
        (
            "experiment,tier,subtest,run_number,passed\nt,T0\n",
            "result 1: task '' and attempt None do not tell",
        ),
        ('experiment,tier,subtest,run_number,passed\n"t', "cannot be read: unexpected end of data"),
    ],
)
def test_a_broken_table_is_told(tmp_path: Path, table: str, said: str) -> None:
    path = a_source(tmp_path, table, "runs.csv")
    with pytest.raises(Unimportable) as caught:
        records.write(path, tmp_path / "o.jsonl")
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_packed_log_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "l.eval", a_sample(more=" " * 100_000))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(records, "MAX_BYTES", 10_000)
    with pytest.raises(Unimportable, match="it unpacks to more than"):
        records.write(path, tmp_path / "o.jsonl")


@given(
    st.sampled_from(["json", "eval", "csv", "tau"]),
    st.lists(st.tuples(st.integers(0, 700), st.binary(max_size=4)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.differing_executors])
def test_results_damaged_anywhere_end_well(
    tmp_path_factory: pytest.TempPathFactory, kind: str, edits: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"damaged.{kind}"
    texts = {"json": a_log(a_sample()), "csv": runs()[:700], "tau": json.dumps(list(trials())[:3])}
    data = texts[kind].encode() if kind in texts else packed(path, a_sample(), a_sample(id="b")).read_bytes()
    for start, piece in edits:
        data = data[:start] + piece + data[start + len(piece) :]
    path.write_bytes(data)
    output = folder / "damaged.jsonl"
    output.unlink(missing_ok=True)
    try:
        counts = records.write(path, output)
    except Unimportable:
        assert not output.exists()
    else:
        assert len(list(read_jsonl(output))) == counts.total()


def test_the_command_writes_a_new_file_and_says_what_to_do_with_it(tmp_path: Path) -> None:
    a_source(tmp_path, a_log(a_sample(), a_sample(id="b", scores={"match": {"value": "I"}})), "today.json")
    done = uplift("import", "--records", "today.json", cwd=tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (
        0,
        "wrote today.jsonl with 2 records: 1 failed, 1 passed",
    )
    assert "uplift aggregate today.jsonl" in done.out
    again = uplift("import", "--records", "today.json", "--json", cwd=tmp_path)
    assert again.code == 2
    assert "today.jsonl exists already and is left as it is" in again.err
    told = json.loads(
        uplift("import", "--records", "today.json", "--output", "o.jsonl", "--json", cwd=tmp_path).out
    )
    assert told == {"records": "o.jsonl", "written": 2, "outcomes": {"failed": 1, "passed": 1}}
    missing = uplift("import", "--records", "none.eval", cwd=tmp_path)
    assert (missing.code, missing.err.strip()) == (2, "uplift: nothing to import at none.eval")

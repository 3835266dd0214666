"""`uplift aggregate` and `uplift compare`: what files of records say, from whoever wrote them."""

import csv
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from builders import a_record, an_artifact, both_arms
from running import start_uplift, uplift

from aggregate.artifact import file
from aggregate.artifact.model import SideRates, loads
from aggregate.records.jsonl import RecordsError
from producer.runs.from_records import aggregate_file, compare_runs
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Notes, Places
from workers.store.run_store import UnknownRun

EXPORTS = {"summary.json", "attempts.csv", "judgments.csv", "criteria.csv", "tasks.csv"}


def lines(records):
    return "".join(record.model_dump_json(exclude_none=True) + "\n" for record in records)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "state")


@pytest.fixture
def wrote(tmp_path):
    """Write records to a file, compressed where its name says so."""

    def write(records, name="records.jsonl"):
        path = tmp_path / name
        data = lines(records).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    return write


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_records_from_anywhere_become_an_artifact_a_summary_and_tables(wrote, places, name):
    path = wrote(both_arms({"a": "pp", "b": "pf"}, {"a": "ff", "b": "pf"}), name)
    (made,) = aggregate_file(path, places, RunSettings())
    assert (made.execution_pass_rate, made.baseline_pass_rate) == (1.0, 0.5)
    assert loads(places.artifact("run-1").read_bytes()) == made
    folder = places.root / "runs" / "run-1"
    assert {path.name for path in folder.iterdir()} == EXPORTS
    with (folder / "attempts.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8
    assert (
        json.loads((folder / "summary.json").read_bytes())["overall_stats"]["candidate"]["pass_rate"] == 1.0
    )


def test_the_same_records_give_the_same_bytes_in_every_file(wrote, tmp_path):
    records = both_arms({"a": "pp", "b": "te"}, {"a": "fp", "b": "ff"})
    found = []
    for number, order in enumerate((records, records[::-1])):
        root = Places(tmp_path / "x" / "state")
        aggregate_file(wrote(order, f"{number}.jsonl"), root, RunSettings())
        found.append(
            {path.name: path.read_bytes() for path in sorted(root.root.rglob("*")) if path.is_file()}
        )
        shutil.rmtree(root.root)
    assert found[0] == found[1]
    assert len(found[0]) == len(EXPORTS) + 1


def test_what_the_command_prints_and_its_exit_code_follow_the_gate_that_was_asked_for(wrote, tmp_path):
    path = wrote(both_arms({"a": "p"}, {"a": "p"}))
    words = ("aggregate", path, "--state-root", tmp_path / "state", "--quiet")
    assert uplift(*words, cwd=tmp_path).code == 0
    shutil.rmtree(tmp_path / "state")
    undecided = uplift(*words, "--gate", "decision", cwd=tmp_path)
    assert (undecided.code, undecided.line["verdict"]) == (1, "pass")


def test_a_run_of_the_state_root_keeps_its_artifact_trace_and_tables(wrote, places, tmp_path):
    places.write_notes(Notes(run_id="run-1"))
    path = wrote([a_record(), a_record(arm="baseline")])
    for output in (None, tmp_path / "other.json"):
        with pytest.raises(InvalidOption, match="has its artifact there; give another --state-root"):
            aggregate_file(path, places, RunSettings(output=output))
    assert [path.name for path in places.root.rglob("*") if path.is_file()] == ["notes.json"]


def test_an_earlier_result_is_never_written_over_and_the_line_says_what_to_type(wrote, places, tmp_path):
    nameless = [record.model_copy(update={"run_id": None}) for record in both_arms({"a": "pp"}, {"a": "fp"})]
    path = wrote(nameless, "my results.jsonl")
    words = ("aggregate", path, "--state-root", places.root, "--quiet")
    assert uplift(*words, cwd=tmp_path).code == 0
    before = {file: file.read_bytes() for file in places.root.rglob("*") if file.is_file()}
    assert places.artifact("my-results") in before

    again = uplift(*words, cwd=tmp_path)
    folder = places.root / "runs" / "my-results"
    assert again.code == 2
    assert again.err.strip().endswith(
        f"{folder} holds an earlier result; give another --state-root, or remove that: rm -r {folder}"
    )
    assert {file: file.read_bytes() for file in places.root.rglob("*") if file.is_file()} == before
    shutil.rmtree(folder)
    assert uplift(*words, cwd=tmp_path).code == 0


def test_a_candidates_result_is_not_written_over_by_a_run_of_the_same_name(wrote, places, tmp_path):
    arms = ("baseline", "candidate:x", "candidate:y")
    aggregate_file(
        wrote([a_record(arm=arm, run_id="mix") for arm in arms], "mix.jsonl"),
        places,
        RunSettings(),
    )
    before = places.artifact("mix-x").read_bytes()
    other = wrote([a_record(arm=arm, run_id="mix-x") for arm in ("baseline", "candidate")], "other.jsonl")
    with pytest.raises(InvalidOption, match="is the result of another run"):
        aggregate_file(other, places, RunSettings())
    assert places.artifact("mix-x").read_bytes() == before


def test_records_without_a_run_are_named_by_their_file(wrote, places, tmp_path):
    nameless = [a_record(run_id=None), a_record(arm="baseline", run_id=None)]
    names = {"first.jsonl": "first", "second.jsonl.gz": "second", "任务.jsonl": "records"}
    for name, run_id in names.items():
        (made,) = aggregate_file(wrote(nameless, name), places, RunSettings())
        assert made.run_id == run_id
        assert places.artifact(run_id).exists()


def test_a_baseline_that_passes_nothing_is_an_error_unless_it_was_meant_to(wrote, places):
    path = wrote(both_arms({"a": "p", "b": "p"}, {"a": "f", "b": "f"}))
    (strict,) = aggregate_file(path, places, RunSettings())
    assert (strict.verdict, strict.reason) == ("error", "baseline pass rate 0.0 % < 20.0 % (tasks passed)")
    other = Places(places.root / "other")
    (meant,) = aggregate_file(path, other, RunSettings(weak_baseline="warn"))
    assert meant.verdict == "pass"


def test_what_is_null_is_missing(wrote, tmp_path, places):
    nulls = {"tags": None, "judgments": None, "benchmarks": None, "cached": None, "tier": None}
    given = {"task": "a", "attempt": 1, "outcome": "passed", "completion": {"text": None, "cost_usd": 0.5}}
    text = "".join(json.dumps({**given, **nulls, "arm": arm}) + "\n" for arm in ("candidate", "baseline"))
    (tmp_path / "nulls.jsonl").write_text(text)
    (made,) = aggregate_file(tmp_path / "nulls.jsonl", places, RunSettings())
    assert (made.verdict, made.cost.spent_usd) == ("pass", 1.0)
    (tmp_path / "nulls.jsonl").write_text(json.dumps({**given, **nulls, "arm": None}) + "\n")
    with pytest.raises(RecordsError) as caught:
        aggregate_file(tmp_path / "nulls.jsonl", places, RunSettings())
    assert caught.value.problems == [f"{tmp_path}/nulls.jsonl:1: arm: is missing"]


def test_the_trace_of_a_failure_goes_when_the_same_run_passes(wrote, places):
    for candidate, there in (("f", True), ("p", False)):
        shutil.rmtree(places.root / "runs", ignore_errors=True)
        path = wrote(both_arms({"a": candidate}, {"a": "p"}))
        (made,) = aggregate_file(path, places, RunSettings())
        assert made.verdict == ("fail" if there else "pass")
        assert places.trace("run-1").exists() is there


@pytest.mark.parametrize("margin", [2, 1, -0.1, float("nan"), float("inf")])
def test_a_margin_that_is_no_share_is_refused(wrote, places, tmp_path, margin):
    path = wrote([a_record(), a_record(arm="baseline")])
    for words in (("aggregate", path), ("compare", path, path)):
        ended = uplift(*words, f"--margin={margin}", "--state-root", places.root, cwd=tmp_path)
        assert ended.code == 2
        assert re.search(r"--margin is \S+; must be (below 1|at least 0|a finite number)", ended.err)


def test_two_files_are_compared_and_so_are_a_file_and_a_run(wrote, places, tmp_path):
    first = wrote(both_arms({"a": "ff", "b": "pp"}, {}), "first.jsonl")
    second = places.records("second")
    second.parent.mkdir(parents=True)
    second.write_bytes(gzip.compress(lines(both_arms({"a": "pp", "b": "pp"}, {})).encode()))
    made = compare_runs(str(first), "second", places, margin=0.05)
    assert (made.delta, made.attempt_delta) == (0.5, 0.5)
    assert made.first_run == SideRates(attempt_pass_rate=0.5, mean_score=0.5)
    told = uplift("compare", first, "second", "--state-root", places.root, "--json", cwd=tmp_path)
    assert (told.code, told.line) == (0, made.model_dump(exclude_unset=True))


def test_what_cannot_be_compared_is_said_in_one_line(wrote, places):
    one = str(wrote(both_arms({"a": "p"}, {"a": "p"})))
    other = str(wrote([a_record("a", "candidate:x"), a_record("a", "candidate:y")], "other.jsonl"))
    with pytest.raises(InvalidOption, match="several candidates"):
        compare_runs(one, other, places, margin=0.05)
    with pytest.raises(UnknownRun, match="no records of run 'nowhere'"):
        compare_runs(one, "nowhere", places, margin=0.05)
    for missing in ("not/there", "there.jsonl"):
        with pytest.raises(RecordsError, match=f"^{missing}: records not found"):
            compare_runs(one, missing, places, margin=0.05)


@pytest.mark.parametrize("flag", ["--json", "--state-root=x"])
def test_a_full_or_old_standard_output_is_no_traceback(wrote, tmp_path, flag):
    path = wrote([a_record("a", score=None)])
    words = ("compare", path, path, flag)
    with Path("/dev/full").open("w") as full:
        process = start_uplift(*words, cwd=tmp_path, stdout=full)
        assert (process.communicate()[1], process.returncode) == (
            "uplift: standard output: No space left on device\n",
            3,
        )
    old = uplift(*words, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (old.code, old.err) == (0, "")


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"run_id": "run-1"}'])
def test_whatever_lies_where_artifacts_are_does_not_stop_a_comparison(places, text):
    records = places.records("run-1")
    for path in (records, places.artifact("run-1")):
        path.parent.mkdir(parents=True)
    records.write_bytes(gzip.compress(lines(both_arms({"a": "p"}, {})).encode()))
    places.artifact("run-1").write_text(text)
    assert compare_runs("run-1", str(records), places, margin=0.05).delta == 0


def test_a_run_of_the_first_release_that_stopped_at_its_verdict_is_refused_by_its_id_and_by_its_file(places):
    records = places.records("run-1")
    records.parent.mkdir(parents=True)
    records.write_bytes(gzip.compress(lines(both_arms({"a": "p"}, {})).encode()))
    file.write(an_artifact(run_id="run-1", stop_early="verdict"), places.artifact("run-1"))
    for name in ("run-1", str(records)):
        with pytest.raises(InvalidOption, match=r"stopped by `--stop-early verdict`.*run it again"):
            compare_runs(name, name, places, margin=0.05)

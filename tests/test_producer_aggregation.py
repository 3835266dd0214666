"""`uplift aggregate` and `uplift compare`: what files of records say, from whoever wrote them."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from builders import a_record, both_arms
from running import start_uplift, uplift

from aggregate.reading import RecordsError
from producer.aggregation import aggregate_file, compare_runs
from producer.options import InvalidOption
from producer.places import Notes, Places
from workers.store import UnknownRun

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
    (made,) = aggregate_file(path, places, output=None, margin=0.05)
    assert (made["execution_pass_rate"], made["baseline_pass_rate"]) == (1.0, 0.5)
    assert json.loads(places.artifact("run-1").read_bytes()) == made
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
        aggregate_file(wrote(order, f"{number}.jsonl"), root, output=None, margin=0.05)
        found.append(
            {path.name: path.read_bytes() for path in sorted(root.root.rglob("*")) if path.is_file()}
        )
    assert found[0] == found[1]
    assert len(found[0]) == len(EXPORTS) + 1


def test_what_the_command_prints_and_its_exit_code_follow_the_gate_that_was_asked_for(wrote, tmp_path):
    path = wrote(both_arms({"a": "p"}, {"a": "p"}))
    words = ("aggregate", path, "--state-root", tmp_path / "state", "--quiet")
    assert uplift(*words, cwd=tmp_path).code == 0
    undecided = uplift(*words, "--gate", "decision", cwd=tmp_path)
    assert (undecided.code, undecided.line["verdict"]) == (1, "pass")


def test_a_run_of_the_state_root_keeps_its_artifact_trace_and_tables(wrote, places, tmp_path):
    places.write_notes(Notes(run_id="run-1"))
    path = wrote([a_record(), a_record(arm="baseline")])
    for output in (None, tmp_path / "other.json"):
        with pytest.raises(InvalidOption, match="has its artifact there; give another --state-root"):
            aggregate_file(path, places, output=output, margin=0.05)
    assert [path.name for path in places.root.rglob("*") if path.is_file()] == ["notes.json"]


def test_a_baseline_that_passes_nothing_is_an_error_unless_it_was_meant_to(wrote, places):
    path = wrote(both_arms({"a": "p", "b": "p"}, {"a": "f", "b": "f"}))
    (strict,) = aggregate_file(path, places, output=None, margin=0.05)
    assert (strict["verdict"], strict["reason"]) == ("error", "baseline pass rate 0.0 < 0.2")
    (meant,) = aggregate_file(path, places, output=None, margin=0.05, weak_baseline="warn")
    assert meant["verdict"] == "pass"


def test_what_is_null_is_missing(wrote, tmp_path, places):
    nulls = {"tags": None, "judgments": None, "benchmarks": None, "cached": None, "tier": None}
    given = {"task": "a", "attempt": 1, "outcome": "passed", "completion": {"text": None, "cost_usd": 0.5}}
    text = "".join(json.dumps({**given, **nulls, "arm": arm}) + "\n" for arm in ("candidate", "baseline"))
    (tmp_path / "nulls.jsonl").write_text(text)
    (made,) = aggregate_file(tmp_path / "nulls.jsonl", places, output=None, margin=0.05)
    assert (made["verdict"], made["cost"]["spent_usd"]) == ("pass", 1.0)
    (tmp_path / "nulls.jsonl").write_text(json.dumps({**given, **nulls, "arm": None}) + "\n")
    with pytest.raises(RecordsError) as caught:
        aggregate_file(tmp_path / "nulls.jsonl", places, output=None, margin=0.05)
    assert caught.value.problems == [f"{tmp_path}/nulls.jsonl:1: arm: Field required"]


def test_the_trace_of_a_failure_goes_when_the_same_run_passes(wrote, places):
    for candidate, there in (("f", True), ("p", False)):
        path = wrote(both_arms({"a": candidate}, {"a": "p"}))
        (made,) = aggregate_file(path, places, output=None, margin=0.05)
        assert made["verdict"] == ("fail" if there else "pass")
        assert places.trace("run-1").exists() is there


@pytest.mark.parametrize("margin", [2, 1, -0.1, float("nan"), float("inf")])
def test_a_margin_that_is_no_share_is_refused(wrote, places, margin):
    path = wrote([a_record(), a_record(arm="baseline")])
    with pytest.raises(InvalidOption, match=f"--margin is {margin:g}; give a number from 0 to 1"):
        aggregate_file(path, places, output=None, margin=margin)
    with pytest.raises(InvalidOption, match="--margin is"):
        compare_runs(str(path), str(path), places, margin=margin)


def test_two_files_are_compared_and_so_are_a_file_and_a_run(wrote, places, tmp_path):
    first = wrote(both_arms({"a": "ff", "b": "pp"}, {}), "first.jsonl")
    second = places.records("second")
    second.parent.mkdir(parents=True)
    second.write_bytes(gzip.compress(lines(both_arms({"a": "pp", "b": "pp"}, {})).encode()))
    made = compare_runs(str(first), "second", places, margin=0.05)
    assert (made["delta"], made["attempt_delta"], made["curtailed"]) == (0.5, 0.5, False)
    assert made["first_run"] == {"attempt_pass_rate": 0.5, "mean_score": 0.5}
    told = uplift("compare", first, "second", "--state-root", places.root, "--json", cwd=tmp_path)
    assert (told.code, told.line) == (0, made)


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
    old = uplift(*words, cwd=tmp_path, env={"PYTHONIOENCODING": "latin-1"})
    assert (old.code, old.err) == (0, "")


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"run_id": "run-1"}'])
def test_whatever_lies_where_artifacts_are_does_not_stop_a_comparison(places, text):
    records = places.records("run-1")
    for path in (records, places.artifact("run-1")):
        path.parent.mkdir(parents=True)
    records.write_bytes(gzip.compress(lines(both_arms({"a": "p"}, {})).encode()))
    places.artifact("run-1").write_text(text)
    assert compare_runs("run-1", str(records), places, margin=0.05)["curtailed"] is False


def test_a_run_that_stopped_at_its_verdict_is_known_by_its_id_and_by_its_file(places):
    records = places.records("run-1")
    for path in (records, places.artifact("run-1")):
        path.parent.mkdir(parents=True)
    records.write_bytes(gzip.compress(lines(both_arms({"a": "p"}, {})).encode()))
    places.artifact("run-1").write_text('{"run_id": "run-1", "stop_early": "verdict", "pass_k": 3}')
    assert compare_runs("run-1", "run-1", places, margin=0.05)["curtailed"] is True
    assert compare_runs(str(records), str(records), places, margin=0.05)["curtailed"] is True

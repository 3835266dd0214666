"""`uplift aggregate` and `uplift compare`: what files of records say, from whoever wrote them."""

import csv
import gzip
import json

import pytest
from builders import a_record, both_arms
from running import uplift

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


def test_a_run_of_the_state_root_keeps_its_artifact(wrote, places, tmp_path):
    places.write_notes(Notes(run_id="run-1"))
    path = wrote([a_record(), a_record(arm="baseline")])
    with pytest.raises(InvalidOption, match="has its artifact there; give --output"):
        aggregate_file(path, places, output=None, margin=0.05)
    (made,) = aggregate_file(path, places, output=tmp_path / "other.json", margin=0.05)
    assert made["truth_anchor"] == str(tmp_path / "other.json")
    assert not places.artifact("run-1").exists()


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

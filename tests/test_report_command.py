"""`uplift report`: where files go, what is printed, and what is said when a report cannot be made."""

import json
import shutil

import pytest
from running import a_suite, standalone, the_artifact, uplift, worker

from aggregate.artifact.model import loads
from aggregate.report.result_tables import read_tasks
from producer.runs.collect import write_report
from producer.state_root import Places
from workers.store.run_store import Store

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report-command")]  # one run for all


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run's state root, and the suite beside it."""
    made = tmp_path_factory.mktemp("reported")
    ended = uplift(
        *standalone(a_suite(made, 3), "--model", "sim:baseline=0.5,candidate=0.9,seed=1"), cwd=made
    )
    assert ended.code in (0, 1), ended.err
    return made


@pytest.fixture(scope="module")
def run_id(folder):
    return the_artifact(folder)["run_id"]


def report(folder, *words):
    return uplift("report", *words, "--state-root", folder / "state", cwd=folder)


def test_evaluate_leaves_a_page_records_and_tasks_in_the_runs_folder(folder, run_id):
    run = folder / "state" / "runs" / run_id
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert [task.prompt for task in read_tasks(run / "tasks.jsonl.gz").values()] == [
        "Say word0.",
        "Say word1.",
        "Say word2.",
    ]


def test_every_format_is_written_beside_the_records_and_its_path_printed(folder, run_id):
    ended = report(folder, run_id, "--html", "--md", "--junit", "--csv", "--benchmark-json")
    assert ended.code == 0, ended.err
    run = folder / "state" / "runs" / run_id
    names = ["report.html", "report.md", "junit.xml", "tables", "benchmark"]
    assert ended.out.splitlines() == [str(run / name) for name in names]
    assert all((run / name).exists() for name in names)


def test_without_a_format_the_page_is_written(folder, run_id, tmp_path):
    ended = report(folder, run_id, "--output", tmp_path / "page.html")
    assert ended.out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_several_formats_and_an_output_make_a_folder(folder, run_id, tmp_path):
    assert report(folder, run_id, "--md", "--junit", "--output", tmp_path / "out").code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "junit.xml"}


def test_a_dash_prints_markdown_for_a_step_summary(folder, run_id):
    ended = report(folder, run_id, "--md", "--output", "-")
    assert ended.out.startswith("### ")
    refused = report(folder, run_id, "--html", "--output", "-")
    assert refused.code == 2
    assert "give it a path" in refused.err


def test_a_run_that_is_not_there_is_named_with_the_remedy(folder):
    ended = report(folder, "20200101-000000-aaaaaa")
    assert ended.code == 2
    assert "no finished run '20200101-000000-aaaaaa'" in ended.err
    assert "`uplift runs --state-root" in ended.err
    assert report(folder, "../../x").code == 2


def test_records_that_were_moved_are_asked_for_and_accepted_from_elsewhere(folder, run_id, tmp_path):
    shutil.copytree(folder / "state", tmp_path / "state")
    records = tmp_path / "state" / "runs" / run_id / "records.jsonl.gz"
    moved = records.rename(tmp_path / "elsewhere.jsonl.gz")
    refused = report(tmp_path, run_id, "--md")
    assert refused.code == 2
    assert "--records" in refused.err
    assert report(tmp_path, run_id, "--md", "--records", moved).code == 0


def test_a_workspace_does_not_replace_a_folder_of_something_else(folder, run_id, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    ended = report(folder, run_id, "--benchmark-json", "--output", tmp_path)
    assert ended.code == 2
    assert "not part of a workspace" in ended.err
    assert (tmp_path / "thesis.txt").exists()


def test_several_candidates_share_a_page_and_markdown_and_get_a_table_folder_each(folder, run_id, tmp_path):
    places = Places(tmp_path)
    artifact = loads(json.dumps(the_artifact(folder)).encode())
    made = [artifact.model_copy(update={"candidate_id": name}) for name in ("one", "../two")]
    records = folder / "state" / "runs" / run_id / "records.jsonl.gz"
    [page] = write_report(made, places, "html", records=records)
    assert page == tmp_path / "runs" / run_id / "report.html"
    assert page.read_text().count("data-goes-to=") == 2
    [text] = write_report(made, places, "md", records=records)
    assert text.read_text().startswith("### 2 candidates, best first (simulated)\n")
    first, second = write_report(made, places, "junit", records=records)
    assert first == tmp_path / "runs" / run_id / "junit-one.xml"
    assert second.parent == first.parent
    assert second.name.startswith("junit-two~")
    assert places.report(made[1], "junit.xml", several=True) == second


def test_a_run_that_ran_nothing_has_a_report_without_records(folder, tmp_path):
    nothing = {"verdict": "skipped", "attempts": None, "run_id": "none", "answer": None}
    artifact = loads(json.dumps(the_artifact(folder)).encode()).model_copy(update=nothing)
    [path] = write_report([artifact], Places(tmp_path), "html")
    assert "SKIPPED: nothing was run" in path.read_text()


def test_a_run_that_ended_on_a_broker_is_brought_home(tmp_path, valkey, client, eventually):
    suite = a_suite(tmp_path, 2)
    detached = uplift(*standalone(suite, "--mock", "--detach", "--broker", valkey), cwd=tmp_path)
    run_id = detached.out.strip()
    unfinished = report(tmp_path, run_id, "--broker", valkey)
    assert unfinished.code == 2
    assert f"uplift watch {run_id}" in unfinished.err
    with worker(valkey, tmp_path):
        eventually(lambda: Store(client).artifacts(run_id) is not None)
    written = report(tmp_path, run_id, "--broker", valkey, "--md", "--output", "-")
    assert written.code == 0, written.err
    assert all(name in written.out for name in ("task-0", "task-1"))
    assert the_artifact(tmp_path)["run_id"] == run_id

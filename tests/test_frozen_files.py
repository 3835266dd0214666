"""Files that earlier versions wrote are read: state roots, records, baseline caches and blessed baselines.

`tests/frozen/README.md` says who wrote them. Numbers come from the frozen artifacts or were counted in the suite.
"""

import gzip
import json
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from running import uplift

FROZEN = Path(__file__).parent / "frozen"
VERSIONS = sorted(path.stem for path in (FROZEN / "files").iterdir())
MODEL = "sim:baseline=0.6,candidate=0.9,cost=0.01,seed=3"
TASKS = 7
COMMON = ("--standalone", "--task-suite", "suite.yaml", "--quiet", "--json")


@pytest.fixture(params=VERSIONS)
def folder(request, short_tmp):
    """The suite, and beside it what one version wrote."""
    shutil.copytree(FROZEN / "suite", short_tmp / "w")
    shutil.unpack_archive(FROZEN / "files" / f"{request.param}.zip", short_tmp / "w")
    return short_tmp / "w"


@pytest.fixture
def told(folder):
    """What a command says in that folder; it must end well."""

    def run(*words, code=0):
        ended = uplift(*words, cwd=folder)
        assert ended.code == code, ended.err
        return ended

    return run


def runs_of(folder):
    """The ids of the runs in order: two of the simulated model, one of a declared program."""
    return sorted(path.name for path in (folder / "state" / "runs").iterdir())


def artifact_of(folder, run_id):
    return json.loads((folder / "state" / "evaluations" / f"{run_id}.json").read_text())


def records_in(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def made_now(cache):
    """Date a cache's entries to this minute: they are used for a week."""
    for path in cache.glob("??/*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"created": time.time()}))


def test_a_state_root_lists_its_runs_and_each_is_shown_as_it_ended(folder, told):
    rows = json.loads(told("runs", "--json", "--state-root", "state").out)
    written = {run_id: artifact_of(folder, run_id) for run_id in runs_of(folder)}
    assert {row["run_id"]: row["verdict"] for row in rows} == dict.fromkeys(written, "pass")
    for run_id, artifact in written.items():
        line = told("watch", run_id, "--state-root", "state").line
        names = ("execution_pass_rate", "baseline_pass_rate", "delta", "verdict")
        assert line == {name: artifact[name] for name in names}
        standing = json.loads(told("status", run_id, "--json", "--state-root", "state").out)
        assert (standing["run"], standing["state"]) == (run_id, "finished")
        assert {name: standing[name] for name in names} == line
    first = runs_of(folder)[0]
    lines = told("show", first, "syllables-in-python", "--json", "--state-root", "state").out.splitlines()
    kept = records_in(folder / "state" / "runs" / first / "records.jsonl.gz")
    answers = [one["completion"]["text"] for one in kept if one["task"] == "syllables-in-python"]
    assert len(answers) == 4
    assert Counter(json.loads(line)["completion"]["text"] for line in lines) == Counter(answers)


def test_every_report_is_made_from_an_earlier_artifact(folder, told):
    for run_id in runs_of(folder):
        formats = ("--html", "--md", "--junit", "--csv", "--benchmark-json")
        told("report", run_id, *formats, "--state-root", "state")
        place, artifact = folder / "state" / "runs" / run_id, artifact_of(folder, run_id)
        rate = f"{100 * artifact['execution_pass_rate']:.1f} %"
        assert rate in (place / "report.html").read_text()
        assert (
            f"| Tasks passed (any of {artifact['pass_k']}) |".replace(" (any of 1)", "")
            in (place / "report.md").read_text()
        )
        count = len(artifact["candidate_results"]) + len(artifact["baseline_results"])
        assert (place / "junit.xml").read_text().count("<testcase ") == count + 1  # the answer
        attempts = (place / "tables" / "attempts.csv").read_text().splitlines()
        assert len(attempts) == 1 + len(records_in(place / "records.jsonl.gz"))
        assert (place / "benchmark" / "benchmark.json").is_file()


def test_records_are_aggregated_to_the_numbers_of_their_time(folder, told):
    for number, run_id in enumerate(runs_of(folder)):
        records = Path("state", "runs", run_id, "records.jsonl.gz")
        made = told("aggregate", records, "--state-root", f"again-{number}", "--quiet", "--json").line
        written = artifact_of(folder, run_id)
        names = ("execution_pass_rate", "baseline_pass_rate", "delta", "attempt_delta", "verdict", "pass_k")
        assert {name: made[name] for name in names} == {name: written[name] for name in names}
        assert [row["task_id"] for row in made["candidate_results"]] == [
            row["task_id"] for row in written["candidate_results"]
        ]


def test_two_runs_are_compared_by_their_ids_and_by_their_records(folder, told):
    first, second, _ = runs_of(folder)
    by_id = json.loads(told("compare", first, second, "--json", "--state-root", "state").out)
    paths = [Path("state", "runs", run_id, "records.jsonl.gz") for run_id in (first, second)]
    by_file = json.loads(told("compare", *paths, "--json").out)
    rates = []
    for path in paths:
        ran = [one for one in records_in(folder / path) if one["arm"] == "candidate"]
        passed = Counter(one["task"] for one in ran if one["outcome"] == "passed")
        rates.append(sum(passed.values()) / len(ran))
    for compared in (by_id, by_file):
        assert compared["n_pairs"] == TASKS
        assert compared["attempt_delta"] == pytest.approx(rates[1] - rates[0], abs=1e-6)


@pytest.mark.slow
def test_answers_of_an_earlier_run_are_judged_again(folder, told):
    first, _, last = runs_of(folder)
    rejudge = partial(
        told, "rejudge", "--state-root", "state", "--task-suite", "suite.yaml", "--quiet", "--json"
    )
    for run_id in (first, last):
        made, written = rejudge(run_id).line, artifact_of(folder, run_id)
        assert (made["rejudged_from"], made["status"]) == (run_id, "finished")
        names = ("execution_pass_rate", "baseline_pass_rate", "delta", "attempt_delta", "verdict")
        assert {name: made[name] for name in names} == {name: written[name] for name in names}


@pytest.mark.slow
def test_baseline_attempts_come_from_an_earlier_cache_and_none_is_made(folder, told):
    made_now(folder / "cache")
    evaluate = partial(told, "evaluate", *COMMON, "--skill-path", "skill", "--baseline-path", "old")
    evaluate = partial(evaluate, "--state-root", "other", "--baseline-cache-dir", "cache")
    # A program could reach all that the worker can when its entry was made, so that is run again.
    for model, count, cached in (
        (("--model", MODEL, "--pass-k", "3"), 3 * TASKS, True),
        (("--model", "command:echo", "--tag", "echo"), 1, False),
        (("--model", "command:echo", "--tag", "echo"), 1, True),
    ):
        ended = evaluate(*model)
        assert ended.line["attempts"]["cached"] == count * cached
        kept = records_in(folder / "other" / "runs" / ended.line["run_id"] / "records.jsonl.gz")
        assert Counter((one["arm"], one["cached"]) for one in kept) == {
            ("baseline", cached): count,
            ("candidate", False): count,
        }


@pytest.mark.slow
def test_a_blessed_baseline_of_an_earlier_run_is_compared_with_and_not_run(folder, told):
    first = runs_of(folder)[0]
    words = ("--skill-path", "new", "--baseline-artifact", "baseline.json", "--model", MODEL, "--pass-k", "2")
    made = told("evaluate", *COMMON, *words, "--state-root", "other").line
    written = artifact_of(folder, first)
    assert made["baseline_run_id"] == first
    assert made["baseline_pass_rate"] == written["execution_pass_rate"]
    kept = records_in(folder / "other" / "runs" / made["run_id"] / "records.jsonl.gz")
    assert Counter((one["arm"], one["cached"]) for one in kept) == {
        ("baseline", True): 2 * TASKS,
        ("candidate", False): 2 * TASKS,
    }
    assert len(made["candidate_results"]) == TASKS  # no task counts as changed since


def test_an_earlier_run_is_blessed_to_the_file_that_its_own_version_wrote(folder, told):
    told("bless", runs_of(folder)[0], "--state-root", "state", "--output", "again.json")
    assert json.loads((folder / "again.json").read_text()) == json.loads(
        (folder / "baseline.json").read_text()
    )

"""Judge stored completions again: other pass rates from the same words, and nothing paid for them."""

import gzip
import json
import shutil
import sys

import pytest
from builders import a_record
from running import a_suite, standalone, uplift, worker

from aggregate.artifact import build as artifacts
from aggregate.artifact import file
from aggregate.records.run_info import CandidateInfo, RunInfo
from judges.judgment import Completion
from producer.baselines import fingerprints
from producer.baselines.fingerprints import Grounds
from producer.runs import rejudge as rejudging
from producer.runs.collect import Workspaces, write_lines, write_records
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Places
from producer.suites.suite import load
from workers.store.bundles import pack_files
from workers.store.run_store import Store, UnknownRun

MODEL = "anthropic:some-model"
PRICED = "sim:baseline=0.5,candidate=1,seed=3,cost=0.01"


def a_run(folder, *records, tasks=2, **fields):
    """A finished run in a state root, as `collect` leaves it; its artifact."""
    suite, places = a_suite(folder, tasks), Places(folder / "state")
    info = RunInfo(run_id="old", task_suite=str(suite), models=(MODEL,), **fields)
    write_records(places.records("old"), records)
    write_lines(places.tasks("old"), (task.model_dump_json(by_alias=True) for task in load(suite).tasks))
    (made,) = artifacts.build(info, records)
    file.write(made, places.artifact("old"))
    return made, places


def said(text="word0", **fields):
    return Completion(text=text, cost_usd=0.5, cost_source="provider", **fields)


def records_of(folder, run_id):
    with gzip.open(folder / "state" / "runs" / run_id / "records.jsonl.gz") as file:
        return {(r["task"], r["arm"], r["attempt"]): r for r in map(json.loads, file)}


def artifacts_of(folder):
    found = [json.loads(path.read_text()) for path in (folder / "state" / "evaluations").glob("*.json")]
    return {one["rejudged_from"]: one for one in found}


def rejudge(folder, run_id, *more):
    return uplift("rejudge", run_id, "--state-root", folder / "state", *more, cwd=folder)


def a_stricter(suite, *, task=0):
    """The same suite in which nothing can pass one of its tasks."""
    strict = suite.with_name("strict.yaml")
    text = suite.read_text()
    strict.write_text(text.replace(f"expected: [word{task}]", f"expected: [word{task}, nowhere]"))
    return strict


# What a plan takes over, and what it says


def test_the_plan_has_the_arms_models_and_rules_of_the_old_run(tmp_path):
    made, places = a_run(
        tmp_path, a_record("task-0"), margin=0.1, gate="decision", gate_cost="+5%", baseline="bare"
    )
    plan = rejudging.plan([made], places, RunSettings())
    assert [arm.name for arm in plan.arms] == ["baseline", "candidate"]
    assert plan.options.models == (MODEL,)
    assert (plan.options.margin, plan.options.gate, plan.options.gate_cost) == (0.1, "decision", "+5%")
    assert rejudging.plan([made], places, RunSettings(gate_cost="+7%")).info().gate_cost == "+7%"
    info = plan.info()
    assert (info.baseline, info.rejudged_from) == ("bare", "old")
    assert info.run_id != "old"


def test_judged_again_with_nothing_changed_a_run_ends_as_it_did(tmp_path):
    """A weak baseline that was forgiven stays forgiven, and a candidate that was let in stays in."""
    both = [a_record("task-0", arm="candidate"), a_record("task-0", arm="baseline", outcome="failed")]
    candidates = (CandidateInfo(candidate_id="c", score=3.0),)
    made, places = a_run(
        tmp_path, *both, weak_baseline="warn", eval_threshold=2.0, candidates=candidates, tasks=1
    )
    assert made.verdict == "pass"
    (again,) = artifacts.build(rejudging.plan([made], places, RunSettings()).info(), both)
    assert again.verdict == "pass"
    strict = rejudging.plan([made], places, RunSettings(weak_baseline="error"))
    assert strict.info().weak_baseline == "error"


def test_a_config_is_for_runs_that_start_and_not_for_a_run_that_is_judged_again(tmp_path):
    a_run(tmp_path, a_record("task-0"), margin=0.1, gate="decision")
    (tmp_path / "uplift.toml").write_text('margin = 0.3\ngate = "regression"\ngate_cost = "+3%"\n')
    rejudge(tmp_path, "old")
    again = artifacts_of(tmp_path)["old"]
    assert (again["margin"], again["gate"], again["gate_cost"]) == (0.1, "decision", None)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (
            {"gate_cost": "10"},
            "--gate-cost: '10' says not how much more it may cost; write it as in [+]10%",
        ),
        ({"margin": 5.0}, "--margin is 5.0; must be below 1"),
    ],
)
def test_rules_that_make_no_sense_are_refused_before_anything_is_judged(tmp_path, wishes, words):
    a_run(tmp_path, a_record("task-0"))
    with pytest.raises(InvalidOption, match=words):
        RunSettings.checked(wishes)


def test_a_run_without_a_baseline_stays_without_one(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"), baseline="none")
    plan = rejudging.plan([made], places, RunSettings())
    assert [arm.name for arm in plan.arms] == ["candidate"]
    assert plan.info().baseline == "none"


def test_tasks_that_the_run_did_not_have_are_left_out_and_named_with_their_place(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    larger = a_suite(tmp_path / "other", 3)
    plan = rejudging.plan([made], places, RunSettings(task_suite=larger))
    assert [task.id for task in plan.suite.tasks] == ["task-0", "task-1"]
    (line,) = [text for text in plan.warnings if "no completions" in text]
    assert line.startswith(f"{larger}:12:9  tasks[2]: ")


def test_a_prompt_that_has_changed_is_judged_all_the_same_with_a_warning_at_its_place(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    suite = a_suite(tmp_path / "other", 2)
    suite.write_text(suite.read_text().replace("Say word1.", "Shout word1."))
    plan = rejudging.plan([made], places, RunSettings(task_suite=suite))
    assert len(plan.suite.tasks) == 2
    (line,) = [text for text in plan.warnings if "earlier version of this prompt" in text]
    assert line.startswith(f"{suite}:8:9  tasks[1]: ")


def test_a_suite_without_any_task_of_the_run_is_refused(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    other = a_suite(tmp_path / "other", 1)
    other.write_text(other.read_text().replace("task-0", "elsewhere"))
    with pytest.raises(InvalidOption, match="no task of run old"):
        rejudging.plan([made], places, RunSettings(task_suite=other))


def test_a_run_whose_suite_is_gone_asks_for_one(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    (tmp_path / "suite.yaml").unlink()
    with pytest.raises(InvalidOption, match="--task-suite"):
        rejudging.plan([made], places, RunSettings())


def test_a_run_whose_records_are_gone_cannot_be_judged_again(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    places.records("old").unlink()
    with pytest.raises(UnknownRun, match="records are not there"):
        rejudging.plan([made], places, RunSettings())


# What goes to the server


def test_only_answers_are_judged_again_and_everything_else_keeps_its_outcome(tmp_path, client):
    records = [
        a_record("task-0", "baseline", completion=said("word0")),
        a_record("task-0", "candidate", outcome="timeout", error="no answer within 3 s"),
        a_record("task-1", "baseline", outcome="error", error="unreadable grade", completion=said("hm")),
    ]
    made, places = a_run(tmp_path, *records)
    plan = rejudging.plan([made], places, RunSettings())
    kept = rejudging._bring(plan, places, Store(client)).cached
    assert {(one.task, one.arm): one.outcome for one in kept.values()} == {
        ("task-0", "candidate"): "timeout",
        ("task-1", "candidate"): "error",
    }
    assert {one.run_id for one in kept.values()} == {plan.run_id}
    missing = next(one for one in kept.values() if one.outcome == "error")
    assert missing.error == "run old made no such attempt"
    assert client.hlen(f"uplift:{plan.run_id}:stored") == 2  # the answer, and the one whose judge broke


def test_what_a_failed_model_has_used_is_no_answer_to_judge(tmp_path, client):
    paid = Completion(input_tokens=1000, output_tokens=7, cost_usd=0.01)
    made, places = a_run(tmp_path, a_record("task-0", outcome="error", error="refused", completion=paid))
    plan = rejudging.plan([made], places, RunSettings())
    kept = rejudging._bring(plan, places, Store(client)).cached
    assert [one.error for one in kept.values() if one.task == "task-0" and one.completion] == ["refused"]
    assert client.hlen(f"uplift:{plan.run_id}:stored") == 0


def test_the_files_that_agents_left_travel_with_their_answers(tmp_path, client):
    bundle = pack_files({"made.txt": b"hello"})
    made, places = a_run(tmp_path, a_record("task-0", completion=said(), workspace=bundle.digest))
    places.workspaces("old").mkdir(parents=True)
    (places.workspaces("old") / bundle.digest).write_bytes(bundle.data)
    rejudging._bring(rejudging.plan([made], places, RunSettings()), places, Store(client))
    assert Store(client).bundle(bundle.digest) == bundle.data


def test_a_rejudged_run_rests_on_what_the_old_one_noted_but_for_questions_that_changed(tmp_path):
    made, places = a_run(tmp_path, a_record("task-0"))
    noted = Grounds(tasks={}, skill_mode="mount", settings={MODEL: "s"}, skills={"candidate": "d"})
    fingerprints.write(places, "old", noted)
    suite = a_suite(tmp_path / "other", 2)
    suite.write_text(suite.read_text().replace("Say word1.", "Shout word1."))
    plan = rejudging.plan([made], places, RunSettings(task_suite=suite, judge_model="openai:judge"))
    rejudging._note_grounds(plan, plan.rejudged_from, places)
    now = fingerprints.read(places, plan.run_id)
    assert now is not None
    assert set(now.tasks) == {"task-0"}
    assert (now.judge_model, now.skill_mode, now.settings) == ("openai:judge", "mount", {MODEL: "s"})


# The files that agents leave


def test_workspaces_are_kept_once_up_to_the_limit_and_losses_are_said(tmp_path, client):
    store = Store(client)
    found = [pack_files({"a.txt": bytes([number]) * 50}) for number in range(3)]
    for bundle in found:
        store.put_bundle(bundle.digest, bundle.data)
    records = [a_record(f"task-{n}", workspace=found[n % 3].digest) for n in range(6)]
    room = len(found[0].data) * 2 + 10
    kept = Workspaces(tmp_path / "workspaces", max_bytes=room)
    for record in records:
        kept.note(record)
    lost = kept.save(store)
    assert len(list((tmp_path / "workspaces").iterdir())) == 2
    assert lost is not None
    assert "in 2 attempts" in lost


def test_a_workspace_name_that_is_no_digest_is_never_a_path(tmp_path, client):
    kept = Workspaces(tmp_path / "workspaces")
    kept.note(a_record(workspace="../../etc/passwd"))
    assert kept.save(Store(client)) is None
    assert kept.read("../../../etc/passwd") is None


# Whole runs


@pytest.mark.slow
def test_a_stricter_suite_gives_other_rates_from_the_same_words_for_nothing(short_tmp):
    suite = a_suite(short_tmp, 4)
    ran = uplift(*standalone(suite, "--model", PRICED, "--pass-k", "2"), cwd=short_tmp)
    assert ran.line["execution_pass_rate"] == 1.0, ran.err
    old = artifacts_of(short_tmp)[None]
    again = rejudge(short_tmp, old["run_id"], "--task-suite", a_stricter(suite))
    assert again.line["execution_pass_rate"] == 0.75, again.err
    new = artifacts_of(short_tmp)[old["run_id"]]
    assert new["run_id"] != old["run_id"]
    assert any("judged again" in text for text in new["warnings"])
    before, after = records_of(short_tmp, old["run_id"]), records_of(short_tmp, new["run_id"])
    assert {key: r["completion"]["text"] for key, r in before.items()} == {
        key: r["completion"]["text"] for key, r in after.items()
    }
    assert {r["model"] for r in after.values()} == {PRICED}
    assert (new["cost"]["spent_usd"], old["cost"]["spent_usd"]) == (0, 0.16)
    assert new["cost"]["by_arm"] == {
        arm: {**values, "cop": new["cost"]["by_arm"][arm]["cop"]}  # of a pass there are fewer now
        for arm, values in old["cost"]["by_arm"].items()
    }
    assert not list((short_tmp / "state" / "embedded").iterdir())


@pytest.mark.slow
def test_a_run_of_a_shared_broker_is_judged_again_by_its_workers(short_tmp, valkey):
    suite = a_suite(short_tmp, 3)
    with worker(valkey, short_tmp):
        ran = uplift(*standalone(suite, "--model", PRICED, "--broker", valkey), cwd=short_tmp)
        old = artifacts_of(short_tmp)[None]
        again = rejudge(short_tmp, old["run_id"], "--broker", valkey, "--task-suite", a_stricter(suite))
    assert (ran.line["execution_pass_rate"], again.line["execution_pass_rate"]) == (1.0, 0.6667), again.err
    assert artifacts_of(short_tmp)[old["run_id"]]["cost"]["spent_usd"] == 0


AGENT = "open('made.txt', 'w').write(open(0).read().strip()); print('done')"
AGENT_SUITE = """\
skill_id: haiku
version: "1.0"
tasks:
  - id: leaves-a-file
    prompt: hello
    judge: {type: pytest, test_file: fixtures/test_it.py}
"""
TEST = """\
import os, pathlib
def test_the_file():
    assert WANTED in pathlib.Path(os.environ["AI_WORKSPACE"], "made.txt").read_text()
"""


@pytest.mark.slow
def test_a_pytest_judge_sees_the_files_of_an_agent_again_after_the_server_is_gone(short_tmp):
    suite = a_suite(short_tmp, 1)
    suite.write_text(AGENT_SUITE)
    (short_tmp / "fixtures").mkdir()
    (short_tmp / "fixtures/test_it.py").write_text(TEST.replace("WANTED", "'hello'"))
    argv = json.dumps([sys.executable, "-c", AGENT])
    (short_tmp / "uplift.toml").write_text(f"[commands.writer]\nargv = {argv}\n")
    ran = uplift(*standalone(suite, "--model", "command:writer"), cwd=short_tmp)
    assert ran.line["execution_pass_rate"] == 1.0, ran.err
    old = artifacts_of(short_tmp)[None]
    (short_tmp / "uplift.toml").unlink()  # the agent is not needed any more
    (short_tmp / "fixtures/test_it.py").write_text(TEST.replace("WANTED", "'goodbye'"))
    again = rejudge(short_tmp, old["run_id"], "--weak-baseline", "warn")
    assert again.line["execution_pass_rate"] == 0.0, again.err
    new = artifacts_of(short_tmp)[old["run_id"]]
    assert new["errors"] == {"baseline": [], "candidate": []}
    shutil.rmtree(short_tmp / "state" / "runs" / old["run_id"] / "workspaces")
    broken = rejudge(short_tmp, old["run_id"])
    assert (broken.code, broken.line["verdict"]) == (3, "error")
    assert "were not kept" in broken.err

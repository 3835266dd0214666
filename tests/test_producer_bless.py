"""A blessed run is the baseline of later runs: compared with, never run; what no longer fits is left out or refused."""

import gzip
import json
from pathlib import Path

import pytest
from builders import a_record, an_artifact
from running import a_suite, standalone, uplift

from aggregate.artifact.build import build
from aggregate.artifact.model import AttemptCounts
from judges.judgment import Completion
from producer import plan as plans
from producer.baselines import bless as blessing
from producer.baselines import fingerprints
from producer.baselines.bless import NotBlessed
from producer.baselines.cache import look_up
from producer.runs.collect import write_records
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Places

MODEL = "anthropic:some-model"


def options(folder: Path, **fields) -> RunSettings:
    values = {
        "task_suite": folder / "suite.yaml",
        "state_root": folder / "state",
        "standalone": True,
        "skill_path": folder / "skill",
        "models": (MODEL,),
        "pass_k": 2,
    }
    return RunSettings(**{**values, **fields})


def a_blessed_run(folder: Path, *, tasks=3, outcomes=None, **fields):
    """A finished run of two attempts a task in a state root, blessed into baseline.json."""
    a_suite(folder, tasks)
    plan = plans.make(options(folder, **fields), run_id="old")
    places = Places(folder / "state")
    outcomes = outcomes or {}
    records = [
        a_record(
            f"task-{task}",
            arm,
            number,
            outcome=outcomes.get((f"task-{task}", arm), "passed"),
            completion=Completion(text="hi", cost_usd=0.5, agent_version="1.0"),
            workspace="0" * 64,
            worker="host:1",
        )
        for task in range(tasks)
        for arm in ("baseline", "candidate")
        for number in (1, 2)
    ]
    fingerprints.write(places, "old", fingerprints.of(plan))
    write_records(places.records("old"), records)
    (artifact,) = build(plan.info(), records)
    return artifact, places


def bless(folder: Path, **how) -> Path:
    artifact, places = a_blessed_run(folder, **how)
    path = folder / "baseline.json"
    path.write_text(blessing.dumps(blessing.bless(artifact, places)[0]))
    return path


def evaluated(folder: Path, path: Path, **fields):
    return blessing.with_baseline(plans.make(options(folder, baseline_artifact=path, **fields)), path)


# Blessing


def test_the_file_holds_the_candidates_records_and_nothing_of_where_they_were_made(tmp_path):
    path = bless(tmp_path)
    content = json.loads(path.read_text())
    assert [(r["task"], r["attempt"]) for r in content["records"]] == [
        (f"task-{task}", number) for task in range(3) for number in (1, 2)
    ]
    assert {r["arm"] for r in content["records"]} == {"baseline"}
    assert "host:1" not in path.read_text()
    assert set(content["grounds"]["tasks"]) == {"task-0", "task-1", "task-2"}
    assert len(path.read_text().splitlines()) == 1 + 6 + 1  # a change of one record is a change of one line


def test_a_task_with_an_attempt_that_was_not_judged_is_left_out_and_named(tmp_path):
    artifact, places = a_blessed_run(tmp_path, outcomes={("task-1", "candidate"): "error"})
    blessed, warnings = blessing.bless(artifact, places)
    assert set(blessed.grounds.tasks) == {"task-0", "task-2"}
    assert warnings == ["task task-1 is left out: not all its attempts were judged"]


SOME_SKIPPED = AttemptCounts(planned=5, run=2, skipped=3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "cancelled"}, "is cancelled"),
        ({"stop_early": "decision", "attempts": SOME_SKIPPED}, "stopped early"),
    ],
)
def test_a_run_that_did_not_make_all_its_attempts_is_not_blessed(tmp_path, change, says):
    artifact, places = a_blessed_run(tmp_path)
    with pytest.raises(NotBlessed, match=says):
        blessing.bless(artifact.model_copy(update=change), places)


def test_a_run_that_was_started_elsewhere_is_not_blessed_here(tmp_path):
    artifact, places = a_blessed_run(tmp_path)
    (places.run("old") / "grounds.json").unlink()
    with pytest.raises(NotBlessed, match="bless it where it was started"):
        blessing.bless(artifact, places)


def test_with_several_candidates_one_must_be_chosen():
    made = [an_artifact(candidate_id=name) for name in ("a", "b")]
    with pytest.raises(NotBlessed, match="--candidate-id; the run has a, b"):
        blessing.choose(made, None)
    assert blessing.choose(made, "b") == made[1]
    with pytest.raises(NotBlessed, match="one candidate, without an id; leave --candidate-id out"):
        blessing.choose([an_artifact()], "b")


# Being compared with it


def test_every_baseline_attempt_comes_from_the_file_and_none_is_run(tmp_path):
    plan = evaluated(tmp_path, bless(tmp_path))
    reuse = look_up(plan, 0.0)
    baseline = {index for index in range(plan.grid.attempts) if plan.grid.cell(index).arm == 0}
    assert plan.arms[0].name == "baseline"
    assert set(reuse.cached) == baseline
    assert {(r.arm, r.run_id, r.cached) for r in reuse.cached.values()} == {("baseline", plan.run_id, True)}
    info = plan.info()
    assert (info.baseline, info.baseline_run_id) == ("skill", "old")
    assert any("candidate of run old" in text for text in plan.warnings)


def test_fewer_attempts_than_blessed_take_the_first_ones(tmp_path):
    reuse = look_up(evaluated(tmp_path, bless(tmp_path), pass_k=1), 0.0)
    assert sorted((r.task, r.attempt) for r in reuse.cached.values()) == [(f"task-{n}", 1) for n in range(3)]


def test_a_changed_task_is_left_out_of_both_arms_with_a_warning_at_its_place(tmp_path):
    path = bless(tmp_path)
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite.read_text().replace("Say word1.", "Shout word1."))
    plan = evaluated(tmp_path, path)
    assert [task.id for task in plan.suite.tasks] == ["task-0", "task-2"]
    (line,) = [text for text in plan.warnings if "changed since" in text]
    assert line.startswith(f"{suite}:8:9  tasks[1]: ")
    assert set(look_up(plan, 0.0).cached) == {0, 2, 4, 6}


def test_a_new_description_or_tier_is_no_change(tmp_path):
    path = bless(tmp_path)
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite.read_text().replace("tier: T1", "tier: T3"))
    plan = evaluated(tmp_path, path)
    assert len(plan.suite.tasks) == 3
    assert {r.tier for r in look_up(plan, 0.0).cached.values()} == {"T2", "T3"}


def test_a_new_task_is_left_out_until_it_is_blessed(tmp_path):
    path = bless(tmp_path)
    a_suite(tmp_path, 4)
    plan = evaluated(tmp_path, path)
    assert len(plan.suite.tasks) == 3
    assert any("tasks[3]" in text and "not in" in text for text in plan.warnings)


def test_a_task_whose_attempts_were_cut_out_of_the_file_is_left_out_and_never_run_bare(tmp_path):
    path = bless(tmp_path)
    content = json.loads(path.read_text())
    content["records"] = content["records"][1:]
    path.write_text(json.dumps(content))
    plan = evaluated(tmp_path, path)
    assert [task.id for task in plan.suite.tasks] == ["task-1", "task-2"]


def test_a_suite_of_which_nothing_is_left_is_refused(tmp_path):
    path = bless(tmp_path)
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite.read_text().replace("Say ", "Shout "))
    with pytest.raises(InvalidOption, match="covers no task"):
        evaluated(tmp_path, path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"models": ("openai:other",)}, f"has no attempts of openai:other; it was blessed with {MODEL}"),
        ({"pass_k": 3}, "has 2 attempts a task"),
        ({"skill_mode": "mount"}, "--skill-mode None, not mount"),
        ({"params": {"temperature": 0}}, f"program or another setting of {MODEL} were others"),
        ({"no_baseline": True}, "excludes --baseline-path and --no-baseline"),
    ],
)
def test_a_comparison_of_more_than_the_skill_is_refused(tmp_path, fields, says):
    path = bless(tmp_path)
    with pytest.raises(InvalidOption, match=says):
        evaluated(tmp_path, path, **fields)


def test_another_judge_is_refused_where_a_model_judges(tmp_path):
    path = bless(tmp_path)
    assert evaluated(tmp_path, path, judge_model="openai:judge")  # contains tasks know no judge's model
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        suite.read_text() + "  - {id: nice, prompt: hi, judge: {type: llm-rubric, rubric: Nice?}}\n"
    )
    with pytest.raises(InvalidOption, match="judged by the run's own model, not by openai:judge"):
        evaluated(tmp_path, path, judge_model="openai:judge")


def test_candidates_that_meet_the_same_blessed_baseline_are_counted_where_a_cache_is_kept(tmp_path):
    path = bless(tmp_path)
    counts = []
    for number in range(3):
        (tmp_path / "skill/SKILL.md").write_text(f"---\nname: haiku\ndescription: x\n---\nVersion {number}\n")
        plan = evaluated(tmp_path, path, baseline_cache_dir=tmp_path / "cache")
        counts.append(look_up(plan, 0.0).comparisons)
    assert counts == [1, 2, 3]


# Files that are not what they should be


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid JSON"),
        ("[]", "file: "),
        ('{"format": "other"}', "format: is 'other'; must be 'uplift-baseline'"),
        ("{" * 5000, "invalid JSON"),
        ('{"truth_anchor": "x.json"}', "is the artifact of a run; `uplift bless RUN` makes a baseline"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_its_place(tmp_path, text, says):
    path = bless(tmp_path)
    path.write_text(text)
    with pytest.raises(NotBlessed) as refused:
        evaluated(tmp_path, path)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


def test_a_record_outside_its_range_is_refused(tmp_path):
    path = bless(tmp_path)
    content = json.loads(path.read_text())
    content["records"][0]["score"] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(NotBlessed, match=r"records\[0\]\.score"):
        evaluated(tmp_path, path)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    a_suite(tmp_path)
    with pytest.raises(NotBlessed, match="uplift bless RUN"):
        evaluated(tmp_path, tmp_path / "none.json")


# A whole run


@pytest.mark.slow
def test_a_blessed_run_is_compared_with_and_not_paid_again(short_tmp):
    suite = a_suite(short_tmp, 3)
    sim = "sim:baseline=0,candidate=1,cost=0.01"
    first = uplift(*standalone(suite, "--model", sim, "--no-baseline"), cwd=short_tmp)
    assert first.code == 0, first.err
    (old,) = (short_tmp / "state" / "runs").iterdir()
    blessed = uplift(
        *("bless", old.name, "--output", "baseline.json", "--state-root", short_tmp / "state"), cwd=short_tmp
    )
    assert (blessed.code, blessed.out.strip()) == (0, "baseline.json"), blessed.err
    second = uplift(
        *standalone(suite, "--model", sim, "--baseline-artifact", "baseline.json"),
        *("--output", "second.json"),
        cwd=short_tmp,
    )
    assert (second.code, second.line["baseline_pass_rate"]) == (0, 1.0), second.err
    artifact = json.loads((short_tmp / "second.json").read_text())
    assert artifact["baseline_run_id"] == old.name
    assert artifact["cost"]["spent_usd"] == pytest.approx(0.03)
    path = short_tmp / "state" / "runs" / artifact["run_id"] / "records.jsonl.gz"
    with gzip.open(path) as file:
        records = [json.loads(line) for line in file]
    assert {(r["arm"], r["cached"]) for r in records} == {("baseline", True), ("candidate", False)}
    refused = uplift(
        *standalone(suite, "--model", "sim", "--baseline-artifact", "baseline.json"), cwd=short_tmp
    )
    assert (refused.code, "has no attempts of sim" in refused.err) == (2, True)

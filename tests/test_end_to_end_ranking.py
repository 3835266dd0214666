"""A pipeline's ranking from the command line to the artifact: who is run, what each one gets, and what others read."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from running import SKILL, a_suite, uplift

from aggregate.records.run_info import RunInfo
from producer import plan as plans
from producer.plan import Plan
from producer.settings.run_settings import RunSettings

SOURCE = "generic-skill-haiku-20260101T000000Z"


def an_edit(target_path: Path, heading: str | None = "## Operator notes", **fields: Any) -> dict[str, Any]:
    """A candidate as the pipeline's proposer writes it and its discriminator scores it."""
    return {
        "id": f"cand-{target_path.stem.lower()}",
        "title": "补充说明",
        "target_path": str(target_path),
        "category": "docs",
        "risk_level": "low",
        "stage": "proposed",
        "source_refs": [],
        "executor_support": True,
        "execution_plan": {
            "action": "append_markdown_section" if heading else "insert_before_section",
            "section_heading": heading,
            "content_lines": ["Be brief."],
        },
        "score": 8.5,
        "recommendation": "accept_for_execution",
        **fields,
    }


def a_ranking(folder: Path, *more: dict[str, Any], **fields: Any) -> Path:
    """A ranking with a candidate for each end that one can come to, and one that nobody asks for."""
    skill = folder / "skill"
    (skill / "README.md").write_text("# Haiku\n\nFor poets.\n")
    manual = {"action": "unsupported_manual_refactor", "notes": "left to a person"}
    candidates = [
        an_edit(skill / "SKILL.md"),
        an_edit(skill / "README.md"),
        an_edit(skill / "SKILL.md", id="manual", executor_support=False, execution_plan=manual),
        an_edit(skill / "SKILL.md", id="low", score=2.5, execution_plan={"action": "no such"}),
        an_edit(skill / "SKILL.md", None, id="broken"),
        {"id": "other", "score": "high", "execution_plan": 7},
        *more,
    ]
    content = {
        "schema_version": "1.0",
        "run_id": SOURCE,
        "stage": "ranked",
        "target": {"path": str(skill), "exists": True, "kind": "directory"},
        "scored_candidates": candidates,
        "next_step": "execute_candidate",
        "next_owner": "executor",
        **fields,
    }
    path = folder / "ranking.json"
    path.write_text(json.dumps(content, ensure_ascii=False))
    return path


def pipeline(suite: Path, ranking: Path, *ids: str, more: tuple[str, ...] = ("--mock",)) -> list[str | Path]:
    words: list[str | Path] = ["evaluate", "--input", ranking, "--task-suite", suite]
    words += [word for one in ids for word in ("--candidate-id", one)]
    return [*words, "--state-root", suite.parent / "state", *more]


def artifacts(folder: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (folder / "state" / "evaluations").glob("*.json")]
    return {one["candidate_id"]: one for one in found}


def a_planned(folder: Path, *ids: str, ranking: Path | None = None, **options: Any) -> Plan:
    suite = a_suite(folder)
    wishes = {"models": ("mock",), **options}
    ranking = ranking or a_ranking(folder)
    return plans.make(
        RunSettings(
            task_suite=suite, state_root=folder / "state", ranking=ranking, candidate_ids=ids, **wishes
        )
    )


def ends(info: RunInfo) -> dict[str | None, str | None]:
    return {one.candidate_id: one.verdict for one in info.candidates}


IDS = ("low", "cand-skill", "manual", "cand-readme", "broken")
ENDS = {
    "cand-skill": "pass",
    "cand-readme": "pass",
    "low": "skipped",
    "manual": "skipped",
    "broken": "error",
}


def test_each_candidate_that_was_asked_for_gets_an_artifact_and_a_line_and_no_other_does(tmp_path):
    suite = a_suite(tmp_path)
    suite.write_text(suite.read_text().replace("task-1", "任务-1"))
    ended = uplift(*pipeline(suite, a_ranking(tmp_path), *IDS, more=("--model", "sim:seed=1")), cwd=tmp_path)
    # Then the worst verdict makes the exit code, and each line says whose it is
    assert ended.code == 3, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    made = artifacts(tmp_path)
    run_id = made["low"]["run_id"]
    verdicts = {one["candidate_id"]: one["verdict"] for one in lines}
    ran = {name: verdicts[name] for name in ("cand-skill", "cand-readme")}
    assert verdicts == {**ENDS, **ran}
    assert set(ran.values()) <= {"pass", "fail"}
    assert {name: one["verdict"] for name, one in made.items()} == verdicts
    names = {path.name for path in (tmp_path / "state" / "evaluations").iterdir()}
    assert names == {f"{run_id}-{SOURCE}-{name}.json" for name in IDS}
    # And those that were not run say why, and hold no number
    assert "score 2.5 is below the threshold of 6" in made["low"]["reason"]
    assert "unsupported_manual_refactor" in made["manual"]["reason"]
    assert "insert_before_section needs a section_heading" in made["broken"]["reason"]
    assert all(made[name]["delta"] is None for name in ("low", "manual", "broken"))
    # And the model that never sees the README is said not to
    assert any(
        "'cand-readme' edits README.md, which sim:seed=1 never sees" in one for one in made["low"]["warnings"]
    )
    assert "never sees" in ended.err
    # And the run is listed with its worst verdict, and each has its reports
    (row,) = json.loads(uplift("runs", "--json", "--state-root", "state", cwd=tmp_path).out)
    assert (row["run_id"], row["verdict"]) == (run_id, "error")
    written = uplift(
        "report",
        run_id,
        "--md",
        "--junit",
        "--csv",
        "--benchmark-json",
        "--state-root",
        "state",
        cwd=tmp_path,
    )
    # one Markdown of all, and three kinds of files for each
    assert (written.code, len(written.out.splitlines())) == (0, 1 + 3 * len(IDS)), written.err
    reports = tmp_path / "state" / "runs" / run_id
    assert 'name="任务-1"' in (reports / "junit-cand-skill.xml").read_text()
    assert "\n任务-1," in (reports / "tables-cand-skill" / "tasks.csv").read_text()
    shown = uplift("show", run_id, "任务-1", "--state-root", "state", cwd=tmp_path)
    assert (shown.code, "cand-skill" in shown.out) == (0, True), shown.err
    told = {
        name: ElementTree.parse(reports / f"junit-{name}.xml").getroot().attrib
        for name in ("manual", "broken")
    }
    assert [(one["tests"], one["errors"], one["skipped"]) for one in told.values()] == [
        ("1", "0", "1"),
        ("1", "1", "0"),
    ]


def test_what_the_pipeline_reads_is_in_the_artifact_and_standard_output_is_its_path(tmp_path):
    suite = a_suite(tmp_path, 12)
    model = ("--model", "sim:baseline=1,candidate=0", "--print", "path", "--quiet")
    ended = uplift(*pipeline(suite, a_ranking(tmp_path, lane="docs"), "cand-skill", more=model), cwd=tmp_path)
    # Given a verdict of fail, the code says only that there is one
    (path,) = (tmp_path / "state" / "evaluations").iterdir()
    assert (ended.code, ended.out) == (0, f"{path}\n"), ended.err
    made = json.loads(path.read_text())
    assert path.name == f"{made['run_id']}-{SOURCE}.json"
    assert made["truth_anchor"] == str(path)
    assert (made["lane"], made["source_run_id"]) == ("docs", SOURCE)
    assert made["source_ranking_artifact"] == str(tmp_path / "ranking.json")
    assert (made["next_step"], made["next_owner"]) == ("gate_decision", "gate")
    assert made["evaluation"] == {
        "execution_pass_rate": 0.0,
        "baseline_pass_rate": 1.0,
        "delta": -1.0,
        "verdict": "fail",
        "reason": made["reason"],
        "pass_rate": 0.0,
        "total_tasks": 12,
        "passed": 0,
        "failed": 12,
    }
    assert {one["task_id"] for one in made["task_results"]} == {f"task-{number}" for number in range(12)}
    assert all(
        set(one) == {"task_id", "passed", "score", "duration_ms", "details", "error"}
        and (one["passed"], one["error"]) == (False, "")
        and one["details"]
        for one in made["task_results"]
    )
    # And the trace tells the proposer the same next step
    (trace,) = (tmp_path / "state" / "traces").iterdir()
    assert json.loads(trace.read_text())["next_step"] == "gate_decision"


@pytest.mark.parametrize(
    ("name", "verdict", "step"),
    [
        ("low", "skipped", ("gate_decision", "gate")),
        ("manual", "skipped", ("gate_decision", "gate")),
        ("broken", "error", ("abort", "human")),
        ("other", "error", ("abort", "human")),
    ],
)
def test_a_candidate_that_is_not_run_has_its_path_printed_too(tmp_path, name, verdict, step):
    words = pipeline(a_suite(tmp_path), a_ranking(tmp_path), name)
    ended = uplift(*words, "--print", "path", cwd=tmp_path)
    made = json.loads(Path(ended.out.removesuffix("\n")).read_text())
    assert (ended.code, made["verdict"], made["evaluation"]["verdict"]) == (0, verdict, verdict)
    assert (made["next_step"], made["next_owner"]) == step
    assert made["task_results"] == []
    # And without the flag the code says so
    assert uplift(*words, cwd=tmp_path).code == {"skipped": 0, "error": 3}[verdict]


@pytest.mark.parametrize("other", ["--json", "--detach", "--dry-run"])
def test_a_path_is_not_printed_beside_something_else(tmp_path, other):
    words = pipeline(a_suite(tmp_path), a_ranking(tmp_path), "low", more=("--mock", "--print", "path", other))
    assert uplift(*words, cwd=tmp_path).code == 2
    assert not (tmp_path / "state").exists()


def test_the_lane_is_the_rankings_and_standalone_without_one(tmp_path):
    made = a_planned(tmp_path, "cand-skill").info()
    assert (made.lane, made.source_run_id) == ("generic-skill", SOURCE)
    alone = RunSettings(
        task_suite=tmp_path / "suite.yaml",
        state_root=tmp_path,
        standalone=True,
        skill_path=tmp_path / "skill",
        models=("mock",),
    )
    alone_info = plans.make(alone).info()
    assert (alone_info.lane, alone_info.source_run_id) == ("standalone", None)


def test_only_candidates_that_run_count_as_comparisons(tmp_path):
    info = a_planned(tmp_path, *IDS).info()
    assert [one.candidate_id for one in info.ran] == ["cand-skill", "cand-readme"]
    assert ends(info) == {name: None if ENDS[name] == "pass" else ENDS[name] for name in ENDS}
    assert info.planned_attempts == 4 * 3


def test_an_edited_file_is_what_a_mounted_skill_holds_and_nobody_is_warned(tmp_path):
    plan = a_planned(tmp_path, "cand-readme", skill_mode="mount")
    baseline, candidate = plan.arms
    assert candidate.skill is not None
    assert (candidate.skill.text, plan.warnings) == (SKILL, ())
    assert candidate.bundle != baseline.bundle


def test_a_ranking_without_a_usable_target_is_refused_whole(tmp_path):
    suite = a_suite(tmp_path)
    ranking = a_ranking(tmp_path, target={"path": "no-such-skill"})
    ended = uplift(*pipeline(suite, ranking, "low"), cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")


def test_a_target_that_cannot_be_packed_is_no_candidates_fault(tmp_path):
    suite = a_suite(tmp_path)
    ranking = a_ranking(tmp_path)
    (tmp_path / "outside.md").write_text("not of the skill")
    (Path(json.loads(ranking.read_text())["target"]["path"]) / "link.md").symlink_to(tmp_path / "outside.md")
    ended = uplift(*pipeline(suite, ranking, "all"), "--print", "path", cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert "link.md" in ended.err


def test_ids_of_any_length_make_a_file_name(tmp_path):
    suite = a_suite(tmp_path)
    ranking = a_ranking(tmp_path)
    content = json.loads(ranking.read_text())
    long = [{"id": f"{number}-" + "x" * 126, "score": 1.0} for number in range(2)]
    ranking.write_text(json.dumps({**content, "run_id": "../" + "跑" * 500, "scored_candidates": long}))
    ended = uplift(*pipeline(suite, ranking, "all"), cwd=tmp_path)
    assert ended.code == 0, ended.err
    made = list((tmp_path / "state" / "evaluations").iterdir())
    assert len(made) == 2
    assert all(json.loads(path.read_text())["source_run_id"] == "../" + "跑" * 500 for path in made)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ranking.json",
        "skill",
        "state",
        "suite.yaml",
    ]

"""The typed artifact: read back as it was written, also by earlier versions, and refused where it is something else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from builders import both_arms, built
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from running import uplift

from aggregate.artifact import file, model
from aggregate.artifact.model import ArmMetrics, Artifact, NotAnArtifact, loads
from aggregate.records import metrics

METRIC_NAMES = {metric.name for metric in metrics.METRICS}
TESTS = Path(__file__).parent
SCHEMA = TESTS.parent / "docs" / "artifact.schema.json"
GONE = {"curtailed", "delta_bounds"}  # what only earlier versions wrote


def unmasked(value: Any) -> Any:
    """A frozen artifact with a number in each place where a time was masked."""
    if isinstance(value, dict):
        return {name: one if name == "created_at" else unmasked(one) for name, one in value.items()}
    if isinstance(value, list):
        return [unmasked(one) for one in value]
    return 1.5 if value == "TIME" else value


def frozen() -> dict[str, dict[str, Any]]:
    """The artifacts of the frozen runs, and of the files that earlier versions wrote."""
    found = {
        str(path.relative_to(TESTS)): unmasked(json.loads(path.read_text("utf-8")))
        for path in sorted((TESTS / "frozen" / "runs").glob("*/evaluations-*.json"))
    }
    for path in sorted((TESTS / "frozen" / "files").glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/evaluations/" in name and name.endswith(".json"):
                    found[f"{path.name}/{name}"] = json.loads(archive.read(name))
    return found


FROZEN = frozen()


@pytest.mark.parametrize("name", FROZEN)
def test_an_artifact_of_this_or_an_earlier_version_is_written_again_as_it_was(name: str):
    wrote = {field: value for field, value in FROZEN[name].items() if field not in GONE}
    again = json.loads(loads(json.dumps(FROZEN[name]).encode()).model_dump_json(exclude_unset=True))
    for before, now in zip(tasks_of(wrote), tasks_of(again), strict=True):
        for name in {"failure", "missed"} - before.keys():  # earlier versions did not tell them
            assert not now.pop(name)
    assert json.dumps(again) == json.dumps(wrote)


def tasks_of(artifact: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for arm in ("candidate_results", "baseline_results") for one in artifact.get(arm) or []]


def test_the_frozen_artifacts_cover_earlier_versions_too():
    assert any(name.startswith("0.1.0.zip") for name in FROZEN)
    assert len(FROZEN) > 20


def test_the_published_schema_is_the_one_that_the_code_makes_and_knows_every_frozen_artifact():
    assert SCHEMA.read_text("utf-8") == model.schema_text(), (
        "write it anew: python -m aggregate.artifact.model > docs/artifact.schema.json"
    )
    schema = json.loads(SCHEMA.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    for name, artifact in FROZEN.items():
        assert not list(Draft202012Validator(schema).iter_errors(artifact)), name


def test_every_field_of_an_arm_is_a_metric_and_a_new_metric_needs_none():
    fields = set(ArmMetrics.model_fields) - {"no_pass", "pass_at", "pass_hat"}
    assert fields <= METRIC_NAMES
    written = {"n": 3, "pass_rate": 0.5, "words": 7.25, "unknown_today": None}
    assert ArmMetrics.model_validate(written).model_dump(exclude_unset=True) == written
    with pytest.raises(ValidationError):
        ArmMetrics.model_validate({"words": "many"})


def test_nobody_changes_an_artifact():
    made = built(both_arms({"a": "p"}, {"a": "f"}))
    with pytest.raises(ValidationError):
        made.verdict = "fail"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.candidate_results[0].score = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "maybe"}, "verdict: "),
        ({"candidate_results": [{"task_id": "a"}]}, "candidate_results.0."),
        ({"arms": {"candidate": {"n": "many"}}}, "arms.candidate.n: "),
        ({"delta": float("inf")}, "delta"),
        ({"margin": None}, "margin"),
    ],
)
def test_what_is_no_artifact_is_refused_with_the_place_that_is_wrong(
    tmp_path: Path, change: dict[str, Any], says: str
):
    made = built(both_arms({"a": "p"}, {"a": "f"})).model_dump(exclude_unset=True)
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**made, **change}))
    with pytest.raises(NotAnArtifact, match="is not an artifact") as caught:
        file.load(path, 10**6)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"run_id": 1', '"\\ud800"', "NaN"])
def test_other_json_and_what_is_none_is_refused(text: str):
    with pytest.raises(NotAnArtifact):
        loads(text.encode())


def test_a_damaged_artifact_is_named_by_the_report_and_stops_no_list(tmp_path: Path):
    made = built(both_arms({"a": "p"}, {"a": "f"}))
    folder = tmp_path / "state"
    for run_id in ("good", "bad"):
        one = made.model_copy(update={"run_id": run_id})
        path = file.write(one, folder / "evaluations" / f"{run_id}.json")
        (folder / "runs" / run_id).mkdir(parents=True)
    path.write_text(path.read_text().replace('"verdict": "', '"verdict": "odd-'))
    listed = uplift("runs", "--state-root", folder, "--json", cwd=tmp_path)
    assert [row["run_id"] for row in json.loads(listed.out)] == ["good"]
    told = uplift("report", "bad", "--state-root", folder, "--md", cwd=tmp_path)
    assert told.code == 2
    assert "bad.json is not an artifact of this or an earlier version: verdict: " in told.err
    assert "Traceback" not in told.err
    assert Artifact.model_validate(made.model_dump()) == made

"""A run as a workspace of Anthropic's skill-creator, so that its aggregation and its viewer can read it.

Layout: `eval-<number>-<task>/{with_skill,without_skill}/run-<number>/` with `grading.json`, `timing.json` and
`outputs/output.md`, and `benchmark.json` at the top. The baseline arm is `without_skill`, also where it is an
older skill. `grading.json` has no `timing`: where it has, skill-creator never reads the tokens in `timing.json`.
"""

from __future__ import annotations

import errno
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aggregate.artifact.file import write_json
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE
from aggregate.report.result_tables import Material
from aggregate.text.files import write_text
from aggregate.text.formats import clean
from judges.judgment import Completion, Judgment
from judges.safe_text import storable

CONFIGURATIONS = ("with_skill", "without_skill")
_METRICS = {"pass_rate": 2, "time_seconds": 1, "tokens": 0}


def write(material: Material, folder: Path) -> Path:
    """Write the workspace; an older one in its place is replaced.

    Attempts that ended in `error` have no judgment, hence no grading.json: they are not counted as failures.
    """
    _clear(folder)
    runs: list[dict[str, Any]] = []
    errors: Counter[str] = Counter()
    results = (*material.artifact.baseline_results, *material.artifact.candidate_results)
    names = sorted({result.task_id for result in results})
    numbers = {task: number for number, task in enumerate(names, start=1)}
    seen: Counter[tuple[str, str]] = Counter()
    for record in sorted(material.own_records(), key=_order):
        configuration = CONFIGURATIONS[record.arm == BASELINE]
        seen[record.task, configuration] += 1
        number = seen[record.task, configuration]
        place = folder / _eval_name(numbers[record.task], record.task) / configuration / f"run-{number}"
        _write_run(record, place)
        if record.judged:
            runs.append(_run(record, numbers[record.task], configuration, number))
        else:
            errors[configuration] += 1
    for task, number in numbers.items():
        _write_metadata(material, folder / _eval_name(number, task), task, number)
    write_json(clean(_benchmark(material, runs, numbers, seen, errors)), folder / "benchmark.json")
    return folder


def _clear(folder: Path) -> None:
    """Remove an older workspace, and nothing that could be anything else."""
    if not folder.exists():
        return
    for entry in folder.iterdir():
        is_eval = entry.is_dir() and not entry.is_symlink() and entry.name.startswith("eval-")
        if not is_eval and entry.name != "benchmark.json":
            problem = f"holds {entry.name!r}, which is not part of a workspace; give another folder"
            raise FileExistsError(errno.EEXIST, problem, str(folder))
    shutil.rmtree(folder)


def _order(record: AttemptRecord) -> tuple[str, str, str, int, str]:
    return record.task, record.arm, record.model or "", record.attempt, record.run_id or ""


def _eval_name(number: int, task: str) -> str:
    """skill-creator reads the number between the first two dashes; the rest is for people."""
    return f"eval-{number}-{re.sub(r'[^A-Za-z0-9._]+', '-', task).strip('-.')[:60]}".rstrip("-")


def _write_run(record: AttemptRecord, place: Path) -> None:
    if record.judged:
        write_json(clean(_grading(record)), place / "grading.json")
    write_json(clean(_timing(record)), place / "timing.json")
    text = (record.completion.text if record.completion else "") or record.error or ""
    write_text(storable(text), place / "outputs" / "output.md")


def _write_metadata(material: Material, place: Path, task: str, number: int) -> None:
    """Beside the configurations for the aggregation, and inside each for the viewer, which looks there."""
    known = material.tasks.get(task)
    metadata = {
        "eval_id": number,
        "eval_name": task,
        "prompt": known.prompt if known else "",
        "assertions": [],
    }
    for folder in (place, *(place / name for name in CONFIGURATIONS)):
        if folder.is_dir():
            write_json(clean(metadata), folder / "eval_metadata.json")


def _grading(record: AttemptRecord) -> dict[str, Any]:
    expectations = _expectations(record)
    passed = sum(one["passed"] for one in expectations)
    answer = record.completion or Completion()
    return {
        "expectations": expectations,
        "summary": {
            "passed": passed,
            "failed": len(expectations) - passed,
            "total": len(expectations),
            "pass_rate": passed / len(expectations),
        },
        "execution_metrics": {
            "tool_calls": {},
            "total_tool_calls": 0,
            "total_steps": answer.turns or 0,
            "errors_encountered": 0,
            "output_chars": len(answer.text),
            "transcript_chars": 0,
        },
    }


def _expectations(record: AttemptRecord) -> list[dict[str, Any]]:
    """What was wanted, piece by piece where the judge says so; the last one is the verdict on the attempt."""
    pieces = [one for judgment in record.judgments for one in _pieces(judgment)]
    said = record.details or record.error or record.outcome
    return [*pieces, {"text": "passes its judge", "passed": record.outcome == "passed", "evidence": said}]


def _pieces(judgment: Judgment) -> Iterable[dict[str, Any]]:
    if judgment.check is not None:
        yield {"text": judgment.check, "passed": judgment.passed is True, "evidence": judgment.details}
        return
    for passed, texts in ((True, judgment.matched), (False, judgment.missed)):
        for text in texts:
            found = "found in the output" if passed else "not found in the output"
            yield {"text": f"contains {text!r}", "passed": passed, "evidence": found}
    for one in judgment.criteria:
        full = one.achieved is not None and one.max_points is not None and one.achieved >= one.max_points
        points = f"{one.achieved:g}" if one.achieved is not None else "no"
        yield {"text": one.name, "passed": full, "evidence": f"{points} of {one.max_points} points"}


def _timing(record: AttemptRecord) -> dict[str, Any]:
    model, judge = record.model_ms or 0.0, record.judge_ms or 0.0
    return {
        "total_tokens": _tokens(record),
        "duration_ms": round(model + judge, 3),
        "total_duration_seconds": round((model + judge) / 1000, 6),
        "executor_duration_seconds": round(model / 1000, 6),
        "grader_duration_seconds": round(judge / 1000, 6),
    }


def _tokens(record: AttemptRecord) -> int:
    made = record.completion or Completion()
    parts = (made.input_tokens, made.output_tokens, made.cache_read_tokens, made.cache_write_tokens)
    return sum(part or 0 for part in parts)


def _run(record: AttemptRecord, eval_id: int, configuration: str, number: int) -> dict[str, Any]:
    grading = _grading(record)
    return {
        "eval_id": eval_id,
        "eval_name": record.task,
        "configuration": configuration,
        "run_number": number,
        "result": {
            **grading["summary"],
            "time_seconds": _timing(record)["total_duration_seconds"],
            "tokens": _tokens(record),
            "tool_calls": 0,
            "errors": 0,
        },
        "expectations": grading["expectations"],
        "notes": [],
    }


def _benchmark(
    material: Material,
    runs: list[dict[str, Any]],
    numbers: Mapping[str, int],
    seen: Counter[tuple[str, str]],
    errors: Counter[str],
) -> dict[str, Any]:
    artifact = material.artifact
    notes = [artifact.summary]
    notes += [f"{count} attempts {name} ended in error and are left out" for name, count in errors.items()]
    return {
        "metadata": {
            "skill_name": artifact.skill_id,
            "skill_path": "",
            "executor_model": ", ".join(artifact.models),
            "analyzer_model": "",
            "timestamp": artifact.created_at,
            "evals_run": sorted(numbers.values()),
            "runs_per_configuration": max(seen.values(), default=0),
        },
        "runs": runs,
        "run_summary": _summary(runs),
        "notes": notes,
    }


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, sample deviation, least and most of each configuration, and the signed differences of the means."""
    told: dict[str, Any] = {}
    for name in CONFIGURATIONS:
        results = [run["result"] for run in runs if run["configuration"] == name]
        if results:
            told[name] = {metric: _spread([result[metric] for result in results]) for metric in _METRICS}
    if len(told) == len(CONFIGURATIONS):
        means = {metric: [told[name][metric]["mean"] for name in CONFIGURATIONS] for metric in _METRICS}
        told["delta"] = {
            metric: f"{means[metric][0] - means[metric][1]:+.{places}f}"
            for metric, places in _METRICS.items()
        }
    return told


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.fmean(values), 4),
        "stddev": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }

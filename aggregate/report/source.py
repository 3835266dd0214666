"""What reports are made of: an artifact, records and tasks; and the words, figures and tables that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from aggregate.artifact import sentences
from aggregate.artifact.model import (
    MEASURES,
    ArmMetrics,
    Artifact,
    Bounds,
    CandidateResult,
    CommonError,
    CostRatio,
    GroupNumbers,
    TaskResult,
)
from aggregate.formulas.consistency import FLAKY_RANGE
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE
from aggregate.report import charts
from aggregate.text import files
from aggregate.text.formats import (
    MISSING,
    in_points,
    level_text,
    number,
    plain,
    points,
    rate,
    seconds,
    shown,
    signed,
    times,
    usd,
)

_TOLERANCE = 1e-9
_NAME = 80
_LISTED = 20
_LISTED_FLAKY = 10


class TaskText(BaseModel):
    """A task as the suite told it; `judge` holds the judge's settings as in the YAML file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    description: str = ""
    prompt: str = ""
    tags: tuple[str, ...] = ()
    judge: dict[str, Any] = {}


@dataclass(frozen=True)
class Material:
    """One candidate of a run. `records` can be called again and again, and streams; tasks may be unknown."""

    artifact: Artifact
    records: Callable[[], Iterable[AttemptRecord]]
    tasks: Mapping[str, TaskText] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, str]:
        """The two arms that are compared, baseline first."""
        return BASELINE, self.artifact.arm

    def own_records(self) -> Iterator[AttemptRecord]:
        """The attempts that were run for this candidate and its baseline; other candidates' are left out."""
        return (one for one in self.records() if one.arm in self.arms and one.outcome != "skipped")


@dataclass(frozen=True)
class Unit:
    """One task with one model: what each arm made of it. None where an arm has no attempt."""

    task: str
    model: str
    tier: str | None
    judge: str | None
    baseline: TaskResult | None
    candidate: CandidateResult | None

    @property
    def difference(self) -> float | None:
        """Candidate's attempt pass rate minus the baseline's; None unless both were judged."""
        sides = (self.candidate, self.baseline)
        rates = [side.passes / side.judged for side in sides if side is not None and side.judged]
        return rates[0] - rates[1] if len(rates) == 2 else None

    @property
    def flags(self) -> list[str]:
        """What is remarkable: the candidate never passed though judged, the rates differ, scores vary, errors."""
        sides = [side for side in (self.candidate, self.baseline) if side is not None]
        spreads = [side.accuracy_range for side in sides if side.accuracy_range is not None]
        holds = {
            "failed": self.candidate is not None and self.candidate.passed is False,
            "changed": bool(self.difference),
            "flaky": any(spread > FLAKY_RANGE + _TOLERANCE for spread in spreads),
            "errors": any(side.errors > 0 for side in sides),
        }
        return [name for name, is_so in holds.items() if is_so]


def units(artifact: Artifact) -> list[Unit]:
    """Every (task, model) of a run in order of their names."""
    mine = {(result.task_id, result.model): result for result in artifact.candidate_results}
    other = {(result.task_id, result.model): result for result in artifact.baseline_results}
    return [_unit(key, other.get(key), mine.get(key)) for key in sorted(mine.keys() | other.keys())]


def _unit(key: tuple[str, str], baseline: TaskResult | None, candidate: CandidateResult | None) -> Unit:
    sides = [side for side in (baseline, candidate) if side is not None]
    tier = next((side.tier for side in sides if side.tier), None)
    judge = next((side.judge for side in sides if side.judge), None)
    return Unit(*key, tier, judge, baseline, candidate)


def read_tasks(path: Path) -> dict[str, TaskText]:
    """The tasks that a run left beside its records; empty for runs that left none."""
    try:
        tasks = [TaskText.model_validate_json(line) for line in files.lines(path) if line.strip()]
    except FileNotFoundError:
        return {}
    return {task.id: task for task in tasks}


@dataclass(frozen=True)
class TableRow:
    """One line of the result: a metric of both arms, and the field with their difference if there is one."""

    label: str
    metric: str
    how: Callable[[float], str]
    difference: str | None = None
    difference_how: Callable[[float], str] = in_points


ROWS: tuple[TableRow, ...] = (
    TableRow("Tasks passed", "pass_rate", rate, "delta"),
    TableRow("Attempts passed", "attempt_pass_rate", rate, "attempt_delta"),
    TableRow("Mean score", "mean_score", number, "score_delta", signed),
    TableRow("Points achieved", "mean_impl_rate", rate, "impl_rate_delta"),
    TableRow("Cost per task", "mean_cost_per_task", usd),
    TableRow("Cost of a pass", "cop", usd),
    TableRow("Turns", "mean_trajectory_length", number),
    TableRow("Model time", "mean_model_ms", seconds),
)


def view(artifact: Artifact) -> dict[str, Any]:
    """What the page shows beside the artifact's own fields; text from outside is on one line, without controls."""
    advice, who = sentences.advice(artifact)
    return {
        "name": plain(artifact.name, _NAME),
        "headline": headline(artifact),
        "reason": plain(sentences.reason(artifact), 400),
        "sentences": _sentences(artifact),
        "limits": _limits(artifact),
        "advice": f"{advice} ({who})",
        "simulated": sentences.simulated(artifact),
        "facts": _facts(artifact),
        "difference": charts.difference(artifact),
        "level": level_text(artifact.interval.level) if artifact.interval else "",
        "figures": _figures(artifact) if artifact.was_run else [],
        "metrics": metrics(artifact),
        "efficiency": efficiency(artifact),
        "pass_curves": charts.pass_curves(artifact),
        "pass_table": _pass_table(artifact),
        "cost_chart": charts.cost_quality(artifact),
        "cost_sentence": sentences.spending(artifact),
        "consistency": consistency(artifact),
        "groups": _groups(artifact),
        "warnings": _warnings(artifact),
    }


def headline(artifact: Artifact) -> str:
    """The decision in a word or two; the verdict's where there is no decision to tell."""
    match artifact.verdict:
        case "skipped":
            return "Not run"
        case "error":
            return "No verdict"
        case _ if artifact.decision is not None and artifact.interval is not None:
            return artifact.decision.replace("_", " ").capitalize()
        case "pass":
            return "Passed"
        case _:
            return "Failed"


def _sentences(artifact: Artifact) -> list[str]:
    if not artifact.was_run:
        return [f"Nothing was run: {plain(artifact.reason, 400)}."]
    decided = sentences.decided(artifact)
    head, _, rest = decided.partition(": ")
    if rest and head == headline(artifact):
        decided = f"{rest[0].upper()}{rest[1:]}"
    said = (
        sentences.failed(artifact),
        sentences.gated(artifact),
        sentences.found(artifact),
        decided,
        sentences.suite_decided(artifact),
        sentences.efficiency(artifact),
        sentences.cost_gated(artifact),
        sentences.loaded(artifact),
        sentences.triggered(artifact),
    )
    # A number and its sign stay together at the end of a line.
    return [plain(sentence, 800).replace(" %", "\u00a0%") for sentence in said if sentence]


def _limits(artifact: Artifact) -> list[str]:
    """What the suite cannot show, and what the numbers leave out."""
    said = [sentences.power(artifact)] if artifact.was_run else []
    if artifact.n_dropped:
        said.append(f"{artifact.n_dropped} pairs were not judged in both arms and are left out.")
    return [sentence for sentence in said if sentence]


def _facts(artifact: Artifact) -> list[tuple[str, str]]:
    wall = artifact.environment.wall_seconds
    facts = [
        ("Run", plain(artifact.run_id, _NAME)),
        ("Made", plain(artifact.created_at or "", 40).replace("T", " ").replace("Z", " UTC")),
        (
            "Model" if len(artifact.models) == 1 else "Models",
            ", ".join(plain(model, _NAME) for model in artifact.models),
        ),
        ("Tasks", _count(artifact)),
        ("Took", f"{wall:.3g} s" if wall is not None else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _count(artifact: Artifact) -> str:
    tasks = len({unit.task for unit in units(artifact)})
    return f"{tasks}, {artifact.pass_k} attempts each" if artifact.pass_k > 1 else str(tasks)


def between(bounds: Bounds | None) -> str:
    """The bounds of a difference in points; a dash where there are none."""
    if bounds is None or bounds.estimate is None:
        return MISSING
    return f"{points(bounds.low)} to {points(bounds.high)}"


def _figures(artifact: Artifact) -> list[dict[str, str]]:
    """The three numbers of the first screen: tasks passed, attempts passed, cost."""
    mine, other = _arms(artifact)
    chosen = [
        (_label("Tasks passed", artifact), "pass_rate", rate, artifact.delta),
        ("Attempts passed", "attempt_pass_rate", rate, artifact.attempt_delta),
        ("Cost per task", "mean_cost_per_task", usd, None),
    ]
    figures = [
        {
            "label": label,
            "candidate": shown(getattr(mine, field), how),
            "baseline": shown(getattr(other, field), how) if other.n else "",
            "difference": in_points(difference) if difference is not None else "",
        }
        for label, field, how, difference in chosen
    ]
    # With one attempt the two rates are the same number.
    return figures if artifact.pass_k > 1 else [figures[0], figures[2]]


def metrics(artifact: Artifact, always: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    """The result table: label, baseline, candidate, difference; a metric that no arm has only where it is `always`."""
    mine, other = _arms(artifact)
    table = []
    for row in ROWS:
        before, after = getattr(other, row.metric), getattr(mine, row.metric)
        scores = (other.mean_score, mine.mean_score)
        same_as_score = row.metric == "mean_impl_rate" and (before, after) == scores
        unknown = before is None and after is None and row.metric not in always
        if same_as_score or unknown:
            continue
        label = _label(row.label, artifact) if row.metric == "pass_rate" else row.label
        difference = shown(getattr(artifact, row.difference), row.difference_how) if row.difference else ""
        table.append((label, shown(before, row.how), shown(after, row.how), difference))
    failed, also_failed = (f"{arm.n_errors} of {arm.n}" if arm.n else MISSING for arm in (other, mine))
    return [*table, ("Errors", failed, also_failed, "")]


def _label(text: str, artifact: Artifact) -> str:
    return f"{text} (any of {artifact.pass_k})" if artifact.pass_k > 1 else text


def _pass_table(artifact: Artifact) -> list[tuple[str, ...]]:
    mine, other = _arms(artifact)
    curves = [curve for arm in (other, mine) for curve in (arm.pass_at, arm.pass_hat)]
    attempts = sorted({int(number) for curve in curves for number in curve})
    return [
        (str(count), *(shown(curve.get(str(count)), rate) for curve in curves))
        for count in attempts[:_LISTED]
    ]


def consistency(artifact: Artifact) -> list[dict[str, Any]]:
    """Per arm: how steady repeated attempts are, and the tasks that are not."""
    told = []
    for arm, block in (artifact.consistency or {}).items():
        if block is None:
            continue
        ranges = sorted(block.ranges.items(), key=lambda entry: (-entry[1], entry[0]))
        told.append(
            {
                "arm": plain(arm, _NAME),
                "score": shown(block.consistency_score, lambda value: f"{value:.0f}"),
                # Missing where judges look for nothing that has a name.
                "overlap": None if (overlap := block.concept_overlap) is None else f"{overlap:.0f} %",
                "range": shown(block.accuracy_range, lambda value: f"{value:.0f} points"),
                "flaky": [(plain(task, _NAME), f"{spread:.0f}") for task, spread in ranges[:_LISTED_FLAKY]],
                "more": max(0, len(ranges) - _LISTED_FLAKY),
            }
        )
    return told


def _groups(artifact: Artifact) -> dict[str, list[tuple[str, GroupNumbers]]]:
    """The groupings that say more than the whole; tiers are the suite's own, so that one of them is shown, too."""
    return {
        heading: list(groups.items())[: 2 * _LISTED]
        for heading, least in (("tier", 1), ("model", 2), ("judge", 2))
        if len(groups := artifact.groupings[heading]) >= least
    }


def errors(artifact: Artifact) -> list[tuple[str, CommonError]]:
    """The arms that had errors, with each message and how often it came."""
    return [(arm, entry) for arm, entries in (artifact.errors or {}).items() for entry in entries]


def _warnings(artifact: Artifact) -> list[str]:
    return [
        *(
            f"Error in {plain(arm, 40)}, {entry.count}×: {plain(entry.message, 300)}"
            for arm, entry in errors(artifact)
        ),
        *(plain(warning, 300) for warning in artifact.warnings),
    ]


def _arms(artifact: Artifact) -> tuple[ArmMetrics, ArmMetrics]:
    return artifact.metrics_of(artifact.arm), artifact.metrics_of(BASELINE)


def efficiency(artifact: Artifact) -> list[tuple[str, ...]]:
    """Names of columns, then a row for each measure that has a ratio; empty where none has."""
    block = artifact.efficiency
    told = {name: one for name, one in block.all.items() if one.ratio is not None} if block else {}
    if "model_calls" in told and told["model_calls"].ratio == 1:
        del told["model_calls"]  # one call an attempt is how an API works, not what was found
    if block is None or not told:
        return []
    same = all(block.both_passed[name] == one for name, one in told.items())
    (level,) = {level_text(one.level) for one in told.values()}
    names = (f"{level} intervals", "candidate / baseline", "totals", "tasks", "both passed")
    rows: list[tuple[str, ...]] = [names]
    for name, one in told.items():
        totals, passed = shown(one.ratio_of_totals, times), _times(block.both_passed[name])
        rows.append((MEASURES[name][1], _times(one), totals, _of_tasks(one), passed))
    return [row[:-1] for row in rows] if same else rows


def _times(measure: CostRatio) -> str:
    bounds = f" ({sentences.between(measure)})" if measure.low is not None else ""
    return shown(measure.ratio, times) + bounds


def _of_tasks(measure: CostRatio) -> str:
    """How many tasks a ratio rests on, and of how many where some had only zeros or no number."""
    n, everything = measure.n_tasks, measure.n_all
    return f"{n} of {everything}" if n < everything else str(n)

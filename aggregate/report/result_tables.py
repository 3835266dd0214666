"""What reports are made of: an artifact, records and tasks; and the words, figures and tables that they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from aggregate.artifact import sentences
from aggregate.artifact.answer import answer_of, state_words
from aggregate.artifact.diagnosis import Pair, are_of, compared_rates, pairs
from aggregate.artifact.model import (
    MEASURES,
    AnswerLine,
    ArmMetrics,
    Artifact,
    Bounds,
    CandidateResult,
    CauseCode,
    CheckResult,
    CommonError,
    CostRatio,
    GroupNumbers,
    NextStep,
    TaskChange,
    TaskResult,
)
from aggregate.formulas.consistency import FLAKY_RANGE
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE
from aggregate.report import charts
from aggregate.text import files
from aggregate.text.formats import (
    MISSING,
    counted,
    duration,
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
_DELTA_ROUNDS = 2e-4
_NAME = 80
_SAID = 160
_LISTED = 20
_LISTED_FLAKY = 10
_GROUPS = 40
_MOST_CHECKS = 500


class TaskText(BaseModel):
    """A task as the suite told it; `judge` holds the judge's settings as in the YAML file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    description: str = ""
    prompt: str = ""
    tags: tuple[str, ...] = ()
    judge: dict[str, Any] = {}
    checks: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Material:
    """One candidate of a run, and the run's `others`. `records` can be called again and again, and streams."""

    artifact: Artifact
    records: Callable[[], Iterable[AttemptRecord]]
    tasks: Mapping[str, TaskText] = field(default_factory=dict)
    others: tuple[Artifact, ...] = ()

    @property
    def ranked(self) -> list[Artifact]:
        """All candidates of the run, best first; one without others alone."""
        return ranked([self.artifact, *self.others])

    def own_records(self) -> Iterator[AttemptRecord]:
        """The attempts that were run for this candidate and its baseline; other candidates' are left out."""
        arms = (BASELINE, self.artifact.arm)
        return (one for one in self.records() if one.arm in arms and one.outcome != "skipped")


@dataclass(frozen=True)
class Unit:
    """One task with one model: what each arm made of it. None where an arm has no attempt."""

    task: str
    model: str
    baseline: TaskResult | None
    candidate: CandidateResult | None

    @property
    def sides(self) -> list[TaskResult]:
        """The arms that have an attempt, baseline first."""
        return [side for side in (self.baseline, self.candidate) if side is not None]

    @property
    def difference(self) -> float | None:
        """Candidate's attempt pass rate minus the baseline's; None unless both were judged."""
        rates = [side.passes / side.judged for side in self.sides if side.judged]
        return rates[1] - rates[0] if len(rates) == 2 else None

    @property
    def flags(self) -> list[str]:
        """What is remarkable: the candidate never passed though judged, the rates differ, scores vary, errors."""
        spreads = [side.accuracy_range for side in self.sides if side.accuracy_range is not None]
        holds = {
            "failed": self.candidate is not None and self.candidate.passed is False,
            "changed": bool(self.difference),
            "flaky": any(spread > FLAKY_RANGE + _TOLERANCE for spread in spreads),
            "errors": any(side.errors > 0 for side in self.sides),
        }
        return [name for name, is_so in holds.items() if is_so]


def units(artifact: Artifact) -> list[Unit]:
    """Every (task, model) of a run in order of their names."""
    mine = {(result.task_id, result.model): result for result in artifact.candidate_results}
    other = {(result.task_id, result.model): result for result in artifact.baseline_results}
    return [Unit(*key, other.get(key), mine.get(key)) for key in sorted(mine.keys() | other.keys())]


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
    TableRow("Passed by programs alone", "program_pass_rate", rate),
    TableRow("Mean score", "mean_score", number, "score_delta", signed),
    TableRow("Points achieved", "mean_impl_rate", rate, "impl_rate_delta"),
    TableRow("Cost per task", "mean_cost_per_task", usd),
    TableRow("Cost of a pass", "cop", usd),
    TableRow("Turns", "mean_trajectory_length", number),
    TableRow("Model time", "mean_model_ms", seconds),
)


_COMPARED = ["better", "no_worse", "nothing_to_learn", "cannot_tell", "worse"]
_STATES = [*_COMPARED, "alone", "cancelled", "no_result", "skipped"]


def ranked(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Candidates in the order of tables: better ones first, those without a result last, by their ranking's score."""

    def place(artifact: Artifact) -> tuple[int, float, float, str]:
        state = answer_of(artifact).state
        gain = (artifact.attempt_delta if state in _COMPARED else artifact.execution_pass_rate) or 0.0
        told = gain if state in _COMPARED or state == "alone" else 0.0
        return _STATES.index(state), -told, -(artifact.candidate_score or 0.0), artifact.name

    return sorted(artifacts, key=place)


CANDIDATES = ("Candidate", "Attempts", "Points", "Interval", "Answer")


def candidate_row(artifact: Artifact, *here: str) -> tuple[str, str, str, str, str]:
    """A candidate in the table of several: name, attempts passed, difference, its interval, and the answer."""
    answer = answer_of(artifact)
    share, difference, low, high = (
        shown(answer.figure("rates", name), how)
        for name, how in (("candidate", rate), ("difference", points), ("low", points), ("high", points))
    )
    closed = f", gate {answer.gate}" if answer.gate in ("fail", "error") else ""
    why = answer.line("why")
    said = state_words(answer, *here) + closed + (f": {why.text}" if why else "")
    if answer.state == "alone":
        said = f"{said}: {answer.headline.partition(': ')[2]}"
    return artifact.name, share, difference, f"{low} to {high}" if low != MISSING else MISSING, said


def shared(ordered: Sequence[Artifact]) -> Iterator[str]:
    """A heading for several candidates, what they are compared with, and how sure their intervals are."""
    best, was_run = answer_of(ordered[0]), any(artifact.was_run for artifact in ordered)
    yield f"{counted(len(ordered), 'candidate')}, best first{' (simulated)' if best.simulated and was_run else ''}"
    what, ranges = best.line("what"), best.line("ranges")
    if what is not None and was_run:
        _, against, rest = what.text.rpartition(" against ")
        yield f"against {rest}" if against else f"each alone · {rest.partition(' · ')[2]}"
    if ranges is not None:
        level = level_text(ranges.figure("level") or 0.0)
        passed = shown(best.figure("rates", "baseline"), rate)
        yield f"the baseline passes {passed} of attempts; {level} intervals, tasks like these"


def candidate_text(artifact: Artifact) -> str:
    """A candidate's row where there is no table."""
    _, share, difference, interval, said = candidate_row(artifact)
    if answer_of(artifact).line("rates") is None:
        return said
    return f"{share} of attempts, {difference} points ({interval}): {said}"


def next_of(artifacts: Iterable[Artifact]) -> NextStep:
    """What to do next after several candidates: what the first of them says that says something."""
    steps = (answer_of(artifact).next for artifact in artifacts)
    return next((step for step in steps if step.text), NextStep())


def worst_cause(artifacts: Iterable[Artifact]) -> str:
    """The worst cause of all candidates, with its candidate's name; empty without any."""
    codes = get_args(CauseCode)
    told = [(codes.index(one.diagnosis[0].code), one) for one in artifacts if one.diagnosis]
    if not told:
        return ""
    _, artifact = min(told, key=lambda entry: entry[0])
    cause = artifact.diagnosis[0]
    return f"careful, {plain(artifact.name, 40)}: {cause.text}; {cause.remedy}"


def line_text(line: AnswerLine) -> str:
    """A line of the answer where no screen tells what a sum alone is."""
    return f"this run: {line.text}" if line.kind == "bill" else line.text


def view(artifact: Artifact) -> dict[str, Any]:
    """What the page shows beside the artifact's own fields; text from outside is on one line, without controls."""
    answer = answer_of(artifact)
    costs = (f"This run cost: {sentences.bill(artifact)}.", sentences.bought(artifact))
    return {
        "artifact": artifact,
        "name": plain(artifact.name, _NAME),
        "answer": answer,
        "headline": _together(answer.headline),
        "lines": [(line.kind, _together(line_text(line))) for line in answer.lines],
        "simulated": sentences.simulated(artifact),
        "facts": _facts(artifact),
        "row": candidate_row(artifact),
        "difference": charts.difference(answer, artifact.margin),
        "level": level_text(answer.figure("ranges", "level") or 0.95),
        "moved": moved(artifact),
        "groups": groups(artifact),
        "checks": checks(artifact)[:_MOST_CHECKS],
        "metrics": metrics(artifact),
        "efficiency": efficiency(artifact),
        "pass_curves": charts.pass_curves(artifact),
        "pass_table": _pass_table(artifact),
        "cost_chart": charts.cost_quality(artifact),
        "cost_sentence": " ".join(filter(None, costs)),
        "consistency": consistency(artifact),
        "warnings": notes(artifact),
    }


def _together(text: str) -> str:
    """The text with a number and its percent sign in one line."""
    return text.replace(" %", "\u00a0%")


@dataclass(frozen=True)
class Moved:
    """Tasks that lost or won for the same reason, and the one that moved furthest as an example."""

    said: str
    tasks: int
    example: TaskChange
    name: str  # of the example, with its model where there are several
    passed: str  # of the example: 3/3 → 1/3


def moved(artifact: Artifact) -> dict[str, list[Moved]]:
    """Why it lost and won: the tasks that changed by what the judge said of a failed attempt, most tasks first."""
    mine = {(one.task_id, one.model): one for one in artifact.candidate_results}
    other = {(one.task_id, one.model): one for one in artifact.baseline_results}
    found: dict[str, dict[str, list[TaskChange]]] = {"lost": {}, "won": {}}
    for side, results, way in (("lost", mine, "worse"), ("won", other, "better")):
        changes = [change for change in artifact.changes if change.change == way]
        failed = [results.get((change.task_id, change.model)) for change in changes]
        for change, said in zip(changes, _reasons(failed), strict=True):
            found[side].setdefault(said, []).append(change)
    names = sentences.short_models(artifact.models) if len(artifact.models) > 1 else {}

    def group(said: str, changes: list[TaskChange]) -> Moved:
        furthest = max(changes, key=lambda change: abs(change.difference))
        key = furthest.task_id, furthest.model
        passed = (
            f"{side[key].passes}/{side[key].judged}" if key in side else MISSING for side in (other, mine)
        )
        name = plain(key[0], _NAME) + (f" ({names[key[1]]})" if key[1] in names else "")
        return Moved(said, len({change.task_id for change in changes}), furthest, name, " → ".join(passed))

    return {
        side: sorted((group(*told) for told in by_words.items()), key=lambda one: -one.tasks)
        for side, by_words in found.items()
    }


def _reasons(failed: Sequence[TaskResult | None]) -> Iterator[str]:
    """Why each of these failed: what most of them missed where several missed the same, else what the judge said."""
    often = Counter(item for one in failed if one for item in set(one.missed))
    for one in failed:
        shared = max(one.missed if one else (), key=lambda item: (often[item], item), default="")
        if often[shared] > 1:
            yield plain(f"missing: {shared!r}", _SAID)
        else:
            yield plain((one and one.said) or "nothing was said", _SAID)


GROUP_COLUMNS = ("Baseline", "Candidate", "Points", "Interval", "Time-outs", "Cost of an attempt")


def groups(artifact: Artifact) -> dict[str, list[tuple[str, ...]]]:
    """By tier, model and judge: attempts passed in both arms, difference, interval, time-outs and cost."""
    names, both = sentences.short_models(artifact.models), pairs(artifact)
    # Tiers are the suite's own, so that one of them is shown, too.
    return {
        heading: [
            _group(
                names.get(name, name),
                group,
                artifact,
                [one for one in both if getattr(one[0], heading) == name],
            )
            for name, group in list(found.items())[:_GROUPS]
        ]
        for heading, least in (("tier", 1), ("model", 2), ("judge", 2))
        if len(found := artifact.groupings[heading]) >= least
    }


def _group(name: str, group: GroupNumbers, artifact: Artifact, both: Sequence[Pair]) -> tuple[str, ...]:
    """The rates are those of what was compared, as the difference is; of arms alone where nothing was."""
    other, mine = (group.arms.get(arm) or ArmMetrics() for arm in (BASELINE, artifact.arm))
    run = [arm for arm in (other, mine) if arm.n]
    known = group.interval and answer_of(artifact).line("ranges")
    bounds = group.interval.tasks_like_these if group.interval and known else None
    alone, told = (mine.attempt_pass_rate, other.attempt_pass_rate), compared_rates(both)
    after, before = told if told is not None and are_of(told, group.attempt_delta) else alone
    return (
        plain(name, _NAME),
        *(shown(share, rate) for share in (before, after)),
        shown(group.attempt_delta, points),
        between(bounds),
        " → ".join(str(arm.n_timeouts) for arm in run),
        " → ".join(shown(arm.mean_cost_per_attempt, usd) for arm in run),
    )


CHECK_COLUMNS = ("Task", "Check", "Judged by", "Baseline", "Candidate", "Missing")


def checks(artifact: Artifact) -> list[tuple[str, ...]]:
    """Each check of tasks with several: who judges, how often it passed in both arms, how many scores are missing."""
    found: dict[tuple[str, str], dict[str, CheckResult]] = {}
    for one in artifact.checks:
        found.setdefault((one.task_id, one.check), {})[one.arm] = one
    rows = []
    for (task, check), arms in found.items():
        first = next(iter(arms.values()))
        sides = (arms.get(arm) for arm in (BASELINE, artifact.arm))
        shares = (rate(one.passes / one.judged) if one and one.judged else MISSING for one in sides)
        name = plain(check, _NAME) + ("" if first.required else " (not required)")
        missing = sum(one.missing for one in arms.values())
        rows.append((plain(task, _NAME), name, first.by, *shares, str(missing)))
    return rows


def _facts(artifact: Artifact) -> list[tuple[str, str]]:
    wall = artifact.environment.wall_seconds
    several = len(artifact.models) > 1
    models = ", ".join(plain(model, _NAME) for model in artifact.models)
    facts = [
        ("Run", plain(artifact.run_id, _NAME)),
        ("Made", plain(artifact.created_at or "", 40).replace("T", " ").replace("Z", " UTC")),
        ("Models", sentences.models_named(artifact) or models) if several else ("Model", models),
        ("Took", duration(wall) if wall is not None else ""),
    ]
    return [(name, value) for name, value in facts if value]


def between(bounds: Bounds | None) -> str:
    """The bounds of a difference in points; a dash where there are none."""
    if bounds is None or bounds.estimate is None:
        return MISSING
    return f"{points(bounds.low)} to {points(bounds.high)}"


def metrics(artifact: Artifact, always: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    """The result table: label, baseline, candidate, difference; a metric that no arm has only where it is `always`."""
    mine, other = _arms(artifact)
    table = []
    for row in ROWS:
        # A metric that was added later is missing from older artifacts, and from an arm that was not run.
        before, after = (getattr(arm, row.metric, None) for arm in (other, mine))
        if row.metric == "attempt_pass_rate" and (told := answer_of(artifact).line("rates")):
            # The answer's rates are of what was compared, as the difference is.
            rates = told.figure("baseline"), told.figure("candidate")
            before, after = rates if None not in rates else (before, after)
        scores = (other.mean_score, mine.mean_score)
        same_as_score = row.metric == "mean_impl_rate" and (before, after) == scores
        unknown = before is None and after is None and row.metric not in always
        if same_as_score or unknown:
            continue
        label = _label(row, artifact)
        change = getattr(artifact, row.difference) if row.difference else None
        if row.metric == "pass_rate" and change is not None and before is not None and after is not None:
            # The verdict's delta is one of rounded rates, which may be a tenth of a point off.
            change = after - before if abs(after - before - change) < _DELTA_ROUNDS else change
        difference = shown(change, row.difference_how) if row.difference else ""
        table.append((label, shown(before, row.how), shown(after, row.how), difference))
    for label, name in (("Time-outs", "n_timeouts"), ("Errors", "n_errors")):
        theirs, ours = (f"{getattr(arm, name)} of {arm.n}" if arm.n else MISSING for arm in (other, mine))
        table.append((label, theirs, ours, ""))
    return table


def _label(row: TableRow, artifact: Artifact) -> str:
    each = sentences.attempts_each(artifact) or artifact.pass_k
    of = {"pass_rate": f" (any of {each})", "mean_cost_per_task": f" ({each} attempts)"}.get(row.metric, "")
    return row.label + of if each > 1 else row.label


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
        ranges = list(block.ranges.items())
        told.append(
            {
                "arm": plain(arm, _NAME),
                "score": shown(block.consistency_score, lambda value: f"{value:.0f}"),
                # Missing where judges look for nothing that has a name.
                "overlap": None if (overlap := block.concept_overlap) is None else f"{overlap:.0f} %",
                "range": shown(block.accuracy_range, lambda value: f"{value:.0f} points"),
                "flaky": [
                    (plain(sentences.with_short_model(task, artifact), _NAME), f"{spread:.0f}")
                    for task, spread in ranges[:_LISTED_FLAKY]
                ],
                "more": max(0, len(ranges) - _LISTED_FLAKY),
            }
        )
    return told


def errors(artifact: Artifact) -> list[tuple[str, CommonError]]:
    """The arms that had errors, with each message and how often it came."""
    return [(arm, entry) for arm, entries in (artifact.errors or {}).items() for entry in entries]


def notes(artifact: Artifact) -> list[str]:
    """Errors and warnings; flaky tasks have a table."""
    counts = [(f"Error in {plain(arm, 40)}, {one.count}×", one.message) for arm, one in errors(artifact)]
    warnings = [plain(one, 300) for one in artifact.warnings if not one.startswith("flaky task")]
    return [*(f"{count}: {plain(message, 300)}" for count, message in counts), *warnings]


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

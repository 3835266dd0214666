"""What a page says in words, figures and tables, as plain values for the template."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aggregate.artifact import sentences
from aggregate.artifact.model import Agreement, ArmMetrics, Artifact
from aggregate.records.run_info import BASELINE
from aggregate.report import charts
from aggregate.report.source import Material, units
from aggregate.report.terminal import ROWS, efficiency
from aggregate.text.formats import in_points, number, plain, rate, shown, usd

_NAME = 80
_LISTED = 20
_LISTED_FLAKY = 10
_HEADLINES = {
    "improved": "Improved",
    "no_worse": "No worse",
    "worse": "Worse",
    "inconclusive": "Inconclusive",
}


def view(material: Material) -> dict[str, Any]:
    """Everything static on the page; all text from outside is on one line and without control characters."""
    artifact = material.artifact
    ran = artifact.was_run
    advice, who = sentences.advice(artifact)
    return {
        "name": plain(artifact.name, _NAME),
        "headline": headline(artifact),
        "verdict": artifact.verdict,
        "reason": plain(sentences.reason(artifact), 400),
        "sentences": _sentences(artifact),
        "limits": _limits(artifact),
        "advice": f"{advice} ({who})",
        "simulated": sentences.simulated(artifact),
        "facts": _facts(artifact),
        "ran": ran,
        "difference": charts.difference(artifact) if ran else None,
        "level": _level(artifact),
        "figures": _figures(artifact) if ran else [],
        "metrics": metrics(artifact) if ran else [],
        "efficiency": efficiency(artifact) if ran else [],
        "pass_curves": charts.pass_curves(artifact) if ran else None,
        "pass_table": _pass_table(artifact) if ran else [],
        "cost_chart": charts.cost_quality(artifact) if ran else None,
        "cost_sentence": sentences.spending(artifact) if ran else "",
        "consistency": consistency(artifact) if ran else [],
        "groups": list(_groups(artifact)) if ran else [],
        "judges": _judges(artifact) if ran else None,
        "warnings": _warnings(artifact),
        "has_baseline": artifact.baseline != "none",
    }


def headline(artifact: Artifact) -> str:
    """The decision in a word or two; the verdict's where there is no decision to tell."""
    match artifact.verdict:
        case "skipped":
            return "Not run"
        case "error":
            return "No verdict"
        case _ if artifact.decision in _HEADLINES and artifact.interval is not None:
            return _HEADLINES[artifact.decision]
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
        ("Model" if len(artifact.models) == 1 else "Models", _names(artifact.models)),
        ("Tasks", _count(artifact)),
        ("Took", f"{wall:.3g} s" if wall is not None else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _count(artifact: Artifact) -> str:
    tasks = len({unit.task for unit in units(artifact)})
    return f"{tasks}, {artifact.pass_k} attempts each" if artifact.pass_k > 1 else str(tasks)


def _level(artifact: Artifact) -> str:
    return f"{round(100 * artifact.interval.level, 2):g} %" if artifact.interval else ""


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


def metrics(artifact: Artifact) -> list[tuple[str, str, str, str]]:
    """The result table, as in the terminal: metric, baseline, candidate, difference."""
    mine, other = _arms(artifact)
    table = []
    for row in ROWS:
        before, after = getattr(other, row.metric), getattr(mine, row.metric)
        scores = (other.mean_score, mine.mean_score)
        same_as_score = row.metric == "mean_impl_rate" and (before, after) == scores
        if same_as_score or (before is None and after is None):
            continue
        label = _label(row.label, artifact) if row.metric == "pass_rate" else row.label
        difference = shown(getattr(artifact, row.difference), row.difference_how) if row.difference else ""
        table.append((label, shown(before, row.how), shown(after, row.how), difference))
    failed, also_failed = (f"{arm.n_errors} of {arm.n}" if arm.n else "–" for arm in (other, mine))
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


def _groups(artifact: Artifact) -> Iterable[dict[str, Any]]:
    for heading in ("tier", "model", "judge"):
        groups = artifact.groupings[heading]
        if not groups or (len(groups) < 2 and heading != "tier"):
            continue
        yield {
            "title": f"By {heading}",
            "heading": heading,
            "rows": [
                {
                    "name": plain(name, _NAME),
                    "baseline": shown(group.baseline_pass_rate, rate),
                    "candidate": shown(group.execution_pass_rate, rate),
                    "difference": shown(group.delta, in_points),
                    "pairs": group.n_pairs or 0,
                    "chart": charts.shift(group.baseline_pass_rate, group.execution_pass_rate),
                }
                for name, group in list(groups.items())[: 2 * _LISTED]
            ],
        }


def _judges(artifact: Artifact) -> dict[str, Any] | None:
    block = artifact.judges
    if block is None:
        return None
    agreement = block.agreement
    bias = agreement.bias if agreement else {}
    return {
        "rows": [
            (
                plain(name, _NAME),
                f"{judge.n_scored} of {judge.n}",
                shown(judge.mean_score, number),
                shown(bias.get(name), lambda value: f"{value:+.2f}"),
                shown(judge.cost, usd),
            )
            for name, judge in block.judges.items()
        ],
        "agreement": _agreement(agreement),
    }


def _agreement(agreement: Agreement | None) -> str:
    if agreement is None:
        return "Every attempt had one judge, so there is no agreement to measure."
    scores, passes = (shown(alpha, number) for alpha in (agreement.alpha_scores, agreement.alpha_passes))
    return (
        f"Over {agreement.n} attempts with several judges, Krippendorff's alpha is {scores} for scores and "
        f"{passes} for passing (1 is full agreement, 0 is what chance gives)."
    )


def _warnings(artifact: Artifact) -> list[str]:
    said = [
        f"Error in {plain(arm, 40)}, {entry.count}×: {plain(entry.message, 300)}"
        for arm, messages in (artifact.errors or {}).items()
        for entry in messages
    ]
    return said + [plain(warning, 300) for warning in artifact.warnings]


def _arms(artifact: Artifact) -> tuple[ArmMetrics, ArmMetrics]:
    return artifact.metrics_of(artifact.arm), artifact.metrics_of(BASELINE)


def _names(models: Iterable[str]) -> str:
    return ", ".join(plain(model, _NAME) for model in models)

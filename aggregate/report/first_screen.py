"""What a page says in words, figures and tables, as plain values for the template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aggregate import sentences
from aggregate.number_formats import in_points, number, rate, shown, usd
from aggregate.plain_text import plain
from aggregate.report import charts
from aggregate.report.material import Material, units
from aggregate.run_info import BASELINE
from aggregate.tables import ROWS

Artifact = Mapping[str, Any]
_NAME = 80
_LISTED = 20
_LISTED_FLAKY = 10
_GROUPS = (
    ("by_tier", "By tier", "tier"),
    ("by_model", "By model", "model"),
    ("by_judge", "By judge", "judge"),
)
_HEADLINES = {
    "improved": "Improved",
    "no_worse": "No worse",
    "worse": "Worse",
    "inconclusive": "Inconclusive",
}


def view(material: Material) -> dict[str, Any]:
    """Everything static on the page; all text from outside is on one line and without control characters."""
    artifact = material.artifact
    name = plain(artifact["candidate_id"] or artifact["skill_id"] or artifact["run_id"], _NAME)
    ran = artifact["verdict"] != "skipped"
    return {
        "name": name,
        "headline": headline(artifact),
        "verdict": artifact["verdict"],
        "reason": plain(artifact["reason"] or "", 400),
        "sentences": _sentences(artifact),
        "limits": _limits(artifact),
        "next_step": f"{artifact['next_step']} ({artifact['next_owner']})",
        "simulated": sentences.simulated(artifact),
        "facts": _facts(artifact),
        "ran": ran,
        "difference": charts.difference(artifact) if ran else None,
        "level": _level(artifact),
        "figures": _figures(artifact) if ran else [],
        "metrics": metrics(artifact) if ran else [],
        "pass_curves": charts.pass_curves(artifact) if ran else None,
        "pass_table": _pass_table(artifact) if ran else [],
        "cost_chart": charts.cost_quality(artifact) if ran else None,
        "cost_sentence": sentences.spending(artifact) if ran else "",
        "consistency": _consistency(artifact) if ran else [],
        "groups": list(_groups(artifact)) if ran else [],
        "judges": _judges(artifact) if ran else None,
        "warnings": _warnings(artifact),
        "has_baseline": artifact["baseline"] != "none",
    }


def headline(artifact: Artifact) -> str:
    """The decision in a word or two; the verdict's where there is no decision to tell."""
    match artifact["verdict"]:
        case "skipped":
            return "Not run"
        case "error":
            return "No verdict"
        case _ if artifact["decision"] in _HEADLINES and artifact["interval"] is not None:
            return _HEADLINES[artifact["decision"]]
        case "pass":
            return "Passed"
        case _:
            return "Failed"


def _sentences(artifact: Artifact) -> list[str]:
    if artifact["verdict"] == "skipped":
        return [f"Nothing was run: {plain(artifact['reason'], 400)}."]
    decided = sentences.decided(artifact)
    head, _, rest = decided.partition(": ")
    if rest and head == headline(artifact):
        decided = f"{rest[0].upper()}{rest[1:]}"
    said = (
        sentences.failed(artifact),
        sentences.gated(artifact),
        sentences.found(artifact),
        decided,
        sentences.triggered(artifact),
    )
    # A number and its sign stay together at the end of a line.
    return [plain(sentence, 800).replace(" %", "\u00a0%") for sentence in said if sentence]


def _limits(artifact: Artifact) -> list[str]:
    """What the suite cannot show, and what the numbers leave out."""
    said = [sentences.power(artifact)] if artifact["verdict"] != "skipped" else []
    if artifact["curtailed"]:
        said.append("The run stopped once its verdict was certain, so rates over attempts are not known.")
    if artifact["n_dropped"]:
        said.append(f"{artifact['n_dropped']} pairs were not judged in both arms and are left out.")
    return [sentence for sentence in said if sentence]


def _facts(artifact: Artifact) -> list[tuple[str, str]]:
    environment = artifact["environment"] or {}
    wall = environment.get("wall_seconds")
    facts = [
        ("Run", plain(artifact["run_id"], _NAME)),
        ("Made", plain(artifact["created_at"] or "", 40).replace("T", " ").replace("Z", " UTC")),
        ("Model" if len(artifact["models"]) == 1 else "Models", _names(artifact["models"])),
        ("Tasks", _count(artifact)),
        ("Took", f"{wall:.3g} s" if wall is not None else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _count(artifact: Artifact) -> str:
    tasks = len({unit.task for unit in units(artifact)})
    return f"{tasks}, {artifact['pass_k']} attempts each" if artifact["pass_k"] > 1 else str(tasks)


def _level(artifact: Artifact) -> str:
    return f"{round(100 * artifact['interval']['level'], 2):g} %" if artifact["interval"] else ""


def _figures(artifact: Artifact) -> list[dict[str, str]]:
    """The three numbers of the first screen: tasks passed, attempts passed, cost."""
    mine, other = _arms(artifact)
    chosen = [
        (_label("Tasks passed", artifact), "pass_rate", rate, artifact["delta"]),
        ("Attempts passed", "attempt_pass_rate", rate, artifact["attempt_delta"]),
        ("Cost per task", "mean_cost_per_task", usd, None),
    ]
    figures = [
        {
            "label": label,
            "candidate": shown(mine.get(field), how),
            "baseline": shown(other.get(field), how) if other else "",
            "difference": in_points(difference) if difference is not None else "",
        }
        for label, field, how, difference in chosen
    ]
    # With one attempt the two rates are the same number.
    return figures if artifact["pass_k"] > 1 else [figures[0], figures[2]]


def metrics(artifact: Artifact) -> list[tuple[str, str, str, str]]:
    """The result table, as in the terminal: metric, baseline, candidate, difference."""
    mine, other = _arms(artifact)
    table = []
    for row in ROWS:
        before, after = other.get(row.metric), mine.get(row.metric)
        same_as_score = row.metric == "mean_impl_rate" and (before, after) == (
            other.get("mean_score"),
            mine.get("mean_score"),
        )
        if same_as_score or (before is None and after is None):
            continue
        label = _label(row.label, artifact) if row.metric == "pass_rate" else row.label
        difference = shown(artifact[row.difference], row.difference_how) if row.difference else ""
        table.append((label, shown(before, row.how), shown(after, row.how), difference))
    failed, also_failed = (f"{arm['n_errors']} of {arm['n']}" if arm else "–" for arm in (other, mine))
    return [*table, ("Errors", failed, also_failed, "")]


def _label(text: str, artifact: Artifact) -> str:
    return f"{text} (any of {artifact['pass_k']})" if artifact["pass_k"] > 1 else text


def _pass_table(artifact: Artifact) -> list[tuple[str, ...]]:
    mine, other = _arms(artifact)
    curves = [(arm.get(field) or {}) for arm in (other, mine) for field in ("pass_at", "pass_hat")]
    attempts = sorted({int(number) for curve in curves for number in curve})
    return [
        (str(count), *(shown(curve.get(str(count)), rate) for curve in curves))
        for count in attempts[:_LISTED]
    ]


def _consistency(artifact: Artifact) -> list[dict[str, Any]]:
    """Per arm: how steady repeated attempts are, and the tasks that are not."""
    told = []
    for arm, block in (artifact["consistency"] or {}).items():
        if block is None:
            continue
        ranges = sorted(block["ranges"].items(), key=lambda entry: (-entry[1], entry[0]))
        told.append(
            {
                "arm": plain(arm, _NAME),
                "score": shown(block["consistency_score"], lambda value: f"{value:.0f}"),
                "overlap": shown(block["concept_overlap"], lambda value: f"{value:.0f} %"),
                "range": shown(block["accuracy_range"], lambda value: f"{value:.0f} points"),
                "flaky": [(plain(task, _NAME), f"{spread:.0f}") for task, spread in ranges[:_LISTED_FLAKY]],
                "more": max(0, len(ranges) - _LISTED_FLAKY),
            }
        )
    return told


def _groups(artifact: Artifact) -> Iterable[dict[str, Any]]:
    for field, title, heading in _GROUPS:
        groups = artifact[field] or {}
        if not groups or (len(groups) < 2 and field != "by_tier"):
            continue
        yield {
            "title": title,
            "heading": heading,
            "rows": [
                {
                    "name": plain(name, _NAME),
                    "baseline": shown(group.get("baseline_pass_rate"), rate),
                    "candidate": shown(group.get("execution_pass_rate"), rate),
                    "difference": shown(group.get("delta"), in_points),
                    "pairs": group.get("n_pairs", 0),
                    "chart": charts.shift(group.get("baseline_pass_rate"), group.get("execution_pass_rate")),
                }
                for name, group in list(groups.items())[: 2 * _LISTED]
            ],
        }


def _judges(artifact: Artifact) -> dict[str, Any] | None:
    block = artifact["judges"]
    if block is None:
        return None
    agreement = block["agreement"]
    bias = (agreement or {}).get("bias", {})
    return {
        "rows": [
            (
                plain(name, _NAME),
                f"{judge['n_scored']} of {judge['n']}",
                shown(judge["mean_score"], number),
                shown(bias.get(name), lambda value: f"{value:+.2f}"),
                shown(judge["cost"], usd),
            )
            for name, judge in block["judges"].items()
        ],
        "agreement": _agreement(agreement),
    }


def _agreement(agreement: Mapping[str, Any] | None) -> str:
    if agreement is None:
        return "Every attempt had one judge, so there is no agreement to measure."
    scores, passes = (shown(agreement[name], number) for name in ("alpha_scores", "alpha_passes"))
    return (
        f"Over {agreement['n']} attempts with several judges, Krippendorff's alpha is {scores} for scores and "
        f"{passes} for passing (1 is full agreement, 0 is what chance gives)."
    )


def _warnings(artifact: Artifact) -> list[str]:
    said = [
        f"Error in {plain(arm, 40)}, {entry['count']}×: {plain(entry['message'], 300)}"
        for arm, messages in (artifact["errors"] or {}).items()
        for entry in messages
    ]
    return said + [plain(warning, 300) for warning in artifact["warnings"]]


def _arms(artifact: Artifact) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    arms = artifact["arms"] or {}
    return arms.get(artifact["arm"], {}), arms.get(BASELINE, {})


def _names(models: Iterable[str]) -> str:
    return ", ".join(plain(model, _NAME) for model in models)

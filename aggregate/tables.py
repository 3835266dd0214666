"""The result in the terminal, for someone who sees it for the first time; missing is shown as – only here.

Text that came from a suite, a model or a judge is stripped to plain characters and never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aggregate import sentences
from aggregate.number_formats import (
    MISSING,
    counted,
    in_points,
    level_text,
    number,
    p_value,
    points,
    rate,
    seconds,
    shown,
    signed,
    usd,
)
from aggregate.plain_text import plain
from aggregate.run_info import BASELINE

SHOWN_TASKS = 10
_NAME = 40
_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red", "skipped": "bold yellow"}
Artifact = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the result: a metric of both arms, and the field with their difference if there is one."""

    label: str
    metric: str
    how: Callable[[float], str]
    difference: str | None = None
    difference_how: Callable[[float], str] = in_points


ROWS: tuple[Row, ...] = (
    Row("Tasks passed", "pass_rate", rate, "delta"),
    Row("Attempts passed", "attempt_pass_rate", rate, "attempt_delta"),
    Row("Mean score", "mean_score", number, "score_delta", signed),
    Row("Points achieved", "mean_impl_rate", rate, "impl_rate_delta"),
    Row("Cost per task", "mean_cost_per_task", usd),
    Row("Cost of a pass", "cop", usd),
    Row("Turns", "mean_trajectory_length", number),
    Row("Model time", "mean_model_ms", seconds),
)


def result_table(artifacts: Sequence[Artifact]) -> RenderableType:
    """What a run found, for 80 columns and wider; several candidates are compared, then shown one by one."""
    parts: list[RenderableType] = []
    if len(artifacts) > 1:
        parts.append(_candidates(artifacts))
    for artifact in artifacts:
        if parts:
            parts.append(Text(""))
        parts.extend(_one(artifact))
    return Group(*parts)


def compare_table(result: Mapping[str, Any]) -> RenderableType:
    """Two runs side by side: what `two_runs.compare` found."""
    table = _table("", "second run", "first run", "difference")
    _add(
        table,
        "Tasks passed",
        shown(result["execution_pass_rate"], rate),
        shown(result["baseline_pass_rate"], rate),
        shown(result["delta"], in_points)
        if result["delta"] is not None
        else _in_bounds(result["delta_bounds"]),
    )
    for row in ROWS:
        if row.difference and row.metric in result["second_run"]:
            rates = (result[run].get(row.metric) for run in ("second_run", "first_run"))
            difference = shown(result[row.difference], row.difference_how)
            _add(table, row.label, *(shown(value, row.how) for value in rates), difference)
    changes = [Text(""), *_changes(result, "first run", "second run")]
    return Group(table, _text(result["summary"]), *(changes if result["changes"] else ()))


def _in_bounds(ends: Sequence[float]) -> str:
    return f"{points(ends[0])} to {points(ends[1])} points"


def _one(artifact: Artifact) -> Iterable[RenderableType]:
    yield _headline(artifact)
    if artifact["verdict"] == "skipped":
        yield _text(artifact["summary"])
        return
    simulated = sentences.simulated(artifact)
    if simulated:
        yield _text(simulated, "bold yellow")
    yield _arms(artifact)
    yield _verdict(artifact)
    if gate := sentences.gated(artifact):
        yield _text(gate, "bold")
    for sentence in (sentences.decided(artifact), sentences.power(artifact)):
        if sentence:
            yield _text(sentence)
    for table in (*_groups(artifact), *_changes(artifact)):
        yield Text("")
        yield table
    yield Text("")
    yield from _notes(artifact)


def _headline(artifact: Artifact) -> Text:
    name = artifact["candidate_id"] or artifact["skill_id"] or artifact["run_id"]
    models = ", ".join(plain(model, _NAME) for model in artifact["models"])
    pairs = artifact["n_pairs"]
    tasks = sentences.units(artifact, pairs) if pairs is not None else f"{MISSING} tasks"
    size = f"{tasks} compared, {counted(artifact['pass_k'], 'attempt')} each"
    return Text.assemble((plain(name, _NAME), "bold"), f"  {size}  {models}")


def _arms(artifact: Artifact) -> Table:
    arms = artifact["arms"]
    candidate, baseline = arms.get(artifact["arm"], {}), arms.get(BASELINE, {})
    table = _table("", "candidate", "baseline", "difference")
    for row in ROWS:
        values = (candidate.get(row.metric), baseline.get(row.metric))
        if not _worth_showing(row, candidate, baseline):
            continue
        difference = artifact[row.difference] if row.difference else None
        _add(
            table,
            _label(row, artifact),
            *(shown(value, row.how) for value in values),
            shown(difference, row.difference_how) if row.difference else "",
        )
        if row.difference == "attempt_delta":
            _add_intervals(table, artifact)
    _add(table, "Errors", *(_errors(arm) for arm in (candidate, baseline)), "")
    return table


def _worth_showing(row: Row, candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    """Pass rates always; others when an arm has them; points only where they say more than the score."""
    if row.metric in ("pass_rate", "attempt_pass_rate"):
        return True
    arms = (candidate, baseline)
    if row.metric == "mean_impl_rate" and all(arm.get(row.metric) == arm.get("mean_score") for arm in arms):
        return False
    return any(arm.get(row.metric) is not None for arm in arms)


def _add_intervals(table: Table, artifact: Artifact) -> None:
    interval = artifact["interval"]
    if interval is None:
        return
    for field, name in (
        ("tasks_like_these", "tasks like these"),
        ("exactly_this_suite", "exactly this suite"),
    ):
        _add(table, f"  {_level(interval)} interval, {name}", "", "", _between(interval[field]))


def _level(interval: Mapping[str, Any]) -> str:
    return level_text(interval["level"])


def _between(bounds: Mapping[str, Any] | None) -> str:
    if bounds is None or bounds["estimate"] is None:
        return MISSING
    return f"{points(bounds['low'])} to {points(bounds['high'])}"


def _label(row: Row, artifact: Artifact) -> str:
    several = row.metric == "pass_rate" and artifact["pass_k"] > 1
    return f"{row.label} (any of {artifact['pass_k']})" if several else row.label


def _errors(arm: Mapping[str, Any]) -> str:
    return f"{arm['n_errors']} of {arm['n']}" if arm else MISSING


def _verdict(artifact: Artifact) -> Text:
    verdict = artifact["verdict"]
    return Text.assemble((verdict.upper(), _STYLES[verdict]), f"  {plain(artifact['reason'], 600)}")


def _groups(artifact: Artifact) -> Iterable[RenderableType]:
    for field, title in (("by_model", "model"), ("by_tier", "tier"), ("by_judge", "judge")):
        groups = artifact[field]
        if len(groups) < 2:
            continue
        table = _table(title, "candidate", "baseline", "difference", "pairs")
        for name, group in list(groups.items())[:SHOWN_TASKS]:
            _add(
                table,
                plain(name, _NAME),
                shown(group.get("execution_pass_rate"), rate),
                shown(group.get("baseline_pass_rate"), rate),
                shown(group.get("delta"), in_points),
                str(group.get("n_pairs", 0)),
            )
        yield table


def _changes(
    artifact: Mapping[str, Any], before: str = "baseline", after: str = "candidate"
) -> Iterable[RenderableType]:
    """The tasks that changed; with one attempt an arm, a change of one task can always be chance."""
    changes = artifact["changes"]
    if not changes:
        return
    several = sentences.by_model(artifact)
    table = _table("tasks that changed", before, after, "p (corrected)")
    for change in changes[:SHOWN_TASKS]:
        name = plain(change["task_id"], _NAME)
        _add(
            table,
            f"{name} ({plain(change['model'], 20)})" if several else name,
            shown(change["baseline_pass_rate"], rate),
            Text(
                shown(change["candidate_pass_rate"], rate), "green" if change["change"] == "better" else "red"
            ),
            shown(change["adjusted_p_value"], p_value),
        )
    yield table
    if len(changes) > SHOWN_TASKS:
        yield _text(f"… and {len(changes) - SHOWN_TASKS} more tasks that changed.")


def _notes(artifact: Artifact) -> Iterable[RenderableType]:
    for sentence in (sentences.triggered(artifact), sentences.saved(artifact)):
        if sentence:
            yield _text(sentence)
    yield from map(_text, _flaky(artifact))
    yield _text(sentences.spending(artifact))
    for arm, messages in artifact["errors"].items():
        for entry in messages:
            yield _text(f"Error in {arm}, {entry['count']}×: {plain(entry['message'], 200)}", "red")
    if artifact["n_dropped"]:
        dropped = ", ".join(plain(pair["task_id"], _NAME) for pair in artifact["dropped_pairs"][:SHOWN_TASKS])
        yield _text(f"Dropped pairs (not judged in both arms): {artifact['n_dropped']}: {dropped}", "yellow")
    for warning in artifact["warnings"]:
        if not warning.startswith(("flaky task", f"{artifact['n_dropped']} pairs were dropped")):
            yield _text(f"Warning: {plain(warning, 300)}", "yellow")


def _flaky(artifact: Artifact) -> Iterable[str]:
    """One line per arm: the tasks whose score varies by more than 20 points between attempts."""
    for arm, block in artifact["consistency"].items():
        ranges = (block or {}).get("ranges", {})
        if not ranges:
            continue
        shown_tasks = [
            f"{plain(task, _NAME)} (range {spread:.3g} points)"
            for task, spread in list(ranges.items())[:SHOWN_TASKS]
        ]
        more = f", … and {len(ranges) - SHOWN_TASKS} more" if len(ranges) > SHOWN_TASKS else ""
        yield f"Flaky in {plain(arm, _NAME)}: {', '.join(shown_tasks)}{more}"


def _candidates(artifacts: Sequence[Artifact]) -> Table:
    table = _table("candidate", "passed", "delta", "interval", "p (Holm)", "verdict", "decision")
    for artifact in artifacts:
        interval = artifact["interval"]
        _add(
            table,
            plain(artifact["candidate_id"] or artifact["arm"], 24),
            shown(artifact["execution_pass_rate"], rate),
            shown(artifact["delta"], points),
            _between(interval["tasks_like_these"] if interval else None),
            shown(artifact["p_value_adjusted"], p_value),
            Text(artifact["verdict"], _STYLES[artifact["verdict"]]),
            artifact["decision"] or MISSING,
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(Text(first), overflow="fold")
    for name in others:
        table.add_column(Text(name), justify="right", overflow="fold")
    return table


def _add(table: Table, *cells: str | Text) -> None:
    # A plain string in a cell would be read as markup.
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _text(text: str, style: str = "") -> Text:
    return Text(plain(text), style)

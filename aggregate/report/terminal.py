"""The result in the terminal, for someone who sees it for the first time; missing is shown as – only here.

Text that came from a suite, a model or a judge is stripped to plain characters and never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aggregate.artifact import sentences
from aggregate.artifact.model import ArmMetrics, Artifact, Bounds, CostRatio, RunsCompared, SideRates
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import (
    MISSING,
    counted,
    in_points,
    level_text,
    number,
    p_value,
    plain,
    points,
    rate,
    seconds,
    shown,
    signed,
    times,
    usd,
)

SHOWN_TASKS = 10
_NAME = 40
_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red", "skipped": "bold yellow"}


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


def compare_table(result: RunsCompared) -> RenderableType:
    """Two runs side by side: what `two_runs.compare` found."""
    table = _table("", "second run", "first run", "difference")
    _add(
        table,
        "Tasks passed",
        shown(result.execution_pass_rate, rate),
        shown(result.baseline_pass_rate, rate),
        shown(result.delta, in_points),
    )
    for row in ROWS:
        if row.difference and row.metric in SideRates.model_fields:
            rates = (getattr(run, row.metric) for run in (result.second_run, result.first_run))
            difference = shown(getattr(result, row.difference), row.difference_how)
            _add(table, row.label, *(shown(value, row.how) for value in rates), difference)
    changes = [Text(""), *_changes(result, "first run", "second run")]
    return Group(table, _text(result.summary), *(changes if result.changes else ()))


def _one(artifact: Artifact) -> Iterable[RenderableType]:
    yield _headline(artifact)
    if not artifact.was_run:
        yield _text(artifact.summary)
        return
    simulated = sentences.simulated(artifact)
    if simulated:
        yield _text(simulated, "bold yellow")
    yield _arms(artifact)
    yield _verdict(artifact)
    for gate in filter(None, (sentences.gated(artifact), sentences.cost_gated(artifact))):
        yield _text(gate, "bold")
    said = (
        sentences.decided(artifact),
        sentences.suite_decided(artifact),
        sentences.efficiency(artifact),
        sentences.power(artifact),
    )
    for sentence in said:
        if sentence:
            yield _text(sentence)
    for table in (*_efficiency(artifact), *_groups(artifact), *_changes(artifact)):
        yield Text("")
        yield table
    yield Text("")
    yield from _notes(artifact)


def _headline(artifact: Artifact) -> Text:
    models = ", ".join(plain(model, _NAME) for model in artifact.models)
    pairs = artifact.n_pairs
    tasks = counted(pairs, "task") if pairs is not None else f"{MISSING} tasks"
    size = f"{tasks} compared, {counted(artifact.pass_k, 'attempt')} each"
    return Text.assemble((plain(artifact.name, _NAME), "bold"), f"  {size}  {models}")


def _arms(artifact: Artifact) -> Table:
    candidate, baseline = artifact.metrics_of(artifact.arm), artifact.metrics_of(BASELINE)
    table = _table("", "candidate", "baseline", "difference")
    for row in ROWS:
        values = (getattr(candidate, row.metric), getattr(baseline, row.metric))
        if not _worth_showing(row, candidate, baseline):
            continue
        difference = getattr(artifact, row.difference) if row.difference else None
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


def _worth_showing(row: TableRow, candidate: ArmMetrics, baseline: ArmMetrics) -> bool:
    """Pass rates always; others when an arm has them; points only where they say more than the score."""
    if row.metric in ("pass_rate", "attempt_pass_rate"):
        return True
    arms = (candidate, baseline)
    if row.metric == "mean_impl_rate" and all(arm.mean_impl_rate == arm.mean_score for arm in arms):
        return False
    return any(getattr(arm, row.metric) is not None for arm in arms)


def _add_intervals(table: Table, artifact: Artifact) -> None:
    interval = artifact.interval
    if interval is None:
        return
    level = level_text(interval.level)
    _add(table, f"  {level} interval, tasks like these", "", "", _between(interval.tasks_like_these))
    _add(table, f"  {level} interval, exactly this suite", "", "", _between(interval.exactly_this_suite))


def _between(bounds: Bounds | None) -> str:
    if bounds is None or bounds.estimate is None:
        return MISSING
    return f"{points(bounds.low)} to {points(bounds.high)}"


def _label(row: TableRow, artifact: Artifact) -> str:
    several = row.metric == "pass_rate" and artifact.pass_k > 1
    return f"{row.label} (any of {artifact.pass_k})" if several else row.label


def _errors(arm: ArmMetrics) -> str:
    return f"{arm.n_errors} of {arm.n}" if arm.n else MISSING


def _verdict(artifact: Artifact) -> Text:
    verdict = artifact.verdict
    return Text.assemble((verdict.upper(), _STYLES[verdict]), f"  {plain(sentences.reason(artifact), 600)}")


_MEASURES = {
    "cost": "Cost",
    "input_tokens": "Tokens in",
    "output_tokens": "Tokens out",
    "cache_read_tokens": "Cache reads",
    "cache_write_tokens": "Cache writes",
    "model_calls": "Model calls",
    "model_seconds": "Model time",
}


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
        rows.append((_MEASURES[name], _times(one), totals, _of_tasks(one), passed))
    return [row[:-1] for row in rows] if same else rows


def _times(measure: CostRatio) -> str:
    bounds = f" ({sentences.between(measure)})" if measure.low is not None else ""
    return shown(measure.ratio, times) + bounds


def _of_tasks(measure: CostRatio) -> str:
    """How many tasks a ratio rests on, and of how many where some had only zeros or no number."""
    n, everything = measure.n_tasks, measure.n_all
    return f"{n} of {everything}" if n < everything else str(n)


def _efficiency(artifact: Artifact) -> Iterable[RenderableType]:
    rows = efficiency(artifact)
    if rows:
        table = _table(*rows[0])
        for row in rows[1:]:
            _add(table, *row)
        yield table


def _groups(artifact: Artifact) -> Iterable[RenderableType]:
    for title, groups in artifact.groupings.items():
        if len(groups) < 2:
            continue
        table = _table(title, "candidate", "baseline", "difference", "pairs")
        for name, group in list(groups.items())[:SHOWN_TASKS]:
            _add(
                table,
                plain(name, _NAME),
                shown(group.execution_pass_rate, rate),
                shown(group.baseline_pass_rate, rate),
                shown(group.delta, in_points),
                str(group.n_pairs or 0),
            )
        yield table


def _changes(
    artifact: Artifact | RunsCompared, before: str = "baseline", after: str = "candidate"
) -> Iterable[RenderableType]:
    """The tasks that changed; with one attempt an arm, a change of one task can always be chance."""
    changes = artifact.changes
    if not changes:
        return
    several = sentences.by_model(artifact)
    table = _table("tasks that changed", before, after, "p (corrected)")
    for change in changes[:SHOWN_TASKS]:
        name = plain(change.task_id, _NAME)
        _add(
            table,
            f"{name} ({plain(change.model, 20)})" if several else name,
            shown(change.baseline_pass_rate, rate),
            Text(shown(change.candidate_pass_rate, rate), "green" if change.change == "better" else "red"),
            shown(change.adjusted_p_value, p_value),
        )
    yield table
    if len(changes) > SHOWN_TASKS:
        yield _text(f"… and {len(changes) - SHOWN_TASKS} more tasks that changed.")


def _notes(artifact: Artifact) -> Iterable[RenderableType]:
    for sentence in (sentences.loaded(artifact), sentences.triggered(artifact), sentences.saved(artifact)):
        if sentence:
            yield _text(sentence)
    yield from map(_text, _flaky(artifact))
    yield _text(sentences.spending(artifact))
    for arm, messages in (artifact.errors or {}).items():
        for entry in messages:
            yield _text(f"Error in {arm}, {entry.count}×: {plain(entry.message, 200)}", "red")
    if artifact.n_dropped:
        dropped = ", ".join(plain(pair.task_id, _NAME) for pair in artifact.dropped_pairs[:SHOWN_TASKS])
        yield _text(f"Dropped pairs (not judged in both arms): {artifact.n_dropped}: {dropped}", "yellow")
    for warning in artifact.warnings:
        if not warning.startswith(("flaky task", f"{artifact.n_dropped} pairs were dropped")):
            yield _text(f"Warning: {plain(warning, 300)}", "yellow")


def _flaky(artifact: Artifact) -> Iterable[str]:
    """One line per arm: the tasks whose score varies by more than 20 points between attempts."""
    for arm, block in (artifact.consistency or {}).items():
        ranges = block.ranges if block else {}
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
        interval = artifact.interval
        _add(
            table,
            plain(artifact.candidate_id or artifact.arm, 24),
            shown(artifact.execution_pass_rate, rate),
            shown(artifact.delta, points),
            _between(interval.tasks_like_these if interval else None),
            shown(artifact.p_value_adjusted, p_value),
            Text(artifact.verdict, _STYLES[artifact.verdict]),
            artifact.decision or MISSING,
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

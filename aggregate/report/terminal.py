"""The result in the terminal, for someone who sees it for the first time; missing is shown as – only here.

Text that came from a suite, a model or a judge is stripped to plain characters and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aggregate.artifact import sentences
from aggregate.artifact.answer import BROKEN
from aggregate.artifact.model import Artifact, RunsCompared, SideRates, TaskBounds, TaskChange
from aggregate.report.result_tables import (
    GROUP_COLUMNS,
    ROWS,
    between,
    consistency,
    efficiency,
    errors,
    groups,
    metrics,
)
from aggregate.text.formats import (
    counted,
    in_points,
    level_text,
    p_value,
    plain,
    rate,
    shown,
)

SHOWN_TASKS = 10
_NAME = 40
_COLOURS = {"better": "green", "worse": "red"}
_CHANCE = 0.05  # of two runs that are compared, where a task has no interval


def result_table(artifacts: Sequence[Artifact]) -> RenderableType:
    """All tables of each candidate, for 80 columns and wider."""
    parts: list[RenderableType] = []
    for artifact in artifacts:
        if parts:
            parts.append(Text(""))
        parts.extend(_one(artifact))
    return Group(*parts)


def compare_table(result: RunsCompared) -> RenderableType:
    """Two runs side by side: what `two_runs.compare` found."""
    passed = (shown(share, rate) for share in (result.baseline_pass_rate, result.execution_pass_rate))
    rows = [("Tasks passed", *passed, shown(result.delta, in_points))]
    for row in ROWS:
        if row.difference and row.metric in SideRates.model_fields:
            rates = (getattr(run, row.metric) for run in (result.first_run, result.second_run))
            difference = shown(getattr(result, row.difference), row.difference_how)
            rows.append((row.label, *(shown(value, row.how) for value in rates), difference))
    table = _table(("", "first run", "second run", "difference"), rows)
    changes = [Text(""), *_changes(result, "first run", "second run")]
    return Group(table, _text(result.summary), *(changes if result.changes else ()))


def _one(artifact: Artifact) -> Iterable[RenderableType]:
    yield Text(plain(artifact.name, _NAME), "bold")
    if not artifact.was_run:
        yield _text(artifact.reason)
        return
    yield _arms(artifact)
    for table in (*_efficiency(artifact), *_groups(artifact), *_changes(artifact)):
        yield Text("")
        yield table
    yield Text("")
    yield from _notes(artifact)


def _arms(artifact: Artifact) -> Table:
    rows = []
    for label, before, after, difference in metrics(artifact, always=("pass_rate", "attempt_pass_rate")):
        rows.append((label, before, after, difference))
        if label == "Attempts passed" and (interval := artifact.interval):
            level = level_text(interval.level)
            like_these, this_suite = between(interval.tasks_like_these), between(interval.exactly_this_suite)
            rows.append((f"  {level} interval, tasks like these", "", "", like_these))
            rows.append((f"  {level} interval, exactly this suite", "", "", this_suite))
    return _table(("", "baseline", "candidate", "difference"), rows)


def _efficiency(artifact: Artifact) -> Iterable[RenderableType]:
    if rows := efficiency(artifact):
        yield _table(rows[0], rows[1:])


def _groups(artifact: Artifact) -> Iterable[RenderableType]:
    for title, rows in groups(artifact).items():
        if len(rows) > 1:
            # Time-outs and cost would need more than 80 columns.
            columns = (title, *map(str.lower, GROUP_COLUMNS[:-2]))
            yield _table(columns, (row[:-2] for row in rows[:SHOWN_TASKS]))


def _changes(
    artifact: Artifact | RunsCompared, before: str = "baseline", after: str = "candidate"
) -> Iterable[RenderableType]:
    """The tasks that changed by more than chance would, or by half; with p-values where one says something."""
    intervals = {(one.task_id, one.model): one.interval for one in getattr(artifact, "candidate_results", ())}
    clear = {change for change in artifact.changes if _is_clear(change, intervals)}
    changes = [one for one in artifact.changes if one in clear or abs(one.difference) >= BROKEN - 1e-9]
    if not changes:
        if others := len(artifact.changes):
            yield _text(
                f"{counted(others, 'task')} changed, none by half of its attempts or by more than chance."
            )
        return
    names = sentences.short_models(artifact.models) if sentences.by_model(artifact) else {}
    columns = ["tasks that changed most", before, after, "p (corrected)"]
    telling = any((change.adjusted_p_value or 0.0) < 0.995 for change in changes)
    rows = [
        (
            plain(change.task_id, _NAME) + (f" ({names[change.model]})" if change.model in names else ""),
            shown(change.baseline_pass_rate, rate),
            Text(shown(change.candidate_pass_rate, rate), _COLOURS[change.change] if change in clear else ""),
            shown(change.adjusted_p_value, p_value),
        )
        for change in changes[:SHOWN_TASKS]
    ]
    yield _table(columns, rows) if telling else _table(columns[:-1], [row[:-1] for row in rows])
    if others := len(artifact.changes) - len(changes[:SHOWN_TASKS]):
        yield _text(f"… and {others} more that changed.")


def _is_clear(change: TaskChange, intervals: Mapping[tuple[str, str], TaskBounds | None]) -> bool:
    """Whether the task's interval leaves out 0, as on the page; without one, whether its p-value rules chance out."""
    bounds = intervals.get((change.task_id, change.model))
    if bounds is None:
        return (change.adjusted_p_value or 0.0) < _CHANCE
    return (bounds.low or 0.0) > 0 or (bounds.high or 0.0) < 0


def _notes(artifact: Artifact) -> Iterable[RenderableType]:
    said = (
        "" if any(one.code == "few_tasks" for one in artifact.diagnosis) else sentences.power(artifact),
        *_flaky(artifact),
        sentences.bought(artifact),
        sentences.models_named(artifact),
    )
    yield from map(_text, filter(None, said))
    yield from (_text(f"{one.text}; {one.remedy}", "yellow") for one in artifact.diagnosis)
    for arm, entry in errors(artifact):
        yield _text(f"Error in {arm}, {entry.count}×: {plain(entry.message, 200)}", "red")
    if artifact.n_dropped:
        dropped = ", ".join(plain(pair.task_id, _NAME) for pair in artifact.dropped_pairs[:SHOWN_TASKS])
        yield _text(f"Dropped pairs (not judged in both arms): {artifact.n_dropped}: {dropped}", "yellow")
    for warning in artifact.warnings:
        if not warning.startswith(("flaky task", f"{artifact.n_dropped} pairs were dropped")):
            yield _text(f"Warning: {plain(warning, 300)}", "yellow")


def _flaky(artifact: Artifact) -> Iterable[str]:
    """One line per arm: the tasks whose score varies by more than 20 points between attempts."""
    for arm in consistency(artifact):
        if arm["flaky"]:
            tasks = ", ".join(f"{task} {spread}" for task, spread in arm["flaky"])
            more = f", … and {arm['more']} more" if arm["more"] else ""
            yield f"Flaky in {arm['arm']} (points between the best and the worst attempt): {tasks}{more}"


def _table(names: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(Text(name), justify="right" if place else "left", overflow="fold")
    for row in rows:
        # A plain string in a cell would be read as markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _text(text: str, style: str = "") -> Text:
    return Text(plain(text), style)

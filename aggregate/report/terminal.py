"""The result in the terminal, for someone who sees it for the first time; missing is shown as – only here.

Text that came from a suite, a model or a judge is stripped to plain characters and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aggregate.artifact import sentences
from aggregate.artifact.model import Artifact, RunsCompared, SideRates
from aggregate.report.source import GROUP_COLUMNS, ROWS, between, efficiency, errors, groups, metrics
from aggregate.text.formats import (
    in_points,
    level_text,
    p_value,
    plain,
    rate,
    shown,
)

SHOWN_TASKS = 10
_NAME = 40
_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red", "skipped": "bold yellow"}


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
    """The tasks that changed; with their p-values where one of them says something."""
    changes = artifact.changes
    if not changes:
        return
    names = sentences.short_models(artifact.models) if sentences.by_model(artifact) else {}
    columns = ["tasks that changed", before, after, "p (corrected)"]
    telling = any((change.adjusted_p_value or 0.0) < 0.995 for change in changes)
    rows = [
        (
            plain(change.task_id, _NAME) + (f" ({names[change.model]})" if change.model in names else ""),
            shown(change.baseline_pass_rate, rate),
            Text(shown(change.candidate_pass_rate, rate), "green" if change.change == "better" else "red"),
            shown(change.adjusted_p_value, p_value),
        )
        for change in changes[:SHOWN_TASKS]
    ]
    yield _table(columns, rows) if telling else _table(columns[:-1], [row[:-1] for row in rows])
    if len(changes) > SHOWN_TASKS:
        yield _text(f"… and {len(changes) - SHOWN_TASKS} more tasks that changed.")


def _notes(artifact: Artifact) -> Iterable[RenderableType]:
    said = (
        sentences.power(artifact),
        *_flaky(artifact),
        sentences.bought(artifact),
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

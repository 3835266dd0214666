"""The result in the terminal: the answer in a few lines, and every table for who asks for details.

Every word of the answer comes from the artifact; here it is only placed. Text that came from a suite, a model or a
judge is stripped to plain characters and never read as markup.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aggregate.artifact import sentences
from aggregate.artifact.answer import BROKEN, answer_of
from aggregate.artifact.model import (
    AnswerLine,
    Artifact,
    NextStep,
    RunAnswer,
    RunsCompared,
    SideRates,
    TaskBounds,
    TaskChange,
)
from aggregate.report import result_tables as tables
from aggregate.report.charts import axis
from aggregate.text.formats import (
    counted,
    duration,
    in_points,
    level_text,
    p_value,
    plain,
    points,
    rate,
    shown,
)

MOST_LINES = 15
MOST_LINES_OF_SEVERAL = 20
SHOWN_TASKS = 10
_CANDIDATE = 20
_NAME = 40
_BAR = 24
_STYLES = {
    **dict.fromkeys(("better", "no_worse"), "bold green"),
    **dict.fromkeys(("worse", "no_result", "fail", "error"), "bold red"),
    "pass": "green",
}
_COLOURS = {"better": "green", "worse": "red"}
_CHANCE = 0.05  # of two runs that are compared, where a task has no interval


def answer_block(artifacts: Sequence[Artifact], width: int, place: str) -> RenderableType:
    """At most 15 lines for one candidate, 20 for four; `place` tells where the page lies, or the artifact."""
    answers = [answer_of(artifact) for artifact in artifacts]
    if len(artifacts) == 1:
        return _fitted(_answer(answers[0], width), place, _bill(answers), width, MOST_LINES)
    return _fitted(_several(artifacts, width), place, _bill(answers), width, MOST_LINES_OF_SEVERAL)


def _answer(answer: RunAnswer, width: int) -> list[Text]:
    gate = f"gate: {answer.gate}"
    head = plain(answer.headline, width - len(gate) - 2)
    room = " " * (width - len(head) - len(gate))
    looks = _STYLES.get(answer.state, "bold yellow"), _STYLES.get(answer.gate, "")
    rows = [Text.assemble((head, looks[0]), room, (gate, looks[1]))]
    for line in answer.lines:
        if line.kind == "bill":
            continue
        if line.kind == "rates" and len(text := f"  {line.text}    {_bar(line)}") <= width:
            rows.append(Text(text.rstrip()))
        else:
            style = "yellow" if line.kind in ("diagnosis", "warnings") else ""
            rows.append(_row(line.text, width, style))
    rows += _next(answer.next, width)
    return rows


def _row(text: str, width: int, style: str = "") -> Text:
    """A line of the answer, on up to four rows where it is long; what is longer is cut."""
    rows = textwrap.wrap(text, width - 4, max_lines=4, placeholder=" …", break_on_hyphens=False)
    return Text("\n    ".join([f"  {rows[0]}", *rows[1:]]) if rows else "", style)


def _typed(text: str) -> Text:
    """What may be copied stands on one line, however narrow the terminal is."""
    return Text(f"  {plain(text)}", no_wrap=True, overflow="ignore")


def _bar(line: AnswerLine) -> str:
    """The interval as a picture: -20 ---0--[==o==]--- +40."""
    low, high, middle = map(line.figure, ("low", "high", "difference"))
    if low is None or high is None or middle is None:
        return ""
    first, last = axis(low, high)
    at = [round((one - first) / (last - first) * (_BAR - 1)) for one in (0, low, high, middle)]
    drawn = ["=" if at[1] < place < at[2] else "-" for place in range(_BAR)]
    for place, mark in zip(at, "0[]o", strict=True):
        drawn[place] = mark
    return f"{points(first)} {''.join(drawn)} {points(last)}"


def _several(artifacts: Sequence[Artifact], width: int) -> list[Text]:
    """One table, best first: each with its own rate, difference, interval and answer."""
    ordered = tables.ranked(artifacts)
    named = max(9, *(len(plain(artifact.name, _CANDIDATE)) for artifact in artifacts))
    heading, *told = tables.shared(ordered)
    rows = [Text(heading, "bold"), *(_row(text, width) for text in told)]
    if any(answer_of(artifact).scope == "exactly_this_suite" for artifact in ordered):
        rows.append(_row('"here" is on exactly these tasks, not on tasks like these', width))
    if any(answer_of(artifact).line("rates") for artifact in ordered):
        first, *others = map(str.lower, tables.CANDIDATES)
        rows.append(Text("  {:<{}} {:>9} {:>7} {:>16}  {}".format(first, named, *others), "bold"))
    for artifact in ordered:
        answer = answer_of(artifact)
        name, share, difference, between, said = tables.candidate_row(artifact, " here")
        left = f"{plain(name, _CANDIDATE):<{named}} "
        if answer.line("rates") is None:  # there is room for why not
            rows.append(_row(left + plain(said), width, _STYLES.get(answer.state, "")))
            continue
        left = f"  {left}{share:>9} {difference:>7} {between:>16}  "
        room = max(width - len(left) - 1, 20)
        rows.append(Text.assemble(left, (plain(said, room), _STYLES.get(answer.state, ""))))
    if worst := tables.worst_cause(ordered):
        rows.append(_row(worst, width, "yellow"))
    return rows + _next(tables.next_of(ordered), width)


def _next(step: NextStep, width: int) -> list[Text]:
    """What to do next; a command that may be copied stands on one line, however narrow the terminal is."""
    if not step.text:
        return []
    return [_typed(f"next: {step.text}") if step.command else _row(f"next: {step.text}", width)]


def _bill(answers: Sequence[RunAnswer]) -> str:
    """What the run cost and how long it took: of several candidates the same, said once."""
    line = next((line for one in answers if (line := one.line("bill"))), None)
    if line is None:
        return ""
    seconds = line.figure("wall_seconds")
    return ", ".join(filter(None, (line.text, "" if seconds is None else duration(seconds))))


def _fitted(rows: list[Text], place: str, bill: str, width: int, most: int) -> RenderableType:
    """With the page and the bill as last line; rows that are too long give up a line, then another, from the end."""
    together = f"  {place}{bill.rjust(width - len(place) - 2)}" if bill else f"  {place}"
    if len(place) + len(bill) + 4 <= width:
        every = [*rows, Text(together)]
    else:
        every = [*rows, *([_row(bill, width)] if bill else []), _typed(place)]
    for kept, number in product((3, 2, 1), range(len(every) - 1, 0, -1)):
        if (
            sum(max(1, math.ceil(len(line) / width)) for row in every for line in row.plain.split("\n"))
            <= most
        ):
            break
        lines = every[number].plain.split("\n")
        if len(lines) > kept:
            lines[kept - 1] = f"{lines[kept - 1][: width - 2]} …"
            every[number] = Text("\n".join(lines[:kept]), every[number].style)
    return Group(*every)


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
    for row in tables.ROWS:
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
    for table in (*_shares_and_groups(artifact), *_changes(artifact)):
        yield Text("")
        yield table
    yield Text("")
    yield from _notes(artifact)


def _arms(artifact: Artifact) -> Table:
    rows = []
    for label, before, after, difference in tables.metrics(
        artifact, always=("pass_rate", "attempt_pass_rate")
    ):
        rows.append((label, before, after, difference))
        if label == "Attempts passed" and (interval := artifact.interval):
            level = level_text(interval.level)
            name, bounds = f"  {level} interval", (interval.tasks_like_these, interval.exactly_this_suite)
            rows.append((f"{name}, tasks like these", "", "", tables.between(bounds[0])))
            rows.append((f"{name}, exactly this suite", "", "", tables.between(bounds[1])))
    return _table(("", "baseline", "candidate", "difference"), rows)


def _shares_and_groups(artifact: Artifact) -> Iterable[RenderableType]:
    """What the candidate takes as a share of the baseline, and both arms in each group."""
    if rows := tables.efficiency(artifact):
        yield _table(rows[0], rows[1:])
    for title, rows in tables.groups(artifact).items():
        if len(rows) > 1:
            # Time-outs and cost would need more than 80 columns.
            columns = (title, *map(str.lower, tables.GROUP_COLUMNS[:-2]))
            yield _table(columns, (row[:-2] for row in rows[:SHOWN_TASKS]))


def _changes(
    artifact: Artifact | RunsCompared, before: str = "baseline", after: str = "candidate"
) -> Iterable[RenderableType]:
    """The tasks that changed by more than chance would, or by half; with p-values where one says something."""
    intervals = {(one.task_id, one.model): one.interval for one in getattr(artifact, "candidate_results", ())}
    clear = {change for change in artifact.changes if _is_clear(change, intervals)}
    changes = [one for one in artifact.changes if one in clear or abs(one.difference) >= BROKEN - 1e-9]
    if not changes:
        if artifact.changes:
            tasks = counted(len(artifact.changes), "task")
            yield _text(f"{tasks} changed, none by half of its attempts or by more than chance.")
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
    for arm, entry in tables.errors(artifact):
        yield _text(f"Error in {arm}, {entry.count}×: {plain(entry.message, 200)}", "red")
    if artifact.n_dropped:
        dropped = ", ".join(plain(pair.task_id, _NAME) for pair in artifact.dropped_pairs[:SHOWN_TASKS])
        yield _text(f"Dropped pairs (not judged in both arms): {artifact.n_dropped}: {dropped}", "yellow")
    for warning in artifact.warnings:
        if not warning.startswith(("flaky task", f"{artifact.n_dropped} pairs were dropped")):
            yield _text(f"Warning: {plain(warning, 300)}", "yellow")


def _flaky(artifact: Artifact) -> Iterable[str]:
    """One line per arm: the tasks whose score varies by more than 20 points between attempts."""
    for arm in tables.consistency(artifact):
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

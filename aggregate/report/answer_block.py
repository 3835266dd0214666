"""The answer in the terminal: a few lines that end what a run prints; several candidates share one table.

Every word comes from the artifacts' answers; here they are only placed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import product

from rich.console import Group, RenderableType
from rich.text import Text

from aggregate.artifact.answer import answer_of
from aggregate.artifact.model import AnswerLine, Artifact, NextStep, RunAnswer
from aggregate.report.charts import axis
from aggregate.report.result_tables import CANDIDATES, candidate_row, next_of, ranked, shared, worst_cause
from aggregate.text.formats import duration, plain, points

MOST_LINES = 15
MOST_LINES_OF_SEVERAL = 20
_NAME = 20
_BAR = 24
_STYLES = {
    "better": "bold green",
    "no_worse": "bold green",
    "worse": "bold red",
    "no_result": "bold red",
    "pass": "green",
    "fail": "bold red",
    "error": "bold red",
}


def answer_block(artifacts: Sequence[Artifact], width: int, place: str) -> RenderableType:
    """At most 15 lines for one candidate, 20 for four; `place` tells where the page lies, or the artifact."""
    answers = [answer_of(artifact) for artifact in artifacts]
    if len(artifacts) == 1:
        return _fitted(_one(answers[0], width), place, _bill(answers), width, MOST_LINES)
    return _fitted(_several(artifacts, width), place, _bill(answers), width, MOST_LINES_OF_SEVERAL)


def _one(answer: RunAnswer, width: int) -> list[Text]:
    gate = f"gate: {answer.gate}"
    head = plain(answer.headline, width - len(gate) - 2)
    room = width - len(head) - len(gate)
    rows = [
        Text.assemble(
            (head, _STYLES.get(answer.state, "bold yellow")), " " * room, (gate, _STYLES.get(answer.gate, ""))
        )
    ]
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
    ordered = ranked(artifacts)
    named = max(9, *(len(plain(artifact.name, _NAME)) for artifact in artifacts))
    heading, *told = shared(ordered)
    rows = [Text(heading, "bold"), *(_row(text, width) for text in told)]
    if any(answer_of(artifact).scope == "exactly_this_suite" for artifact in ordered):
        rows.append(_row('"here" is on exactly these tasks, not on tasks like these', width))
    head = "  {:<{}} {:>9} {:>7} {:>16}  {}".format(
        CANDIDATES[0].lower(), named, *map(str.lower, CANDIDATES[1:])
    )
    if any(answer_of(artifact).line("rates") for artifact in ordered):
        rows.append(Text(head, "bold"))
    for artifact in ordered:
        answer = answer_of(artifact)
        name, share, difference, between, said = candidate_row(artifact, " here")
        left = f"{plain(name, _NAME):<{named}} "
        if answer.line("rates") is None:  # there is room for why not
            rows.append(_row(left + plain(said), width, _STYLES.get(answer.state, "")))
            continue
        left = f"  {left}{share:>9} {difference:>7} {between:>16}  "
        room = max(width - len(left) - 1, 20)
        rows.append(Text.assemble(left, (plain(said, room), _STYLES.get(answer.state, ""))))
    if worst := worst_cause(ordered):
        rows.append(_row(worst, width, "yellow"))
    return rows + _next(next_of(ordered), width)


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
        if sum(_height(row, width) for row in every) <= most:
            break
        lines = every[number].plain.split("\n")
        if len(lines) > kept:
            lines[kept - 1] = f"{lines[kept - 1][: width - 2]} …"
            every[number] = Text("\n".join(lines[:kept]), every[number].style)
    return Group(*every)


def _height(row: Text, width: int) -> int:
    return sum(max(1, math.ceil(len(line) / width)) for line in row.plain.split("\n"))

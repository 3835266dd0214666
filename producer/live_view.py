"""A run as a small table that follows it on a terminal: fits width and height, and moves as little as it can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aggregate.plain_text import plain
from producer.view import InFlight, View, Worker

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

LONGEST_NAME = 24
SHORTER_NAME = 16
NARROW = 100
SHORT = 16
MOST_ARMS = 8
MOST_SLOWEST = 5
MOST_WORKERS = 6
START_SECONDS = 8.0


class LiveView:
    """One view, drawn for whatever terminal it meets."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        # The last line stays free: a terminal scrolls when it is written to its very end.
        yield from parts(self._view, options.max_width, (options.height or console.height) - 1)


def parts(view: View, width: int, height: int) -> Iterator[RenderableType]:
    """What fits into `height` lines, the more important first: arms and difference, then cost, then the inside."""
    roomy = height >= SHORT
    frame = 3 if roomy else 1  # the head, and empty lines around the arms
    # An arm takes a line for itself and one for its difference; one line says how many arms are left out.
    shown = range(min(len(view.arms), MOST_ARMS, max(2, (height - frame - 1) // 2)))
    outcome = [*_deltas(view, shown), *_more_arms(view, len(shown))]
    facts = [*_facts(view), *_details(view, width)]
    room = max(0, height - frame - len(shown) - len(outcome))
    yield _line(_head(view), style="bold")
    if roomy:
        yield ""
    yield _arms(view, shown, width)
    yield _labelled([*outcome, *([("", Text(""))] if roomy else []), *facts[:room]])


def _head(view: View) -> str:
    return f"{plain(view.run_id, 40)}  {_stage(view)}{clock(view.elapsed)} elapsed{_time_left(view)}"


def _stage(view: View) -> str:
    if view.stopping:
        return f"stopping, {view.progress.in_flight} still in flight, "
    if view.progress.recorded >= view.total and not view.progress.in_flight:
        return "working out the result, "
    return ""


def _time_left(view: View) -> str:
    left = view.seconds_left
    if left is None or not view.left or view.stopping:
        return ""
    return f", {'at most' if view.may_stop else 'about'} {clock(left)} left"


def _arms(view: View, shown: Iterable[int], width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, max_width=LONGEST_NAME if width >= NARROW else SHORTER_NAME)
    table.add_column(ratio=1, min_width=6)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    for _ in range(2 if width >= NARROW else 1):
        table.add_column(no_wrap=True, justify="right", min_width=8)
    total = f"{view.total_per_arm:,}"
    for arm in shown:
        done, errors = view.done(arm), view.outcome(arm, "error")
        passing, between = _passing(view, arm)
        cells: list[RenderableType] = [
            Text(plain(view.arms[arm]), style="bold", overflow="ellipsis"),
            _bar(done, view.total_per_arm),
            Text(f"{done:>{len(total)},}/{total}"),
            Text(f"{passing:>5} passing {between}"),
        ]
        if width >= NARROW:
            cells.append(Text(_count(view.outcome(arm, "timeout"), "time-out"), style="yellow"))
        cells.append(Text(_count(errors, "error"), style="red"))
        table.add_row(*cells)
    return table


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(1, total), completed=done, complete_style="cyan", finished_style="green")


def _passing(view: View, arm: int) -> tuple[str, str]:
    found = view.passing(arm)
    if found is None:
        return "–", " " * 9
    return f"{100 * found.estimate:.0f} %", f"({100 * found.low:.0f}–{100 * found.high:.0f})".ljust(9)


def _deltas(view: View, arms: Iterable[int]) -> Iterator[tuple[str, Text]]:
    several = len(view.arms) > 2
    for arm in filter(view.is_compared, arms):
        found = view.delta(arm)
        words = Text("–")
        if found is not None:
            style = "green" if found.low > 0 else "red" if found.high < 0 else ""
            words = Text(f"{whole_points(found.estimate)} points", style=style)
            between = f"{whole_points(found.low)} to {whole_points(found.high)}"
            words.append(f" ({between}, roughly, so far)", style="dim")
        if several:
            words.append(f"  {plain(view.arms[arm], LONGEST_NAME)}")
        yield "delta", words


def _more_arms(view: View, shown: int) -> Iterator[tuple[str, Text]]:
    if len(view.arms) > shown:
        yield "", Text(f"and {len(view.arms) - shown} more arms", style="dim")


def _facts(view: View) -> Iterator[tuple[str, Text]]:
    yield "cost", Text(cost(view))
    yield "in flight", Text(", ".join(_in_flight(view)))
    yield "workers", _workers(view)


def _in_flight(view: View) -> Iterator[str]:
    yield f"{view.progress.in_flight:,}"
    models = view.inside.in_flight
    if len(models) > 1:
        yield from (f"{plain(model, LONGEST_NAME)} {count:,}" for model, count in models.items())
    elif models:
        yield plain(next(iter(models)), 40)
    if view.inside.retries:
        yield _count(view.inside.retries, "retry", "retries")


def _workers(view: View) -> Text:
    if not view.workers:
        return Text("none yet") if view.elapsed < START_SECONDS else Text("none answers", style="yellow")
    words = f"{view.workers:,}"
    if view.rate:
        words += f", {_per_second(view.rate)}"
    return Text(words)


def _details(view: View, width: int) -> Iterator[tuple[str, Text]]:
    label = "slowest"
    for slow in [one for one in view.inside.slowest if one.seconds >= 1][:MOST_SLOWEST]:
        yield label, _slow(slow, len(view.inside.in_flight) > 1 and width >= NARROW)
        label = ""
    label = "at work"
    if len(view.inside.workers) > 1:
        for worker in sorted(view.inside.workers, key=_slowness)[:MOST_WORKERS]:
            yield label, _worker(worker)
            label = ""


def _slowness(worker: Worker) -> tuple[float, str]:
    return worker.rate or 0.0, worker.name


def _slow(slow: InFlight, name_model: bool) -> Text:
    words = Text(f"{_seconds(slow.seconds):>6}  {plain(slow.task, 40)}, {plain(slow.arm, LONGEST_NAME)}")
    words.append(f", attempt {slow.number}" + (f", {plain(slow.model, LONGEST_NAME)}" if name_model else ""))
    return words


def _worker(worker: Worker) -> Text:
    return Text(
        f"{plain(worker.name, 32)}: {worker.in_flight:,} in flight, {_per_second(worker.rate or 0.0)}"
    )


def _labelled(facts: Iterable[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, style="dim", width=9)
    table.add_column(no_wrap=True, ratio=1)
    for label, words in facts:
        words.overflow = "ellipsis"
        table.add_row(label, words)
    return table


def _line(words: str, style: str) -> Text:
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def cost(view: View) -> str:
    """What was spent and what all of it will cost, as far as anybody knows."""
    if view.spent is None:
        words = "cost unknown" if view.inside.done else "nothing spent yet"
    else:
        words = f"{'at least ' if view.inside.unpriced else ''}{usd(view.spent)} spent"
        if view.projected is not None and view.left:
            words += f", {'at most' if view.may_stop else 'about'} {usd(view.projected)} in all"
    return words if view.budget_usd is None else f"{words}, budget {usd(view.budget_usd)}"


def whole_points(difference: float) -> str:
    """A difference of rates in percentage points; while a run goes on, more digits would only flicker."""
    return f"{round(100 * difference):+d}"


def usd(amount: float) -> str:
    """Always as many digits for sums of about this size, so that nothing jumps."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def clock(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else clock(seconds)


def _per_second(rate: float) -> str:
    if rate and rate < 0.1:
        return f"{60 * rate:.1f} attempts a minute"
    return f"{rate:,.1f} attempts a second"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}" if number else ""

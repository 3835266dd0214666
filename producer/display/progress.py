"""Show a run's progress on standard error: a live table on a terminal, a plain line now and then elsewhere.

The table fits width and height of the terminal, and moves as little as it can.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aggregate.text.formats import counted, plain
from producer.display.snapshot import RoughInterval, View

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
        """What fits, the more important first: arms and difference, then cost, then what workers do."""
        view, width = self._view, options.max_width
        # The last line stays free: a terminal scrolls when it is written to its very end.
        height = (options.height or console.height) - 1
        roomy = height >= SHORT
        frame = 3 if roomy else 1  # the head, and empty lines around the arms
        # An arm takes a line for itself and one for its difference; one line says how many arms are left out.
        shown = range(min(len(view.arms), MOST_ARMS, max(2, (height - frame - 1) // 2)))
        outcome = [*_deltas(view, shown)]
        if len(view.arms) > len(shown):
            outcome.append(("", Text(f"and {len(view.arms) - len(shown)} more arms", style="dim")))
        facts = [
            ("cost", Text(cost(view))),
            ("in flight", Text(", ".join(_in_flight(view)))),
            ("workers", _workers(view)),
            *([("paced", Text(paced(view.inside.paced)))] if view.inside.paced else []),
            *_details(view, width),
        ]
        room = max(0, height - frame - len(shown) - len(outcome))
        yield Text(_head(view), style="bold", no_wrap=True, overflow="ellipsis")
        if roomy:
            yield ""
        yield _arms(view, shown, width)
        yield _labelled([*outcome, *([("", Text(""))] if roomy else []), *facts[:room]])


def _head(view: View) -> str:
    stage, left = "", time_left(view)
    if view.stopping:
        stage, left = f"stopping, {view.progress.in_flight} still in flight, ", ""
    elif view.progress.recorded >= view.total and not view.progress.in_flight:
        stage = "working out the result, "
    return f"{plain(view.run_id, 40)}  {stage}{clock(view.elapsed)} elapsed{left and f', {left}'}"


def time_left(view: View) -> str:
    """About how long the run still takes; nothing before that can be said."""
    if view.seconds_left is None or not view.left:
        return ""
    return f"{_about(view)} {clock(view.seconds_left)} left"


def _about(view: View) -> str:
    return "at most" if view.may_stop else "about"


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
        done, rate = view.done(arm), view.passing(arm)
        between = f"({100 * rate.low:.0f}–{100 * rate.high:.0f})" if rate else ""
        cells: list[RenderableType] = [
            Text(plain(view.arms[arm]), style="bold", overflow="ellipsis"),
            ProgressBar(max(1, view.total_per_arm), done, complete_style="cyan", finished_style="green"),
            Text(f"{done:>{len(total)},}/{total}"),
            Text(f"{_percent(rate):>5} passing {between:<9}"),
        ]
        if width >= NARROW:
            cells.append(Text(_count(view.outcome(arm, "timeout"), "time-out"), style="yellow"))
        cells.append(Text(_count(view.outcome(arm, "error"), "error"), style="red"))
        table.add_row(*cells)
    return table


def _percent(rate: RoughInterval | None) -> str:
    return f"{100 * rate.estimate:.0f} %" if rate else "–"


def _deltas(view: View, arms: Iterable[int]) -> Iterator[tuple[str, Text]]:
    for arm in filter(view.is_compared, arms):
        words = Text("–")
        if (delta := view.delta(arm)) is not None:
            style = "green" if delta.low > 0 else "red" if delta.high < 0 else ""
            estimate, low, high = map(whole_points, delta)
            words = Text(f"{estimate} points", style=style)
            words.append(f" of attempts passed ({low} to {high}, roughly)", style="dim")
        if len(view.arms) > 2:
            words.append(f"  {plain(view.arms[arm], LONGEST_NAME)}")
        yield "so far", words


def _in_flight(view: View) -> Iterator[str]:
    models = view.inside.in_flight
    # The run's own count is newer than the heartbeats that tell the models, and would not be their sum.
    yield f"{sum(models.values()) if len(models) > 1 else view.progress.in_flight:,}"
    for model, count in models.items():
        name = view.called(model)
        yield f"{count:,} of {plain(name, LONGEST_NAME)}" if len(models) > 1 else plain(name, 40)
    if view.inside.retries:
        yield _count(view.inside.retries, "retry", "retries")


def _workers(view: View) -> Text:
    if not view.workers:
        return Text("none yet") if view.elapsed < START_SECONDS else Text("none answers", style="yellow")
    return Text(f"{view.workers:,}" + (f", {_per_second(view.rate)}" if view.rate else ""))


def _details(view: View, width: int) -> Iterator[tuple[str, Text]]:
    """The slowest attempts and, where there are several, the slowest workers."""
    names_models = len(view.inside.in_flight) > 1 and width >= NARROW
    slowest = [attempt for attempt in view.inside.slowest if attempt.seconds >= 1]
    for number, slow in enumerate(slowest[:MOST_SLOWEST]):
        words = f"{_seconds(slow.seconds):>6}  {plain(slow.task, 40)}, {plain(slow.arm, LONGEST_NAME)}"
        model = f", {plain(view.called(slow.model), LONGEST_NAME)}" if names_models else ""
        words += f", attempt {slow.number}{model}"
        yield "" if number else "slowest", Text(words)
    beats = sorted(view.inside.workers, key=lambda beat: (beat.rate or 0.0, beat.worker))
    for number, beat in enumerate(beats[:MOST_WORKERS] if len(beats) > 1 else ()):
        in_flight = sum((beat.in_flight or {}).values())
        words = f"{plain(beat.worker, 32)}: {in_flight:,} in flight, {_per_second(beat.rate or 0.0)}"
        yield "" if number else "at work", Text(words)


def _labelled(facts: Iterable[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, style="dim", width=9)
    table.add_column(no_wrap=True, ratio=1)
    for label, words in facts:
        words.overflow = "ellipsis"
        table.add_row(label, words)
    return table


def paced(models: Mapping[str, int]) -> str:
    """How often models may be asked whose providers set the pace."""
    rates = [f"{plain(model, 40)} {rate:,} calls a minute" for model, rate in models.items()]
    return f"by the provider: {', '.join(rates)}"


def cost(view: View) -> str:
    """What was spent and what all of it will cost, as far as anybody knows."""
    if view.spent is None:
        words = "cost unknown" if view.inside.done else "nothing spent yet"
        words += f", {usd(view.progress.assumed)} assumed" if view.progress.assumed else ""
    else:
        words = spending(view.spent, view.progress.assumed, view.inside.unpriced)
        if view.projected is not None and view.left:
            words += f", {_about(view)} {usd(view.projected)} in all"
    return words if view.budget_usd is None else f"{words}, budget {usd(view.budget_usd)}"


def spending(spent: float, assumed: float, unpriced: int) -> str:
    """What is known to be spent, and what is assumed for calls of unknown cost; without an estimate it is more."""
    if assumed:
        return f"{usd(spent)} spent, {usd(assumed)} assumed"
    return f"{'at least ' if unpriced else ''}{usd(spent)} spent"


def whole_points(difference: float) -> str:
    """A difference of rates in percentage points; while a run goes on, more digits would only flicker."""
    return f"{round(100 * difference):+d}"


def delta_words(delta: Iterable[float]) -> str:
    """A difference of rates with its interval: +13 (+5 to +22)."""
    estimate, low, high = map(whole_points, delta)
    return f"{estimate} ({low} to {high})"


def usd(amount: float) -> str:
    """Always as many digits for sums of about this size, so that nothing jumps."""
    if amount <= 0:
        return "$0"
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


PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.4


class Display:
    """Where progress goes: this one shows nothing but what must be said. `show` is called only where `shows` is set."""

    shows = False

    def begin(self, run_id: str, resume: str) -> None:
        """Called once, before anything of the run is done."""

    def show(self, view: View) -> None:
        """Show a run as it is now."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"uplift: {plain(text)}\n")
        sys.stderr.flush()

    def drawing(self) -> AbstractContextManager[object]:
        """To be entered for as long as a run is followed."""
        return nullcontext()


class Plain(Display):
    """One line every few seconds, for pipes and CI."""

    shows = True

    def __init__(self) -> None:
        self._last = float("-inf")
        self._shown = -1

    def begin(self, run_id: str, resume: str) -> None:
        """Said first, so that a log tells which run it was, whatever becomes of this process."""
        self.say(f"run {run_id}; should this command die, go on with: {resume}")

    def show(self, view: View) -> None:
        now, recorded = time.monotonic(), view.progress.recorded
        finished = recorded == view.total and self._shown != recorded
        if finished or now - self._last >= PLAIN_SECONDS:
            self._last, self._shown = now, recorded
            self.say(line(view))


class Live(Display):
    """A small table that follows the run and is gone when it is over."""

    shows = True

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        # Drawn when there is something new, not by a clock: a terminal that nobody writes to cannot flicker.
        self._live = RichLive(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._last = float("-inf")

    def show(self, view: View) -> None:
        now = time.monotonic()
        if now - self._last >= LIVE_SECONDS:
            self._last = now
            self._live.update(LiveView(view), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(f"uplift: {plain(text)}"))

    def drawing(self) -> AbstractContextManager[object]:
        return self._live


def choose(*, quiet: bool, environment: Mapping[str, str] = os.environ) -> Display:
    """Live on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return Display()
    if not sys.stderr.isatty() or wants_plain_lines(environment):
        return Plain()
    from rich.console import Console

    return Live(Console(stderr=True, highlight=False))


def wants_plain_lines(environment: Mapping[str, str]) -> bool:
    """Whether the surroundings say that nothing should be drawn: no colours, a dumb terminal, or a CI job's log."""
    dumb = environment.get("TERM", "dumb") in ("", "dumb", "unknown")
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return dumb or in_ci or bool(environment.get("NO_COLOR"))


def line(view: View) -> str:
    """A run on one line; with several candidates it has no room for their differences."""
    arms = ", ".join(f"{plain(name, 24)} {_percent(view.passing(arm))}" for arm, name in enumerate(view.arms))
    deltas = [delta for arm in range(len(view.arms)) if (delta := view.delta(arm)) is not None]
    parts = [
        f"{view.progress.recorded}/{view.total} attempts",
        f"passing: {arms}",
        f"{delta_words(deltas[0])} points of attempts" if len(deltas) == 1 else "",
        f"{view.progress.in_flight} in flight",
        counted(view.workers, "worker"),
        _count(view.inside.retries, "retry", "retries"),
        _count(view.errors(), "error"),
        "paced by the provider" if view.inside.paced else "",
        cost(view),
        f"{clock(view.elapsed)} elapsed",
        time_left(view),
    ]
    return "; ".join(filter(None, parts))

"""Show a run's progress on standard error: a live table on a terminal, a plain line now and then elsewhere.

The table fits width and height of the terminal, and moves as little as it can.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aggregate.text.formats import plain
from producer.display.snapshot import InFlight, View, Worker

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
        words += f", {usd(view.progress.assumed)} assumed" if view.progress.assumed else ""
    else:
        words = spending(view.spent, view.progress.assumed, view.inside.unpriced)
        if view.projected is not None and view.left:
            words += f", {'at most' if view.may_stop else 'about'} {usd(view.projected)} in all"
    return words if view.budget_usd is None else f"{words}, budget {usd(view.budget_usd)}"


def spending(spent: float, assumed: float, unpriced: int) -> str:
    """What is known to be spent, and what is assumed for calls of unknown cost; without an estimate it is more."""
    if assumed:
        return f"{usd(spent)} spent, {usd(assumed)} assumed"
    return f"{'at least ' if unpriced else ''}{usd(spent)} spent"


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


PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.4


class Display(Protocol):
    """Where progress goes."""

    def begin(self, run_id: str, resume: str) -> None: ...

    def show(self, view: View) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Quiet:
    """Shows nothing but what must be said."""

    def begin(self, run_id: str, resume: str) -> None:
        pass

    def show(self, view: View) -> None:
        pass

    def say(self, text: str) -> None:
        sys.stderr.write(f"uplift: {plain(text)}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Plain(Quiet):
    """One line every few seconds, for pipes and CI."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._shown = -1

    def begin(self, run_id: str, resume: str) -> None:
        """Said first, so that a log tells which run it was, whatever becomes of this process."""
        self.say(f"run {run_id}; should this command die, go on with: {resume}")

    def show(self, view: View) -> None:
        now, recorded = time.monotonic(), view.progress.recorded
        finished = recorded == view.total and self._shown != recorded
        if now - self._last < PLAIN_SECONDS and not finished:
            return
        self._last, self._shown = now, recorded
        self.say(line(view))


class Live(Quiet):
    """A small table that follows the run and is gone when it is over."""

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
        from rich.text import Text

        self._console.print(Text(f"uplift: {plain(text)}"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def choose(*, quiet: bool, environment: Mapping[str, str] = os.environ) -> Display:
    """Live on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return Quiet()
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
    """A run on one line."""

    arms = ", ".join(f"{plain(name, 24)} {_rate(view, number)}" for number, name in enumerate(view.arms))
    left, inside = view.seconds_left, view.inside
    parts = [
        f"{view.progress.recorded}/{view.total} attempts",
        f"passing: {arms}",
        *_delta(view),
        f"{view.progress.in_flight} in flight",
        f"{view.workers} {'worker' if view.workers == 1 else 'workers'}",
        *([f"{inside.retries} {'retry' if inside.retries == 1 else 'retries'}"] if inside.retries else []),
        *([f"{view.errors()} {'error' if view.errors() == 1 else 'errors'}"] if view.errors() else []),
        cost(view),
        f"{clock(view.elapsed)} elapsed",
    ]
    if left is not None and view.left:
        parts.append(f"{'at most' if view.may_stop else 'about'} {clock(left)} left")
    return "; ".join(parts)


def _rate(view: View, arm: int) -> str:
    found = view.passing(arm)
    return f"{100 * found.estimate:.0f} %" if found else "–"


def _delta(view: View) -> list[str]:
    """With several candidates a line has no room for it."""

    found = [delta for arm in range(len(view.arms)) if (delta := view.delta(arm)) is not None]
    if len(found) != 1:
        return []
    return [
        f"delta {whole_points(found[0].estimate)} ({whole_points(found[0].low)} to {whole_points(found[0].high)})"
    ]

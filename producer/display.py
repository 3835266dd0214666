"""Show a run's progress on standard error: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from aggregate.plain_text import plain
from producer.view import View

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.4


class Display(Protocol):
    """Where progress goes."""

    def show(self, view: View) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Quiet:
    """Shows nothing but what must be said."""

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
        from producer.live_view import LiveView

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
    from producer.live_view import clock, cost

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
    from producer.live_view import whole_points as points

    found = [delta for arm in range(len(view.arms)) if (delta := view.delta(arm)) is not None]
    if len(found) != 1:
        return []
    return [f"delta {points(found[0].estimate)} ({points(found[0].low)} to {points(found[0].high)})"]

"""Show a run's progress on standard error: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from producer.watch import View

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_SECONDS = 5.0


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
        sys.stderr.write(f"uplift: {text}\n")
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
        arms = ", ".join(f"{name} {_rate(view, number)}" for number, name in enumerate(view.arms))
        self.say(f"{recorded}/{view.total} attempts; passing: {arms}; {_rest(view)}")


class Live(Quiet):
    """A small table that follows the run."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, refresh_per_second=8, transient=True)

    def show(self, view: View) -> None:
        self._live.update(_table(view))

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"uplift: {text}"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def choose(*, quiet: bool) -> Display:
    """Live on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return Quiet()
    if not sys.stderr.isatty():
        return Plain()
    from rich.console import Console

    return Live(Console(stderr=True))


def _table(view: View) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=False)
    for justify in ("left", "left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for number, name in enumerate(view.arms):
        done = view.outcome(number, "passed", "failed", "timeout", "error")
        errors = view.outcome(number, "error")
        table.add_row(
            Text(name, style="bold"),
            ProgressBar(total=max(1, view.total_per_arm), completed=done, width=24),
            f"{done}/{view.total_per_arm}",
            f"{_rate(view, number)} passing",
            Text(f"{errors} errors", style="red") if errors else "",
        )
    return Group(table, Text(("stopping; " if view.stopping else "") + _rest(view), style="dim"))


def _rate(view: View, arm: int) -> str:
    passed = view.outcome(arm, "passed")
    judged = passed + view.outcome(arm, "failed", "timeout")
    return f"{100 * passed / judged:.0f} %" if judged else "–"


def _rest(view: View) -> str:
    left = view.seconds_left
    parts = [
        f"{view.progress.in_flight} in flight",
        f"{view.workers} {'worker' if view.workers == 1 else 'workers'}",
        f"${view.progress.spent:.4f} spent",
        f"{_time(view.elapsed)} elapsed",
    ]
    if left is not None and view.progress.recorded < view.total:
        parts.append(f"about {_time(left)} left")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

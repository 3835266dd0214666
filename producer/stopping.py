"""What Ctrl-C and SIGTERM do: the first stops new attempts, the second ends the command at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopper:
    """Whether somebody asked to stop; who asks first is told so.

    Not by the handler: a signal that comes while a line is being printed must not print another one inside of it.
    """

    def __init__(self, say: Callable[[str], None], resume: str) -> None:
        self.asked = self._told = False
        self._say = say
        self._resume = resume

    def __call__(self) -> bool:
        if self.asked and not self._told:
            self._told = True
            self._say(
                "stopping: no new attempts, waiting for those in flight; press again to stop at once. "
                f"Go on later with: {self._resume}"
            )
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stopper(
    say: Callable[[str], None], resume: str, ask: Callable[[], bool] | None = None
) -> Iterator[Callable[[], bool]]:
    """Handle both signals for as long as the block runs; with somebody to `ask` they are left alone."""
    if ask is not None:
        yield ask
        return
    made = Stopper(say, resume)
    before = {number: signal.signal(number, made.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

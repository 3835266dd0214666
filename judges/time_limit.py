"""Give a judge that has no process of its own one second for an output; after that the output has failed.

The second is processor time of the judging thread: an honest output must not fail because others keep the
machine busy. Nothing here interrupts a step. A judge looks at the clock between its steps, each of which
takes time in proportion to the output (4 MiB at most) and no more; patterns stop by themselves.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from judges.judgment import Judgment

SECONDS = 1.0

# When the check under way must be done, by the processor time of its thread.
_deadline: ContextVar[float] = ContextVar("_deadline")

# A judge's settings (or its schema) and an output.
_Judged = Callable[[Any, str], Judgment]


class TooSlow(Exception):
    """The time was up before it was known whether an output is good."""


def bounded(kind: str) -> Callable[[_Judged], _Judged]:
    """Let a judge of this type have its second; it must look at the clock."""

    def bind(judged: _Judged) -> _Judged:
        @functools.wraps(judged)
        def judged_in_time(told: Any, text: str) -> Judgment:
            try:
                with limit():
                    return judged(told, text)
            except TooSlow as slow:
                return Judgment(judge=kind, passed=False, score=0.0, details=str(slow))

        return judged_in_time

    return bind


@contextmanager
def limit() -> Iterator[None]:
    """Within the block, `look` raises TooSlow once the second is used."""
    before = _deadline.set(time.thread_time() + SECONDS)
    try:
        yield
    finally:
        _deadline.reset(before)


def look(remedy: str = "") -> float:
    """Look at the clock: the seconds left of the limit, which somebody must have set; raises TooSlow."""
    left = _deadline.get() - time.thread_time()
    if left <= 0:
        raise TooSlow(f"not judged within {SECONDS:g} s" + (f"; {remedy}" if remedy else ""))
    return left

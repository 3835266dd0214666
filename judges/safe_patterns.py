"""Compile and match regular expressions that strangers may have written, within size and time limits.

The `regex` package understands Python's syntax (and named groups as other languages write them) and gives up
after a time limit, which `re` cannot. Covered: catastrophic backtracking, patterns that would take gigabytes
to compile, nesting without end. Not covered: a pattern that means something else than its author thinks.
"""

from __future__ import annotations

import math
import re
import warnings
from functools import lru_cache
from typing import Any

import regex

from judges.judgment import look_at_clock

MAX_LEAST_REPEATS = 1_000_000

_REMEDY = "avoid repetitions inside repetitions in the pattern, such as (a+)+"
# The least number of times that something repeats; compiling writes that many copies out.
_LEAST = re.compile(r"\{(\d{1,12})")


@lru_cache(maxsize=16384)
def compiled(pattern: str, *, ignore_case: bool = False, multiline: bool = False) -> Any:
    """The pattern ready for use; raises ValueError that says what is wrong with it, and where."""
    repeats = math.prod(int(count) or 1 for count in _LEAST.findall(pattern))
    if repeats > MAX_LEAST_REPEATS:
        raise ValueError(f"repeats more than {MAX_LEAST_REPEATS:,} times at least; lower its counts")
    flags = (regex.IGNORECASE if ignore_case else 0) | (regex.MULTILINE if multiline else 0)
    try:
        with warnings.catch_warnings():
            # A doubtful pattern is still a pattern; nobody would see the warning.
            warnings.simplefilter("ignore")
            return regex.compile(pattern, flags)
    except regex.error as wrong:
        raise ValueError(f"not a regular expression: {wrong}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise ValueError("nested too deeply to be read; simplify it") from None


def search(pattern: Any, text: str) -> Any:
    """The first match or None; raises TooSlow. Other threads may run meanwhile."""
    share = 1
    while True:
        try:
            return pattern.search(text, timeout=share * look_at_clock(_REMEDY), concurrent=True)
        except TimeoutError:
            # It counts what all threads of this process use, and the next try may be one among many again.
            share *= 2

"""What a user runs: suites, skills and rankings become a run on the workers, and a run becomes files.

From Python use the module `uplift`; the names here are those of version 0.1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aggregate.formulas.intervals import Interval
    from producer.library import Result, aevaluate, evaluate

__all__ = ["Interval", "Result", "aevaluate", "evaluate"]


def __getattr__(name: str) -> Any:
    """Import the library when it is asked for: the command line must start without its weight."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from producer import library

    return getattr(library, name)

"""Uplift from Python: does this AI skill make the model better, by how much, at what cost, and how sure are we?

    from uplift import evaluate

    result = evaluate("suite.yaml", "skill", model="mock")
    print(result.verdict, result.decision, result.delta)

Run
    evaluate        run a suite with the skill and with the baseline; returns a Result
    aevaluate       the same in asynchronous code
Read
    Artifact        all that a run ends in, as in its JSON file: numbers, groups, tasks, sentences
    Result          verdict, decision, rates, costs, warnings, and every record of a run
    Interval        an estimate, the ends of its interval, and its level
    AttemptRecord   one attempt: what was asked of whom, what came back, how it was judged, what it cost
    View            how far a run is, as `on_progress` gets it
Say how
    ModelSettings   parameters, prices, limits and declared programs of models
When it goes wrong
    UpliftError     the error that all others build on: code, message, remedy, exit_code

Formulas are in `aggregate.stats` and `aggregate.speedup`. Nothing else is public: other modules may change in any
release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact as Artifact
    from aggregate.formulas.intervals import Interval as Interval
    from aggregate.records.record import AttemptRecord as AttemptRecord
    from judges.errors import UpliftError as UpliftError
    from producer.display.snapshot import View as View
    from producer.library import Result as Result
    from producer.library import aevaluate as aevaluate
    from producer.library import evaluate as evaluate
    from workers.store.messages import ModelSettings as ModelSettings

_HOMES = {
    "Artifact": "aggregate.artifact.model",
    "AttemptRecord": "aggregate.records.record",
    "Interval": "aggregate.formulas.intervals",
    "ModelSettings": "workers.store.messages",
    "Result": "producer.library",
    "UpliftError": "judges.errors",
    "View": "producer.display.snapshot",
    "aevaluate": "producer.library",
    "evaluate": "producer.library",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the rest has its weight."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

"""Check that an output holds every expected string and no forbidden one, whatever the case."""

from __future__ import annotations

from judges.judgment import Judgment, look_at_clock
from judges.safe_text import composed
from judges.spec import Contains


def judged(spec: Contains, text: str) -> Judgment:
    """Score is the share of conditions met; both sides are compared after casefold and NFC."""
    text = _folded(text)
    matched = tuple(wanted for wanted in spec.expected if _holds(text, wanted))
    missed = tuple(wanted for wanted in spec.expected if wanted not in matched)
    found = tuple(banned for banned in spec.forbidden if _holds(text, banned))
    conditions = len(spec.expected) + len(spec.forbidden)
    complaints = []
    if missed:
        complaints.append("missing: " + ", ".join(map(repr, missed)))
    if found:
        complaints.append("forbidden: " + ", ".join(map(repr, found)))
    return Judgment(
        judge="contains",
        passed=not complaints,
        score=(conditions - len(missed) - len(found)) / conditions,
        details="; ".join(complaints) or f"all {conditions} conditions met",
        matched=matched,
        missed=missed,
    )


def _holds(text: str, wanted: str) -> bool:
    look_at_clock()
    return _folded(wanted) in text


def _folded(text: str) -> str:
    return composed(composed(text).casefold())

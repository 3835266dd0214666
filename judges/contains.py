"""Check that an output holds every expected string and no forbidden one, whatever the case."""

from __future__ import annotations

import unicodedata

from judges.judgment import Completion, Judgment
from judges.spec import Contains


def judge(spec: Contains, completion: Completion) -> Judgment:
    """Score is the share of conditions met; both sides are compared after casefold and NFC."""
    text = _folded(completion.text)
    matched = tuple(wanted for wanted in spec.expected if _folded(wanted) in text)
    missed = tuple(wanted for wanted in spec.expected if wanted not in matched)
    found = tuple(banned for banned in spec.forbidden if _folded(banned) in text)
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


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())

"""Check that a regular expression is found in an output, or that it is not."""

from __future__ import annotations

from judges import safe_patterns
from judges.judgment import Judgment, yes_or_no
from judges.spec import Regex

_SHOWN_CHARACTERS = 60


def judged(spec: Regex, text: str) -> Judgment:
    """Score is 1 or 0; an output on which the pattern takes too long has failed."""
    pattern = safe_patterns.compiled(spec.pattern, ignore_case=spec.ignore_case, multiline=spec.multiline)
    match = safe_patterns.search(pattern, text)
    details = _details(match.group(), match.start()) if match else f"no match for {spec.pattern!r}"
    return yes_or_no("regex", (match is not None) == spec.should_match, details, (spec.pattern,))


def _details(text: str, start: int) -> str:
    cut = text[:_SHOWN_CHARACTERS] + ("…" if len(text) > _SHOWN_CHARACTERS else "")
    return f"matches at character {start + 1}: {cut!r}"

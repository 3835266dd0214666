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
    details = f"no match for {spec.pattern!r}"
    if match:
        start = match.group()[:_SHOWN_CHARACTERS]
        dots = "…" if len(match.group()) > _SHOWN_CHARACTERS else ""
        details = f"matches at character {match.start() + 1}: {start + dots!r}"
    return yes_or_no("regex", (match is not None) == spec.should_match, details, (spec.pattern,))

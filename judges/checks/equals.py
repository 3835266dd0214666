"""Check that an output equals a given text; the task says whether case and white space count."""

from __future__ import annotations

from judges.judgment import Judgment, look_at_clock, yes_or_no
from judges.safe_text import composed
from judges.spec import Equals

_SHOWN_CHARACTERS = 40


def judged(spec: Equals, text: str) -> Judgment:
    """Score is 1 or 0. White space around both, line endings and how accents are encoded never count."""
    wanted, given = _normal(spec, spec.text), _normal(spec, text)
    passed = wanted == given
    details = "equal" if passed else _difference(wanted, given)
    return yes_or_no("equals", passed, details, (spec.text,))


def _normal(spec: Equals, text: str) -> str:
    look_at_clock()
    text = composed(text).replace("\r\n", "\n").strip()
    if spec.ignore_whitespace:
        text = " ".join(text.split())
    return composed(text.casefold()) if spec.ignore_case else text


def _difference(wanted: str, given: str) -> str:
    shorter = min(len(wanted), len(given))
    start = next((i for i in range(shorter) if wanted[i] != given[i]), shorter)
    return f"differs at character {start + 1}: expected {_shown(wanted, start)}, got {_shown(given, start)}"


def _shown(text: str, start: int) -> str:
    part = text[start : start + _SHOWN_CHARACTERS]
    return f"{part!r}{'…' if len(text) > start + _SHOWN_CHARACTERS else ''}" if part else "the end"

"""Check an output's text: which strings it holds, a pattern, whether it is a given text, and how long it is."""

from __future__ import annotations

from judges.judgment import Judgment, look_at_clock, yes_or_no
from judges.safe_text import composed
from judges.spec import Contains, Equals, Length, Regex

_SHOWN_CHARACTERS = 40
_MATCH_CHARACTERS = 60
# Spaces that nobody sees, and `str.split` passes over: with them, a long text would be one word, and none a long one.
_UNSEEN_SPACES = dict.fromkeys(map(ord, "\u200b\u2060\ufeff"), " ")


def contains(spec: Contains, text: str) -> Judgment:
    """Score is the share of conditions met; both sides are compared after casefold and NFC."""
    text = folded(text)
    matched = [wanted for wanted in spec.expected if _holds(text, wanted)]
    missed = [wanted for wanted in spec.expected if wanted not in matched]
    found = [banned for banned in spec.forbidden if _holds(text, banned)]
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
        matched=tuple(matched),
        missed=tuple(missed),
    )


def _holds(text: str, wanted: str) -> bool:
    look_at_clock()
    return folded(wanted) in text


def folded(text: str) -> str:
    """The text without what does not count where strings are looked for: case, and how accents are encoded."""
    return composed(composed(text).casefold())


def equals(spec: Equals, text: str) -> Judgment:
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


def regex(spec: Regex, text: str) -> Judgment:
    """Score is 1 or 0; an output on which the pattern takes too long has failed."""
    # Imported where it is needed: most suites have no patterns.
    from judges import safe_patterns

    pattern = safe_patterns.compiled(spec.pattern, ignore_case=spec.ignore_case, multiline=spec.multiline)
    match = safe_patterns.search(pattern, text)
    details = f"no match for {spec.pattern!r}"
    if match:
        start = match.group()[:_MATCH_CHARACTERS]
        dots = "…" if len(match.group()) > _MATCH_CHARACTERS else ""
        details = f"matches at character {match.start() + 1}: {start + dots!r}"
    return yes_or_no("regex", (match is not None) == spec.should_match, details, (spec.pattern,))


def length(spec: Length, text: str) -> Judgment:
    """Score is 1 or 0; white space around the output does not count."""
    text = composed(text).translate(_UNSEEN_SPACES).strip()
    look_at_clock()
    sizes = {"characters": len(text), "words": len(text.split()), "lines": len(text.splitlines())}
    has, broken = [], []
    for unit, (least, most) in spec.bounds.items():
        has.append(f"{sizes[unit]} {unit}")
        if least is not None and sizes[unit] < least:
            broken.append(f"at least {least} {unit}")
        if most is not None and sizes[unit] > most:
            broken.append(f"at most {most} {unit}")
    details = ", ".join(has) + (f"; must be {', '.join(broken)}" if broken else "")
    return yes_or_no("length", not broken, details)

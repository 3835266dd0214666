"""Check that a regular expression is found in an output, or that it is not."""

from __future__ import annotations

import asyncio

from judges import patterns
from judges.judgment import Completion, Judgment
from judges.spec import Regex

_SHOWN_CHARACTERS = 60


async def judge(spec: Regex, completion: Completion) -> Judgment:
    """Judge in a thread, so that a slow pattern delays nobody else."""
    return await asyncio.to_thread(judged, spec, completion.text)


def judged(spec: Regex, text: str) -> Judgment:
    """Score is 1 or 0; a pattern that takes too long on this output gives `error`, since nothing is known."""
    pattern = patterns.compiled(spec.pattern, ignore_case=spec.ignore_case, multiline=spec.multiline)
    try:
        found = patterns.search(pattern, text)
    except patterns.TooSlow as slow:
        return Judgment(judge="regex", details=str(slow), error=str(slow))
    passed = (found is not None) == spec.should_match
    told = (spec.pattern,)
    return Judgment(
        judge="regex",
        passed=passed,
        score=float(passed),
        details=_details(found.group(), found.start()) if found else f"no match for {spec.pattern!r}",
        matched=told if passed else (),
        missed=() if passed else told,
    )


def _details(text: str, start: int) -> str:
    cut = text[:_SHOWN_CHARACTERS] + ("…" if len(text) > _SHOWN_CHARACTERS else "")
    return f"matches at character {start + 1}: {cut!r}"

"""Put the checks of one promptfoo test into judges: a task has one judge, so checks are joined where they can be.

Deterministic checks of one test become one judge: `contains` for plain strings, one of the small judges for a
single check, and a generated pytest file, one test a check, for everything else. Rubrics become criteria of
one rubric. Joining keeps one prompt one task, which the statistics count as one observation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from producer.importers.imported import statements_judge
from producer.importers.promptfoo_checks import (
    Check,
    ContainsCheck,
    Is,
    Json,
    Latency,
    Matches,
    Python,
    RubricCheck,
)

CASE_NOTE = "contains and not-contains ignore case here, and promptfoo's do not"
FENCE_NOTE = (
    "JSON must stand alone or in the one code fence here; promptfoo's is-json wants it bare, "
    "its contains-json takes it anywhere"
)
SPACE_NOTE = "equals ignores white space around the output here, and promptfoo's does not"

_PREAMBLE = '''"""The assertions of {origin}, one test each; written by `uplift import`."""

import json
import math
import os
import re
from pathlib import Path

OUTPUT = Path(os.environ["AI_OUTPUT_FILE"]).read_text(encoding="utf-8")
CONTEXT = json.loads({context})


def passes(result, threshold):
    """What promptfoo makes of a result: true, a number, or a mapping with pass and score."""
    if isinstance(result, dict):
        enough = threshold is None or result.get("score", 0) >= threshold
        return bool(result.get("pass", result.get("pass_"))) and enough
    if isinstance(result, bool):
        return result
    return result > 0 if threshold is None else result >= threshold
'''


@dataclass(frozen=True)
class Judged:
    """A judge for a task, the fixtures that it needs, and what people should know about it."""

    judge: dict[str, Any]
    fixtures: dict[str, bytes]
    notes: tuple[str, ...] = ()


def timeout_of(checks: Sequence[Check]) -> float | None:
    """The shortest time that any check allows; None where none limits it."""
    seconds = min((check.seconds for check in checks if isinstance(check, Latency)), default=None)
    return int(seconds) if seconds is not None and seconds.is_integer() else seconds


def rubric_of(checks: Sequence[Check]) -> Judged | None:
    """A rubric of all that a judge model is asked; None where it is asked nothing."""
    asked = [check for check in checks if isinstance(check, RubricCheck)]
    if not asked:
        return None
    if len(asked) > 1:
        return Judged(statements_judge([check.text for check in asked]), {})
    judge: dict[str, Any] = {"type": "llm-rubric", "rubric": asked[0].text}
    if asked[0].threshold is not None and 0 <= asked[0].threshold <= 1:
        judge["pass_threshold"] = asked[0].threshold
    return Judged(judge, {})


def needs_no_model(checks: Sequence[Check]) -> list[Check]:
    """The checks that a deterministic judge can make."""
    return [check for check in checks if not isinstance(check, RubricCheck | Latency)]


def deterministic_of(
    checks: Sequence[Check], name: str, origin: str, context: dict[str, Any]
) -> Judged | None:
    """One judge for all that needs no judge model; None where there is no such check."""
    kept = needs_no_model(checks)
    if not kept:
        return None
    plain = [check for check in kept if isinstance(check, ContainsCheck) and not check.any_is_enough]
    if len(plain) == len(kept) and not all(check.negated for check in plain):
        return _contains(plain)
    small = _small(kept)
    return small or _pytest(kept, name, origin, context)


def _contains(checks: list[ContainsCheck]) -> Judged:
    expected = [text for check in checks if not check.negated for text in check.texts]
    forbidden = [text for check in checks if check.negated for text in check.texts]
    judge: dict[str, Any] = {"type": "contains", "expected": list(dict.fromkeys(expected))}
    if forbidden:
        judge["forbidden"] = list(dict.fromkeys(forbidden))
    exact = any(not check.ignore_case for check in checks)
    return Judged(judge, {}, (CASE_NOTE,) if exact else ())


def _small(checks: list[Any]) -> Judged | None:
    """A small judge, where one check, or several texts that must all be absent, can be put in one."""
    absent = [check for check in checks if isinstance(check, ContainsCheck) and check.negated]
    if len(absent) == len(checks) and len({check.ignore_case for check in absent}) == 1:
        return _pattern([text for check in absent for text in check.texts], absent[0].ignore_case, False)
    if len(checks) > 1:
        return None
    match checks[0]:
        case ContainsCheck(texts, ignore_case, _, negated):
            return _pattern(list(texts), ignore_case, not negated)
        case Matches(pattern, negated):
            judge = {"type": "regex", "pattern": pattern}
            return Judged(judge | ({"should_match": False} if negated else {}), {})
        case Is(text, False):
            return Judged({"type": "equals", "text": text}, {}, (SPACE_NOTE,))
        case Json(schema):
            return Judged({"type": "json-schema", "schema": json.loads(schema)}, {}, (FENCE_NOTE,))
    return None


def _pattern(texts: list[str], ignore_case: bool, should_match: bool) -> Judged | None:
    judge: dict[str, Any] = {"type": "regex", "pattern": "|".join(map(re.escape, texts))}
    if len(judge["pattern"]) > 2_000:
        return None
    if ignore_case:
        judge["ignore_case"] = True
    if not should_match:
        judge["should_match"] = False
    return Judged(judge, {})


def _pytest(checks: Sequence[Any], name: str, origin: str, context: dict[str, Any]) -> Judged:
    origin = re.sub(r"[^\w ./:()-]+", " ", origin)
    parts = [_PREAMBLE.format(origin=origin, context=ascii(json.dumps(context)))]
    parts += [_test(check, number) for number, check in enumerate(checks, start=1)]
    file = f"test_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}.py"
    judge = {"type": "pytest", "test_file": f"fixtures/{file}"}
    return Judged(judge, {file: "\n\n".join(parts).encode()})


def _test(check: Any, number: int) -> str:
    match check:
        case ContainsCheck(texts, ignore_case, any_is_enough, negated):
            output = "OUTPUT.lower()" if ignore_case else "OUTPUT"
            wanted = [text.lower() if ignore_case else text for text in texts]
            word = "any" if any_is_enough or negated else "all"
            found = f"{word}(text in {output} for text in {wanted!a})"
            return _function(f"contains_{number}", f"assert {'not ' if negated else ''}{found}")
        case Matches(pattern, negated):
            found = f"re.search({pattern!a}, OUTPUT) is {'' if negated else 'not '}None"
            return _function(f"matches_{number}", f"assert {found}")
        case Is(text, negated):
            return _function(f"equals_{number}", f"assert OUTPUT {'!=' if negated else '=='} {text!a}")
        case Json(schema):
            lines = ["import jsonschema", "", f"schema = json.loads({schema!a})"]
            lines.append("jsonschema.validate(json.loads(OUTPUT), schema)")
            return _function(f"json_{number}", "\n".join(lines))
        case Python():
            return _python_test(check, number)
    raise AssertionError(f"{check} needs no test")


def _python_test(check: Python, number: int) -> str:
    config = f'{{**CONTEXT, "config": json.loads({check.config!a})}}'
    call = f"assert passes(check(OUTPUT, {config}), {check.threshold})"
    if check.function is None:
        inner = f"def check(output, context):\n{indent(check.body, '    ')}"
    else:
        inner = f'space = {{"__name__": "assertion"}}\nexec({check.body!a}, space)\n'
        inner += f"check = space[{check.function!a}]"
    return _function(f"python_{number}", f"{inner}\n\n{call}")


def _function(name: str, body: str) -> str:
    return f"def test_{name}():\n{indent(body, '    ')}\n"

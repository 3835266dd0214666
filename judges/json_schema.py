"""Check that an output is JSON and satisfies a schema."""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from judges import schema_checks
from judges.judgment import Completion, Judgment, Workspace
from judges.spec import JsonSchema

MAX_COMPLAINTS = 5
_FENCE = "```"


class NotJson(ValueError):
    """A text that is no JSON; the message says why."""


async def judge(spec: JsonSchema, completion: Completion, workspace: Workspace) -> Judgment:
    """Judge in a thread, so that a long output delays nobody else."""
    schema = spec.inline if spec.inline is not None else _from_file(spec, workspace)
    return await asyncio.to_thread(judged, schema, completion.text)


def judged(schema: schema_checks.Schema, text: str) -> Judgment:
    """Score is 1 or 0; a check that takes too long gives `error`, since nothing is known."""
    try:
        value = parse(unfenced(text))
        wrong = schema_checks.wrong_value(schema, value, MAX_COMPLAINTS)
    except NotJson as problem:
        return Judgment(judge="json-schema", passed=False, score=0.0, details=str(problem))
    except schema_checks.TooSlow as slow:
        return Judgment(judge="json-schema", details=str(slow), error=str(slow))
    details = "; ".join(f"{_pointer(path)}: {message[:200]}" for path, message in wrong)
    return Judgment(
        judge="json-schema",
        passed=not wrong,
        score=float(not wrong),
        details=details or "satisfies the schema",
    )


def unfenced(text: str) -> str:
    """What the one code fence of a text holds; the text itself where there is no fence, or more than one."""
    blocks: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if inside and line.strip() == _FENCE:
            inside = False
        elif not inside and line.lstrip().startswith(_FENCE):
            inside = True
            blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return "\n".join(blocks[0]) if len(blocks) == 1 and not inside else text


def parse(text: str) -> Any:
    """The value of standard JSON; raises NotJson for anything else, NaN and duplicate keys included."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except json.JSONDecodeError as wrong:
        raise NotJson(f"not JSON: {wrong.msg} at line {wrong.lineno}, column {wrong.colno}") from None
    except RecursionError:
        raise NotJson("not usable as JSON: nested too deeply") from None
    except NotJson:
        raise
    except ValueError as wrong:
        raise NotJson(f"not usable as JSON: {wrong}") from None


def _refuse(word: str) -> Any:
    raise NotJson(f"not JSON: {word} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise NotJson("not usable as JSON: a key occurs twice")
    return values


def _from_file(spec: JsonSchema, workspace: Workspace) -> schema_checks.Schema:
    if workspace.suite is None:
        raise FileNotFoundError(f"{spec.schema_file}: no suite folder was given")
    fixtures = (workspace.suite / "fixtures").resolve()
    path = (workspace.suite / str(spec.schema_file)).resolve()
    if not path.is_relative_to(fixtures) or not path.is_file():
        raise FileNotFoundError(f"{spec.schema_file}: not a file in the suite's fixtures folder")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int) -> schema_checks.Schema:
    schema: schema_checks.Schema = parse(path.read_text("utf-8-sig"))
    return schema


def _pointer(path: schema_checks.Path) -> str:
    return "/" + "/".join(map(str, path)) if path else "the whole"

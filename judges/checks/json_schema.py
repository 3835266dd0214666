"""Check that an output is JSON and satisfies a schema."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from judges import safe_schemas
from judges.judgment import Judgment, Workspace, look_at_clock, yes_or_no
from judges.safe_text import NotJson, strict_json
from judges.spec import JsonSchema

MAX_COMPLAINTS = 5
# Telling what is wrong writes a value out once for every level that it has.
MAX_DEPTH = 100
_FENCE = "```"


def judged(schema: safe_schemas.Schema, text: str) -> Judgment:
    """Score is 1 or 0; an output on which the check takes too long, or cannot be made, has failed."""
    try:
        value = strict_json(unfenced(text))
        look_at_clock()
        if _deeper(value, MAX_DEPTH):
            return _failed(f"cannot be checked: nested more than {MAX_DEPTH} deep", broke_off=True)
        wrong = safe_schemas.wrong_value(schema, value, MAX_COMPLAINTS)
    except NotJson as problem:
        return _failed(str(problem), broke_off=str(problem).startswith("not usable"))
    except (RecursionError, OverflowError) as problem:
        why = "nested too deeply" if isinstance(problem, RecursionError) else "a number is too large"
        return _failed(f"cannot be checked: {why}", broke_off=True)
    details = "; ".join(f"{_pointer(path)}: {message[:200]}" for path, message in wrong)
    return yes_or_no("json-schema", not wrong, details or "satisfies the schema")


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than `most` levels deep; found without recursion."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(most):
        inside = (part.values() if isinstance(part, dict) else part for part in level)
        level = [item for items in inside for item in items if isinstance(item, list | dict)]
    return bool(level)


def _failed(why: str, *, broke_off: bool = False) -> Judgment:
    return yes_or_no("json-schema", False, why, broke_off=broke_off)


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


def schema_of(spec: JsonSchema, workspace: Workspace) -> safe_schemas.Schema:
    """The schema that a task names or holds; raises FileNotFoundError."""
    if spec.inline is not None:
        return spec.inline
    _, path = workspace.fixture(str(spec.schema_file))
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int) -> safe_schemas.Schema:
    schema: safe_schemas.Schema = strict_json(path.read_text("utf-8-sig"))
    return schema


def _pointer(path: safe_schemas.Path) -> str:
    return "/" + "/".join(map(str, path)) if path else "the whole"

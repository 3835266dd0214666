"""What one promptfoo assertion asks for, or why Uplift cannot ask for it."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from judges import safe_patterns, safe_schemas
from judges.safe_text import shown
from producer.importers.imported import Refused, kind_of, text_beside
from producer.suites import json_file, yaml_file

MIN_SECONDS, MAX_SECONDS = 1, 3600
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*\}\}")
_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
_FUNCTION = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")

# Properties of an assertion that would change what it asks for.
_CHANGES_MEANING = ("transform", "contextTransform", "rubricPrompt")


@dataclass(frozen=True)
class ContainsCheck:
    """All, or any, of some texts occur; negated, none of them does."""

    texts: tuple[str, ...]
    ignore_case: bool
    any_is_enough: bool = False
    negated: bool = False


@dataclass(frozen=True)
class Matches:
    """A pattern is found; negated, it is not."""

    pattern: str
    negated: bool = False


@dataclass(frozen=True)
class Is:
    """The output is exactly this text; negated, it is not."""

    text: str
    negated: bool = False


@dataclass(frozen=True)
class Json:
    """The output is JSON and satisfies a schema, given as JSON text."""

    schema: str


@dataclass(frozen=True)
class Python:
    """Python code says yes: the body of a function of `output` and `context`, or a function in a file."""

    body: str
    function: str | None = None
    threshold: float | None = None
    config: str = "{}"


@dataclass(frozen=True)
class RubricCheck:
    """A judge model says yes."""

    text: str
    threshold: float | None = None


@dataclass(frozen=True)
class Latency:
    """The answer comes within so many seconds."""

    seconds: float


Check = ContainsCheck | Matches | Is | Json | Python | RubricCheck | Latency


def check_of(assertion: dict[str, Any], variables: dict[str, Any], home: Path) -> Check:
    """The check that an assertion stands for, its variables filled in; raises Refused with the reason."""
    kind = str(assertion["type"])
    negated, base = kind.startswith("not-"), kind.removeprefix("not-")
    for key in _CHANGES_MEANING:
        if key in assertion:
            raise Refused(f"{key} changes what is judged, and has no equivalent")
    if assertion.get("weight") == 0:
        raise Refused("has weight 0, so it decides nothing")
    value, threshold = assertion.get("value"), _number(assertion.get("threshold"))
    match base:
        case "contains" | "icontains":
            texts = (_text(value, variables, home),)
            return ContainsCheck(texts, base == "icontains", negated=negated)
        case "contains-any" | "icontains-any":
            return ContainsCheck(_texts(value, variables, home), base[0] == "i", True, negated)
        case "contains-all" | "icontains-all" if not negated:
            return ContainsCheck(_texts(value, variables, home), base[0] == "i")
        case "starts-with":
            return _pattern(rf"\A{re.escape(_text(value, variables, home))}", negated)
        case "regex":
            return _pattern(_text(value, variables, home), negated)
        case "equals" if not isinstance(value, dict | list):
            return Is(_text(value, variables, home), negated)
        case "equals" if not negated:
            return Json(json.dumps({"const": _filled(value, variables)}))
        case "is-json" | "contains-json" if not negated:
            return Json(_schema(value, variables, home))
        case "python" if not negated:
            return _python(assertion, variables, home, threshold)
        case "llm-rubric" if not negated:
            return RubricCheck(_text(value, variables, home), threshold)
        case "latency" if not negated:
            return _latency(threshold)
        case "cost":
            raise Refused("costs are measured for every run and not judged by task; see --budget-usd")
    raise Refused("no equivalent among Uplift's judges")


def rendered(template: str, variables: dict[str, Any]) -> str:
    """A template with its variables filled in; raises Refused for filters, conditions and unknown names."""

    def fill(found: re.Match[str]) -> str:
        value: Any = variables
        for step in found[1].split("."):
            if not isinstance(value, dict) or step not in value:
                raise Refused(f"the variable {found[1]} has no value")
            value = value[step]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    if _TEMPLATE.search(_VARIABLE.sub("", template)):
        raise Refused("only plain variables such as {{name}} can be filled in, no filters and no conditions")
    return _VARIABLE.sub(fill, template)


def _filled(value: Any, variables: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return rendered(value, variables)
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    return (
        {key: _filled(item, variables) for key, item in value.items()} if isinstance(value, dict) else value
    )


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"threshold is {kind_of(value)}; must be a number")
    return float(value)


def _text(value: Any, variables: dict[str, Any], home: Path) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = json.dumps(value)
    if not isinstance(value, str) or not value.strip():
        raise Refused(f"value is {kind_of(value) if value else 'missing'}; must be text")
    if value.startswith("file://"):
        value = text_beside(home, value.removeprefix("file://"))
    text = rendered(value, variables)
    if not text.strip():
        raise Refused("value is blank once its variables are filled in")
    return text


def _texts(value: Any, variables: dict[str, Any], home: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise Refused("value must be a list of texts")
    return tuple(_text(item, variables, home) for item in value)


def _pattern(pattern: str, negated: bool) -> Matches:
    try:
        if len(pattern) > 2_000:
            raise ValueError("longer than 2,000 characters")
        safe_patterns.compiled(pattern)
    except ValueError as wrong:
        raise Refused(f"its pattern cannot be used: {wrong}") from None
    return Matches(pattern, negated)


def _schema(value: Any, variables: dict[str, Any], home: Path) -> str:
    if isinstance(value, str):
        name = value.removeprefix("file://")
        text = text_beside(home, name) if value.startswith("file://") else rendered(value, variables)
        document = (json_file if name.endswith(".json") else yaml_file).parse(text, name)
        if document.findings:
            raise Refused(f"its schema cannot be read: {document.problems(document.findings)[0]}")
        value = document.root.value if document.root is not None else None
    schema = {} if value is None else value
    if not isinstance(schema, dict):
        raise Refused(f"its schema is {kind_of(schema)}; must be a mapping")
    for path, message in safe_schemas.wrong_schema(schema):
        raise Refused(f"its schema cannot be used: {'.'.join(map(str, path))}: {message}")
    return json.dumps(schema)


def _python(
    assertion: dict[str, Any], variables: dict[str, Any], home: Path, threshold: float | None
) -> Python:
    value = assertion.get("value")
    config = json.dumps(assertion.get("config") or {})
    if not isinstance(value, str) or not value.strip():
        raise Refused("value must be Python code")
    if value.startswith("file://"):
        found = _FUNCTION.fullmatch(value.removeprefix("file://"))
        if found is None:
            raise Refused(f"{shown(value)} is no Python file")
        code, function = text_beside(home, found[1]), found[2] or "get_assert"
        _parse(code)
        if not any(
            isinstance(part, ast.FunctionDef) and part.name == function for part in ast.parse(code).body
        ):
            raise Refused(f"{shown(found[1])} has no function {function}")
        return Python(code, function, threshold, config)
    code = rendered(value, variables)
    body = code.rstrip() if "\n" in code else f"return {code.strip()}"
    _parse(f"def check(output, context):\n{indent(body, '    ')}")
    return Python(body, None, threshold, config)


def _parse(code: str) -> None:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        raise Refused(f"its Python code cannot be read: {wrong}") from None


def _latency(threshold: float | None) -> Latency:
    if threshold is None:
        raise Refused("has no threshold")
    if not MIN_SECONDS * 1000 <= threshold <= MAX_SECONDS * 1000:
        raise Refused(f"{threshold:g} ms cannot be a task's timeout_seconds, which is 1 to 3600 s")
    return Latency(threshold / 1000)

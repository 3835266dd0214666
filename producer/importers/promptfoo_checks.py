"""Turn the assertions of a promptfoo test into checks, and the checks into judges; or say why Uplift cannot.

A task has one judge, so checks are joined where they can be. Deterministic checks of one test become one judge:
`contains` for plain strings, one of the small judges for a single check, and a generated pytest file, one test a
check, for everything else. Rubrics become criteria of one rubric. Joining keeps one prompt one task, which the
statistics count as one observation.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from judges import safe_patterns, safe_schemas
from judges.safe_text import shown
from producer.importers.imported import Refused, kind_of, statements_judge, text_beside
from producer.suites import json_file, yaml_file

MIN_SECONDS, MAX_SECONDS = 1, 3600
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*\}\}")
_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
_DEEPEST = 5
_FUNCTION = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")

# Properties of an assertion that would change what it asks for.
CHANGES_MEANING = ("transform", "postprocess", "contextTransform", "rubricPrompt")


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
    for key in CHANGES_MEANING:
        if key in assertion and (key != "rubricPrompt" or base == "llm-rubric"):
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


# promptfoo's names, which a cell of a table may begin with; all other cells are texts to be equal to.
_IN_CELLS = re.compile(
    r"(not-)?((?:similar|trajectory|trace)[\w:-]*|agent-rubric|answer-relevance|bleu|classifier|contains|contains-all"
    r"|contains-any|contains-(?:html|json|sql|xml)|context-(?:faithfulness|recall|relevance)|conversation-relevance"
    r"|cost|equals|factuality|finish-reason|g-eval|gleu|guardrails|icontains|icontains-all|icontains-any"
    r"|is-(?:html|json|refusal|sql|xml)|is-valid-[\w-]+|latency|levenshtein|pi|meteor|model-graded-[\w-]+|moderation"
    r"|perplexity|perplexity-score|regex|rouge-n|ruby|search-rubric|skill-used|starts-with|tool-call-f1|webhook"
    r"|word-count)(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?",
    re.DOTALL,
)
_PREFIXES = {"fn": "javascript", "eval": "javascript", "grade": "llm-rubric"}


def assertion_of_cell(cell: str) -> dict[str, Any]:
    """The assertion that a table's cell stands for, such as `icontains: yes` or `similar(0.8): hello`."""
    prefix, colon, rest = cell.partition(":")
    kind = _PREFIXES.get(prefix, prefix)
    if colon and kind in ("javascript", "llm-rubric", "python"):
        return {"type": kind, "value": rest.strip()}
    if prefix == "file" and re.search(r"\.(py|js|cjs|mjs|ts)(:|$)", cell):
        return {"type": "python" if ".py" in cell else "javascript", "value": cell}
    if (found := _IN_CELLS.fullmatch(cell)) is None:
        return {"type": "equals", "value": cell}
    made: dict[str, Any] = {"type": (found[1] or "") + found[2]}
    if found[4] and found[4].strip():
        made["value"] = found[4].strip()
    if found[3] or found[2] in ("latency", "cost"):
        made["threshold"] = float(found[3] or 0.75)
    return made


def test_of_row(row: dict[str, str]) -> dict[str, Any]:
    """The test that a table's row stands for: variables by their columns, and columns that begin with `__`."""
    row = {key.strip(): value for key, value in row.items()}
    expected = [value.strip() for key, value in row.items() if key.startswith("__expected") and value.strip()]
    assertions = [assertion_of_cell(cell) for cell in expected]
    for key, value in row.items():
        found = re.fullmatch(r"__config:__expected(\d*):threshold", key)
        place = int(found[1] or 1) - 1 if found else -1
        if 0 <= place < len(assertions) and re.fullmatch(r"\d*\.?\d+", value.strip()):
            assertions[place]["threshold"] = float(value)
    test: dict[str, Any] = {"vars": {key: value for key, value in row.items() if not key.startswith("__")}}
    test["options"] = {key: row[f"__{key}"] for key in ("prefix", "suffix") if row.get(f"__{key}")}
    if row.get("__description"):
        test["description"] = row["__description"]
    if re.fullmatch(r"\d*\.?\d+", row.get("__threshold", "").strip()):
        test["threshold"] = float(row["__threshold"])
    if row.get("__metric"):
        assertions = [{**each, "metric": row["__metric"]} for each in assertions]
    return {**test, "assert": assertions}


def rendered(template: str, variables: dict[str, Any], depth: int = 0) -> str:
    """A template with its variables filled in, and theirs; raises Refused for filters, conditions, unknown names."""
    if depth > _DEEPEST:
        raise Refused(f"its variables hold variables more than {_DEEPEST} deep")

    def fill(found: re.Match[str]) -> str:
        value: Any = variables
        for step in found[1].split("."):
            if not isinstance(value, dict) or step not in value:
                raise Refused(f"the variable {found[1]} has no value")
            value = value[step]
        if isinstance(value, str):
            return rendered(value, variables, depth + 1) if _TEMPLATE.search(value) else value
        return json.dumps(value, ensure_ascii=False)

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
    if isinstance(value, str):  # between commas, in quotes where they hold some
        value = [text for text in next(csv.reader([value], skipinitialspace=True), []) if text.strip()]
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
        return _texts_judge([text for check in absent for text in check.texts], absent[0].ignore_case, False)
    if len(checks) > 1:
        return None
    match checks[0]:
        case ContainsCheck(texts, ignore_case, _, negated):
            return _texts_judge(list(texts), ignore_case, not negated)
        case Matches(pattern, negated):
            judge = {"type": "regex", "pattern": pattern}
            return Judged(judge | ({"should_match": False} if negated else {}), {})
        case Is(text, False):
            return Judged({"type": "equals", "text": text}, {}, (SPACE_NOTE,))
        case Json(schema):
            return Judged({"type": "json-schema", "schema": json.loads(schema)}, {}, (FENCE_NOTE,))
    return None


def _texts_judge(texts: list[str], ignore_case: bool, should_match: bool) -> Judged | None:
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

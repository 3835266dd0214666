"""Turn an assertion of a promptfoo test into a check of a task, and all of a test into what the task is judged by.

A check that judges a little otherwise says how; an assertion without an equivalent is refused with the reason.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from textwrap import indent
from typing import Any

from judges import safe_patterns, safe_schemas
from judges.safe_text import shown
from judges.spec import MAX_PATTERN_CHARACTERS
from producer.importers.imported import Refused, kind_of, name_of, numbered, text_beside
from producer.suites import json_file, yaml_file
from producer.suites.yaml_file import Document

MIN_SECONDS, MAX_SECONDS = 1, 3600
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*\}\}")
_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
_FUNCTION = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")
_LONGEST, _DEEPEST = 1_000_000, 10
_NO_TEXT = (".py", ".js", ".cjs", ".mjs", ".ts", ".rb", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp")
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")

# Settings of a test or an assertion that change what is judged; a judge model's own words only change how.
CHANGES_MEANING = ("transform", "postprocess", "contextTransform", "rubricPrompt")
_FENCE = "JSON must stand alone or in the one code fence here; promptfoo's is-json wants it bare"
_SPACE = "white space around the output does not count here"
_TIME = "is the task's timeout_seconds here: a slower answer is a time-out"
_OWN_WORDS = "a judge model is asked in Uplift's words here, not in {}"


@dataclass(frozen=True)
class Made:
    """What an assertion becomes: a judge, or seconds that the answer may take; how it is not what it was, and counts.

    `expected` and `forbidden` are texts of a `contains` judge, which several assertions can share.
    """

    judge: dict[str, Any] = field(default_factory=dict)
    changed: str = ""
    seconds: float | None = None
    fixtures: dict[str, bytes] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    name: str = ""
    weight: float = 1.0
    required: bool = True


@dataclass(frozen=True)
class Asked:
    """What assertions may refer to: the test's variables, the prompt, and files of a folder.

    Where they are `scored`, their scores count in a mean; elsewhere only whether they pass.
    """

    variables: dict[str, Any]
    prompt: str
    home: Path
    scored: bool

    def text(self, value: Any) -> str:
        """A text with its variables filled in, or that of a file; raises Refused."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = json.dumps(value)
        if not isinstance(value, str) or not value.strip():
            raise Refused(f"value is {kind_of(value) if value else 'missing'}; must be text")
        text = rendered(text_of(value, self.home), self.variables)
        if not text.strip():
            raise Refused("value is blank once its variables are filled in")
        return text

    def texts(self, value: Any) -> tuple[str, ...]:
        """The texts of a list, or between the commas of a text, where they may stand in quotes; raises Refused."""
        if isinstance(value, str):
            try:
                cells = next(csv.reader([self.text(value)], skipinitialspace=True))
            except csv.Error as wrong:
                raise Refused(f"value cannot be taken apart: {wrong}") from None
            value = [text for text in cells if text.strip()]
        if not isinstance(value, list) or not value:
            raise Refused("value must be a list of texts")
        return tuple(self.text(item) for item in value)


def check_of(assertion: dict[str, Any], asked: Asked) -> Made:
    """What an assertion becomes, its variables filled in; raises Refused with the reason."""
    kind = str(assertion["type"])
    negated, base = kind.startswith("not-"), kind.removeprefix("not-")
    for key in CHANGES_MEANING[:-1]:
        if key in assertion:
            raise Refused(f"{key} changes what is judged, and has no equivalent")
    made = _made(base, assertion, asked)
    made = replace(made, name=str(assertion.get("metric") or ""), weight=weight_of(assertion))
    if not negated:
        return replace(made, forbidden=())
    if not made.judge:
        raise Refused("no equivalent among Uplift's judges")
    texts = made.expected if base == "icontains" else made.forbidden
    is_regex = made.judge.get("type") == "regex"
    judge = {**made.judge, "should_match": False} if is_regex else {"not": made.judge}
    return replace(made, judge=judge, expected=(), forbidden=texts)


def _made(base: str, assertion: dict[str, Any], asked: Asked) -> Made:
    value, threshold = assertion.get("value"), _number(assertion, "threshold")
    match base:
        case "contains" | "icontains":
            return _contains((asked.text(value),), base[0] == "i", asked, every=True)
        case "contains-any" | "icontains-any":
            return _contains(asked.texts(value), base[0] == "i", asked, every=False)
        case "contains-all" | "icontains-all":
            return _contains(asked.texts(value), base[0] == "i", asked, every=True)
        case "starts-with":
            return _pattern(rf"\A{_literal(asked.text(value))}")
        case "regex":
            return _pattern(asked.text(value))
        case "equals" if isinstance(value, dict | list):
            schema = {"const": _filled(value, asked.variables)}
            return Made({"type": "json-schema", "schema": schema}, _FENCE)
        case "equals":
            return Made({"type": "equals", "text": asked.text(value)}, _SPACE)
        case "is-json" | "contains-json":
            return Made({"type": "json-schema", "schema": _schema(value, asked)}, _FENCE)
        case "word-count":
            return Made({"type": "length", **_words(value)})
        case "python":
            return _python(assertion, asked, threshold)
        case "llm-rubric":
            own = "rubricPrompt" if "rubricPrompt" in assertion else ""
            return _rubric(asked.text(value), threshold, own)
        case "model-graded-closedqa":
            return _rubric(asked.text(value), threshold, base)
        case "g-eval":
            steps = asked.texts(value) if isinstance(value, list) else (asked.text(value),)
            return _rubric("\n".join(steps), threshold, base)
        case "factuality" | "model-graded-factuality":
            made = _rubric("The output does not contradict the reference.", threshold, base)
            judge = {**made.judge, "sees": ["prompt", "output"], "reference": asked.text(value)}
            return replace(made, judge=judge)
        case "latency":
            return _latency(threshold)
        case "cost":
            raise Refused("costs are measured for every run and not judged by task; see --budget-usd")
    raise Refused("no equivalent among Uplift's judges")


def judged_by(parts: Sequence[Made], threshold: float | None) -> dict[str, Any]:
    """The judge of a task, or its checks and their threshold; empty where there is none that counts."""
    judged = [part for part in parts if part.judge]
    shared = [part for part in judged if part.expected or part.forbidden]
    plain = all(part.required and part.weight == 1 and not part.name for part in shared)
    if threshold is None and len(shared) > 1 and plain and any(part.expected for part in shared):
        judge: dict[str, Any] = {"type": "contains"}
        for key in ("expected", "forbidden"):
            if texts := [text for part in shared for text in getattr(part, key)]:
                judge[key] = list(dict.fromkeys(texts))
        judged = [replace(shared[0], judge=judge), *(part for part in judged if part not in shared)]
    if len(judged) == 1 and threshold is None and judged[0].required:
        return {"judge": judged[0].judge}
    if not any(part.weight for part in judged):
        return {}
    taken: dict[str, int] = {}
    checks = []
    for part in judged:
        check = dict(part.judge)
        if part.name:
            check["name"] = numbered(name_of(part.name), taken)
        if part.weight != 1:
            check["weight"] = int(part.weight) if part.weight == int(part.weight) else round(part.weight, 6)
        checks.append(check if part.required else {**check, "required": False})
    return {"checks": checks} | ({} if threshold is None else {"threshold": threshold})


def weight_of(assertion: dict[str, Any]) -> float:
    """How much an assertion counts; raises Refused for what is no weight."""
    weight = _number(assertion, "weight", 1e6)
    return 1.0 if weight is None else weight


def share_of(holder: dict[str, Any]) -> float | None:
    """The mean that a set or a test must reach; None where it has no such threshold; raises Refused."""
    return _number(holder, "threshold", 1) or None


def rendered(template: str, variables: dict[str, Any], known: dict[str, str | None] | None = None) -> str:
    """A template with its variables filled in, and theirs; raises Refused for filters, conditions, unknown names.

    `known` are the texts of variables by their names; None while they are made.
    """
    known, size = {} if known is None else known, 0
    if list(known.values()).count(None) > _DEEPEST:
        raise Refused(f"variables hold variables more than {_DEEPEST} deep, or themselves")

    def fill(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        if name not in known:
            value: Any = variables
            for step in name.split("."):
                if not isinstance(value, dict) or step not in value:
                    raise Refused(f"the variable {name} has no value")
                value = value[step]
            known[name] = None
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            known[name] = rendered(text, variables, known) if isinstance(value, str) else text
        filled = known[name]
        if filled is None:
            raise Refused(f"the variable {name} holds itself")
        size += len(filled)
        if size > _LONGEST:
            raise Refused(f"longer than {_LONGEST:,} characters with its variables filled in")
        return filled

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


def _number(holder: dict[str, Any], key: str, most: float = inf) -> float | None:
    """A number from 0 on; None where it is absent; raises Refused for anything else."""
    value = holder.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{key} is {kind_of(value)}; must be a number")
    if not 0 <= value <= most:
        raise Refused(
            f"{key} is {kind_of(value)}; must be from 0 {'on' if most == inf else f'to {most:,.0f}'}"
        )
    return float(value)


def parser_of(name: str) -> Callable[[str, str], Document]:
    return json_file.parse if name.endswith(".json") else yaml_file.parse_anchored


def values_of(text: str, name: str) -> Any:
    """The plain values of a text in YAML or JSON; raises Refused."""
    document = parser_of(name)(text, name)
    if document.findings:
        raise Refused(f"cannot be read: {document.problems(document.findings)[0]}")
    return document.root.value if document.root else None


def text_of(value: str, home: Path) -> str:
    """A text, or that of the file that it names; raises Refused."""
    name = value.removeprefix("file://")
    if name == value:
        return value
    if name.lower().endswith(_NO_TEXT):
        raise Refused(f"{shown(name)} is no text file")
    text = text_beside(home, name).strip()
    if name.endswith((".yaml", ".yml", ".json")):
        return json.dumps(values_of(text, name), ensure_ascii=False, separators=(",", ":"))
    return text


def _literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _contains(texts: tuple[str, ...], ignore_case: bool, asked: Asked, *, every: bool) -> Made:
    """A judge of all or any of some texts; `contains` ignores case and gives a score for each text."""
    if ignore_case and every and not (asked.scored and len(texts) > 1):
        return Made({"type": "contains", "expected": list(texts)}, expected=texts)
    pattern = "|".join(map(_literal, texts))
    if every and len(texts) > 1:
        pattern = r"(?s)\A" + "".join(f"(?=.*{_literal(text)})" for text in texts)
    made = _pattern(pattern)
    if ignore_case:
        made = replace(made, judge={**made.judge, "ignore_case": True})
    return replace(made, forbidden=texts) if ignore_case and not every else made


def _pattern(pattern: str) -> Made:
    try:
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"longer than {MAX_PATTERN_CHARACTERS:,} characters")
        safe_patterns.compiled(pattern)
    except ValueError as wrong:
        raise Refused(f"its pattern cannot be used: {wrong}") from None
    return Made({"type": "regex", "pattern": pattern})


def _rubric(text: str, threshold: float | None, own_words: str) -> Made:
    judge: dict[str, Any] = {"type": "llm-rubric", "rubric": text, "sees": ["output"]}
    if threshold is not None:
        if threshold > 1:
            raise Refused(f"threshold is the number {threshold:g}; must be from 0 to 1")
        judge["pass_threshold"] = threshold
    return Made(judge, _OWN_WORDS.format(f"those of {own_words}") if own_words else "")


def _words(value: Any) -> dict[str, int]:
    ends = value if isinstance(value, dict) else {"min": value, "max": value}
    found = {f"{end}_words": ends[end] for end in ("min", "max") if ends.get(end) is not None}
    if not found or not all(type(count) is int and count >= 0 for count in found.values()):
        raise Refused("value must be a number of words, or a mapping with min and max")
    return found


def _schema(value: Any, asked: Asked) -> dict[str, Any]:
    if isinstance(value, str):
        value = values_of(rendered(text_of(value, asked.home), asked.variables), "its schema")
    schema = {} if value is None else value
    if not isinstance(schema, dict):
        raise Refused(f"its schema is {kind_of(schema)}; must be a mapping")
    for path, message in safe_schemas.wrong_schema(schema):
        raise Refused(f"its schema cannot be used: {'.'.join(map(str, path))}: {message}")
    return schema


def _latency(threshold: float | None) -> Made:
    if threshold is None:
        raise Refused("has no threshold")
    if not MIN_SECONDS * 1000 <= threshold <= MAX_SECONDS * 1000:
        raise Refused(f"{threshold:g} ms cannot be a task's timeout_seconds, which is 1 to 3600 s")
    seconds = threshold / 1000
    return Made(changed=_TIME, seconds=int(seconds) if seconds.is_integer() else seconds)


_WRAPPER = '''"""An assertion of promptfoo's; written by `uplift import`."""

import json

CONTEXT = json.loads({context})


{function}


def check(text):
    """Whether the output passes, or its score: promptfoo takes true, a number, or a mapping with pass and score."""
    result, least = ask(text, CONTEXT), {threshold}
    told = result if isinstance(result, dict) else {{"score": result}}
    score = float(told.get("score", 0))
    passed = told.get("pass", told.get("pass_", score > 0 or least is not None))
    passed = bool(passed) and (least is None or score >= least)
    return {returned}, str(told.get("reason", ""))
'''


def _python(assertion: dict[str, Any], asked: Asked, threshold: float | None) -> Made:
    """A function of a file of its own, which calls the assertion's code; files that it imports come with it."""
    value, files = assertion.get("value"), dict[str, bytes]()
    if not isinstance(value, str) or not value.strip():
        raise Refused("value must be Python code")
    if value.startswith("file://"):
        found = _FUNCTION.fullmatch(value.removeprefix("file://").removeprefix("./"))
        if found is None or ".." in found[1].split("/"):
            raise Refused(f"{shown(value)} is no Python file of the source's folder")
        name, called = found[1], found[2] or "get_assert"
        files = _modules(name, asked.home)
        code = files[name].decode()
        if not any(
            isinstance(part, ast.FunctionDef) and part.name == called for part in ast.parse(code).body
        ):
            raise Refused(f"{shown(name)} has no function {called}")
        folder = f"FILE = Path(__file__).parent / {name!a}\nsys.path.insert(0, str(FILE.parent))\n"
        run = (
            "import runpy\nimport sys\nfrom pathlib import Path\n\n"
            + folder
            + f"ask = runpy.run_path(str(FILE))[{called!a}]"
        )
    else:
        code = rendered(value, asked.variables)
        body = code.rstrip() if "\n" in code else f"return {code.strip()}"
        run = f"def ask(output, context):\n{indent(body, '    ')}"
        _parse(run)
    context = {"prompt": asked.prompt, "vars": asked.variables, "test": {"vars": asked.variables}}
    used = {"config": assertion.get("config") or {}} | (context if "context" in code else {})
    text = _WRAPPER.format(
        context=ascii(json.dumps(used)),
        function=run,
        threshold=threshold,
        returned="max(0.0, min(1.0, score))" if asked.scored else "passed",
    ).encode()
    file = f"assertion_{hashlib.sha256(text).hexdigest()[:8]}.py"
    return Made({"type": "python", "function": f"fixtures/{file}:check"}, fixtures={**files, file: text})


def _modules(name: str, home: Path) -> dict[str, bytes]:
    """A Python file, and the files beside it that it imports; raises Refused where one cannot be read."""
    found: dict[str, bytes] = {}
    wanted = [name]
    while wanted:
        name = wanted.pop()
        found[name] = text_beside(home, name).encode()
        for part in ast.walk(_parse(found[name].decode())):
            modules = [alias.name for alias in part.names] if isinstance(part, ast.Import) else []
            modules += [part.module or ""] if isinstance(part, ast.ImportFrom) else []
            beside = [str(Path(name).with_name(f"{module.split('.')[0]}.py")) for module in modules if module]
            wanted += [each for each in beside if each not in found and (home / each).is_file()]
    return found


def _parse(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        raise Refused(f"its Python code cannot be read: {wrong}") from None

"""What a suite may say, version "1.0" or "1.1", which files it may name, and in which words it is told that it may not.

Fields and judges are those of `workers.store.messages` and `judges.spec`; here are the limits that hold for what
people write. `defaults:` may set `timeout_seconds`, `tier` and `tags`; a task's own value replaces the
default.

A suite may come from a stranger, and its files travel to workers and models: a path must be under the suite's
`fixtures/` as written and after every symbolic link, `fixtures` itself included, and must be a regular file.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from aggregate.text.formats import schema_of
from judges.errors import did_you_mean, near_name
from judges.safe_text import allowed_keys, path_of, requirement, shown
from judges.spec import CHECK_KEYS, FixturePath, JudgeSpec, OneJudge, Threshold, unnamed
from producer.suites import json_file
from producer.suites.yaml_file import Finding, Node
from workers.store.messages import DEFAULT_TIMEOUT_SECONDS, HOST, Replies, Task

Steps = tuple[str | int, ...]
_TYPES = [judge.model_fields["type"] for judge in get_args(JudgeSpec) if "type" in judge.model_fields]
JUDGE_TYPES: tuple[str, ...] = tuple(get_args(field.annotation)[0] for field in _TYPES)
# What an llm-rubric sees that does not say so; in "1.0" the output.
SEES_SINCE = {"1.1": ["prompt", "output"]}

# What every dialect of patterns can say, as editors read it in the schema; `_in_any_script` says the rest.
_ID = r"^[^\x00-/:-@\[-`{-\x7f][^\x00-,/:-@\[-^`{-\x7f]{0,63}$"
_ID_RULE = (
    "must be 1 to 64 letters or digits of any alphabet, '.', '_' or '-', and start with a letter or digit"
)
_NOT_BLANK = r"\S"
_PATTERNS = {
    _ID: _ID_RULE,
    _NOT_BLANK: "must hold some text",
    HOST: "must be a host, such as docs.example.org or docs.example.org:8443",
    r"^fixtures/.": "must be a file under fixtures/, such as 'fixtures/input.csv'",
}
# Listing a million mistakes of one task would take gigabytes.
_FLOOD = 10_000
_NUMBER_AS_TEXT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_SCALAR = re.compile(r"[^\s,\[\]{}]{1,40}")


def _in_any_script(text: str) -> str:
    """An id of letters, the marks that belong to them, and digits, composed so that equal ids are equal texts."""
    if text.isascii():
        return text
    for place, character in enumerate(text):
        kind = unicodedata.category(character)
        if not (character in "._-" or kind == "Nd" or kind[0] == "L" or (place and kind[0] == "M")):
            raise ValueError(f"{_ID_RULE}; U+{ord(character):04X} is neither")
    if (composed := unicodedata.normalize("NFC", text)) != text:
        raise ValueError(f"must be in Unicode's composed form, NFC; write it anew as {composed}")
    return text


NotBlank = Annotated[str, StringConstraints(pattern=_NOT_BLANK)]


class RepliesRules(Replies):
    """Replies of the simulated model, which must be fixtures."""

    passing: Annotated[FixturePath | None, Field(alias="pass")] = None
    failing: Annotated[FixturePath | None, Field(alias="fail")] = None


class _Rules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Defaults(_Rules):
    """What a task takes when it does not say so itself."""

    timeout_seconds: Annotated[float, Field(strict=True, ge=1, le=3600)] = DEFAULT_TIMEOUT_SECONDS
    tier: NotBlank | None = None
    tags: tuple[NotBlank, ...] = ()


def _one_of_each(schema: dict[str, Any]) -> None:
    """Say in a task's JSON Schema that it has prompt or messages, and judge or checks."""
    schema["required"].remove("prompt")
    pairs = (("prompt", "messages"), ("judge", "checks"))
    schema["allOf"] = [{"oneOf": [{"required": [one]}, {"required": [other]}]} for one, other in pairs]
    schema["dependentRequired"] = {"threshold": ["checks"]}


class TaskRules(Defaults, Task):
    """A task as a suite may write it; `Task` itself is what travels."""

    model_config = ConfigDict(json_schema_extra=_one_of_each)

    id: Annotated[str, StringConstraints(pattern=_ID), AfterValidator(_in_any_script)]
    prompt: NotBlank
    # What is not written is None, and nobody can write that.
    judge: Annotated[OneJudge, AfterValidator(unnamed)] = None  # type: ignore[assignment]  # a default is not checked
    threshold: Threshold = None  # type: ignore[assignment]  # the same
    files: tuple[FixturePath, ...] = ()
    replies: RepliesRules | None = None
    should_trigger: Annotated[bool | None, Field(strict=True)] = None

    @model_validator(mode="after")
    def _is_judged(self) -> Self:
        return self  # `wrong_checks` says so where the mistake is, beside all others


class SuiteRules(_Rules):
    """A whole suite file, but for what its tasks say."""

    skill_id: NotBlank
    version: Literal["1.0", "1.1"]
    description: str = ""
    defaults: Defaults = Defaults()
    tasks: Annotated[list[Any], Field(min_length=1)]


class _WholeSuite(SuiteRules):
    """A suite: the tasks that a skill is judged by."""

    tasks: Annotated[list[TaskRules], Field(min_length=1)]


SCHEMA_FILE = "suite.schema.json"


def schema_text() -> str:
    """The JSON Schema of a suite, made from the types that load suites, as a file for editors and other tools.

    It can say less than `uplift validate`: not that ids are unique, that files exist, that a pattern compiles or
    that a JSON Schema inside the suite is one. What it rejects, `validate` rejects too.
    """
    schema = schema_of(_WholeSuite, "Uplift task suite, versions 1.0 and 1.1")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def broken_rules(root: Node, text: str) -> Iterator[Finding]:
    """What is wrong with a suite's values, but for bad nodes."""
    yield from _broken(SuiteRules, root, (), text)
    for number, task in enumerate(root.items("tasks")):
        yield from _broken(TaskRules, task, ("tasks", number), text)


def _broken(model: type[BaseModel], node: Node, prefix: Steps, text: str) -> Iterator[Finding]:
    try:
        model.model_validate(node.value)
    except ValidationError as invalid:
        if invalid.error_count() > _FLOOD:
            yield Finding(node.start, path_of(prefix), f"has more than {_FLOOD:,} mistakes; write it anew")
            return
        for error in invalid.errors(include_url=False, include_input=False):
            steps = _steps_of(error["loc"])
            if error["type"].startswith("union_tag"):
                target, _ = node.at(steps)
                if not isinstance(target.value, dict) and not target.bad:
                    said = f"is {_description(target, text)}; must be a mapping with keys such as type"
                    yield Finding(target.start, path_of((*prefix, *steps)), said)
                    continue
                steps = (*steps, "type")
            target, is_there = node.at(steps)
            if target.bad:
                continue
            message = _message(model, error, target, text) if is_there else _missing(steps, target)
            start = target.key_start if error["type"] == "extra_forbidden" else target.start
            yield Finding(start, path_of((*prefix, *steps)), message)


def _steps_of(loc: tuple[str | int, ...]) -> Steps:
    """The steps in the file; pydantic names the chosen judge between where it stands and its keys, too."""
    steps: list[str | int] = []
    chosen = False
    for step in loc:
        if not chosen and step != "[key]":
            steps.append(step)
        before = steps[-2] if len(steps) > 1 else ""
        chosen = not chosen and (step in ("judge", "not") or (step != "any" and before in ("checks", "any")))
    return tuple(steps)


def _message(model: type[BaseModel], error: Any, node: Node, text: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    is_what = f"is {_description(node, text)}"
    if error["loc"][-1:] == ("[key]",):
        is_what = f"key {shown(str(error['loc'][-2]))}"
    match kind:
        case "extra_forbidden":
            allowed = allowed_keys(model, error["loc"][:-1])
            if error["loc"][0] != "checks" or len(error["loc"]) > 4:
                allowed = [key for key in allowed if key not in CHECK_KEYS or "max_points" in allowed]
            name = str(error["loc"][-1])
            return f"unknown key {shown(name)}; allowed: {', '.join(allowed)}{did_you_mean(name, allowed)}"
        case "union_tag_invalid":
            allowed = list(JUDGE_TYPES)
            if not isinstance(node.value, str):
                return f"{is_what}; must be one of {', '.join(allowed)}"
            hint = did_you_mean(node.value, allowed)
            return f"unknown judge {shown(node.value)}; allowed: {', '.join(allowed)}{hint}"
        case "string_type":
            return f"{is_what}; must be text{_quote_hint(node, text)}"
        case "float_type" | "int_type":
            return f"{is_what}; must be a number{_unquote_hint(node)}"
        case "literal_error":
            expected = context["expected"].replace("'", '"')
            return f"{is_what}; must be the text {expected}{_quote_hint(node, text)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = allowed_keys(model, error["loc"])
            return f"{is_what}; must be a mapping{f' with keys such as {keys[0]}' if keys else ''}"
        case "string_pattern_mismatch":
            return f"{is_what}; {_PATTERNS.get(context['pattern']) or requirement(error)}"
    return f"{is_what}; {requirement(error)}"


def _missing(steps: Steps, holder: Node) -> str:
    if steps[-1:] != ("type",):
        return "is missing; this key is required"
    # Without a type no other key of the judge is checked, so a misspelt one is looked for here.
    near = near_name("type", holder.value)
    hint = f" (is {shown(near)} meant as type?)" if near else ""
    return f"is missing; must be one of {', '.join(JUDGE_TYPES)}{hint}"


def _description(node: Node, text: str) -> str:
    """What a value is, in the words of the file: 1.10 stays 1.10."""
    match node.value:
        case None:
            return "nothing"
        case bool():
            return _written(node, text)
        case int() | float():
            return f"the number {_written(node, text)}"
        case str() if not node.value.strip():
            return "blank" if node.value else "empty"
        case str():
            return f"the text {shown(node.value)}"
        case list():
            return "a list" if node.value else "an empty list"
    return "a mapping"


def _written(node: Node, text: str) -> str:
    scalar = _SCALAR.match(text, node.start)
    return scalar[0] if scalar else shown(node.value)


def _quote_hint(node: Node, text: str) -> str:
    return f' (quote it: "{_written(node, text)}")' if isinstance(node.value, bool | int | float) else ""


def _unquote_hint(node: Node) -> str:
    quoted = isinstance(node.value, str) and _NUMBER_AS_TEXT.fullmatch(node.value)
    return " (write it without quotes)" if quoted else ""


# The files that a suite names

FOLDER = "fixtures"
# By convention every judge setting that names a file ends so, but for those of functions and commands.
_JUDGE_KEYS = {key for judge in get_args(JudgeSpec) for key in judge.model_fields if key.endswith("_file")}
# One schema with many mistakes is told well enough by a few of them.
_MOST_EACH = 20


def wrong_files(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the files under `fixtures/` that tasks name; other paths are for `broken_rules`."""
    home = _home(suite_folder)
    problem_of = cache(lambda path: _wrong_file(path, home))
    for number, task in enumerate(root.items("tasks")):
        for steps, node in _named_files(task):
            if not _is_fixture(node):
                continue
            file = node.value.rpartition(":")[0] if steps[-1] == "function" else node.value
            if file and (problem := problem_of(file)):
                yield Finding(node.start, path_of(("tasks", number, *steps)), problem)


def wrong_schemas(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the schemas of json-schema judges; a missing file is for `wrong_files`."""
    home = _home(suite_folder)
    # Tasks often share a schema, and checking one takes most of a millisecond.
    problems_of = cache(lambda text: _wrong_schema(json.loads(text)))
    problem_in = cache(lambda path: _wrong_schema_file(path, home))
    for steps, judge in judges(root, "json-schema"):
        inline, file = judge.get("schema"), judge.get("schema_file")
        if inline is not None and isinstance(inline.value, dict):
            for path, message in problems_of(json.dumps(inline.value)):
                part, _ = inline.at(path)
                if not part.bad:
                    yield Finding(part.start, path_of((*steps, "schema", *path)), message)
        if file is not None and _is_fixture(file) and (problem := problem_in(file.value)):
            yield Finding(file.start, path_of((*steps, "schema_file")), f"{shown(file.value)} {problem}")


def judges(root: Node, kind: str) -> Iterator[tuple[Steps, Node]]:
    """Every judge of one kind, of all tasks."""
    for number, task in enumerate(root.items("tasks")):
        for steps, judge in judges_of(task):
            if judge.value.get("type") == kind:
                yield ("tasks", number, *steps), judge


def judges_of(task: Node) -> Iterator[tuple[Steps, Node]]:
    """Every judge of a task, those included that others combine, wherever it stands; only mappings."""
    judge = task.get("judge")
    waiting: list[tuple[Steps, Node]] = [(("judge",), judge)] if judge else []
    waiting += [(("checks", index), node) for index, node in enumerate(task.items("checks"))]
    for steps, node in waiting:
        if isinstance(node.value, dict):
            yield steps, node
            waiting += [((*steps, "not"), inner) for inner in [node.get("not")] if inner]
            waiting += [((*steps, "any", index), inner) for index, inner in enumerate(node.items("any"))]


def wrong_checks(root: Node) -> Iterator[Finding]:
    """What is wrong between keys that say how a task is judged, each of which may be right by itself."""
    version = root.get("version")
    for number, task in enumerate(root.items("tasks")):
        if isinstance(task.value, dict) and not task.bad:
            for steps, key, message in _wrong_task(task, version.value if version else None):
                node, is_there = task.at(steps)
                start = node.key_start if is_there and key else node.start
                yield Finding(start, path_of(("tasks", number, *steps)), message)


def _wrong_task(task: Node, version: Any) -> Iterator[tuple[Steps, bool, str]]:
    """The steps to each mistake, whether it is the key there, and what is wrong."""
    judge, checks, threshold = (task.get(key) for key in ("judge", "checks", "threshold"))
    if judge is None and checks is None:
        yield ("judge",), False, "is missing; this key is required"
    for one, other in (("judge", "checks"), ("prompt", "messages")):
        if task.get(one) is not None and task.get(other) is not None:
            yield (other,), True, f"stands beside {one}; a task has one of the two"
    if threshold is not None and checks is None:
        yield ("threshold",), True, "needs checks, whose mean score it is compared with"
    for key, node in (("checks", checks), ("threshold", threshold)):
        if node is not None and version == "1.0":
            yield (key,), True, 'needs version: "1.1" at the top of the suite'
    placed = [node.value for node in task.items("files")]
    for steps, node in judges_of(task):
        for index, file in enumerate(node.items("unchanged") if node.value.get("type") == "files" else ()):
            if f"{FOLDER}/{file.value}" not in placed:
                said = f"{shown(file.value)} is not there at the start; add {FOLDER}/{file.value} to the task's files"
                yield (*steps, "unchanged", index), False, said
    entries = [node.value for node in task.items("checks")]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return
    named = [entry.get("name") for entry in entries]
    for index, name in enumerate(named):
        if isinstance(name, str) and name in named[:index]:
            yield ("checks", index, "name"), False, f"duplicate name {shown(name)}; must be unique"
    if all(entry.get("weight") == 0 for entry in entries):
        yield ("checks",), False, "have no weight at all; give one of them a weight above 0"
    if threshold is None and all(entry.get("required") is False for entry in entries):
        yield ("checks",), False, "are all not required, so that every output passes; add a threshold"
    timed = [index for index, entry in enumerate(entries) if entry.get("type") == "benchmark"]
    for index in timed[1:]:
        yield ("checks", index), False, "is a second benchmark; a task can have one"


def _home(suite_folder: Path) -> Path:
    # Resolved without `fixtures` itself, so that a link in its place leads outside.
    return Path(os.path.realpath(suite_folder)) / FOLDER


def _is_fixture(node: Node) -> bool:
    return isinstance(node.value, str) and node.value.startswith(f"{FOLDER}/") and node.value != f"{FOLDER}/"


def _named_files(task: Node) -> Iterator[tuple[Steps, Node]]:
    for name in ("pass", "fail"):
        node, is_there = task.at(("replies", name))
        if is_there:
            yield ("replies", name), node
    for steps, judge in judges_of(task):
        for key in (*_JUDGE_KEYS, "function"):
            if (file := judge.get(key)) is not None:
                yield (*steps, key), file
        for index, file in enumerate(judge.items("argv")):
            yield (*steps, "argv", index), file
    for index, node in enumerate(task.items("files")):
        yield ("files", index), node


def _wrong_file(path: str, home: Path) -> str | None:
    """What is wrong with a path as a suite writes it, `home` being the suite's resolved `fixtures`; or None."""
    tidy = posixpath.normpath(path)
    if not tidy.startswith(f"{FOLDER}/"):
        return f"{shown(path)} leaves {FOLDER}/; must stay inside it"
    if tidy != path:
        return f"{shown(path)} goes the long way round; write {shown(tidy)}"
    try:
        # Not Path.resolve, which raises RuntimeError instead of OSError for a loop of links.
        real = Path(os.path.realpath(home.parent / path, strict=True))
        if not real.is_relative_to(home):
            return f"{shown(path)} leads out of {FOLDER}/ by a symbolic link; must stay inside it"
        mode = real.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"{shown(path)} does not exist; put the file there"
    except OSError as failed:
        return f"{shown(path)} cannot be read: {failed.strerror}; mend or remove it"
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        return f"{shown(path)} is {what}; must be a file"
    if not os.access(real, os.R_OK):
        return f"{shown(path)} cannot be read: Permission denied; make it readable"
    return None


def _wrong_schema(schema: dict[str, Any]) -> list[tuple[Steps, str]]:
    # Imported where it is needed: most suites have no schemas.
    from judges import safe_schemas

    return list(islice(safe_schemas.wrong_schema(schema), _MOST_EACH))


def _wrong_schema_file(name: str, home: Path) -> str | None:
    if _wrong_file(name, home) is not None:
        return None
    document = json_file.read(home.parent / name)
    problems = document.problems(document.findings)
    if not problems and document.root is not None:
        schema = document.root.value
        if not isinstance(schema, dict):
            return "is not a JSON Schema; must hold a mapping"
        problems = document.problems(
            Finding(document.root.at(path)[0].start, path_of(path), message)
            for path, message in _wrong_schema(schema)[:1]
        )
    if not problems:
        return None
    first = problems[0]
    where = f"{first.where}: " if first.where else ""
    return f"cannot be used, line {first.line}, column {first.column}: {where}{first.message}"

"""Read a promptfoo configuration: each prompt with each test becomes a task; providers are left out.

Read are inline prompts and text files, inline tests and tests in YAML or JSON files, `defaultTest`, variables
(lists are multiplied out) and references to assertion templates, each with its place. What else there is, is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from aggregate.text import files
from judges.safe_text import shown
from producer.importers import promptfoo_checks
from producer.importers.imported import (
    MAX_TASKS,
    Found,
    ImportedSource,
    ImportedTask,
    Refused,
    kind_of,
    open_source,
    slug,
    text_beside,
)
from producer.importers.promptfoo_checks import Check, Judged, check_of, rendered
from producer.suites import json_file, yaml_file
from producer.suites.yaml_file import Node

TEXT_FILES = (".txt", ".md", ".j2")
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Prompt:
    """A prompt's template, and the name by which tests may ask for it."""

    text: str
    label: str
    origin: str


@dataclass(frozen=True)
class Assertion:
    """An assertion where it stands, with references followed."""

    node: Node
    source: ImportedSource
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return self.source.place(self.node)

    @property
    def kind(self) -> str:
        return str(self.value["type"])


class PromptfooConfig:
    """One configuration; `sources` are its file and the files of tests that it names."""

    def __init__(self, source: ImportedSource, root: Node, home: Path, found: Found) -> None:
        self.sources = [source]
        self.root = root
        self.home = home
        self._found = found

    def leave_out(self, source: ImportedSource, node: Node, what: str, why: str) -> None:
        """Note a setting that is not carried over."""
        self._found.leave_out("setting", source.place(node), what, why)

    def prompts(self) -> Iterator[Prompt]:
        """Every prompt, in order; files with several are taken apart."""
        source = self.sources[0]
        node = self.root.get("prompts")
        if node is None:
            source.wrong(self.root, "prompts", "is missing; a configuration needs one prompt or more")
            return
        entries = node.items() if isinstance(node.value, list) else [node]
        for number, entry in enumerate(entries):
            where = f"prompts[{number}]"
            raw, label = entry.value, ""
            if isinstance(entry.value, dict):
                raw = entry.value.get("raw", entry.value.get("id"))
                label = str(entry.value.get("label", entry.value.get("id", "")))
            if not isinstance(raw, str) or not raw.strip():
                source.wrong(entry, where, f"is {kind_of(raw)}; must be text, or a mapping with raw or id")
                continue
            try:
                parts = self._prompt_texts(raw)
                for index, part in enumerate(parts, start=1):
                    origin = source.place(entry) + (f", part {index}" if len(parts) > 1 else "")
                    yield Prompt(part, label or raw, origin)
            except Refused as refused:
                self.leave_out(source, entry, where, str(refused))

    def _prompt_texts(self, raw: str) -> list[str]:
        name = raw.removeprefix("file://")
        if not raw.startswith("file://") and not raw.endswith(TEXT_FILES):
            return [raw]
        if not name.endswith(TEXT_FILES) or "*" in name:
            raise Refused("only prompts in .txt, .md and .j2 files can be read; write it out")
        text = text_beside(self.home, name)
        return [part.strip() for part in _SEPARATOR.split(text) if part.strip()]

    def tests(self) -> Iterator[tuple[ImportedSource, Node]]:
        """Every test and the file that it stands in."""
        source = self.sources[0]
        node = self.root.get("tests")
        if node is None:
            return
        for entry in node.items() if isinstance(node.value, list) else [node]:
            if isinstance(entry.value, dict):
                yield source, entry
            elif isinstance(entry.value, str):
                yield from self._tests_in(entry.value, entry)
            else:
                source.wrong(entry, "tests", f"is {kind_of(entry.value)}; must be a mapping or a file's name")

    def _tests_in(self, name: str, entry: Node) -> Iterator[tuple[ImportedSource, Node]]:
        file = name.removeprefix("file://")
        try:
            if not file.endswith((".yaml", ".yml", ".json")) or "*" in file:
                raise Refused("only tests in .yaml and .json files can be read; write them out")
            text = text_beside(self.home, file)
        except Refused as refused:
            self.leave_out(self.sources[0], entry, f"tests {shown(name)}", str(refused))
            return
        module = json_file if file.endswith(".json") else yaml_file
        shown_as = str(Path(self.sources[0].name).parent / file)
        source = ImportedSource(module.parse(text, shown_as), shown_as)
        source.check()
        self.sources.append(source)
        for node in source.entries(source.document.root, ""):
            if isinstance(node.value, dict):
                yield source, node
            else:
                source.wrong(node, "", f"is {kind_of(node.value)}; must be a mapping")

    def assertions(self, source: ImportedSource, node: Node | None, where: str) -> Iterator[Assertion]:
        """The assertions of a list; sets in which all must hold are taken apart."""
        for entry in source.entries(node, where):
            value = self._followed(source, entry)
            if value is None:
                continue
            kind = value.get("type")
            if not isinstance(kind, str):
                source.wrong(entry, where, "an assertion has no type; name one, such as contains")
            elif kind == "assert-set" and value.get("threshold") is None:
                yield from self.assertions(source, entry.get("assert"), where)
            else:
                yield Assertion(entry, source, value)

    def _followed(self, source: ImportedSource, entry: Node) -> dict[str, Any] | None:
        if not isinstance(entry.value, dict):
            source.wrong(entry, "assert", f"is {kind_of(entry.value)}; must be a mapping with type and value")
            return None
        reference = entry.value.get("$ref")
        if reference is None:
            return entry.value
        steps = str(reference).removeprefix("#/").split("/")
        target, there = self.root.at(steps) if str(reference).startswith("#/") else (entry, False)
        if not there or not isinstance(target.value, dict) or "$ref" in target.value:
            source.wrong(entry, "assert", f"$ref {shown(reference)} leads to no assertion template")
            return None
        return target.value


_ALL_HOLD = "every assertion must hold here"
_TEST_KEYS = ("description", "vars", "assert", "prompts")
_ROOT_KEYS = ("description", "prompts", "tests", "defaultTest", "assertionTemplates", "providers", "targets")


@dataclass(frozen=True)
class Test:
    """One test: where it stands, what it is called and what it asserts."""

    source: ImportedSource
    node: Node
    where: str
    name: str
    description: str
    assertions: tuple[Assertion, ...]

    @property
    def place(self) -> str:
        return self.source.place(self.node)


def convert(path: Path) -> Found:
    """The tasks of a configuration; raises Unimportable with everything that is wrong with the file."""
    source, root = open_source(path, keys="prompts and tests")
    found = Found(source=str(path), skill_id=slug(path.resolve().parent.name) or "skill")
    found.description = " ".join((source.text(root.get("description"), "description") or "").split())
    config = PromptfooConfig(source, root, path.parent, found)
    _Cases(config, found).fill()
    for each in config.sources:
        each.check()
    return found


class _Cases:
    """Makes a task of every test with every prompt and every combination of variables."""

    def __init__(self, config: PromptfooConfig, found: Found) -> None:
        self._config = config
        self._found = found
        self._met: dict[str, Assertion] = {}
        self._used: set[str] = set()

    def fill(self) -> None:
        config, source = self._config, self._config.sources[0]
        prompts = list(config.prompts())
        default = config.root.get("defaultTest")
        if default is not None and not isinstance(default.value, dict):
            config.leave_out(source, default, "defaultTest", "only a mapping in the same file can be read")
            default = None
        for number, (owner, node) in enumerate(config.tests()):
            self._test(owner, node, number, default, prompts)
        self._found.leave_out_settings(source, config.root, _ROOT_KEYS)
        self._found.note("providers are not carried over; choose models with --model and --judge-model")
        self._found.assertion_count = len(self._met)
        told = {item.place for item in self._found.left_out if item.kind == "assertion"}
        for place, assertion in self._met.items():
            if place not in self._used | told:
                self._found.leave_out("assertion", place, assertion.kind, "its test is left out")

    def _test(
        self, source: ImportedSource, node: Node, number: int, default: Node | None, prompts: list[Prompt]
    ) -> None:
        where, first = f"tests[{number}]", self._config.sources[0]
        holders = [(first, default)] if default is not None else []
        assertions: list[Assertion] = []
        for owner, holder in (*holders, (source, node)):
            assertions += self._config.assertions(owner, holder.get("assert"), f"{where}.assert")
            self._found.leave_out_settings(owner, holder, _TEST_KEYS, threshold=_ALL_HOLD)
        self._met.update({assertion.place: assertion for assertion in assertions})
        description = " ".join((source.text(node.get("description"), f"{where}.description") or "").split())
        name = slug(description) or f"test-{number + 1}"
        test = Test(source, node, where, name, description, tuple(assertions))
        variables = {**_variables(first, default), **_variables(source, node)}
        lists = {key: value for key, value in variables.items() if isinstance(value, list) and value}
        wanted = node.get("prompts")
        names = wanted.value if wanted is not None and isinstance(wanted.value, list) else None
        chosen = [prompt for prompt in prompts if names is None or prompt.label in names]
        if self._found.task_count + len(chosen) * prod(map(len, lists.values())) > MAX_TASKS:
            source.wrong(node, where, f"makes more than {MAX_TASKS:,} tasks; split the configuration")
            return
        for prompt, values in product(chosen, product(*lists.values())):
            self._found.task_count += 1
            self._case(test, prompt, {**variables, **dict(zip(lists, values, strict=True))})

    def _case(self, test: Test, prompt: Prompt, values: dict[str, Any]) -> None:
        what = f"{test.where} with the prompt of {prompt.origin}"
        try:
            values = {name: self._variable(value) for name, value in values.items()}
            text = rendered(prompt.text, values)
        except Refused as refused:
            self._found.leave_out("task", test.place, what, str(refused))
            return
        checks = self._checks(test, values)
        context = {"prompt": text, "vars": values, "test": {"vars": values}}
        judged = self._judges(list(checks.values()), test, context)
        if not judged:
            why = "none of its assertions can be judged" if test.assertions else "it has nothing to judge by"
            why = "it has only a time limit to judge by" if checks else why
            self._found.leave_out("task", test.place, what, why)
            return
        self._used.update(checks)
        seconds = promptfoo_checks.timeout_of(list(checks.values()))
        for id_, judge in judged:
            fields: dict[str, Any] = {"id": id_}
            if test.description:
                fields["description"] = test.description
            fields |= {"prompt": text, "judge": judge.judge}
            if seconds is not None:
                fields["timeout_seconds"] = seconds
            self._found.fixtures.update(judge.fixtures)
            for note in judge.notes:
                self._found.note(note)
            origin = f"{test.place} ({test.where}), prompt of {prompt.origin}"
            self._found.tasks.append(ImportedTask(origin, fields))

    def _judges(self, checks: list[Check], test: Test, context: dict[str, Any]) -> list[tuple[str, Judged]]:
        deterministic = promptfoo_checks.needs_no_model(checks)
        id_ = self._found.new_id(test.name) if deterministic else ""
        judged = promptfoo_checks.deterministic_of(checks, id_, test.place, context)
        rubric = promptfoo_checks.rubric_of(checks)
        found = [(id_, judged)] if judged is not None else []
        if rubric is not None:
            found.append((self._found.new_id(f"{test.name}-rubric" if judged else test.name), rubric))
        if len(found) == 2:
            self._found.note("a test with rubrics and other assertions became two tasks, asked apart")
        return found

    def _checks(self, test: Test, values: dict[str, Any]) -> dict[str, Check]:
        checks = {}
        for assertion in test.assertions:
            try:
                checks[assertion.place] = check_of(assertion.value, values, self._config.home)
            except Refused as refused:
                self._found.leave_out("assertion", assertion.place, assertion.kind, str(refused))
            if assertion.value.get("weight", 1) not in (0, 1):
                self._found.note("weights are not carried over; every assertion must hold")
        return checks

    def _variable(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("file://"):
            name = value.removeprefix("file://")
            if not name.endswith(TEXT_FILES):
                raise Refused(f"the variable's file {shown(name)} is no text file (.txt, .md)")
            return text_beside(self._config.home, name).strip()
        return value


def _variables(source: ImportedSource, node: Node | None) -> dict[str, Any]:
    found = node.get("vars") if node is not None else None
    if found is None or found.value is None:
        return {}
    if not isinstance(found.value, dict):
        source.wrong(found, "vars", f"is {kind_of(found.value)}; must be a mapping of names to values")
        return {}
    return dict(found.value)


def is_configuration(path: Path) -> bool:
    """Whether a JSON file holds a promptfoo configuration and no evals; unreadable ones are neither."""
    try:
        value = json.loads(files.read(path, yaml_file.MAX_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "prompts" in value and "evals" not in value

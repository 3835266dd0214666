"""Read a promptfoo configuration: every prompt with every test becomes a task; providers stay behind.

Read are inline prompts and text files, inline tests and tests in YAML or JSON files, `defaultTest`, variables
(lists are multiplied out) and references to assertion templates. What else there is, is named.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from producer import located_json, located_yaml
from producer.importers import promptfoo_judges
from producer.importers.found import (
    MAX_TASKS,
    Found,
    ImportedTask,
    Refused,
    Source,
    kind_of,
    no_such_source,
    slug,
    text_beside,
)
from producer.importers.promptfoo_checks import Check, check_of, rendered
from producer.importers.promptfoo_config import TEXT_FILES, Assertion, Config, Prompt
from producer.importers.promptfoo_judges import Judged
from producer.yaml_nodes import Node, shown

_TEST_KEYS = ("description", "vars", "assert", "prompts")
_ROOT_KEYS = ("description", "prompts", "tests", "defaultTest", "assertionTemplates", "providers", "targets")
_SETTING = "Uplift has no such setting"


@dataclass(frozen=True)
class Test:
    """One test: where it stands, what it is called and what it asserts."""

    source: Source
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
    try:
        source = Source((located_json if path.suffix == ".json" else located_yaml).read(path), str(path))
    except FileNotFoundError:
        raise no_such_source(path) from None
    source.check()
    root = source.document.root
    if root is None or not isinstance(root.value, dict):
        what = kind_of(root.value) if root is not None else "empty"
        source.wrong(root or Node(0, None), "", f"is {what}; must be a mapping with prompts and tests")
        source.check()
        raise AssertionError("check has raised")
    found = Found(source=str(path), skill_id=slug(path.resolve().parent.name) or "skill")
    found.description = " ".join((source.text(root.get("description"), "description") or "").split())
    config = Config(source, root, path.parent, found)
    _Cases(config, found).fill()
    for each in config.sources:
        each.check()
    return found


class _Cases:
    """Takes every test with every prompt and every choice of variables, and makes tasks of them."""

    def __init__(self, config: Config, found: Found) -> None:
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
        for key, node in _parts(config.root):
            if key not in _ROOT_KEYS:
                config.leave_out(source, node, key, _SETTING)
        self._found.note("providers are not carried over; choose models with --model and --judge-model")
        self._found.assertion_count = len(self._met)
        told = {item.place for item in self._found.left_out if item.kind == "assertion"}
        for place, assertion in self._met.items():
            if place not in self._used | told:
                self._found.leave_out("assertion", place, assertion.kind, "its test is left out")

    def _test(
        self, source: Source, node: Node, number: int, default: Node | None, prompts: list[Prompt]
    ) -> None:
        where, first = f"tests[{number}]", self._config.sources[0]
        holders = [(first, default)] if default is not None else []
        assertions: list[Assertion] = []
        for owner, holder in (*holders, (source, node)):
            assertions += self._config.assertions(owner, holder.get("assert"), f"{where}.assert")
            for key, part in _parts(holder):
                if key not in _TEST_KEYS:
                    why = "every assertion must hold here" if key == "threshold" else _SETTING
                    self._config.leave_out(owner, part, key, why)
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
        seconds = promptfoo_judges.timeout_of(list(checks.values()))
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
        deterministic = promptfoo_judges.needs_no_model(checks)
        id_ = self._found.new_id(test.name) if deterministic else ""
        judged = promptfoo_judges.deterministic_of(checks, id_, test.place, context)
        rubric = promptfoo_judges.rubric_of(checks)
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


def _parts(node: Node) -> list[tuple[str, Node]]:
    return list(node.children.items()) if isinstance(node.children, dict) else []


def _variables(source: Source, node: Node | None) -> dict[str, Any]:
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
        value = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "prompts" in value and "evals" not in value

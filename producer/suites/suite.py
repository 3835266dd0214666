"""Load a suite from its YAML file: every task checked, and every mistake reported at once with its place.

`rules` tells what a suite may say and which files and JSON Schemas it may name, `yaml_file` which YAML it may use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import uplift_judge
from aggregate.text.files import no_cycle_search
from judges.errors import UpliftError, did_you_mean
from judges.safe_text import path_of, shown
from judges.spec import Pytest
from producer.suites import rules, yaml_file
from producer.suites.yaml_file import MAX_PROBLEMS, Document, Finding, Node, Problem
from workers.store.messages import Task

__all__ = ["InvalidSuite", "Problem", "Suite", "UnknownSelection", "load", "select", "validate"]


@dataclass(frozen=True)
class Suite:
    """The tasks that a skill is judged by; `folder` holds `fixtures/`, `warnings` are lines to print.

    `hints` are for whoever checks the suite, and not for each run.
    """

    path: Path
    folder: Path
    skill_id: str
    tasks: tuple[Task, ...]
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


class InvalidSuite(UpliftError):
    """The suite cannot be used; `problems` says all that is wrong, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class UnknownSelection(UpliftError):
    """A task, tag or tier was asked for that the suite does not have, or a combination that no task has."""


def load(path: Path) -> Suite:
    """The suite in a file; InvalidSuite when anything at all is wrong with it."""
    with no_cycle_search():
        try:
            document = yaml_file.read(path)
        except FileNotFoundError:
            raise InvalidSuite([Problem(str(path), 0, 0, "", f"Task suite not found: {path}")]) from None
        return _checked(document, path)


def from_values(values: Mapping[str, Any], folder: Path) -> Suite:
    """A suite that is in memory, checked as a file would be; `folder` holds its `fixtures/`.

    Problems have no line: they name the value by its path.
    """
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidSuite([Problem("", 0, 0, "", f"the suite is not plain data: {problem}")]) from None
    try:
        return _checked(yaml_file.parse(text, ""), folder / "in-memory")
    except InvalidSuite as invalid:
        raise InvalidSuite([replace(problem, line=0, column=0) for problem in invalid.problems]) from None


def _checked(document: Document, path: Path) -> Suite:
    problems = document.problems(_findings(document, path.parent))
    if problems or document.root is None:
        raise InvalidSuite(problems)
    content = document.root.value
    defaults = content.get("defaults", {})
    sees = rules.SEES_SINCE.get(content["version"])
    tasks = ({**defaults, **task} for task in content["tasks"])
    return Suite(
        path=path,
        folder=path.parent,
        skill_id=content["skill_id"],
        tasks=tuple(Task.model_validate(task, context={"sees": sees}) for task in tasks),
        warnings=tuple(map(str, document.problems(_doubts(document.root)))),
        hints=tuple(map(str, document.problems(_hints(document.root)))) if sees is None else (),
    )


def validate(
    paths: Iterable[Path], read: Callable[[Path], Suite] = load, hints: list[str] | None = None
) -> list[Problem]:
    """All that is wrong with several suites, in the order given; what could be better is added to `hints`."""
    problems: list[Problem] = []
    for path in paths:
        try:
            suite = read(path)
            (hints if hints is not None else []).extend(suite.hints)
        except InvalidSuite as invalid:
            problems.extend(invalid.problems)
    return problems


def unguarded_tests(paths: Iterable[Path], read: Callable[[Path], Suite] = load) -> list[str]:
    """Test files of valid suites in whose own process code of an output runs, if they run any."""
    files = {
        str(suite.folder / leaf.test_file): None
        for suite in map(read, paths)
        for task in suite.tasks
        for leaf in task.leaves
        if isinstance(leaf, Pytest)
    }
    return [file for file in files if not uplift_judge.is_imported_in(Path(file).read_bytes())]


def select(
    suite: Suite, *, tasks: Sequence[str] = (), tags: Sequence[str] = (), tiers: Sequence[str] = ()
) -> Suite:
    """The suite with only the tasks asked for, in the suite's order.

    Names of one kind are alternatives, kinds narrow each other: tags a, b and tier T1 are the T1 tasks that
    have a or b. UnknownSelection when a name is unknown or no task remains.
    """
    _check_known("task", tasks, [task.id for task in suite.tasks])
    _check_known("tag", tags, [tag for task in suite.tasks for tag in task.tags])
    _check_known("tier", tiers, [task.tier for task in suite.tasks if task.tier is not None])
    chosen = tuple(
        task
        for task in suite.tasks
        if (not tasks or task.id in tasks)
        and (not tags or not set(tags).isdisjoint(task.tags))
        and (not tiers or task.tier in tiers)
    )
    if not chosen:
        raise UnknownSelection("no task has all that was asked for; drop one of --task, --tag and --tier")
    return replace(suite, tasks=chosen)


def _check_known(kind: str, asked: Sequence[str], known: Iterable[str]) -> None:
    names = list(dict.fromkeys(known))
    for name in asked:
        if name not in names:
            some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            allowed = f"known {kind}s: {some}" if names else f"the suite has no {kind}s"
            hint = did_you_mean(name, names)
            raise UnknownSelection(f"unknown {kind} {shown(name)}; {allowed}{hint}")


def _findings(document: Document, folder: Path) -> Iterator[Finding]:
    yield from document.findings
    root = document.root or Node(0, None, bad=bool(document.findings))
    if isinstance(root.value, dict):
        for findings in (
            rules.broken_rules(root, document.text),
            rules.wrong_checks(root),
            _repeated_ids(root, document),
            rules.wrong_files(root, folder),
            rules.wrong_schemas(root, folder),
        ):
            yield from islice(findings, MAX_PROBLEMS + 1)
    elif not root.bad:
        what = {list: "is a list", type(None): "is empty"}.get(type(root.value), "is a single value")
        start = 0 if root.value is None else root.start
        yield Finding(start, "", f"{what}; must be a mapping with skill_id, version and tasks")


def _repeated_ids(root: Node, document: Document) -> Iterator[Finding]:
    first: dict[Any, Node] = {}
    for number, task in enumerate(root.items("tasks")):
        node = task.get("id")
        if node is None or not isinstance(node.value, str):
            continue
        if node.value in first:
            line = document.line(first[node.value].start)
            message = f"duplicate id {shown(node.value)}, first on line {line}; must be unique"
            yield Finding(node.start, path_of(("tasks", number, "id")), message)
        first.setdefault(node.value, node)


def _doubts(root: Node) -> Iterator[Finding]:
    """What is allowed and can hardly be meant: a contains judge that no output can pass."""
    for path, judge in rules.judges(root, "contains"):
        expected = [wanted.casefold() for wanted in judge.value["expected"]]
        for index, banned in enumerate(judge.items("forbidden")):
            if any(banned.value.casefold() in wanted for wanted in expected):
                message = f"forbidden {shown(banned.value)} is part of an expected string; no output can pass"
                yield Finding(banned.start, path_of((*path, "forbidden", index)), message)


def _hints(root: Node) -> Iterator[Finding]:
    """What is right and surprises people: a judge model that is not told what was asked."""
    for path, judge in rules.judges(root, "llm-rubric"):
        if "sees" not in judge.value:
            message = 'its judge does not see the prompt; write sees: [prompt, output], or version: "1.1"'
            yield Finding(judge.start, path_of(path), message)


def located(path: Path, remarks: Mapping[str, str]) -> list[str]:
    """One line for each task id that has a remark; without a readable file, the file's name is the place."""
    if not remarks:
        return []
    try:
        document = yaml_file.read(path)
    except FileNotFoundError:
        document = Document(str(path), "", None, ())
    findings, left = [], dict(remarks)
    for number, task in enumerate(document.root.items("tasks") if document.root else []):
        node = task.get("id")
        if node is not None and isinstance(node.value, str) and node.value in left:
            findings.append(Finding(node.start, path_of(("tasks", number)), left.pop(node.value)))
    nowhere = [f"{path}: task {task_id}: {remark}" for task_id, remark in left.items()]
    return [*map(str, document.problems(findings)), *nowhere]

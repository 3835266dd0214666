"""Write an imported suite: whole or not at all, over nothing that exists, and valid before anybody sees it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from producer import schema, suite
from producer.importers.found import Found, ImportedTask, Unimportable
from producer.located_yaml import Problem
from workers.messages import Task

SUITE_NAME = "suite.yaml"
MODELINE = f"# yaml-language-server: $schema={schema.FILE_NAME}"
_NOT_PRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]+")


def write(found: Found, folder: Path) -> Path:
    """Write the suite, its schema and its fixtures into a new folder; returns the suite's path.

    Raises Unimportable when there is nothing to write, or when the folder exists already.
    """
    if not found.tasks:
        reasons = "".join(f"\n{item}" for item in found.left_out)
        raise _problem(found.source, f"no task can be imported{reasons}")
    # A link that leads nowhere would be written through.
    if folder.exists() or folder.is_symlink():
        raise _problem(str(folder), f"{folder} exists already and is left as it is; choose another --output")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _fill(partial, found)
        _check(partial / SUITE_NAME, found)
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder / SUITE_NAME


def suite_text(found: Found) -> str:
    """The suite as YAML, with comments that say where each task came from and what is missing."""
    return "".join(f"{line}\n" for line in _lines(found))


def dumped(value: Any) -> str:
    """A value as block YAML; texts of several lines stay readable."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )
    return str(text)


def _lines(found: Found) -> Iterator[str]:
    yield MODELINE
    yield f"# Imported from {_comment(found.source)} by `uplift import`."
    if found.left_out:
        yield "#"
        yield "# Not imported:"
        yield from (f"#   {_comment(str(item))}" for item in found.left_out)
    if found.notes:
        yield "#"
        yield "# To know:"
        yield from (f"#   {_comment(note)}" for note in found.notes)
    head: dict[str, Any] = {"skill_id": found.skill_id, "version": "1.0"}
    if found.description:
        head["description"] = found.description
    yield from dumped(head).splitlines()
    yield "tasks:"
    for task in found.tasks:
        yield from _task_lines(task)


def _task_lines(task: ImportedTask) -> Iterator[str]:
    yield f"  # from {_comment(task.origin)}"
    yield from (f"  # {_comment(remark)}" for remark in task.remarks)
    for line in dumped([task.fields]).splitlines():
        yield f"  {line}" if line else ""
    yield ""


def _comment(text: str) -> str:
    return _NOT_PRINTABLE.sub(" ", text)


def _fill(folder: Path, found: Found) -> None:
    (folder / SUITE_NAME).write_text(suite_text(found), encoding="utf-8")
    (folder / schema.FILE_NAME).write_text(schema.text(), encoding="utf-8")
    for name, data in found.fixtures.items():
        place = folder / "fixtures" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def _check(path: Path, found: Found) -> None:
    """The file must say what was meant: it is read back and compared."""
    try:
        loaded = suite.load(path)
    except suite.InvalidSuite as invalid:
        problems = [
            Problem(found.source, 0, 0, problem.where, f"{found.source}: {problem.where}: {problem.message}")
            for problem in invalid.problems
        ]
        raise Unimportable(problems) from invalid
    meant = tuple(Task.model_validate(task.fields) for task in found.tasks)
    if loaded.tasks != meant:
        raise _problem(found.source, "the suite would not say what the source says; please report this")


def _problem(file: str, message: str) -> Unimportable:
    return Unimportable([Problem(file, 0, 0, "", message)])


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, and texts of several lines are blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text_node)

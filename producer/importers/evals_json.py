"""Read evals.json as skill-creator and agentskills write it: prompts, files and statements that must hold.

The first calls the statements `expectations`, the second `assertions`; each becomes a check by a judge model, which
sees `expected_output` as its reference; alone, that is the rubric.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from producer.importers import imported
from producer.importers.imported import MAX_TASKS, Found, ImportedSource, ImportedTask, Refused, slug
from producer.suites import suite
from producer.suites.suite import Suite
from producer.suites.yaml_file import Node

FILE_NAME = "evals.json"
_STATEMENTS = ("expectations", "assertions")
_TEXTS = ("text", "description", "assertion", "expectation", "statement")  # where a mapping says it
_KNOWN = ("id", "name", "eval_name", "prompt", "expected_output", "files", *_STATEMENTS)


_fixtures: list[TemporaryDirectory[str]] = []  # of suites made from evals.json, until this process ends


def load(path: Path) -> Suite:
    """The suite in a file; an evals.json becomes one in memory, with warnings of what is left out."""
    if path.name != FILE_NAME:
        return suite.load(path)
    found = convert(path)
    _fixtures.append(TemporaryDirectory(prefix="uplift-evals-"))
    made = suite.load(imported.write(found, Path(_fixtures[-1].name, "suite")))
    left_out = [f"left out: {item}" for item in found.left_out if item.kind != "setting"]
    if others := len(found.left_out) - len(left_out):
        left_out.append(f"{path}: {others} settings have no equivalent; `uplift import {path}` lists them")
    return replace(made, path=path, warnings=(*made.warnings, *left_out))


def convert(path: Path) -> Found:
    """The tasks of an evals.json; raises Unimportable with everything that is wrong with the file."""
    source, root = imported.open_source(path, keys="skill_name and evals")
    name = source.text(root.get("skill_name"), "skill_name") or _home(path).resolve().name
    found = Found(source=str(path), skill_id=name.strip() or "skill")
    found.task_count = len(root.items("evals"))
    if root.get("evals") is None:
        source.wrong(root, "evals", "is missing; must be a list of evals")
    if found.task_count > MAX_TASKS:
        source.wrong(root, "evals", f"holds {found.task_count:,} evals; at most {MAX_TASKS:,} are allowed")
    else:
        for number, node in source.mappings(root.get("evals"), "evals"):
            _eval(source, node, f"evals[{number}]", _home(path), found)
    found.leave_out_settings(source, root, ("skill_name", "evals"))
    source.check()
    return found


def _home(path: Path) -> Path:
    """The skill's folder, which files are relative to: evals.json lies in its `evals/`."""
    return path.parent.parent if path.resolve().parent.name == "evals" else path.parent


def _eval(source: ImportedSource, node: Node, where: str, home: Path, found: Found) -> None:
    prompt = source.text(node.get("prompt"), f"{where}.prompt")
    if node.get("prompt") is None:
        source.wrong(node, f"{where}.prompt", "is missing; every eval needs one")
    elif prompt is not None and not prompt.strip():
        source.wrong(node, f"{where}.prompt", "is blank; must hold some text")
    expected = (source.text(node.get("expected_output"), f"{where}.expected_output") or "").strip()
    statements = _statements(source, node, where, found)
    files = _files(source, node, where, home, found)
    found.leave_out_settings(source, node, _KNOWN, f"{where}.")
    if not statements and not expected:
        why = "no expectations, assertions or expected_output to judge by; add some"
        found.leave_out("task", source.place(node), where, why)
        return
    fields: dict[str, object] = {"id": _id(node, found)}
    fields |= {"prompt": prompt or "", **_judged_by(expected, statements), **files}
    found.tasks.append(ImportedTask(f"{source.place(node)} ({where})", fields))


def _statements(source: ImportedSource, node: Node, where: str, found: Found) -> list[str]:
    statements = []
    for key in _STATEMENTS:
        for number, entry in enumerate(source.entries(node.get(key), f"{where}.{key}")):
            found.assertion_count += 1
            place = f"{where}.{key}[{number}]"
            is_text = not isinstance(entry.value, dict)
            text = entry if is_text else next(filter(None, map(entry.get, _TEXTS)), None)
            if text is None:
                why = "a mapping without text; write the statement as text"
                found.leave_out("assertion", source.place(entry), place, why)
            elif statement := (source.text(text, place) or "").strip():
                statements.append(statement)
            elif isinstance(text.value, str):
                source.wrong(entry, place, "is blank; must hold some text")
    return statements


def _judged_by(expected: str, statements: list[str]) -> dict[str, object]:
    sees = {"type": "llm-rubric", "sees": ["prompt", "output"]}
    if not statements:
        return {"judge": {**sees, "rubric": f"The output should be: {expected}"}}
    reference = {"reference": expected} if expected else {}
    checks = [{**sees, "rubric": statement, **reference} for statement in statements]
    if len(checks) == 1:
        return {"judge": checks[0]}
    taken: dict[str, int] = {}
    names = [imported.numbered(imported.name_of(statement), taken) for statement in statements]
    return {"checks": [{**check, "name": name} for check, name in zip(checks, names, strict=True)]}


def _files(source: ImportedSource, node: Node, where: str, home: Path, found: Found) -> dict[str, list[str]]:
    named: dict[str, None] = {}
    for number, entry in enumerate(source.entries(node.get("files"), f"{where}.files")):
        place = f"{where}.files[{number}]"
        if (name := source.text(entry, place)) is None:
            continue
        try:
            data = imported.file_beside(home, name)
        except Refused as refused:
            source.wrong(entry, place, str(refused))
            continue
        # An agent finds the file in its workspace under the name that follows evals/files/.
        inside = name.removeprefix("./").removeprefix("evals/").removeprefix("files/")
        inside = "/".join(part for part in inside.split("/") if part not in ("", ".", ".."))
        while found.fixtures.get(inside, data) != data:
            inside = f"{slug(where)}/{inside}"
        found.fixtures[inside] = data
        named[f"fixtures/{inside}"] = None
    return {"files": list(named)} if named else {}


def _id(node: Node, found: Found) -> str:
    for key in ("eval_name", "name", "id"):
        part = node.get(key)
        if part is not None and isinstance(part.value, str | int) and slug(str(part.value)):
            text = slug(str(part.value))
            return found.new_id(f"eval-{text}" if text.isdecimal() else text)
    return found.new_id(f"eval-{len(found.tasks) + 1}")

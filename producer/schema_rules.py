"""Check the JSON Schemas that a suite's judges use: those written in the suite, and those in fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from producer import fixture_files, located_json
from producer.yaml_nodes import Finding, Node, path_of, shown

# One schema with many mistakes is told well enough by a few of them.
_MOST_EACH = 20


def wrong_schemas(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the schemas of json-schema judges; a missing file is for `fixture_files`."""
    home = Path(os.path.realpath(suite_folder)) / fixture_files.FOLDER
    known: dict[str, str | None] = {}
    tasks = root.get("tasks")
    for number, task in enumerate(tasks.items() if tasks else []):
        judge = task.get("judge")
        kind = judge.get("type") if judge else None
        if judge is None or kind is None or kind.value != "json-schema":
            continue
        if inline := judge.get("schema"):
            yield from _inline(inline, ("tasks", number, "judge", "schema"))
        file = judge.get("schema_file")
        if file is not None and isinstance(file.value, str) and file.value.startswith("fixtures/"):
            if file.value not in known:
                known[file.value] = _in_file(file.value, home)
            if (objection := known[file.value]) is not None:
                where = path_of(("tasks", number, "judge", "schema_file"))
                yield Finding(file.start, where, f"{shown(file.value)} {objection}")


def _inline(node: Node, steps: tuple[str | int, ...]) -> Iterator[Finding]:
    if not isinstance(node.value, dict):
        return
    # Imported where it is needed: most suites have no schemas.
    from judges import schema_checks

    for path, message in islice(schema_checks.wrong_schema(node.value), _MOST_EACH):
        part, _ = node.at(path)
        if not part.bad:
            yield Finding(part.start, path_of((*steps, *path)), message)


def _in_file(name: str, home: Path) -> str | None:
    if fixture_files.objection(name, home) is not None:
        return None
    from judges import schema_checks

    document = located_json.read(home.parent / name)
    problems = document.problems(document.findings)
    if not problems and document.root is not None:
        schema = document.root.value
        if not isinstance(schema, dict):
            return "is not a JSON Schema; must hold a mapping"
        found = list(islice(schema_checks.wrong_schema(schema), 1))
        problems = document.problems(
            Finding(document.root.at(path)[0].start, path_of(path), message) for path, message in found
        )
    if not problems:
        return None
    first = problems[0]
    where = f"{first.where}: " if first.where else ""
    return f"cannot be used, line {first.line}, column {first.column}: {where}{first.message}"

"""Check the JSON Schemas that a suite's judges use: those written in the suite, and those in fixtures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from producer import fixture_files, located_json
from producer.yaml_nodes import Finding, Node, path_of, shown

# One schema with many mistakes is told well enough by a few of them.
_MOST_EACH = 20


def wrong_schemas(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the schemas of json-schema judges; a missing file is for `fixture_files`."""
    home = Path(os.path.realpath(suite_folder)) / fixture_files.FOLDER
    known: dict[str, str | None] = {}
    checked: dict[str, list[tuple[tuple[str | int, ...], str]]] = {}
    tasks = root.get("tasks")
    for number, task in enumerate(tasks.items() if tasks else []):
        judge = task.get("judge")
        kind = judge.get("type") if judge else None
        if judge is None or kind is None or kind.value != "json-schema":
            continue
        inline = judge.get("schema")
        if inline is not None and isinstance(inline.value, dict):
            # Tasks often share a schema, and checking one takes most of a millisecond.
            text = json.dumps(inline.value)
            if text not in checked:
                checked[text] = _wrong(inline.value)
            for path, message in checked[text]:
                part, _ = inline.at(path)
                if not part.bad:
                    yield Finding(part.start, path_of(("tasks", number, "judge", "schema", *path)), message)
        file = judge.get("schema_file")
        if file is not None and isinstance(file.value, str) and file.value.startswith("fixtures/"):
            if file.value not in known:
                known[file.value] = _in_file(file.value, home)
            if (objection := known[file.value]) is not None:
                where = path_of(("tasks", number, "judge", "schema_file"))
                yield Finding(file.start, where, f"{shown(file.value)} {objection}")


def _wrong(schema: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    # Imported where it is needed: most suites have no schemas.
    from judges import schema_checks

    return list(islice(schema_checks.wrong_schema(schema), _MOST_EACH))


def _in_file(name: str, home: Path) -> str | None:
    if fixture_files.objection(name, home) is not None:
        return None
    document = located_json.read(home.parent / name)
    problems = document.problems(document.findings)
    if not problems and document.root is not None:
        schema = document.root.value
        if not isinstance(schema, dict):
            return "is not a JSON Schema; must hold a mapping"
        found = _wrong(schema)[:1]
        problems = document.problems(
            Finding(document.root.at(path)[0].start, path_of(path), message) for path, message in found
        )
    if not problems:
        return None
    first = problems[0]
    where = f"{first.where}: " if first.where else ""
    return f"cannot be used, line {first.line}, column {first.column}: {where}{first.message}"

"""Find the files that a suite names, refuse those that are not its own, and check the JSON Schemas of its judges.

A suite may come from a stranger, and its files travel to workers and models: a path must be under the suite's
`fixtures/` as written and after every symbolic link, `fixtures` itself included, and must be a regular file.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from judges.safe_text import path_of, shown
from judges.spec import JudgeSpec
from producer.suites import json_file
from producer.suites.yaml_file import Finding, Node

FOLDER = "fixtures"
# By convention every judge setting that names a file ends so.
_JUDGE_KEYS = tuple(
    dict.fromkeys(key for judge in get_args(JudgeSpec) for key in judge.model_fields if key.endswith("_file"))
)


def wrong_files(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the files under `fixtures/` that tasks name; other paths are for `rules`."""
    # Resolved without `fixtures` itself, so that a link in its place leads outside.
    home = Path(os.path.realpath(suite_folder)) / FOLDER
    known: dict[str, str | None] = {}
    tasks = root.get("tasks")
    for number, task in enumerate(tasks.items() if tasks else []):
        for steps, node in _named_files(task):
            path = node.value
            if not isinstance(path, str) or not path.startswith(f"{FOLDER}/") or path == f"{FOLDER}/":
                continue
            if path not in known:
                known[path] = objection(path, home)
            if (said := known[path]) is not None:
                yield Finding(node.start, path_of(("tasks", number, *steps)), said)


def _named_files(task: Node) -> Iterator[tuple[tuple[str | int, ...], Node]]:
    for mapping, keys in (("judge", _JUDGE_KEYS), ("replies", ("pass", "fail"))):
        holder = task.get(mapping)
        for key in keys if holder else ():
            if holder and (node := holder.get(key)):
                yield (mapping, key), node
    files = task.get("files")
    for index, node in enumerate(files.items() if files else []):
        yield ("files", index), node


def objection(path: str, home: Path) -> str | None:
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
        return (
            f"{shown(path)} is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}; must be a file"
        )
    if not os.access(real, os.R_OK):
        return f"{shown(path)} cannot be read: Permission denied; make it readable"
    return None


# One schema with many mistakes is told well enough by a few of them.
_MOST_EACH = 20


def wrong_schemas(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the schemas of json-schema judges; a missing file is for `fixture_files`."""
    home = Path(os.path.realpath(suite_folder)) / FOLDER
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
    from judges import safe_schemas

    return list(islice(safe_schemas.wrong_schema(schema), _MOST_EACH))


def _in_file(name: str, home: Path) -> str | None:
    if objection(name, home) is not None:
        return None
    document = json_file.read(home.parent / name)
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

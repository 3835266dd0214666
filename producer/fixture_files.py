"""Find the files that a suite names, and refuse those that are not its own.

A suite may come from a stranger, and its files travel to workers and models: a path must be under the suite's
`fixtures/` as written and after every symbolic link, `fixtures` itself included, and must be a regular file.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from judges.spec import JudgeSpec
from producer.yaml_nodes import Finding, Node, path_of, shown

FOLDER = "fixtures"
# By convention every judge setting that names a file ends so.
_JUDGE_KEYS = tuple(
    dict.fromkeys(key for judge in get_args(JudgeSpec) for key in judge.model_fields if key.endswith("_file"))
)


def wrong_files(root: Node, suite_folder: Path) -> Iterator[Finding]:
    """What is wrong with the files under `fixtures/` that tasks name; other paths are for `suite_rules`."""
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

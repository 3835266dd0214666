"""Remarks on single tasks of a suite, each with its place in the file, as `uplift validate` would print it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from producer import located_yaml
from producer.located_yaml import Document
from producer.yaml_nodes import Finding, path_of


def located(path: Path, remarks: Mapping[str, str]) -> list[str]:
    """One line for each task id that has a remark; without a readable file, the file's name is the place."""
    if not remarks:
        return []
    try:
        document = located_yaml.read(path)
    except FileNotFoundError:
        document = Document(str(path), "", None, ())
    found, left = [], dict(remarks)
    tasks = document.root.get("tasks") if document.root else None
    for number, task in enumerate(tasks.items() if tasks else []):
        node = task.get("id")
        if node is not None and isinstance(node.value, str) and node.value in left:
            found.append(Finding(node.start, path_of(("tasks", number)), left.pop(node.value)))
    return [*map(str, document.problems(found)), *(f"{path}: task {one}: {left[one]}" for one in left)]

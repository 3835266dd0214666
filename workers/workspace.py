"""An agent's workspace: made with the task's files, and read out when the agent is done.

What an agent leaves is hostile: only plain files are taken, no links, and only up to a limit.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workers import bundles
from workers.bundles import Bundle
from workers.messages import Task
from workers.models.agent_folders import remove
from workers.models.output import secrets

MAX_FILES = 500
MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 16


class Workspace:
    """A folder of its own for one attempt; `close` removes it."""

    def __init__(self, task: Task, suite: Path | None) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="uplift-attempt-"))
        self.folder = self._root / "workspace"
        self.folder.mkdir()
        for name in task.files:
            assert suite is not None  # a suite that names files has a bundle of them
            place = self.folder / name.removeprefix("fixtures/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(suite / name, place)

    def left(self) -> tuple[Path, Bundle]:
        """What the agent left, as a clean copy for judges and as a bundle to be kept."""
        copy = self._root / "left"
        copy.mkdir()
        room, count = MAX_BYTES, 0
        for path, size in _plain_files(self.folder):
            if size > room or count >= MAX_FILES:
                continue
            place = copy / path.relative_to(self.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_without_secrets(path.read_bytes()))
            room, count = room - size, count + 1
        return copy, bundles.pack(copy)

    def close(self) -> None:
        remove(self._root)


def _without_secrets(data: bytes) -> bytes:
    """An agent has its key, and may leave it in a file: what is kept must not hold it."""
    for secret in secrets():
        data = data.replace(secret.encode(), b"[redacted]")
    return data


def _plain_files(folder: Path, depth: int = 0) -> Iterator[tuple[Path, int]]:
    """Regular files with their sizes, in order of name; links are not followed and odd names are left out."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if not entry.name.isprintable() or entry.name in bundles.SKIPPED:
            continue
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(facts.st_mode):
            yield Path(entry.path), facts.st_size
        elif stat.S_ISDIR(facts.st_mode) and depth < MAX_DEPTH:
            yield from _plain_files(Path(entry.path), depth + 1)

"""What an agent's program gets for one attempt: a throw-away home, a workspace, and its time."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workers.models import Request


@dataclass(frozen=True)
class Folders:
    """Where a program lives for one attempt; `home` is new and empty but for `tmp`."""

    home: Path
    workspace: Path


@asynccontextmanager
async def folders(request: Request) -> AsyncIterator[Folders]:
    """A new home, and the request's workspace or a new one; what is new is deleted at the end."""
    root = Path(tempfile.mkdtemp(prefix="uplift-agent-"))
    try:
        yield _made(root, request.workspace)
    finally:
        # Agents can leave many files; the loop must not wait for them.
        await asyncio.to_thread(remove, root)


def _made(root: Path, workspace: Path | None) -> Folders:
    home = root.resolve() / "home"
    (home / "tmp").mkdir(parents=True)
    place = workspace or root / "workspace"
    place.mkdir(exist_ok=True)
    return Folders(home, place.resolve())


def remove(folder: Path) -> None:
    """Delete a folder with all that is in it, even what a program has locked against itself."""
    for path, names, _ in os.walk(folder):
        for name in names:
            inner = Path(path, name)
            with suppress(OSError):
                if not inner.is_symlink():
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def mount(skill: Path, into: Path) -> None:
    """Copy a skill's folder to where a program looks for skills, under the skill's own name."""
    shutil.copytree(skill, into / skill.name, symlinks=True)


def own_deadline(request: Request) -> float:
    """Seconds the program may run: a little less than the attempt, so that what it spent is still told."""
    return request.timeout_seconds - min(1.0, request.timeout_seconds / 20)

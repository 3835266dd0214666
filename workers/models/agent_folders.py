"""What an agent's program gets for one attempt: a throw-away home, a workspace, and its time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workers.models import Request


@dataclass(frozen=True)
class Folders:
    """Where a program lives for one attempt; `home` is new and empty but for `tmp`."""

    home: Path
    workspace: Path


@contextmanager
def folders(request: Request) -> Iterator[Folders]:
    """A new home, and the request's workspace or a new one; what is new is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="uplift-agent-", ignore_cleanup_errors=True) as root:
        home = Path(root, "home")
        (home / "tmp").mkdir(parents=True)
        workspace = request.workspace or Path(root, "workspace")
        workspace.mkdir(exist_ok=True)
        yield Folders(home.resolve(), workspace.resolve())


def mount(skill: Path, into: Path) -> None:
    """Copy a skill's folder to where a program looks for skills, under the skill's own name."""
    shutil.copytree(skill, into / skill.name, symlinks=True)


def own_deadline(request: Request) -> float:
    """Seconds the program may run: a little less than the attempt, so that what it spent is still told."""
    return request.timeout_seconds - min(1.0, request.timeout_seconds / 20)

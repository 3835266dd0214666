"""Child processes of ours that never outlive the process that started them, however that one ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

from workers.settings import Settings

LONGEST_SECONDS = 3600


def run_module(settings: Settings, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of ours to its end; it must call `leave_with_parent`."""
    # The child's standard input ends with this process, which nothing else does when it is killed.
    reading, writing = os.pipe()
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", module, *arguments],
            env={**os.environ, "UPLIFT_BROKER": settings.broker},
            stdin=reading,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_SECONDS,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(writing)


def leave_with_parent(code: int, before: Callable[[], None] = lambda: None) -> threading.Thread:
    """End this process with `code` when its standard input ends: its parent is dead, or wants it back."""

    def wait() -> None:
        # Not sys.stdin: a thread that waits in its buffer makes the interpreter abort at exit.
        os.read(0, 1)
        before()
        os._exit(code)

    thread = threading.Thread(target=wait, name="uplift-parent", daemon=True)
    thread.start()
    return thread

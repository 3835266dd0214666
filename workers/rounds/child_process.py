"""Child processes of ours, which never outlive the process that started them, and what makes short processes quick."""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.store.process_settings import ProcessSettings

LONGEST_SECONDS = 3600
# What a child leaves with when only the server was to blame.
TRY_AGAIN = 75


def run_module(settings: ProcessSettings, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
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


_OBJECTS = 50_000


def tune_interpreter() -> None:
    """Collect garbage seldom and start no BLAS threads; call this first in a process of ours.

    Most of them live for seconds. Nearly all that they allocate is either freed by counting references or stays to the
    end: searching it for cycles after every few hundred objects is a tenth of a short command's time, and once more at
    the end a tenth. Nothing here multiplies matrices, while the threads that numpy and scipy start for it cost a
    quarter of a second.
    """
    gc.set_threshold(_OBJECTS, 20, 100)
    atexit.register(gc.freeze)  # what is frozen is not searched when the interpreter ends
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

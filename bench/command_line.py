"""What a whole `uplift evaluate` costs, page included: 10,000 tasks, 5 attempts in both arms, a 9 KB skill.

    python -m bench.command_line [TASKS]

Processor time is that of all processes: the command, its private server and worker, and what these start. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.engine import write_suite
from bench.rows import Row, show

PASS_K = 5
_PR_SET_CHILD_SUBREAPER = 36


def rows(tasks: int = 10_000) -> list[Row]:
    """The bars: 0.45 ms of processor time for each attempt, and 35 s for 100,000 of them."""
    # Whoever outlives the command becomes our child, so that its processor time is counted too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    attempts = tasks * PASS_K * 2
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        words = ["--standalone", "--task-suite", str(write_suite(folder, tasks)), "--skill-path", "SKILL.md"]
        words += ["--state-root", str(folder / "state"), "--model", "sim", "--pass-k", str(PASS_K), "--quiet"]
        command = [sys.executable, "-P", "-m", "producer.cli", "evaluate", *words]
        before, begun = _cpu(), time.monotonic()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL)
        wall = time.monotonic() - begun
        _await_all()
        cpu = _cpu() - before
        pages = list((folder / "state").rglob("report.html"))
    assert done.returncode in (0, 1), f"the command ended with {done.returncode}"
    assert pages, "no page was written"
    what = f"uplift evaluate, {attempts} attempts, 9 KB skill, page included"
    note = f"{cpu:.1f} s in all"
    bar = 35 * attempts / 100_000
    return [
        Row(f"{what}: CPU per attempt", 1000 * cpu / attempts, "ms", 0.45, note=note),
        Row(f"{what}: wall", wall, "s", bar if attempts >= 100_000 else None),
    ]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _await_all() -> None:
    """Until no child is left, adopted ones included; so nothing else may run in this process's children."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))

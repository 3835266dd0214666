"""Suites with one test file, and the three ways in which the pytest judge runs it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pytest

from judges.checks import pytest_file
from judges.inside import supervisor
from judges.judgment import Completion, Judgment, Workspace
from judges.sandbox import command, warm_pool
from judges.spec import Pytest

Way = Literal["warm", "cold", "plain"]
WAYS: tuple[Way, ...] = ("warm", "cold", "plain")


def a_suite(folder: Path, test_code: str = "def test_it(): pass", **helpers: str) -> Path:
    """A suite's folder with `fixtures/test_it.py` and modules beside it, by name."""
    fixtures = folder / "suite" / "fixtures"
    fixtures.mkdir(parents=True, exist_ok=True)
    (fixtures / "test_it.py").write_text(dedent(test_code))
    for name, code in helpers.items():
        (fixtures / f"{name}.py").write_text(dedent(code))
    return folder / "suite"


def needs(way: Way) -> None:
    """Skip where this machine cannot do it that way."""
    if way != "plain" and not command.probe().bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {command.probe().why_not}")


async def judged(
    suite: Path, way: Way, text: str = "an answer", seconds: float = 60, left: Path | None = None
) -> Judgment:
    """Judge a text. An agent's folder, which a warm sandbox cannot take, is what makes a judgment go the cold way."""
    needs(way)
    if left is None and way == "cold":
        left = suite.parent / "nothing-left"
        left.mkdir(exist_ok=True)
    spec = Pytest(type="pytest", test_file="fixtures/test_it.py", timeout_seconds=seconds)
    workspace = Workspace(suite=suite, left=left, sandbox="off" if way == "plain" else "required")
    judgment = await pytest_file.judge(spec, Completion(text=text), workspace)
    why_not = warm_pool.pool().why_not
    assert way != "warm" or not why_not, f"not judged in a warm sandbox: {why_not}"
    return judgment


def processes_naming(text: str) -> list[str]:
    """Command lines on this machine, other than this process's own, that contain the text."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def children() -> set[int]:
    """Every process that this one has started and that still is."""
    return set(supervisor.descendants(os.getpid()))


def children_named(program: str) -> set[int]:
    """Those of them that run a program of this name."""
    return {child for child in children() if Path(f"/proc/{child}/comm").read_text().strip() == program}


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that happens outside this process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        await asyncio.sleep(0.02)

"""Measure what a pytest judgment costs in a fork of a warm sandbox, against a fresh `python -m pytest` in
bubblewrap.

    python -m bench.pytest_judge [JUDGMENTS]

Prints processor seconds per judgment for each, and their ratio; the bar is a quarter. Measured once more with tests of
which one runs code by `uplift_judge`: at most 1.6 times of what the others take. The fresh run gets the
same test file and the same options (no plugin of the environment, no cache), and nothing of ours around it:
no launcher, no report. The warm side is the whole judgment as a worker makes it, the start of its zygote
included.

Processor time is this process's own plus that of its children (getrusage). A child's time arrives there when
it is waited for, with that of the children it has itself waited for: so the zygote, which reaps its forks, is
ended before the second reading. Nothing else on the machine is in the numbers, but it makes caches colder.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.rows import Row, show
from judges.checks import pytest_file
from judges.judgment import Completion, Workspace
from judges.sandbox import bubblewrap, command, warm_pool
from judges.sandbox.limits import SandboxLimits
from judges.spec import Pytest

BAR = 0.25
SPEC = Pytest(type="pytest", test_file="fixtures/test_notes.py")
TEXT = "# Release notes\n\n- iOS: faster start\n- Android: fewer crashes\n"
TEST_FILE = """\
import os
import re
from pathlib import Path

import pytest


@pytest.fixture
def notes():
    return Path(os.environ["AI_OUTPUT_FILE"]).read_text()


def test_has_a_title(notes):
    assert notes.startswith("# ")


@pytest.mark.parametrize("platform", ["iOS", "Android"])
def test_names_the_platform(notes, platform):
    assert platform in notes


def test_every_item_says_what_changed(notes):
    items = re.findall(r"^- (.*)$", notes, re.MULTILINE)
    assert items
    assert all(": " in item for item in items)
"""
RUNS_CODE = """\
from uplift_judge import run_python


def test_has_a_title(notes):
    assert run_python("print(7 * 6)").stdout == "42\\n"
"""
MOST_WITH_CODE = 1.6


def rows(judgments: int = 200) -> list[Row]:
    """This file's part of the bench table; empty where bubblewrap does not work."""
    found = command.probe()
    if not found.bubblewrap:
        print(f"pytest judgments are left out: bubblewrap does not work here: {found.why_not}")
        return []
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder)
        (suite / "fixtures").mkdir()
        (suite / SPEC.test_file).write_text(TEST_FILE)
        fresh = measure(lambda: run_fresh(suite, judgments, found.user)) / judgments
        forked = measure(lambda: asyncio.run(run_warm(suite, judgments))) / judgments
        (suite / SPEC.test_file).write_text(TEST_FILE + RUNS_CODE)
        running = measure(lambda: asyncio.run(run_warm(suite, judgments))) / judgments
    note = f"warm {1000 * forked:.1f} ms, fresh {1000 * fresh:.1f} ms; {judgments} judgments each"
    more = f"{1000 * running:.1f} ms"
    return [
        Row("pytest judgment, warm against fresh", forked / fresh, "of the CPU", BAR, note=note),
        Row("the same with a run_python, against fresh", running / fresh, "of the CPU", BAR, note=more),
        Row("the same against one without", running / forked, "times the CPU", MOST_WITH_CODE),
    ]


def measure(work: Callable[[], None]) -> float:
    """Seconds of processor time."""
    before = processor_seconds()
    work()
    return processor_seconds() - before


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def run_fresh(suite: Path, judgments: int, user: int | None) -> None:
    """Run plain pytest in a bubblewrap each time, as many at once as there are cores."""
    output = f"{bubblewrap.INPUTS}/output.txt"
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", bubblewrap.INPUTS, "-c", os.devnull)
    environment = command.environment(bubblewrap.WORK, bubblewrap.TMP)
    environment |= {"AI_OUTPUT_FILE": output, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def once(_: int) -> None:
        place = f"{bubblewrap.INPUTS}/fixtures"
        description = bubblewrap.SandboxDescription(
            reads={**bubblewrap.python_folders(), place: suite / "fixtures"}, contents={output: TEXT.encode()}
        )
        argv = [sys.executable, "-I", "-m", "pytest", *options, f"{bubblewrap.INPUTS}/{SPEC.test_file}"]
        launch = bubblewrap.Launch(argv, description, user, (), SandboxLimits())
        started = bubblewrap.start(launch, environment, subprocess.DEVNULL)
        started.close()
        if started.process.returncode != 0:
            raise RuntimeError(f"plain pytest ended with {started.process.returncode}")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(once, range(judgments)))


async def run_warm(suite: Path, judgments: int) -> None:
    """Make all judgments at once, as a worker would; it is `sandbox` that bounds them by cores."""
    work = (pytest_file.judge(SPEC, Completion(text=TEXT), Workspace(suite=suite)) for _ in range(judgments))
    for judgment in await asyncio.gather(*work):
        if not judgment.passed:
            raise RuntimeError(judgment.details)
    warm_pool.close()


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

"""Measure the CPU that `uplift validate` needs for a suite of 10,000 tasks, imports included; the bar is 2 s.

Run it from the repository's root: `python -m bench.validate_suite`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.rows import Row, show

BAR_SECONDS = 2.0
REPOSITORY = Path(__file__).resolve().parent.parent
# A fresh process, so that what a user waits for is what is measured.
MEASURE = """
import sys, time
from pathlib import Path
from producer.suites import suite
imported = time.process_time()
tasks = len(suite.load(Path(sys.argv[1])).tasks)
total = time.process_time()
import resource
print(tasks, imported, total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def task(number: int) -> str:
    """One task with a bit of everything that validation looks at."""
    return f"""
  - id: task-{number}
    description: Release notes, number {number}
    prompt: |
      Write the release notes for version {number}.
      Name the platform and the date.
    judge: {{type: contains, expected: ["iOS", "version {number}"], forbidden: [Windows]}}
    timeout_seconds: 30
    tier: T{number % 3}
    tags: [format, group-{number % 7}]
    files: [fixtures/input-{number % 50}.csv]
"""


def write_suite(folder: Path, tasks: int) -> Path:
    fixtures = folder / "fixtures"
    fixtures.mkdir()
    for number in range(50):
        (fixtures / f"input-{number}.csv").write_text("a,b\n")
    path = folder / "suite.yaml"
    head = 'skill_id: release-notes\nversion: "1.0"\ntasks:\n'
    path.write_text(head + "".join(task(number) for number in range(tasks)))
    return path


def measure(tasks: int = 10_000) -> tuple[float, float, str]:
    """Seconds of CPU in all and for imports, and the peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_suite(Path(folder), tasks)
        command = [sys.executable, "-c", MEASURE, str(path)]
        printed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    loaded, imported, total, mebibytes = printed.split()
    assert int(loaded) == tasks
    return float(total), float(imported), mebibytes


def rows() -> list[Row]:
    """This file's part of the bench table."""
    total, imported, mebibytes = measure()
    note = f"imports {imported:.2f} s, peak {mebibytes} MiB"
    return [Row("validate 10,000 tasks, with positions", total, "s CPU", BAR_SECONDS, note=note)]


if __name__ == "__main__":
    show(rows())

"""Run one test file under pytest, inside the sandbox, and write one line of JSON for the outcome of each test.

Every line carries the judgment's nonce, so that a stray write to the report is not mistaken for one. Code in
the same process that sets out to forge a line can find the nonce: this stops accidents and `os._exit`, not a
forger. Standard library and pytest only: nothing else of the package exists in there.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest  # a worker imports this module for its names and has no use for pytest itself

REPORT_FD = 3
MAX_LINE_CHARACTERS = 300
# What the tests print goes to a pipe that somebody bounds; no plugin that writes files or only serves a
# terminal.
_OPTIONS = (
    *("--capture=no", "--tb=short", "--quiet", "--no-header", "--no-summary", "--strict-markers"),
    *("-pno:cacheprovider", "-pno:stepwise", "-pno:junitxml", "-pno:pastebin", "-pno:faulthandler"),
)


@dataclass(frozen=True)
class PytestRun:
    """Which test file to run. `root` is the folder whose modules it may import, `ini` an empty file."""

    test_file: str
    root: str
    ini: str
    nonce: str
    packages: tuple[str, ...] = ()


def run(settings: PytestRun, report: int = REPORT_FD) -> None:
    """Run the tests; report "start" before anything of the suite is read, and "end" after pytest is done."""
    plugin = Reporter(settings.nonce, report)
    make_importable(settings)
    plugin.tell("start")
    code = run_pytest(settings.test_file, settings.root, settings.ini, plugin)
    plugin.tell("end", code=code)


def run_pytest(collected: str, root: str, ini: str, plugin: Reporter) -> int:
    """Run pytest in this process, with no plugin but its own and ours and no configuration; its exit code."""
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.argv = ["pytest"]
    arguments = [*_OPTIONS, "-c", ini, "--rootdir", root, "--confcutdir", root, collected]
    return int(pytest.main(arguments, plugins=[plugin]))


def make_importable(settings: PytestRun) -> None:
    """Let the tests import what lies in the suite's folder and what the worker's environment has."""
    sys.path[:0] = [settings.root]
    sys.path += [folder for folder in settings.packages if folder not in sys.path]


class Reporter:
    """A pytest plugin that writes each outcome at once, so that the lines remain if the process dies."""

    def __init__(self, nonce: str, report: int) -> None:
        self.nonce = nonce
        self.report = report

    def tell(self, event: str, **facts: object) -> None:
        """Write one line of the report."""
        line = json.dumps({"nonce": self.nonce, "event": event, **facts}) + "\n"
        rest = line.encode()
        while rest:
            rest = rest[os.write(self.report, rest) :]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("not collected", test=report.nodeid, line=_crash_line(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tell("collected", count=len(session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            line = "" if report.passed else _crash_line(report)
            self.tell("test", test=report.nodeid, outcome=_outcome(report), line=line)


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    if report.failed:
        return "failed" if report.when == "call" else "errored"
    return report.outcome


def _crash_line(report: Any) -> str:
    """Where and how it went wrong, on one line: `line 12: assert 1 == 2`; for a skip, its reason."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        said = f"line {crash.lineno}: {crash.message.partition(chr(10))[0]}"
    elif isinstance(report.longrepr, tuple):
        said = str(report.longrepr[2])
    else:
        said = str(report.longrepr or "").strip().rpartition("\nE")[2]
    return " ".join(said.split())[:MAX_LINE_CHARACTERS]


if __name__ == "__main__":
    nonce, root, test_file, ini, *packages = sys.argv[1:]
    run(PytestRun(test_file, root, ini, nonce, tuple(packages)))
    # Threads and exit handlers that a test left behind have nothing to add.
    os._exit(0)

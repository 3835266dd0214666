"""Run one test file under pytest, inside the sandbox, and write one line of JSON for the outcome of each test.

Every line carries the judgment's nonce, so that a stray write to the report is not mistaken for one. Code in
the same process that sets out to forge a line can find the nonce: this stops accidents and `os._exit`, not a
forger. Code that the tests run by `uplift_judge` is in another process, which nothing here is shared with.
Standard library, pytest and our modules that are inside only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uplift_judge
from judges.inside import drop_rights
from judges.inside.drop_rights import ASK_FD, REPORT_FD

if TYPE_CHECKING:
    import pytest  # a worker imports this module for its names and has no use for pytest itself

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
    packages: tuple[str, ...] = ()


def main() -> None:
    """Run the tests that the arguments name, in a process that nobody else looks into."""
    root, test_file, ini, *packages = sys.argv[1:]
    del sys.path[0]
    run(PytestRun(test_file, root, ini, tuple(packages)), become_examiner())
    # Threads and exit handlers that a test left behind have nothing to add.
    os._exit(0)


def become_examiner() -> str:
    """Hide memory and descriptors from processes of the same user, and from programs that tests start; the nonce."""
    drop_rights.hide_from_others()
    for descriptor in (REPORT_FD, ASK_FD):
        os.set_inheritable(descriptor, False)
    os.environ[uplift_judge.ASK_VARIABLE] = str(ASK_FD)
    with socket.socket(fileno=os.dup(ASK_FD)) as asks:
        return asks.recv(64).decode()


def run(settings: PytestRun, nonce: str, report: int = REPORT_FD) -> None:
    """Run the tests; report "start" before anything of the suite is read, and "end" after pytest is done."""
    plugin = Reporter(nonce, report)
    make_importable(settings.root, settings.packages)
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


def make_importable(root: str, packages: Iterable[str]) -> None:
    """Let the tests import what lies in the suite's folder and what the worker's environment has."""
    sys.path[:0] = [root]
    sys.path += [folder for folder in packages if folder not in sys.path]


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

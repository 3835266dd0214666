"""Options of the chaos tests, the undisturbed runs that they compare with, and the table of violations."""

from __future__ import annotations

from collections import Counter

import pytest

from .checker import INVARIANTS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run 200 schedules, and 40 at production settings")
    parser.addoption("--seed", type=int, action="append", help="run only the schedule of this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long", default=False):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_AtOnce(config), "chaos-at-once")


class _AtOnce:
    """Names a violated schedule as soon as it is over: a long run takes an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        schedule = dict(report.user_properties).get("schedule")
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and schedule and terminal is not None:
            terminal.write_line(f"\n{schedule}: {report.longreprtext[-4000:]}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call" and dict(report.user_properties).get("schedule")
    ]
    if not reports:
        return
    violated: Counter[int] = Counter()
    seeds: dict[int, set[str]] = {}
    for report in reports:
        facts = dict(report.user_properties)
        for number in facts.get("violated", []):
            violated[number] += 1
            seeds.setdefault(number, set()).add(facts["schedule"])
    terminalreporter.write_line(f"chaos: {len(reports)} schedules")
    for number, name in INVARIANTS.items():
        repeat = f"   repeat: pytest tests/chaos {' '.join(sorted(seeds[number]))}" if number in seeds else ""
        terminalreporter.write_line(f"  ({number}) {violated[number]:3} violations  {name}{repeat}")
    stalls = [dict(report.user_properties).get("stall", (0.0, 0.0)) for report in reports]
    for lease in sorted({lease for lease, _ in stalls} - {0.0}):
        longest = max(seconds for its, seconds in stalls if its == lease)
        terminalreporter.write_line(f"      longest stall with leases of {lease:g} s: {longest:.1f} s")
    failed = [dict(report.user_properties) for report in reports if report.failed]
    unended = [facts["schedule"] for facts in failed if "stall" not in facts]
    terminalreporter.write_line(f"      {len(unended):3} runs that did not end  {' '.join(unended)}")
    stalled = [facts["schedule"] for facts in failed if "stall" in facts and not facts.get("violated")]
    terminalreporter.write_line(f"      {len(stalled):3} runs that stalled too long  {' '.join(stalled)}")

"""Turn the lines that our plugin wrote in the sandbox into a judgment; nothing here trusts that they are
complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from judges.judgment import Judgment, Tests

MAX_NAMED_TESTS = 10
MAX_DETAILS_CHARACTERS = 4000
# A test that is reported more than once (subtests, an error in teardown) counts by its worst outcome.
_BEST_TO_WORST = ("passed", "xpassed", "xfailed", "skipped", "errored", "failed")


@dataclass
class Report:
    """What became of a test run. `ended` is False when pytest did not come to its own end."""

    started: bool = False
    ended: bool = False
    collected: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    not_collected: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(1 for told in self.outcomes.values() if told == outcome)


def read(written: bytes, nonce: str) -> Report:
    """Read the lines that carry the nonce; others, cut or malformed ones are passed over."""
    report = Report()
    for line in _stamped(written, nonce):
        match line.get("event"):
            case "start":
                report.started = True
            case "collected":
                report.collected = int(line["count"])
            case "not collected":
                report.not_collected.append(f"{line['test']}: {line['line']}")
            case "test":
                _note(report, str(line["test"]), str(line["outcome"]), str(line["line"]))
            case "end":
                report.ended = True
    return report


def judgment(report: Report, *, died: str | None, last_words: str = "") -> Judgment:
    """Judge a run whose plugin reported its start; `died` says how it ended if pytest did not come to its
    end.
    """
    tests = Tests(
        passed=report.count("passed"),
        failed=report.count("failed"),
        errored=report.count("errored") + len(report.not_collected),
    )
    collected = max(report.collected, len(report.outcomes))
    complaints = _complaints(report, collected, died, last_words)
    broke_off = died is not None or bool(report.not_collected) or not collected
    return Judgment(
        judge="pytest",
        passed=not complaints,
        score=0.0 if broke_off else tests.passed / collected,
        details=("; ".join(complaints) or f"all {collected} tests passed")[:MAX_DETAILS_CHARACTERS],
        tests=tests,
    )


def _complaints(report: Report, collected: int, died: str | None, last_words: str) -> list[str]:
    complaints = [died] if died is not None else []
    complaints += [f"not collected: {told}" for told in report.not_collected]
    if not collected and not complaints:
        complaints.append("no test was collected" + (f": {last_words}" if last_words else ""))
    unclean = [(test, outcome) for test, outcome in report.outcomes.items() if outcome != "passed"]
    for test, outcome in unclean[:MAX_NAMED_TESTS]:
        complaints.append(f"{outcome} {test}" + (f": {report.lines[test]}" if report.lines[test] else ""))
    if len(unclean) > MAX_NAMED_TESTS:
        complaints.append(f"and {len(unclean) - MAX_NAMED_TESTS} more")
    if died is None and len(report.outcomes) < collected:
        complaints.append(f"{collected - len(report.outcomes)} of {collected} tests were not run")
    if complaints and collected:
        complaints.insert(0, f"{report.count('passed')} of {collected} tests passed")
    return complaints


def _note(report: Report, test: str, outcome: str, line: str) -> None:
    worst = report.outcomes.get(test, "passed")
    if outcome not in _BEST_TO_WORST:
        outcome = "errored"
    if test not in report.outcomes or _BEST_TO_WORST.index(outcome) > _BEST_TO_WORST.index(worst):
        report.outcomes[test] = outcome
        report.lines[test] = line


def _stamped(written: bytes, nonce: str) -> Iterator[dict[str, Any]]:
    for raw in written.split(b"\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and line.get("nonce") == nonce:
            yield line

"""Run a suite's test file against an output, in a sandbox, and judge by what our plugin reports of each test.

The output is a read-only file named in `AI_OUTPUT_FILE`; files that an agent left are read-only in
`AI_WORKSPACE`, and a test file that names `AI_TRAJECTORY_FILE` finds there what was done, as JSON. The tests run in
an empty folder of their own, may import what this environment has and what lies beside them in `fixtures/`, and see no
configuration but a `conftest.py` of the suite's own.

Covered: see `judges.sandbox.command`. The exit code decides nothing: a pass needs a report that names every collected
test as passed and says that pytest came to its end. A time-out, a crash or a collection error is a fail with score 0.
Code that tests run by `uplift_judge` runs in another sandbox and can reach neither report nor fixtures.
Nothing trusts that the report's lines are complete, or our plugin's: code that tests run in their own process can write
lines too, and those that make no sense fail it. Not covered: such code that forges the report on purpose; the nonce in
it stops accidents only. Judgments of tests that do not import `uplift_judge` say `unguarded`.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uplift_judge
from judges.judgment import Completion, Judgment, Tests, Workspace
from judges.sandbox import bubblewrap, command, pipes, warm_pool
from judges.sandbox.command import Input, SandboxCommand, SandboxResult
from judges.sandbox.warm_pool import Work
from judges.spec import Pytest

MAX_NAMED_TESTS = 10
MAX_COLLECTED = 1_000_000
MAX_DETAILS_CHARACTERS = 4000
# A test that is reported more than once (subtests, an error in teardown) counts by its worst outcome.
_BEST_TO_WORST = ("passed", "xpassed", "xfailed", "skipped", "errored", "failed")
_ERRORED = _BEST_TO_WORST.index("errored")  # an outcome that nobody knows counts as this


@dataclass
class Report:
    """What became of a test run: whether pytest `ended` by itself, and whether others wrote lines (`forged`).

    `outcomes` are by test, each with the line that tells why.
    """

    started: bool = False
    ended: bool = False
    forged: bool = False
    collected: int = 0
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    not_collected: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(1 for told, _ in self.outcomes.values() if told == outcome)


def read(written: bytes, nonce: str) -> Report:
    """Read the lines that carry the nonce; others, and a last one that was cut, are passed over."""
    report = Report()
    for event in pipes.events(written, nonce):
        _take(report, event)
    return report


def _take(report: Report, event: dict[str, Any]) -> None:
    match event:
        case {"event": "start"}:
            report.started = True
        case {"event": "collected", "count": int(count)} if 0 <= count <= MAX_COLLECTED:
            report.collected = count
        case {"event": "not collected", "test": str(test), "line": str(told)}:
            report.not_collected.append(f"{test}: {told}")
        case {"event": "test", "test": str(test), "outcome": str(outcome), "line": str(told)}:
            rank = _BEST_TO_WORST.index(outcome) if outcome in _BEST_TO_WORST else _ERRORED
            known = report.outcomes.get(test)
            if known is None or rank > _BEST_TO_WORST.index(known[0]):
                report.outcomes[test] = (_BEST_TO_WORST[rank], told)
        case {"event": "end"}:
            report.ended = True
        case _:
            report.forged = True


def judgment(report: Report, *, died: str | None, last_words: str = "") -> Judgment:
    """Judge a run whose plugin reported its start; `died` says how it ended where pytest did not end by itself."""
    tests = Tests(
        passed=report.count("passed"),
        failed=report.count("failed"),
        errored=report.count("errored") + len(report.not_collected),
    )
    collected = max(report.collected, len(report.outcomes))
    complaints = _complaints(report, collected, died, last_words)
    broke_off = died is not None or report.forged or bool(report.not_collected) or not collected
    return Judgment(
        judge="pytest",
        passed=not complaints,
        score=0.0 if broke_off else tests.passed / collected,
        details=("; ".join(complaints) or f"all {collected} tests passed")[:MAX_DETAILS_CHARACTERS],
        tests=tests,
        broke_off=broke_off,
    )


def _complaints(report: Report, collected: int, died: str | None, last_words: str) -> list[str]:
    complaints = [died] if died is not None else []
    if report.forged:
        complaints.append("something other than pytest wrote to the report")
    complaints += [f"not collected: {told}" for told in report.not_collected]
    if not collected and not complaints:
        complaints.append("no test was collected" + (f": {last_words}" if last_words else ""))
    unclean = [(test, *outcome) for test, outcome in report.outcomes.items() if outcome[0] != "passed"]
    for test, outcome, line in unclean[:MAX_NAMED_TESTS]:
        complaints.append(f"{outcome} {test}" + (f": {line}" if line else ""))
    if len(unclean) > MAX_NAMED_TESTS:
        complaints.append(f"and {len(unclean) - MAX_NAMED_TESTS} more")
    if died is None and len(report.outcomes) < collected:
        complaints.append(f"{collected - len(report.outcomes)} of {collected} tests were not run")
    if complaints and collected:
        complaints.insert(0, f"{report.count('passed')} of {collected} tests passed")
    return complaints


async def judge(spec: Pytest, completion: Completion, workspace: Workspace) -> Judgment:
    """Judge by the test run; only `error` is set when the sandbox or pytest itself did not start."""
    fixtures, test_file = workspace.fixture(spec.test_file)
    work = Work(
        test_file=str(test_file.relative_to(fixtures)),
        fixtures=fixtures,
        text=completion.text.encode(errors="replace"),
        nonce=secrets.token_hex(16),
        packages=tuple(bubblewrap.package_folders()),
        timeout_seconds=spec.timeout_seconds,
    )
    tests = test_file.read_bytes()
    unguarded = not uplift_judge.is_imported_in(tests)
    steps = None
    if b"AI_TRAJECTORY_FILE" in tests and workspace.trajectory is not None:
        steps = workspace.trajectory.model_dump_json(exclude_defaults=True).encode()
    try:
        judged = await command.in_thread(
            lambda cancelled: _judged(_run(work, workspace, steps, cancelled), work, spec)
        )
        if judged.error is None and unguarded:
            judged = judged.model_copy(update={"unguarded": True, "details": f"{judged.details} (unguarded)"})
        return judged
    except command.SandboxUnavailable as unavailable:
        return Judgment(judge="pytest", details=str(unavailable), error=str(unavailable))


def cold_command(work: Work, left: Path | None = None, steps: bytes | None = None) -> SandboxCommand:
    """The same tests as a command for a fresh sandbox, with the files that an agent left and its steps, if any."""
    inputs: dict[str, bytes | Path] = {"fixtures": work.fixtures, "pytest.ini": b""}
    environment: dict[str, str | Input] = {}
    if steps is not None:
        inputs["steps.json"], environment["AI_TRAJECTORY_FILE"] = steps, Input("steps.json")
    argv: list[str | Input] = [bubblewrap.python(), "-I", "-c", bubblewrap.BOOT.format("pytest_plugin")]
    argv += [command.CODE, Input("fixtures"), Input(f"fixtures/{work.test_file}"), Input("pytest.ini")]
    tests = SandboxCommand(
        [*argv, *work.packages], work.timeout_seconds, inputs, environment, limits=work.limits
    )
    return command.examining(replace(tests, nonce=work.nonce.encode()), work.text, left)


def _run(work: Work, workspace: Workspace, steps: bytes | None, cancelled: threading.Event) -> SandboxResult:
    """Run the tests in a warm sandbox where one can be had, else in a fresh one."""
    confinement = command.confinement(workspace.sandbox)
    # A zygote has no way to mount an agent's folder; beside an agent's own minutes a fresh start is nothing.
    if confinement.bubblewrap and workspace.left is None and steps is None:
        result = warm_pool.run(work, confinement, cancelled)
        if result is not None:
            return result
    return command.run_blocking(cold_command(work, workspace.left, steps), confinement, cancelled)


def _judged(result: SandboxResult, work: Work, spec: Pytest) -> Judgment:
    report = read(result.report, work.nonce)
    if not report.started:
        error = result.error or f"pytest did not start: {result.last_words or result.ending}"
        return command.marked(Judgment(judge="pytest", details=error, error=error), result)
    died = None if report.ended and result.ending == "exited" else _how_it_died(result, spec)
    return command.marked(judgment(report, died=died, last_words=result.last_words), result)


def _how_it_died(result: SandboxResult, spec: Pytest) -> str:
    if result.ending == "exited":
        return f"the test process ended before pytest did (exit code {result.exit_code})"
    after = f" after {spec.timeout_seconds:g} s" if result.ending == "timeout" else ""
    return command.ENDINGS[result.ending] + after

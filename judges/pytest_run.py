"""Run a suite's test file against an output, in a sandbox, and judge by what our own plugin reports of each
test.

The output is a read-only file named in `AI_OUTPUT_FILE`; files that an agent left are read-only in
`AI_WORKSPACE`. The tests run in an empty folder of their own, may import what this environment has and what
lies beside them in `fixtures/`, and see no configuration but a `conftest.py` of the suite's own.

Covered: see `sandbox`. The exit code decides nothing: a pass needs a report that names every collected test
as passed and says that pytest came to its end. A time-out, a crash or a collection error is a fail with score
0. Not covered: a test process that forges the report on purpose; the nonce in it stops accidents only.
"""

from __future__ import annotations

import secrets
import sys
import threading
from pathlib import Path

from judges import bubblewrap, cold, pytest_plugin, pytest_report, sandbox, warm
from judges.cold import Command, Input, SandboxResult
from judges.judgment import Completion, Judgment, Workspace
from judges.spec import Pytest
from judges.zygote_client import Work

_LAST_WORDS_CHARACTERS = 500


async def judge(spec: Pytest, completion: Completion, workspace: Workspace) -> Judgment:
    """Judge by the test run; only `error` is set when the sandbox or pytest itself did not start."""
    fixtures, test_file = _located(spec, workspace)
    work = Work(
        test_file=test_file,
        fixtures=fixtures,
        text=completion.text.encode(errors="replace"),
        nonce=secrets.token_hex(16),
        packages=tuple(bubblewrap.package_folders()),
        timeout_seconds=spec.timeout_seconds,
    )
    try:
        result = await sandbox.in_thread(lambda cancelled: _run(work, workspace, cancelled))
    except sandbox.SandboxUnavailable as unavailable:
        return Judgment(judge="pytest", details=str(unavailable), error=str(unavailable))
    return _marked(_judged(pytest_report.read(result.report, work.nonce), result, spec), result)


def cold_command(work: Work, left: Path | None = None) -> Command:
    """The same tests as a command for a fresh sandbox, with the files that an agent left, if any."""
    inputs: dict[str, bytes | Path] = {
        "fixtures": work.fixtures,
        "output/output.txt": work.text,
        "pytest_plugin.py": Path(pytest_plugin.__file__).read_bytes(),
        "pytest.ini": b"",
    }
    environment = {"AI_OUTPUT_FILE": Input("output/output.txt")}
    if left is not None:
        inputs["workspace"] = left
        environment["AI_WORKSPACE"] = Input("workspace")
    places = (Input("fixtures"), Input(f"fixtures/{work.test_file}"), Input("pytest.ini"))
    argv: list[str | Input] = [sys.executable, "-I", Input("pytest_plugin.py"), work.nonce]
    return Command([*argv, *places, *work.packages], work.timeout_seconds, inputs, environment, work.limits)


def _located(spec: Pytest, workspace: Workspace) -> tuple[Path, str]:
    """The suite's fixtures folder and the test file's path in it; raises where the file is not inside."""
    if workspace.suite is None:
        raise FileNotFoundError(f"{spec.test_file}: no suite folder was given")
    fixtures = (workspace.suite / "fixtures").resolve()
    test_file = (workspace.suite / spec.test_file).resolve()
    if not test_file.is_relative_to(fixtures) or not test_file.is_file():
        raise FileNotFoundError(f"{spec.test_file}: not a file in the suite's fixtures folder")
    return fixtures, str(test_file.relative_to(fixtures))


def _run(work: Work, workspace: Workspace, cancelled: threading.Event) -> SandboxResult:
    """Run the tests in a warm sandbox where one can be had, else in a fresh one."""
    confinement = sandbox.confinement(workspace.sandbox)
    # A zygote has no way to mount an agent's folder; beside an agent's own minutes a fresh start is nothing.
    if confinement.bubblewrap and workspace.left is None:
        result = warm.run(work, confinement, cancelled)
        if result is not None:
            return result
    return cold.run(cold_command(work, workspace.left), confinement, cancelled)


def _judged(report: pytest_report.Report, result: SandboxResult, spec: Pytest) -> Judgment:
    last_words = result.output.decode(errors="replace").strip()[-_LAST_WORDS_CHARACTERS:]
    if not report.started:
        error = result.error or f"pytest did not start: {last_words or result.ending}"
        return Judgment(judge="pytest", details=error, error=error)
    died = None if report.ended and result.ending == "exited" else _how_it_died(result, spec)
    return pytest_report.judgment(report, died=died, last_words=last_words)


def _how_it_died(result: SandboxResult, spec: Pytest) -> str:
    match result.ending:
        case "timeout":
            return f"timed out after {spec.timeout_seconds:g} s"
        case "output":
            return "printed or reported more than is allowed"
        case "memory":
            return "used more memory than is allowed"
        case "cancelled":
            return "cancelled"
        case "exited":
            return f"the test process ended before pytest did (exit code {result.exit_code})"


def _marked(judgment: Judgment, result: SandboxResult) -> Judgment:
    if result.sandboxed:
        return judgment
    return judgment.model_copy(update={"details": f"[{sandbox.UNSANDBOXED}] {judgment.details}"})

"""Time the code in an output against the original code, and against an oracle's where there is one.

The benchmark file, in `fixtures/`, does `import solution` and defines functions or methods `time_*` to be
timed, and, if it likes, functions `test_*` that must pass and one `snapshot()` whose result must stay what
it was with the original. docs/judges.md has its shape in full. The measuring is done by benchmark_runner,
in the sandbox.

Covered: code that crashes, hangs, spins in the background, patches the clock, or does not do the work (as
far as tests and snapshot tell); each version of the code has a sandbox of its own. Not covered: code that knows this
harness and forges its answers, or computes ahead at import.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

from judges.judgment import BenchmarkTimes, Completion, Judgment, Snapshot, Tests, Workspace
from judges.sandbox import bubblewrap
from judges.sandbox import command as sandbox
from judges.sandbox.command import Input, SandboxCommand, SandboxResult
from judges.spec import Benchmark as Spec

MIN_SPEEDUP = 0.95
_INSTEAD = b"raise ImportError('only the oracle itself may see its code')\n"
_DEFINES = re.compile(r"^(?:async def|def|class) ", re.MULTILINE)


async def judge(spec: Spec, completion: Completion, workspace: Workspace) -> Judgment:
    """Judge by the measured speedup: broken, failing or slower code fails; broken code of the suite is an error."""
    # Millions of lines take a while, during which others may have their turn.
    code = (await asyncio.to_thread(code_of, completion.text)).encode("utf-8", "replace")
    files = [spec.benchmark_file, spec.original_file, *([spec.oracle_file] if spec.oracle_file else [])]
    (fixtures,) = {workspace.fixture(file)[0] for file in files}
    versions = dict(zip(("original", "oracle"), map(Input, files[1:]), strict=False))
    inputs: dict[str, bytes | Path] = {"fixtures": fixtures}
    hidden = {**inputs, **_hidden(spec, workspace)}
    sandboxes = {
        role: _sandbox(spec, place, inputs if role == "oracle" else hidden)
        for role, place in versions.items()
    }
    sandboxes["candidate"] = _sandbox(spec, Input("solution.py"), {**hidden, "solution.py": code})
    # So much less than the timeout that the runner ends by itself and can say whose fault it was.
    seconds = max(spec.timeout_seconds - 2, spec.timeout_seconds / 2)
    runner: list[str | Input] = [bubblewrap.python(), "-I", "-B", "-c"]
    runner += [bubblewrap.BOOT.format("benchmark_runner"), sandbox.CODE, f"{seconds}", *sandboxes]
    command = SandboxCommand(runner, spec.timeout_seconds, examinees=sandboxes)
    result = await sandbox.run(command, workspace.sandbox)
    if result.error:
        return _error(result.error)
    return sandbox.marked(_judged(result, has_oracle=bool(spec.oracle_file)), result)


def _sandbox(spec: Spec, solution: Input, inputs: dict[str, bytes | Path]) -> SandboxCommand:
    """A version of the code with the benchmark file, in a sandbox of its own."""
    # As isolated as -I but for the environment: with one hash seed, sets behave alike for all.
    argv: list[str | Input] = [bubblewrap.python(), "-s", "-P", "-B", "-c"]
    argv += [bubblewrap.BOOT.format("benchmark_child"), sandbox.CODE, solution, Input(spec.benchmark_file)]
    return SandboxCommand(argv, spec.timeout_seconds, inputs, {"PYTHONHASHSEED": "0"})


def _hidden(spec: Spec, workspace: Workspace) -> dict[str, bytes]:
    """What all but the oracle find in place of its file, of copies of it and of what Python compiled it to.

    A benchmark file that needs the oracle breaks with the original already, which is the suite's mistake.
    """
    if spec.oracle_file is None:
        return {}
    fixtures, oracle = workspace.fixture(spec.oracle_file)
    content, compiled = oracle.read_bytes(), f"__pycache__/{oracle.stem}."
    files = {path for path in fixtures.rglob("*") if path.is_file() and not path.is_symlink()}
    files -= {workspace.fixture(file)[1] for file in (spec.benchmark_file, spec.original_file)}
    copies = (path for path in files if path.stat().st_size == len(content) and path.read_bytes() == content)
    unseen = {*copies, *(path for path in files if compiled in str(path))}
    return {f"fixtures/{path.relative_to(fixtures)}": _INSTEAD for path in unseen}


def code_of(text: str) -> str:
    """Find the code in an output: the last fenced block with a definition, else the last block, else the whole text."""
    blocks = _fenced_blocks(text)
    defining = [block for block in blocks if _DEFINES.search(block)]
    return (defining or blocks or [text])[-1]


def _fenced_blocks(text: str) -> list[str]:
    """Contents of fenced blocks marked python, py or nothing; a fence left open reaches to the text's end."""
    blocks: list[str] = []
    fence, language, lines = "", "", list[str]()
    for line in [*text.splitlines(keepends=True), None]:
        opening = re.match(r"\s{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)", line) if line is not None else None
        if fence and (
            line is None or (opening and line.strip(fence[0] + " \t\r\n") == "" and opening[1] >= fence)
        ):
            if language.lower() in ("python", "python3", "py", ""):
                blocks.append("".join(lines))
            fence = ""
        elif fence and line is not None:
            lines.append(line)
        elif opening:
            fence, language, lines = opening[1], opening[2], []
    return blocks


def _judged(result: SandboxResult, *, has_oracle: bool) -> Judgment:
    # What ends the runner while it writes leaves a last line that was cut.
    lines = [json.loads(line) for line in result.report.split(b"\n")[:-1]]
    if lines and "outcome" in lines[-1]:
        return _measured(lines[-1], has_oracle=has_oracle)
    # A memory bound or a kill ends the runner too; from the candidate's turn on it is the candidate's doing.
    how = f"the run was ended ({result.ending}, exit code {result.exit_code})"
    if lines:
        why = f"{how} with the output's code at work"
        return Judgment(judge="benchmark", passed=False, score=0.0, details=why, tests=Tests(errored=1))
    return _error(f"{how} before the output's code had its turn")


def _measured(report: dict[str, Any], *, has_oracle: bool) -> Judgment:
    if report["outcome"] == "error":
        return _error(report["why"])
    tests = Tests.model_validate(report["tests"])
    snapshot = Snapshot.model_validate(report["snapshot"]) if report["snapshot"] else None
    benchmarks = tuple(
        BenchmarkTimes(
            name=one["name"],
            nop_median=one.get("original"),
            agent_median=one.get("candidate"),
            oracle_median=one.get("oracle"),
        )
        for one in report["benchmarks"]
    )
    speedup, valid = _task_speedup(benchmarks, has_oracle=has_oracle)
    complaints = [report["why"]] if report["why"] else []
    complaints += report["complaints"]
    allowed = tests.oracle_failed if has_oracle else 0
    broken = bool(report["why"]) or tests.failed + tests.errored > allowed
    broken = broken or (snapshot is not None and snapshot.status != "passed")
    measured = f"speedup {speedup:.3g} over {valid} benchmarks in {report['rounds']} rounds"
    if not broken and speedup < MIN_SPEEDUP:
        complaints.insert(0, f"{measured}, needs {MIN_SPEEDUP}")
    passed = not broken and speedup >= MIN_SPEEDUP
    told = f"{measured}; tests passed: {tests.passed}" if passed else "; ".join(complaints)
    return Judgment(
        judge="benchmark",
        passed=passed,
        score=1.0 if passed else 0.0,
        details=told,
        benchmarks=benchmarks,
        tests=tests,
        snapshot=snapshot,
    )


def _task_speedup(benchmarks: tuple[BenchmarkTimes, ...], *, has_oracle: bool) -> tuple[float, int]:
    """Geometric mean of valid speedups, 1.0 without any, and how many there were.

    The same few lines as in aggregate, which judges may not import: a judgment must stand without it.
    """
    logarithms = []
    for one in benchmarks:
        others = [one.agent_median, one.oracle_median] if has_oracle else [one.agent_median]
        if one.nop_median and one.agent_median and all(others):
            logarithms.append(math.log(one.nop_median / one.agent_median))
    return (math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else 1.0), len(logarithms)


def _error(why: str) -> Judgment:
    return Judgment(judge="benchmark", details=f"no benchmark could be made: {why}", error=why)

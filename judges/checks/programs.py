"""Judge by a function or a program of the suite, in a sandbox, and by the files that an agent has left.

Covered: see `judges.sandbox.command`. What the output makes the suite's code do (hang, crash, print a gigabyte, return
no score) fails it with score 0; only a sandbox or program that does not start is an error. Code of the output that a
function or program runs by `uplift_judge` is in another sandbox. Not covered: such code that they run in their own
process, or in one that they start themselves: it can forge what they say.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from judges.checks.texts import folded
from judges.inside import call_function
from judges.judgment import (
    LEFT_OUT,
    Completion,
    Judgment,
    TooSlow,
    Workspace,
    look_at_clock,
    time_limit,
    yes_or_no,
)
from judges.safe_text import NotJson, strict_json
from judges.sandbox import bubblewrap, command, pipes
from judges.sandbox.command import Input, SandboxCommand, SandboxResult
from judges.spec import CommandCheck, Files, PythonFunction

_TOLERANCE = 1e-9


async def judge(
    spec: PythonFunction | CommandCheck | Files, completion: Completion, workspace: Workspace
) -> Judgment:
    """Judge; only `error` is set where the sandbox or the program itself did not start, or there is no folder."""
    if isinstance(spec, Files):
        return await command.in_thread(lambda _: _files(spec, workspace))
    try:
        return await command.in_thread(lambda cancelled: _run(spec, completion, workspace, cancelled))
    except command.SandboxUnavailable as unavailable:
        return Judgment(judge=spec.type, details=str(unavailable), error=str(unavailable))


def _run(
    spec: PythonFunction | CommandCheck,
    completion: Completion,
    workspace: Workspace,
    cancelled: threading.Event,
) -> Judgment:
    nonce, inputs = secrets.token_hex(16), dict[str, bytes | Path]()
    if workspace.suite is not None and (workspace.suite / "fixtures").is_dir():
        inputs["fixtures"] = (workspace.suite / "fixtures").resolve()
    environment: dict[str, str | Input] = {}
    text, stdin = completion.text.encode(errors="replace"), None
    argv: list[str | Input]
    if isinstance(spec, PythonFunction):
        name, _, function = spec.function.rpartition(":")
        argv = [bubblewrap.python(), "-I", "-c", bubblewrap.BOOT.format("call_function"), command.CODE]
        argv += [Input("fixtures"), _fixture(name, workspace), function, *bubblewrap.package_folders()]
    else:
        environment["PYTHONPATH"] = command.CODE  # where it finds `uplift_judge`
        python = bubblewrap.python() if spec.argv[0] in ("python", "python3") else spec.argv[0]
        argv = [
            _fixture(word, workspace) if word.startswith("fixtures/") else word
            for word in (python, *spec.argv[1:])
        ]
        stdin = text
    if workspace.trajectory is not None:
        inputs["steps.json"] = workspace.trajectory.model_dump_json(exclude_defaults=True).encode()
        environment["AI_TRAJECTORY_FILE"] = Input("steps.json")
    confinement = command.confinement(workspace.sandbox)
    check = SandboxCommand(argv, spec.timeout_seconds, inputs, environment, nonce=nonce.encode(), stdin=stdin)
    work = command.examining(check, text, workspace.left)
    result = command.run_blocking(work, confinement, cancelled)
    judged = _returned(spec, result, nonce) if isinstance(spec, PythonFunction) else _said(spec, result)
    return command.marked(judged, result)


def _fixture(name: str, workspace: Workspace) -> Input:
    fixtures, file = workspace.fixture(name)
    return Input(f"fixtures/{file.relative_to(fixtures)}")


def _returned(spec: PythonFunction, result: SandboxResult, nonce: str) -> Judgment:
    """Judge by the last line that carries the nonce."""
    events = list(pipes.events(result.report, nonce))
    if not events or events[0].get("event") != "start":
        error = result.error or f"the function did not start: {result.last_words or result.ending}"
        return Judgment(judge=spec.type, details=error, error=error)
    if len(events) != 2 or result.ending != "exited" or events[1].get("event") != "end":
        why = command.ENDINGS.get(result.ending, "the call ended before the function returned")
        return _failed(spec, why, result)
    if "problem" in events[1]:
        return _failed(spec, str(events[1]["problem"]))
    return _scored(spec, events[1].get("value"), events[1].get("reason"))


def _said(spec: CommandCheck, result: SandboxResult) -> Judgment:
    """Judge by the exit code, and by the JSON that the program printed, if it did."""
    if result.error:
        return Judgment(judge=spec.type, details=result.error, error=result.error)
    if result.ending != "exited":
        return _failed(spec, command.ENDINGS[result.ending])
    printed = result.report.decode(errors="replace").strip()
    if result.exit_code is None or result.exit_code > 128:
        return _failed(spec, f"ended by signal {(result.exit_code or 128) - 128}", result)
    if result.exit_code:
        why = result.last_words or printed[-command.LAST_WORDS_CHARACTERS :]
        said = f"exit code {result.exit_code}" + (f": {why}" if why else "")
        # One that crashed, or has another complaint than "no", has not looked to the end.
        broke_off = result.exit_code > 1 or b"Traceback (most recent call last)" in result.output
        return yes_or_no(spec.type, False, said, broke_off=broke_off)
    if printed.startswith("{"):
        try:
            told = strict_json(printed)
        except NotJson as problem:
            return _failed(spec, f"what it printed is {problem}")
        return _scored(spec, told.get("score"), told.get("reason"))
    return yes_or_no(spec.type, True, printed[-command.LAST_WORDS_CHARACTERS :] or "exit code 0")


def _scored(spec: PythonFunction | CommandCheck, value: Any, reason: Any) -> Judgment:
    why = str(reason)[: call_function.MAX_REASON_CHARACTERS] if isinstance(reason, str) and reason else ""
    if isinstance(value, bool):
        return yes_or_no(spec.type, value, why or f"returned {value}")
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        return _failed(spec, f"gave the score {str(value)[:40]}; must be from 0 to 1")
    return Judgment(
        judge=spec.type,
        passed=value >= spec.pass_threshold - _TOLERANCE,
        score=float(value),
        details=f"score {value:.2f}, needs {spec.pass_threshold:.2f}" + (f": {why}" if why else ""),
    )


def _failed(spec: PythonFunction | CommandCheck, why: str, result: SandboxResult | None = None) -> Judgment:
    """The output's doing: it could not be looked at to the end."""
    words = result.last_words if result else ""
    return yes_or_no(spec.type, False, why + (f": {words}" if words else ""), broke_off=True)


def _files(spec: Files, workspace: Workspace) -> Judgment:
    """Score is the share of conditions met."""
    if workspace.passes is not None:
        return yes_or_no("files", workspace.passes, "simulated: there are no files")
    if workspace.left is None:
        why = "this check looks at the files of an agent, and the model is none"
        return Judgment(judge="files", details=why, error=why)
    try:
        with time_limit():
            held = list(_conditions(spec, workspace.left, workspace.suite))
    except TooSlow as slow:
        return yes_or_no("files", False, str(slow), broke_off=True)
    met = tuple(what for what, why in held if not why)
    missed = tuple(what for what, why in held if why)
    complaints = [f"{what}: {why}" for what, why in held if why]
    return Judgment(
        judge="files",
        passed=not missed,
        score=len(met) / len(held),
        details="; ".join(complaints) or f"all {len(held)} conditions met",
        matched=met,
        missed=missed,
    )


def _conditions(spec: Files, left: Path, suite: Path | None) -> Iterator[tuple[str, str]]:
    """Each condition in words, and why it is not met; empty where it is."""
    left_out = _text(left, LEFT_OUT).splitlines()
    for name in spec.exists:
        look_at_clock()
        own = _own(left, name)
        kept = own and (own.is_dir() if name.endswith("/") else own.is_file())
        yield f"{name} exists", "" if kept else "it does not"
    for name in spec.absent:
        look_at_clock()
        path = name.rstrip("/")
        listed = any(one == path or one.startswith(f"{path}/") for one in left_out)
        yield f"{name} is absent", "it is there" if listed or os.path.lexists(left / path) else ""
        if "…" in left_out:
            yield f"{name} can be looked for", "too much was left"
    for name in spec.unchanged:
        before = suite / "fixtures" / name if suite else None
        own = _own(left, name)
        same = before and before.is_file() and own and own.is_file()
        same = same and before and own and before.read_bytes() == own.read_bytes()
        yield f"{name} is unchanged", "" if same else "it is not what it was"
    for name, wanted in spec.contains.items():
        text = folded(_text(left, name))
        for one in wanted:
            look_at_clock()
            yield f"{name} contains {one!r}", "" if folded(one) in text else "it does not"


def _own(left: Path, name: str) -> Path | None:
    """What lies there itself: what an agent left may link to whatever is on the machine."""
    path = left.resolve() / name
    return path if path.resolve() == path else None


def _text(left: Path, name: str) -> str:
    path = _own(left, name)
    return path.read_text("utf-8", "replace") if path and path.is_file() else ""

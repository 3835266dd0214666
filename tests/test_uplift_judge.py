"""`uplift_judge` outside of a judgment, and what it does with requests that make no sense."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import uplift_judge
from uplift_judge import Request, RunError, UnguardedWarning, output, run_command, run_python, workspace


@pytest.fixture(autouse=True)
def no_judgment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (uplift_judge.ASK_VARIABLE, "AI_OUTPUT_FILE", "AI_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


def test_output_and_workspace_are_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer").write_bytes("a\r\né".encode())
    monkeypatch.setenv("AI_OUTPUT_FILE", str(tmp_path / "answer"))
    monkeypatch.setenv("AI_WORKSPACE", str(tmp_path))
    assert output() == "a\r\né"
    assert workspace() == tmp_path


@pytest.mark.parametrize(
    ("asked", "says"), [(output, "AI_OUTPUT_FILE"), (workspace, "only agents leave one")]
)
def test_what_is_not_there_is_told(asked, says: str) -> None:
    with pytest.raises(RunError, match=says):
        asked()


def test_outside_of_a_judgment_code_runs_with_a_warning() -> None:
    with pytest.warns(UnguardedWarning, match="with your rights"):
        ran = run_python("import sys; print(sys.stdin.read()); sys.exit(3)", stdin="é")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "é\n", "")
    with pytest.warns(UnguardedWarning):
        assert run_command([Path("/bin/sh"), "-c", "kill -9 $$"]).exit_code == 137


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: run_python("while True: pass", timeout=0.5), "was still running when its time was up"),
        (lambda: run_command(["/bin/no-such-program"]), "did not start"),
    ],
)
def test_what_comes_to_no_end_of_its_own_is_an_error(run, says: str) -> None:
    with pytest.warns(UnguardedWarning), pytest.raises(RunError, match=says):
        run()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(ValueError, match="must be a number of seconds"):
        run_python("", timeout=timeout)


@pytest.mark.parametrize("argv", ["ls -l", []])
def test_a_command_is_a_list(argv) -> None:
    with pytest.raises(ValueError, match="must be a list"):
        run_command(argv)


def test_a_test_that_uses_it_runs_under_plain_pytest(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("print(6 * 7)")
    (tmp_path / "test_it.py").write_text(
        "from uplift_judge import output, run_python\n"
        "def test_it(): assert run_python(output()).stdout == '42\\n'\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "AI_OUTPUT_FILE": str(tmp_path / "answer.txt")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 1 warning" in ended.stdout, ended
    assert "UnguardedWarning" in ended.stdout


GOOD = {"role": "python", "argv": [], "seconds": 1}
SENSELESS = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no role": json.dumps({**GOOD, "role": None}).encode(),
    "no list of arguments": json.dumps({**GOOD, "argv": "ls"}).encode(),
    "a NUL": json.dumps({**GOOD, "argv": ["a\0b"]}).encode(),
    "half a character": json.dumps({**GOOD, "argv": ["\ud800"]}).encode(),
    "no time": json.dumps({**GOOD, "seconds": 0}).encode(),
    "a time that is no number": json.dumps({**GOOD, "seconds": float("nan")}).encode(),
    "a time that no float holds": f'{{"role": "python", "argv": [], "seconds": {"9" * 400}}}'.encode(),
    "deep nesting": b"[" * 90_000,
}


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


def received(message: bytes, descriptors: list[int]) -> Request | None:
    asks, serves = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with asks, serves:
        socket.send_fds(asks, [message], descriptors)
        return Request.receive(serves)


@pytest.mark.parametrize("message", SENSELESS.values(), ids=SENSELESS.keys())
def test_requests_that_make_no_sense_are_passed_over_and_leave_nothing_open(message: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = open_descriptors()
        assert received(message, [0, 1, 2, 2, theirs.fileno()]) is None
        assert open_descriptors() <= before  # others may be closed meanwhile


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_a_request_has_five_descriptors_of_which_the_last_is_a_socket(count: int) -> None:
    before = open_descriptors()
    assert received(json.dumps(GOOD).encode(), [0] * count) is None
    assert received(json.dumps(GOOD).encode(), [0] * 5) is None
    assert open_descriptors() <= before  # others may be closed meanwhile

"""Run the real command line and real workers as processes, for end-to-end tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import warm

from workers.store.keys import with_authority

SKILL = "---\nname: haiku\ndescription: Write short poems.\n---\nWrite three lines.\n"


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> dict[str, Any]:
        return json.loads(self.out.strip().splitlines()[-1])


def uplift(*words: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 120) -> Ended:
    """Run `uplift …` to its end."""
    # These are read when Python or our modules start, and a warm process has started.
    if sys.platform == "linux" and not any(
        name.startswith(("PYTHON", "UPLIFT_PREFIX")) for name in env or ()
    ):
        return Ended(*warm.run([*map(str, words)], cwd, _environment(env), timeout))
    process = start_uplift(*words, cwd=cwd, env=env)
    out, err = process.communicate(timeout=timeout)
    return Ended(process.returncode, out, err)


def start_uplift(
    *words: str | Path,
    cwd: Path,
    env: dict[str, str] | None = None,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "producer.cli", *map(str, words)],
        cwd=cwd,
        env=_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def _environment(env: dict[str, str] | None) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", **(env or {})}


@contextmanager
def worker(url: str, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that answers; ended at the end, however the block ends."""
    process = start_uplift("worker", "--broker", url, cwd=cwd, env=env)
    try:
        await_worker(url, process.pid, env.get("UPLIFT_PREFIX", "uplift:"))
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def await_worker(url: str, pid: int, prefix: str = "uplift:") -> None:
    client = redis.Redis.from_url(with_authority(url))
    deadline = time.monotonic() + 60
    while not any(f":{pid}-".encode() in name for name in client.zrange(f"{prefix}workers", 0, -1)):
        assert time.monotonic() < deadline, "the worker gave no sign of life"
        time.sleep(0.05)
    client.close()


def a_suite(folder: Path, tasks: int = 4, *, name: str = "suite.yaml") -> Path:
    """A suite of `contains` tasks and a skill beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["skill_id: haiku", 'version: "1.0"', "tasks:"]
    for number in range(tasks):
        lines += [
            f"  - id: task-{number}",
            f"    prompt: Say word{number}.",
            f"    judge: {{type: contains, expected: [word{number}]}}",
            f"    tier: T{number % 2 + 1}",
        ]
    suite = folder / name
    suite.write_text("\n".join(lines) + "\n")
    (folder / "skill").mkdir(exist_ok=True)
    (folder / "skill" / "SKILL.md").write_text(SKILL)
    return suite


def standalone(suite: Path, *more: str | Path) -> list[str | Path]:
    """The words of a plain standalone evaluation with the state root beside the suite."""
    folder = suite.parent
    words: list[str | Path] = [
        "evaluate",
        "--standalone",
        "--task-suite",
        suite,
        "--skill-path",
        folder / "skill",
    ]
    return [*words, "--state-root", folder / "state", *more]


def the_artifact(folder: Path) -> dict[str, Any]:
    """The one artifact of a state root."""
    found = list((folder / "state" / "evaluations").glob("*.json"))
    assert len(found) == 1, found
    return json.loads(found[0].read_text(), parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not standard JSON")


def processes_below(folder: Path) -> list[str]:
    """Command lines of all processes that mention a folder; what a test leaves behind shows up here."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                surroundings = (entry / "environ").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if str(folder) in words or f"TMPDIR={folder}" in surroundings:
                found.append(words)
    return found

"""compose.yaml on a real container engine, from building the image to taking everything down: `make containers`.

Needs a Docker that answers, its compose plugin, and the two base images, which it has or can pull; else it says in one
line what is missing, and that is no failure. Ends with 3 where the image cannot be built (there may be no network),
and with 1 where something does not work.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = ("python:3.11-slim", "redis:8.2")
WORKERS = 3
ANSWER_SECONDS = 20.0
TEXT_TASK = {"id": "says-it", "prompt": "Say it.", "judge": {"type": "contains", "expected": ["it"]}}
CODE_TASK = {
    "id": "answers",
    "prompt": "Say forty-two.",
    "judge": {"type": "pytest", "test_file": "fixtures/test_answer.py"},
    "replies": {"pass": "fixtures/right.txt", "fail": "fixtures/wrong.txt"},
}
FIXTURES = {
    "right.txt": "42",
    "wrong.txt": "41",
    "test_answer.py": """\
import os
from pathlib import Path


def test_answer():
    assert Path(os.environ["AI_OUTPUT_FILE"]).read_text() == "42"
""",
}


class Failed(Exception):
    """Something does not work in containers as it should."""


def say(text: str) -> None:
    sys.stdout.write(f"containers: {text}\n")
    sys.stdout.flush()


def run(
    *words: str, seconds: float = 120, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def missing() -> str | None:
    """What this machine lacks for any of it, in a few words."""
    if shutil.which("docker") is None:
        return "there is no docker"
    try:
        if run("docker", "info", seconds=ANSWER_SECONDS).returncode:
            return "no container engine answers"
        if run("docker", "compose", "version", seconds=ANSWER_SECONDS).returncode:
            return "docker has no compose plugin"
        for image in IMAGES:
            if (
                run("docker", "image", "inspect", image, seconds=ANSWER_SECONDS).returncode
                and run("docker", "pull", "--quiet", image, seconds=180).returncode
            ):
                return f"image {image} is neither here nor can it be pulled"
    except subprocess.TimeoutExpired as slow:
        return f"the engine does not answer in time ({' '.join(slow.cmd[:3])})"
    return None


class Stack:
    """One project of compose.yaml, with a folder, a port and passwords of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = f"uplift-check-{os.getpid()}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        owner = folder.stat()
        self.env = {
            "UPLIFT_REDIS_PASSWORD": secrets.token_hex(12),
            "UPLIFT_MONITOR_PASSWORD": secrets.token_hex(12),
            "UPLIFT_MONITOR_PORT": str(self.port),
            "UPLIFT_FOLDER": str(folder),
            "UPLIFT_USER": f"{owner.st_uid}:{owner.st_gid}",
        }
        if run("docker", "buildx", "version", seconds=ANSWER_SECONDS).returncode:
            self.env["DOCKER_BUILDKIT"] = "0"  # the classic builder, which every engine has

    def compose(self, *words: str, seconds: float = 180, **env: str) -> subprocess.CompletedProcess[str]:
        words = ("docker", "compose", "--project-name", self.project, *words)
        return run(*words, seconds=seconds, env={**self.env, **env})

    def done(self, *words: str, seconds: float = 180) -> str:
        ended = self.compose(*words, seconds=seconds)
        if ended.returncode:
            raise Failed(f"`compose {' '.join(words)}` ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return ended.stdout

    def evaluated(self, *words: str, suite: str = "suite.yaml") -> dict:
        """The artifact of a run by the `cli` service; its verdict is the caller's to judge."""
        command = (
            "evaluate",
            "--standalone",
            "--task-suite",
            suite,
            "--skill-path",
            "skill",
            "--quiet",
            "--json",
        )
        ended = self.compose("run", "--rm", "-T", "cli", *command, *words, seconds=300)
        try:
            return json.loads(ended.stdout)
        except ValueError:
            raise Failed(
                f"`evaluate {' '.join(words)}` ended with {ended.returncode}: {ended.stderr}"
            ) from None

    def get(self, path: str, *, login: bool = True) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if login:
            token = base64.b64encode(f"uplift:{self.env['UPLIFT_MONITOR_PASSWORD']}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Failed(f"{what}: {found!r}, and it should be {wanted!r}")
    say(f"{what}: {found}")


def errors(artifact: dict) -> int:
    return sum(counts.get("error", 0) for counts in artifact["attempts"]["by_arm"].values())


def write_suites(folder: Path) -> None:
    (folder / "skill").mkdir()
    (folder / "skill" / "SKILL.md").write_text("---\nname: poem\ndescription: Write poems.\n---\nSay it.\n")
    (folder / "fixtures").mkdir()
    for name, text in FIXTURES.items():
        (folder / "fixtures" / name).write_text(text)
    for name, task in (("suite.yaml", TEXT_TASK), ("code.yaml", CODE_TASK)):
        (folder / name).write_text(json.dumps({"skill_id": "poem", "version": "1.0", "tasks": [task]}))


def check(stack: Stack) -> None:
    stack.done(
        "up", "--detach", "--wait", "--wait-timeout", "180", "--scale", f"worker={WORKERS}", seconds=240
    )
    workers = stack.done("ps", "--quiet", "worker").split()
    expect(len(workers), WORKERS, "workers that are healthy")

    told = json.loads(stack.done("exec", "-T", "worker", "uplift", "doctor", "--json"))
    problems = [f"{one['name']}: {one['found']}" for one in told["checks"] if one["status"] == "problem"]
    expect(problems, [], "problems that doctor finds in a worker's container")
    confined = {one["name"]: one["status"] for one in told["checks"]}["sandbox"]

    mock = stack.evaluated("--mock", "--pass-k", "3")
    expect((mock["status"], errors(mock)), ("finished", 0), "a mock run, and its errors")
    sim = stack.evaluated("--model", "sim:candidate=1,baseline=0,latency=0.2", "--pass-k", "20")
    expect((sim["verdict"], sim["execution_pass_rate"]), ("pass", 1.0), "a simulated run")
    expect(len(sim["environment"]["workers"]), WORKERS, "workers that took part in it")
    written = stack.folder / ".uplift" / "evaluations" / f"{sim['run_id']}.json"
    expect(written.exists(), True, "its artifact is in the mounted folder")
    words = ("--model", "sim:candidate=1,baseline=0", "--sandbox", "required" if confined == "ok" else "auto")
    code = stack.evaluated(*words, suite="code.yaml")
    expect((code["verdict"], errors(code)), ("pass", 0), f"a pytest judge, sandbox {confined}")

    command = (
        "evaluate",
        "--standalone",
        "--task-suite",
        "suite.yaml",
        "--skill-path",
        "skill",
        "--pass-k",
        "30",
    )
    slow = ("--model", "sim:candidate=1,latency=1", "--in-flight", "4", "--detach")
    run_id = stack.done("run", "--rm", "-T", "cli", *command, *slow).split()[-1]
    deadline = time.monotonic() + 60
    while not (queue := json.loads(stack.get("/queue")[1]))["under_way"]:
        if time.monotonic() > deadline:
            raise Failed(f"nothing of a run that was submitted is under way: {queue}")
        time.sleep(0.2)
    expect(run("docker", "kill", workers[0]).returncode, 0, "a worker is killed while attempts are under way")
    ended = json.loads(stack.compose("run", "--rm", "-T", "cli", "watch", run_id, "--json").stdout)
    expect((ended["attempts"]["run"], errors(ended)), (60, 0), "attempts and errors of its run")

    expect(stack.get("/", login=False)[0], 401, "Flower without the password")
    expect(stack.get("/")[0], 200, "Flower with it")
    expect(json.loads(stack.get("/queue")[1])["total"], 0, "attempts that are left to do")

    foreign = stack.compose("run", "--rm", "-T", "cli", "--version", UPLIFT_USER="4711:4711")
    hint = f"set UPLIFT_USER={stack.env['UPLIFT_USER']}"
    expect(hint in foreign.stderr, True, "a folder of somebody else's is told with the variable that helps")
    secrets_ = [stack.env["UPLIFT_REDIS_PASSWORD"], stack.env["UPLIFT_MONITOR_PASSWORD"]]
    logs = stack.done("logs", "--no-color")
    expect([secret in logs for secret in secrets_], [False, False], "passwords in the logs")


def main() -> int:
    if why := missing():
        say(f"skipped, {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="uplift-containers-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_suites(folder)
        stack = Stack(folder)
        try:
            built = stack.compose("build", seconds=600)
            if built.returncode:
                say(f"the image cannot be built: {(built.stdout + built.stderr)[-2000:]}")
                return 3
            check(stack)
        except (Failed, KeyError, ValueError, OSError, subprocess.TimeoutExpired) as problem:
            say(
                f"{type(problem).__name__}: {problem}\n{stack.compose('logs', '--no-color', '--tail', '50').stdout}"
            )
            return 1
        finally:
            stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
    left = run("docker", "ps", "--all", "--quiet", "--filter", f"name={stack.project}").stdout.split()
    say(f"all of it works, and {left or 'nothing'} is left")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())

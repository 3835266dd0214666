"""How long a killed worker's attempts wait before somebody else starts them, at production settings.

    python -m bench.kills [--kills 20]

Victims and one survivor share a run of attempts that last for minutes. A victim is killed -9 at a random moment of
its lease; the clock runs until each of its attempts has a new owner. Also told: how long a worker needs to leave
that is asked to with SIGTERM while its attempts go on, which `docker stop` allows 10 seconds for.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.engine import write_suite
from bench.rows import Row, show
from producer import plan
from producer import server as servers
from producer.baselines.cache import Reuse
from producer.runs.submit import submit
from producer.server import Server, open_server
from producer.settings.run_settings import RunSettings
from workers.store.keys import Keys
from workers.store.redis_client import workers

AT_ONCE = 5
EACH_HOLDS = 3
SURVIVOR_HOLDS = 200
GIVE_UP_SECONDS = 120.0


def rows(kills: int = 20, seed: int = 1) -> list[Row]:
    """The distribution over at least this many kills, and over a few polite requests to leave."""
    waits: list[float] = []
    leaving: list[float] = []
    draw = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        servers.serving(Path(name) / "server") as private,
    ):
        server = open_server(private.url)
        for _ in range(0, kills, AT_ONCE):
            waited, left = _round(server, Path(name), draw)
            waits += waited
            leaving.append(left)
    return [
        Row(
            "killed worker's attempts restart, slowest",
            max(waits),
            "s",
            40.0,
            note=_spread(waits, len(leaving) * AT_ONCE),
        ),
        Row("worker leaves after SIGTERM, slowest", max(leaving), "s", 10.0, note=f"{len(leaving)} workers"),
    ]


def _round(server: Server, folder: Path, draw: random.Random) -> tuple[list[float], float]:
    """Kill a few workers of one run; how long their attempts waited, and how long the survivor took to leave."""
    url = server.settings.broker
    run_id = _long_run(server, folder)
    victims = [_worker(url, EACH_HOLDS) for _ in range(AT_ONCE)]
    _until(lambda: all(_owned(server, run_id, victim.pid) for victim in victims))
    survivor = _worker(url, SURVIVOR_HOLDS)
    _until(lambda: _seen(server, survivor.pid))
    waits = _kill(server, run_id, victims, draw)
    left = _leave(survivor)
    server.store.delete(run_id)
    return waits, left


def _long_run(server: Server, folder: Path) -> str:
    """Twice as many attempts as the victims can hold, and far fewer than the survivor can."""
    options = RunSettings(
        task_suite=write_suite(folder, AT_ONCE * EACH_HOLDS),
        state_root=folder / "state",
        standalone=True,
        skill_path=folder / "SKILL.md",
        models=("sim:latency=3000",),
    )
    planned = plan.make(options)
    submit(server, planned, Reuse())
    return planned.run_id


def _worker(url: str, in_flight: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "UPLIFT_BROKER": url, "UPLIFT_IN_FLIGHT": str(in_flight)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "workers"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _owners(server: Server, run_id: str) -> dict[bytes, int]:
    """Attempt index to the process id of the worker that has claimed it."""
    found = server.store.client.hgetall(Keys(run_id).owners)
    return {index: int(value.rsplit(b":", 1)[1].split(b"-")[0]) for index, value in found.items()}


def _owned(server: Server, run_id: str, pid: int) -> list[bytes]:
    return [index for index, owner in _owners(server, run_id).items() if owner == pid]


def _seen(server: Server, pid: int) -> bool:
    return any(f":{pid}-" in about["name"] for about in workers(server.store.client))


def _kill(
    server: Server, run_id: str, victims: list[subprocess.Popen[bytes]], draw: random.Random
) -> list[float]:
    """Kill each at a moment of its own; how long each of their attempts was without an owner."""
    died: dict[bytes, float] = {}
    lost = {index: victim.pid for victim in victims for index in _owned(server, run_id, victim.pid)}
    for victim in victims:
        time.sleep(draw.uniform(0.0, 3.0))
        victim.kill()
        victim.wait()
        died |= {index: time.monotonic() for index, pid in lost.items() if pid == victim.pid}
    waits: dict[bytes, float] = {}

    def all_taken() -> bool:
        for index, pid in _owners(server, run_id).items():
            if index in lost and pid != lost[index]:
                waits.setdefault(index, time.monotonic() - died[index])
        return len(waits) == len(lost)

    _until(all_taken)
    return list(waits.values())


def _leave(worker: subprocess.Popen[bytes]) -> float:
    begun = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    worker.wait(timeout=GIVE_UP_SECONDS)
    return time.monotonic() - begun


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing after {GIVE_UP_SECONDS:g} s")
        time.sleep(0.05)


def _spread(waits: list[float], kills: int) -> str:
    low, *_, high = statistics.quantiles(waits, n=20)
    middle = statistics.median(waits)
    spread = f"min {min(waits):.1f}, 5 % {low:.1f}, median {middle:.1f}, 95 % {high:.1f} s"
    return f"{kills} kills, {len(waits)} attempts: {spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    show(rows(parser.parse_args().kills))


if __name__ == "__main__":
    main()

"""What the engine itself costs and how close it comes to ideal: real server, real worker, simulated model.

    python -m bench.engine [--quick]
    python -m bench.engine --attempts 1000000     one large run, no latency
    python -m bench.engine --checks [ATTEMPTS]    the same run with 5 checks a task, and with one judge
    python -m bench.engine --workers [ATTEMPTS]   the same run with 1, 2, 4 and 8 workers

Processor time is that of all processes: producer, worker (with the aggregating child) and server. Times are counted
from the moment the run is submitted, with the worker already up, to the last record; the artifact is told apart.
"""

from __future__ import annotations

import argparse
import heapq
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Row, show
from producer import plan
from producer import server as servers
from producer.baselines.cache import Reuse
from producer.runs.submit import submit
from producer.server import Server, open_server
from producer.settings.run_settings import RunSettings
from workers.models.choose import model_for
from workers.models.model import Request
from workers.models.sim import Sim
from workers.store.messages import ModelSettings, Task
from workers.store.redis_client import workers as living_workers

# As large as real ones: 9 KB.
SKILL = "---\nname: bench\ndescription: A skill for measuring.\n---\n" + 115 * (
    "Be brief, and name the page on which you found what you say; if there is none, say so.\n"
)
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """One run: seconds of processor time by process, wall seconds, and the producer's largest memory."""

    attempts: int
    producer_cpu: float
    worker_cpu: float
    server_cpu: float
    publish_seconds: float
    ran_seconds: float
    wall_seconds: float
    producer_mb: float
    worker_mb: float
    server_mb: float

    @property
    def cpu_ms(self) -> float:
        return 1000 * (self.producer_cpu + self.worker_cpu + self.server_cpu) / self.attempts

    @property
    def split(self) -> str:
        parts = (self.producer_cpu, self.worker_cpu, self.server_cpu)
        return "producer {:.3f} + worker {:.3f} + server {:.3f} ms".format(
            *(1000 * p / self.attempts for p in parts)
        )


def run(
    tasks: int,
    pass_k: int,
    model: str,
    *,
    in_flight: int = 100,
    workers: int = 1,
    checks: int = 0,
    away: Callable[[str], AbstractContextManager[str]] = nullcontext,
) -> Measured:
    """Run a suite of `contains` tasks in both arms and measure it; `away` puts something before the server."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with servers.serving(folder / "server") as private, away(private.url) as url:
            private.url = url
            private.start_worker({"UPLIFT_IN_FLIGHT": str(in_flight)})
            assert private.worker is not None
            with _more_workers(url, workers - 1, in_flight) as pids:
                pids = [private.worker.pid, *pids]
                server = open_server(url)
                # Until the workers are up, and everything connected as it will be.
                until(lambda: len(living_workers(server.store.client)) == workers)
                _measured(options_for(folder, 1, 1, model), private, pids, server)
                return _measured(options_for(folder, tasks, pass_k, model, checks), private, pids, server)


@contextmanager
def _more_workers(url: str, count: int, in_flight: int) -> Iterator[list[int]]:
    """Workers as others start them, beside the private one; gives their process ids."""
    environment = {**os.environ, "UPLIFT_BROKER": url, "UPLIFT_IN_FLIGHT": str(in_flight)}
    command = [sys.executable, "-P", "-m", "workers"]
    quiet = subprocess.DEVNULL
    started = [subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def options_for(folder: Path, tasks: int, pass_k: int, model: str, checks: int = 0) -> RunSettings:
    """A run of a suite of `contains` tasks, which is written there, with so many checks or one judge."""
    return RunSettings(
        task_suite=write_suite(folder, tasks, checks),
        state_root=folder / "state",
        standalone=True,
        skill_path=folder / "SKILL.md",
        models=(model,),
        pass_k=pass_k,
    )


def _measured(options: RunSettings, private: servers.Local, workers: list[int], server: Server) -> Measured:
    pids = [os.getpid(), private.server.pid, *workers]
    until(lambda: not _children(workers))  # of the run before
    before = [_cpu(pid) for pid in pids]
    planned = plan.make(options)
    begun = time.monotonic()
    submit(server, planned, Reuse())
    published = time.monotonic() - begun
    until(lambda: server.store.progress(planned.run_id).recorded == planned.grid.attempts)
    ran = time.monotonic() - begun
    until(lambda: server.store.artifacts(planned.run_id) is not None)
    wall = time.monotonic() - begun
    until(lambda: not _children(workers))  # a child's time is known once it has ended
    producer_cpu, server_cpu, *worker_cpu = (
        _cpu(pid) - start for pid, start in zip(pids, before, strict=True)
    )
    return Measured(
        planned.grid.attempts,
        producer_cpu,
        sum(worker_cpu),
        server_cpu,
        published,
        ran,
        wall,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        max(map(_largest_mb, workers)),
        _largest_mb(private.server.pid),
    )


def ideal_seconds(tasks: int, pass_k: int, model: str, in_flight: int) -> float:
    """How long the drawn latencies take when every slot is always busy: each next call goes to the first free slot."""
    client = model_for(model, ModelSettings())
    assert isinstance(client, Sim)
    free = [0.0] * in_flight
    for attempt in range(1, pass_k + 1):
        for number in range(tasks):
            for arm in ("baseline", "candidate"):
                task = Task.model_validate(_task(number))
                request = Request("", task=task, arm=arm, attempt=attempt)
                heapq.heapreplace(free, free[0] + client.latency(request))
    return max(free)


def large_run(attempts: int) -> list[Row]:
    """What the engine costs, and the memory that it takes; the answers are tiny."""
    large = run(attempts // 10, 5, "sim")
    cpu = f"engine CPU per attempt, {large.attempts} zero-length"
    return [
        Row(cpu, large.cpu_ms, "ms", 0.35, note=large.split),
        Row(f"publish {large.attempts} attempts", large.publish_seconds, "s", large.attempts / 10_000),
        Row("producer memory in that run", large.producer_mb, "MB", 200),
        Row("worker memory in that run", large.worker_mb, "MB", note=f"server {large.server_mb:.0f} MB"),
        Row("that run, submitted to artifact", large.wall_seconds, "s"),
    ]


def worker_rows(attempts: int) -> list[Row]:
    """How much more workers do, without latency: bound by the cores of this machine."""
    found = []
    for workers in (1, 2, 4, 8):
        done = run(attempts // 10, 5, "sim", workers=workers)
        what = f"{done.attempts} zero-length attempts, {workers} worker{'s' if workers > 1 else ''}"
        note = f"{1000 * done.server_cpu / done.attempts:.3f} ms of it the server's"
        found.append(Row(f"{what}: speed", done.attempts / done.ran_seconds, "a second", better="higher"))
        found.append(Row(f"{what}: CPU per attempt", done.cpu_ms, "ms", note=note))
    return found


def check_rows(attempts: int) -> list[Row]:
    """What several checks a task cost the engine, as a multiple of one judge.

    The model is one that does nothing: the simulated one looks for an answer that all checks pass.
    """
    one, five = (run(attempts // 10, 5, "mock", checks=checks) for checks in (0, 5))
    note = f"{five.cpu_ms:.3f} ms against {one.cpu_ms:.3f} ms"
    return [
        Row(
            f"engine CPU of {five.attempts} attempts, 5 checks / 1 judge",
            five.cpu_ms / one.cpu_ms,
            "times",
            1.5,
            note=note,
        )
    ]


def rows(*, quick: bool = False) -> list[Row]:
    """The engine's part of the bench table."""
    found = large_run(20_000 if quick else 100_000)
    found += check_rows(20_000)
    second = run(100 if quick else 1000, 1, "sim:latency=1")
    bar = second.attempts / 100 + 2
    found.append(Row(f"{second.attempts} attempts of 1 s, 100 in flight", second.ran_seconds, "s", bar))
    model, count = "sim:latency=1,spread=exp", 1000 if quick else 5000
    spread = run(count, 1, model, in_flight=1000)
    share = 100 * ideal_seconds(count, 1, model, 1000) / spread.ran_seconds
    note = f"{spread.attempts} attempts in {spread.ran_seconds:.1f} s"
    found.append(Row("1,000 in flight, exponential 1 s", share, "% of ideal", 90, "higher", note))
    return found


def _task(number: int) -> dict[str, object]:
    return {
        "id": f"task-{number}",
        "prompt": f"Say word{number}.",
        "judge": {"type": "contains", "expected": [f"word{number}"]},
    }


def write_suite(folder: Path, tasks: int, checks: int = 0) -> Path:
    """A suite of `contains` tasks, and a skill beside it."""
    (folder / "SKILL.md").write_text(SKILL)
    lines = ["skill_id: bench", f'version: "1.{min(checks, 1)}"', "tasks:"]
    for number in range(tasks):
        lines.append(f"  - id: task-{number}\n    prompt: Say word{number}.")
        judge = f"{{type: contains, expected: [word{number}]}}"
        lines.append(f"    checks: [{', '.join([judge] * checks)}]" if checks else f"    judge: {judge}")
    suite = folder / "suite.yaml"
    suite.write_text("\n".join(lines) + "\n")
    return suite


def _cpu(pid: int) -> float:
    """User and system seconds of a process and of the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICK


def _children(pids: list[int]) -> list[str]:
    found = []
    for path in [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/children")]:
        with suppress(OSError):  # a thread that has ended meanwhile
            found += path.read_text().split()
    return found


def _largest_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def until(condition: Callable[[], bool], pause: float = 0.05) -> None:
    while not condition():
        time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the attempts")
    parser.add_argument("--attempts", type=int, help="only the first run, with so many attempts")
    parser.add_argument(
        "--workers", type=int, nargs="?", const=100_000, help="1 to 8 workers, so many attempts"
    )
    parser.add_argument(
        "--checks", type=int, nargs="?", const=20_000, help="5 checks a task, so many attempts"
    )
    options = parser.parse_args()
    if options.checks:
        show(check_rows(options.checks))
        return
    if options.workers:
        show(worker_rows(options.workers))
    elif options.attempts:
        show(large_run(options.attempts))
    else:
        show(rows(quick=options.quick))


if __name__ == "__main__":
    main()

"""What workers that have nothing to do ask of their server: commands a second and connections, for each of them.

    python -m bench.idle_workers [WORKERS]

And how long one that is idle takes to begin a run's first attempt. INFO counts the commands of scripts too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.engine import options_for, until
from bench.rows import Row, show
from producer import plan
from producer import server as servers
from producer.baselines.cache import Reuse
from producer.runs.submit import submit
from producer.server import open_server
from workers.store.redis_client import workers

SECONDS = 15.0


def rows(count: int = 30, *, runs: int = 10) -> list[Row]:
    """The bars: 3 commands a second and 5 connections; how soon work is begun is a fact."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, servers.serving(Path(name)) as private:
        command = [sys.executable, "-P", "-m", "workers"]
        environment = {**os.environ, "UPLIFT_BROKER": private.url}
        started = [
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(count)
        ]
        server = open_server(private.url)
        client = server.store.client
        try:
            until(lambda: len(workers(client)) == count)
            time.sleep(SECONDS)

            def commands() -> int:
                return sum(about["calls"] for about in client.info("commandstats").values())

            before, begun = commands(), time.monotonic()
            time.sleep(SECONDS)
            rate = (commands() - before) / (time.monotonic() - begun) / count
            connections = (len(client.client_list()) - 1) / count
            soon = []
            options = options_for(Path(name), 1, 1, "mock")
            for _ in range(runs):
                planned = plan.make(options)
                submit(server, planned, Reuse())
                begun = time.monotonic()
                until(lambda run_id=planned.run_id: server.store.progress(run_id).recorded > 0, 0.005)
                soon.append(time.monotonic() - begun)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
            server.close()
    what = f"each of {count} idle workers:"
    return [
        Row(f"{what} commands", rate, "a second", 3),
        Row(f"{what} connections", connections, "", 5),
        Row("from submitted to the first record, idle workers", 1000 * statistics.median(soon), "ms"),
    ]


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 30))

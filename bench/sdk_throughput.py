"""How close the vendors' SDKs come to ideal throughput in one process: 100 calls in flight, 1 s exponential each.

    python -m bench.sdk_throughput [--calls 1000] [--in-flight 100] [--mean 1.0]

The stand-in runs in a process of its own. Ideal is the time that the same latencies take with nothing in between,
worked out by giving each next call to the slot that is free first. The bar is 85 % of ideal.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from bench.rows import Row, show
from workers.models.anthropic_api import Anthropic
from workers.models.model import Model, Request
from workers.models.openai_api import OpenAI
from workers.store.messages import ModelSettings

SERVER = Path(__file__).parent.parent / "examples" / "stand_in" / "server.py"
BAR = 0.85


def ideal_seconds(latencies: list[float], in_flight: int) -> float:
    """When the last call ends if slots cost nothing and are never idle."""
    free = [0.0] * in_flight
    for latency in latencies:
        heapq.heapreplace(free, free[0] + latency)
    return max(free)


async def asked(model: Model, calls: int, in_flight: int) -> tuple[float, float]:
    """Wall and CPU seconds for so many calls, at most `in_flight` at once."""
    slots = asyncio.Semaphore(in_flight)

    async def call(number: int) -> None:
        async with slots:
            await model.complete(Request(f"question {number}: " + "words " * 200))

    await call(-1)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(call, range(calls)))
    spent = time.perf_counter() - wall, time.process_time() - cpu
    await model.close()
    return spent


def measure(
    kind: str, transport: Literal["aiohttp", "httpx"], calls: int, in_flight: int, mean: float
) -> Row:
    """One row of the table: the share of ideal, with CPU per call."""
    argv = [sys.executable, str(SERVER), "--latency", str(mean), "--spread", "exp"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        settings = ModelSettings(params={"base_url": url if kind == "anthropic" else f"{url}/v1"})
        model = (Anthropic if kind == "anthropic" else OpenAI)("bench", settings)
        if transport == "httpx":
            model.http_client = "DefaultAsyncHttpxClient"
        wall, cpu = asyncio.run(asked(model, calls, in_flight))
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
    # The stand-in draws from the same seed; the first draw went to the call that opened the connection.
    draws = random.Random(0)
    latencies = [draws.expovariate(1 / mean) for _ in range(calls + 1)][1:]
    share = ideal_seconds(latencies, in_flight) / wall
    name = f"{kind} SDK over {transport}, {in_flight} in flight, exponential {mean:g} s"
    note = f"{cpu / calls * 1000:.2f} ms CPU a call; {calls} calls in {wall:.1f} s"
    bar = 100 * BAR if transport == "aiohttp" else None
    return Row(name, 100 * share, "% of ideal", bar, "higher", note)


def rows(calls: int = 1000, in_flight: int = 100, mean: float = 1.0) -> list[Row]:
    """This file's part of the bench table; aiohttp is the transport that workers use."""
    os.environ.setdefault("ANTHROPIC_API_KEY", "none")
    os.environ.setdefault("OPENAI_API_KEY", "none")
    transports: tuple[Literal["aiohttp", "httpx"], ...] = ("aiohttp", "httpx")
    return [
        measure(kind, transport, calls, in_flight, mean)
        for kind in ("anthropic", "openai")
        for transport in transports
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--mean", type=float, default=1.0)
    arguments = parser.parse_args()
    show(rows(arguments.calls, arguments.in_flight, arguments.mean))


if __name__ == "__main__":
    main()

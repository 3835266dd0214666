"""How much the steps of attempts take on the server and home: real server, real script, made-up steps of an agent.

    python -m bench.steps [ATTEMPTS]

An attempt has about 50 kB of steps: an answer and a tool call a step, whose result is a piece of a program's source or
of made-up prose, as agents read them. The run keeps 256 MB of them, compressed; what is beyond is left out whole.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.rows import Row, show
from bench.server_memory import Words
from judges.trajectory import Trajectory
from producer import server as servers
from workers.models.steps import Trace
from workers.store.keys import WORKING_SECONDS, Keys, script
from workers.store.redis_client import connect_insisting
from workers.store.run_store import pack_steps

CHARACTERS = 50_000
MOST_MB = 256


def made_steps(prose: str, sources: list[str], chance: random.Random) -> Trajectory:
    """An agent's attempt of about so many characters."""

    def words(characters: int) -> str:
        begin = chance.randrange(len(prose) - characters)
        return prose[begin : begin + characters]

    trace = Trace()
    trace.observed = True
    trace.step("user", words(500))
    size, number = 0, 0
    while size < CHARACTERS:
        number += 1
        text, source = words(300), chance.choice(sources)
        begin = chance.randrange(max(1, len(source) - 3000))
        result = source[begin : begin + 3000] if chance.random() < 0.7 else words(3000)
        step = trace.step("agent", text, model="claude-sonnet-4-5", stop_reason="tool_use")
        trace.call(step, f"toolu_{number}", "Read", {"file_path": f"/workspace/{words(20)}.py"})
        trace.result(f"toolu_{number}", result, failed=False)
        size += len(text) + len(result)
    made = trace.trajectory()
    assert made is not None
    return made


async def measure(attempts: int, sources: list[str]) -> list[Row]:
    prose, chance = Words().text(2_000_000), random.Random(1)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        servers.serving(Path(name) / "server") as private,
    ):
        client = connect_insisting(private.url)
        keep, keys = client.register_script(script("keep_steps")), Keys("bench")
        await client.hset(keys.state, "generation", 0)
        before = int((await client.info("memory"))["used_memory"])
        raw, packed, kept, seconds = 0, 0, 0, 0.0
        for _ in range(attempts):
            made = made_steps(prose, sources, chance)
            begun = time.process_time()
            digest, data = pack_steps(made)
            seconds += time.process_time() - begun
            raw += len(made.model_dump_json())
            packed += len(data)
            values: list[Any] = [MOST_MB * 1_000_000, digest, data, WORKING_SECONDS, "", b""]
            kept += await keep(keys=[keys.state, keys.steps], args=values)
        used = (int((await client.info("memory"))["used_memory"]) - before) / 1e6
        await client.aclose()
    return [
        Row(
            f"steps of {attempts:,} attempts on the server", used, "MB", MOST_MB * 1.1, note=f"{kept:,} kept"
        ),
        Row("bytes of an attempt's steps", raw / attempts / 1000, "kB"),
        Row("the same, compressed", packed / attempts / 1000, "kB"),
        Row("time to pack an attempt's steps", 1000 * seconds / attempts, "ms"),
    ]


if __name__ == "__main__":
    read = [path.read_text("utf-8") for path in sorted(Path("workers").rglob("*.py"))]
    show(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, read)))

"""What distance costs: the same runs with producer and worker at 0, 25 and 100 ms round trip from their server.

    python -m bench.distance [--quick]

A proxy of our own holds every packet back for half a round trip in each direction. Times are counted from the moment
the run is submitted to its last record; another run was there before, so that everything is connected.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.engine import run
from bench.rows import Row, show

MOST_BYTES = 1 << 20


async def _hold_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Pass everything on so many seconds after it came, in order."""
    loop, due = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def pass_on() -> None:
        while True:
            when, data = await due.get()
            await asyncio.sleep(when - loop.time())
            if not data:
                break
            writer.write(data)
        writer.close()

    passing = asyncio.create_task(pass_on())
    data = b"-"
    while data:
        try:
            data = await reader.read(MOST_BYTES)
        except ConnectionError:
            data = b""
        due.put_nowait((loop.time() + seconds, data))
    await passing


async def serve(near: Path, far: Path, seconds: float) -> None:
    """Listen on the socket `near` for the server at `far`, which is `seconds` away, there and back."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(far)
        except OSError:  # nobody listens: whoever connects is told at once
            writer.close()
            return
        await asyncio.gather(
            _hold_back(reader, server_writer, seconds / 2), _hold_back(server_reader, writer, seconds / 2)
        )

    async with await asyncio.start_unix_server(connected, near) as server:
        await server.serve_forever()


def _proxy(near: Path, far: Path, seconds: float) -> None:
    asyncio.run(serve(near, far, seconds))


@contextmanager
def away(url: str, milliseconds: float) -> Iterator[str]:
    """The address of a proxy before the server at `url`, a unix socket."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        near = Path(folder) / "near.sock"
        arguments = (near, Path(url.removeprefix("unix://")), milliseconds / 1000)
        process = multiprocessing.get_context("spawn").Process(target=_proxy, args=arguments, daemon=True)
        process.start()
        try:
            while not near.exists():
                process.join(0.02)
            yield f"unix://{near}"
        finally:
            process.kill()
            process.join()


def rows(*, quick: bool = False, rounds: int = 3) -> list[Row]:
    """The bars: at 25 ms within 1.3 times of what 0 ms takes, at 100 ms within twice that; medians of a few rounds."""
    found = []
    for tasks, in_flight in ((100, 100),) if quick else ((100, 100), (1000, 200)):
        times: dict[int, list[float]] = {0: [], 25: [], 100: []}
        for _ in range(1 if quick else rounds):
            for milliseconds, seconds in times.items():
                through = partial(away, milliseconds=milliseconds)
                seconds.append(run(tasks, 1, "sim:latency=1", in_flight=in_flight, away=through).ran_seconds)
        near, *far = (statistics.median(seconds) for seconds in times.values())
        for milliseconds, bar, seconds in zip((25, 100), (1.3, 2.0), far, strict=True):
            what = f"{2 * tasks} attempts of 1 s, {in_flight} in flight, {milliseconds} ms away"
            found.append(
                Row(what, seconds / near, "times", bar, note=f"{seconds:.1f} s; {near:.1f} s at 0 ms")
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller run, once")
    show(rows(quick=parser.parse_args().quick))


if __name__ == "__main__":
    main()

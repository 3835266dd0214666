"""A local stand-in for model providers, so that clients can be tried without a network, a key or a bill.

It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, and does as its script says:
answer late, slowly, never, with errors, with Retry-After, or with a hundred megabytes. It keeps what it was asked.

    python examples/stand_in/server.py --port 8080 --latency 1 --spread exp
    ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=any uplift evaluate --model anthropic:any …

`POST /_script` with a JSON list of replies (see protocols.Reply) sets what comes next: each is used once, the
last one for ever. `GET /_requests` lists what was asked. `POST /_forget` empties that list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

try:
    from stand_in.protocols import Reply, body_of
except ImportError:  # run as a script, where this folder itself is on the path
    from protocols import Reply, body_of  # type: ignore[no-redef,import-not-found] # the same module

_DRIP_BYTES = 16
_CHUNK = 64 * 1024


@dataclass
class Asked:
    """One request as it came in, and how many bytes of answer had left before the client hung up.

    `at` and `answered` are seconds of this process's clock: when it came, and when its answer began to leave.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    sent_bytes: int = 0
    finished: bool = False
    at: float = field(default_factory=time.monotonic)
    answered: float | None = None


Answer = Callable[[Asked], Reply]


@dataclass
class StandIn:
    """The server: `url` once started, `asked` grows with every request, `answer` decides what it does."""

    answer: Answer = lambda asked: Reply()
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=2**20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the door, then every conversation that is still going on."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def all_gone(self) -> None:
        """Wait until every client has hung up."""
        await asyncio.gather(*self._open)

    def script(self, *replies: Reply) -> None:
        """Use each reply once, and the last one for ever."""
        self.answer = scripted(replies)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False when the connection is at its end."""
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = await _headers(reader)
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        path = path.partition("?")[0]
        if path.startswith("/_"):
            await self._control(path, data, writer)
            return True
        if method != "POST":
            # Whoever asks for a websocket is told to do without.
            await _send(writer, 426 if "upgrade" in headers else 200, {}, b"")
            return True
        asked = Asked(path, headers, json.loads(data or b"{}"))
        self.asked.append(asked)
        return await self._reply(asked, self.answer(asked), reader, writer)

    async def _reply(
        self, asked: Asked, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if reply.hang:
            await reader.read()
            return False
        if reply.latency:
            exponential = reply.spread == "exp"
            await asyncio.sleep(self._random.expovariate(1 / reply.latency) if exponential else reply.latency)
        if reply.drop:
            return False
        kind, body = body_of(asked.path, asked.body, reply)
        asked.answered = time.monotonic()
        headers = {"content-type": kind, "request-id": "req_1"}
        if reply.retry_after is not None:
            headers["retry-after"] = reply.retry_after
        padding = max(0, reply.pad_bytes - len(reply.text.encode()))
        await _send(writer, reply.status, headers, b"", length=len(body) + padding)
        await self._body(asked, reply, body, padding, writer)
        asked.finished = True
        return True

    async def _body(
        self, asked: Asked, reply: Reply, body: bytes, padding: int, writer: asyncio.StreamWriter
    ) -> None:
        """Send a body a little at a time where it drips, and its padding inside the text."""
        text = reply.text.encode()
        at = body.index(text) + len(text) if padding and text in body else len(body)
        step = _DRIP_BYTES if reply.drip else _CHUNK
        pieces = [body[i : min(i + step, at)] for i in range(0, at, step)]
        for piece in pieces:
            await _write(asked, writer, piece)
            if reply.drip:
                await asyncio.sleep(reply.drip)
        for start in range(0, padding, _CHUNK):
            await _write(asked, writer, b"x" * min(_CHUNK, padding - start))
        if padding:
            await _write(asked, writer, body[at:])

    async def _control(self, path: str, data: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/_script":
            self.script(*(Reply(**one) for one in json.loads(data)))
        if path == "/_forget":
            self.asked.clear()
        body = json.dumps([asdict(one) for one in self.asked] if path == "/_requests" else {}).encode()
        await _send(writer, 200, {"content-type": "application/json"}, body)


def scripted(replies: Sequence[Reply]) -> Answer:
    """An answer that uses each reply once, and the last one for ever; token counts are given at once."""
    left = list(replies)

    def answer(asked: Asked) -> Reply:
        if asked.path.endswith("/count_tokens"):
            return Reply()
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers


async def _send(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes, length: int | None = None
) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    await writer.drain()


async def _write(asked: Asked, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
    asked.sent_bytes += len(data)


async def _serve(port: int, replies: list[Reply]) -> None:
    stand_in = StandIn(answer=scripted(replies))
    await stand_in.start(port)
    print(stand_in.url, flush=True)  # noqa: T201 # the address is this program's result
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A local stand-in for model providers.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints the address")
    parser.add_argument("--latency", type=float, default=0.0, help="mean seconds to an answer")
    parser.add_argument("--spread", choices=["fixed", "exp"], default="fixed")
    parser.add_argument("--text", default=Reply.text, help="what to answer")
    parser.add_argument("--script", type=Path, help="a JSON file with a list of replies")
    arguments = parser.parse_args()
    replies = [Reply(text=arguments.text, latency=arguments.latency, spread=arguments.spread)]
    if arguments.script:
        replies = [Reply(**one) for one in json.loads(arguments.script.read_text("utf-8"))]
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments.port, replies))


if __name__ == "__main__":
    main()

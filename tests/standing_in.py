"""The stand-in for model providers, as tests use it: started on a free port and stopped at the end; and for time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from stand_in.protocols import Reply
from stand_in.server import Answer, Asked, StandIn

__all__ = ["Answer", "Asked", "Clock", "Provider", "Reply", "StandIn", "provider_process", "standing_in"]

SERVER = Path(__file__).parent.parent / "examples" / "stand_in" / "server.py"


@asynccontextmanager
async def standing_in(*replies: Reply) -> AsyncIterator[StandIn]:
    """A running stand-in that uses each reply once, and the last one for ever."""
    stand_in = StandIn()
    stand_in.script(*(replies or (Reply(),)))
    await stand_in.start()
    try:
        yield stand_in
    finally:
        await stand_in.stop()


@dataclass(frozen=True)
class Provider:
    """A stand-in in a process of its own, as workers see a vendor."""

    url: str

    def script(self, *replies: dict[str, Any]) -> None:
        self._ask("/_script", json.dumps(replies).encode())

    def forget(self) -> None:
        self._ask("/_forget", b"[]")

    def asked(self) -> list[dict[str, Any]]:
        return [one for one in self._ask("/_requests") if "count_tokens" not in one["path"]]

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, body) as answer:
            return json.load(answer)


@contextmanager
def provider_process() -> Iterator[Provider]:
    """A provider for as long as the block runs."""
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Provider(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


class Clock:
    """Time that passes only while somebody sleeps; waiters of several workers may share it."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)

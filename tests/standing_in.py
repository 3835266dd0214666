"""The stand-in for model providers, as tests use it: started on a free port and stopped at the end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from stand_in.protocols import Reply
from stand_in.server import Answer, Asked, StandIn

__all__ = ["Answer", "Asked", "Reply", "StandIn", "standing_in"]


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

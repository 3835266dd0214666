"""Tell a container's engine whether its worker makes progress: `python -m workers.process.health`, exit code 0 or 1."""

from __future__ import annotations

import socket
import sys
from typing import Any

import redis

from workers.store.process_settings import from_environment
from workers.store.redis_client import SEEN_SECONDS, connect, workers

# An attempt may take an hour to answer and an hour to be judged, and may wait for its pace before.
LONGEST_STALL_SECONDS = 3 * 3600


def trouble(beats: list[dict[str, Any]], host: str) -> str | None:
    """What is wrong with the workers of a host by their heartbeats; a process that is up may still do nothing."""
    stalls = [beat.get("stalled", 0) for beat in beats if str(beat.get("name")).rpartition(":")[0] == host]
    if not stalls:
        return f"the broker has not heard of this worker for {SEEN_SECONDS} seconds"
    if max(stalls) > LONGEST_STALL_SECONDS:
        return f"attempts are under way, and none has ended for {max(stalls):.0f} seconds"
    return None


if __name__ == "__main__":
    try:
        client = connect(from_environment().broker, timeout_seconds=5, retries=0)
        sys.exit(trouble(workers(client), socket.gethostname()))  # a text is printed, and means 1
    except redis.RedisError as problem:
        sys.exit(f"the broker does not answer ({type(problem).__name__})")

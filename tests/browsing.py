"""Ask a server on this machine for pages, with or without a login."""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import time
import urllib.error
import urllib.request

# A proxy that this machine may have is no way to reach a loopback address.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A port that nobody listens on right now, of those that no outgoing connection takes meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("none of a hundred ports is free")


def ask(url: str, login: str | None = None, *, data: bytes | None = None) -> tuple[int, str]:
    """Status and body; `login` is `user:password`, `data` makes it a POST. Status 0: nobody listens (yet)."""
    request = urllib.request.Request(url, data=data)
    if login is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with _OPENER.open(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except urllib.error.URLError:
        return 0, ""


def await_heard_worker(address: str, login: str, seconds: float = 60) -> None:
    """Wait until the monitor has heard a worker: what workers told before that, nobody listened to."""
    deadline = time.monotonic() + seconds
    while '"status": true' not in ask(f"{address}/workers?json=1", login)[1]:
        assert time.monotonic() < deadline, "the monitor hears no worker"
        time.sleep(0.1)

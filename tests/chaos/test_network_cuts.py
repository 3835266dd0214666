"""A network that swallows everything for a while, on loopback: a proxy between the workers and the server."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from .checker import check
from .stage import SHORT, Stage, a_folder, remove

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Proxy:
    """Forwards bytes between clients and a server; while it is `cut`, they vanish and nobody is told."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = threading.Event()
        self._over = threading.Event()
        self._dead: set[socket.socket] = set()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for one in (self._listener, *self._pairs):
            one.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in ready.select(0.1):
                    if key.fileobj is self._listener:
                        self._accept(ready)
                    elif isinstance(key.fileobj, socket.socket):
                        self._forward(ready, key.fileobj)

    def _accept(self, ready: selectors.BaseSelector) -> None:
        ours, _ = self._listener.accept()
        theirs = socket.create_connection(("127.0.0.1", self._target))
        self._pairs |= {ours: theirs, theirs: ours}
        for one in (ours, theirs):
            ready.register(one, selectors.EVENT_READ)

    def _forward(self, ready: selectors.BaseSelector, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        other = self._pairs.get(source)
        if self.cut.is_set():
            # What is lost on the way is lost for good: a connection that was cut never delivers again.
            self._dead |= {source, *([other] if other else [])}
        if not data or other is None:
            ready.unregister(source)
        elif source not in self._dead:
            with suppress(OSError):
                other.sendall(data)


@contextmanager
def a_stage_behind_a_proxy() -> Iterator[tuple[Stage, Proxy]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    stage = Stage(
        a_folder(),
        replace(SHORT, tasks=8, pass_k=1, ends_within=200),
        "sim:latency=0.4,cost=0.01",
        server_options=("--port", str(port), "--bind", "127.0.0.1"),
    )
    proxy = Proxy(port)
    try:
        yield stage, proxy
    finally:
        stage.close()
        proxy.close()
        remove(stage.folder)


def test_workers_whose_connections_die_silently_find_their_way_back(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long", default=False):
        pytest.skip("takes more than a minute: silence must be noticed; runs with --long")
    with a_stage_behind_a_proxy() as (stage, proxy):
        direct, stage.url = stage.url, f"redis://127.0.0.1:{proxy.port}/0"
        stage.start_worker()
        stage.start_worker()
        stage.url = direct
        stage.evaluate()
        assert stage.until(lambda: stage.recorded() > 2, 60)
        proxy.cut.set()
        stage.until(lambda: False, 3 * stage.pace.lease)
        proxy.cut.clear()
        assert stage.await_end() in (0, 1), stage.story()
        assert check(stage, None) == []

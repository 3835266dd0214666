"""A small web server with one page, /metrics, for Prometheus; whoever lacks the token is told nothing.

It answers a few scrapers at once and gives each a few seconds, so that a stranger can hold up a scrape but not the
worker. It speaks HTTP without TLS: over a network, put a proxy or a tunnel in front.
"""

from __future__ import annotations

import hmac
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.metrics import Collector, Endpoint

MOST_AT_ONCE = 8
PATIENCE_SECONDS = 5


class CannotServe(Exception):
    """The address or port cannot be used, for the reason given."""


class MetricsServer:
    """Serves from the moment it is made, in threads of its own, until it is closed."""

    def __init__(self, where: Endpoint, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = _Server(where, registry)
        except (OSError, OverflowError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise CannotServe(f"cannot serve metrics on {where.address}, port {where.port}: {why}") from None
        port = self._server.server_address[1]
        host = f"[{where.address}]" if ":" in where.address else where.address
        self.url = f"http://{host}:{port}/metrics"
        threading.Thread(target=self._server.serve_forever, name="uplift-metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, where: Endpoint, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        self.registry = registry
        self.token = where.token
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((where.address, where.port), _Page)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a scraper that hangs up is nothing to report
            super().handle_error(request, client_address)


class _Page(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_SECONDS
    server_version = "uplift"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_admitted():
            self._answer(401, b"show the bearer token\n", ("WWW-Authenticate", 'Bearer realm="uplift"'))
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"there is only /metrics\n")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.server.registry), ("Content-Type", kind))

    def _is_admitted(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").strip().partition(" ")
        # The header is what latin-1 made of its bytes; any of them can be compared, none can raise.
        told = given.strip().encode("latin-1", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(told, self.server.token.encode())

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is nothing to report."""

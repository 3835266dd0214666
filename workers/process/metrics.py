"""Serve a worker process's numbers to Prometheus on /metrics, read from its tally at the moment of a scrape.

This module, and prometheus_client with it, is imported only when UPLIFT_METRICS_PORT is set: an attempt costs the same
with it and without it. Labels are models, outcomes, judges and lanes; never a task, a prompt or a run.

Whoever lacks the token is told nothing. A few scrapers are answered at once, each for a few seconds, so that a stranger
can hold up a scrape but not the worker. It speaks HTTP without TLS: over a network, put a proxy or a tunnel in front.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import redis
from celery import bootsteps
from prometheus_client import CollectorRegistry, Metric, MetricsHandler, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.utils import floatToGoString

from aggregate.text.formats import plain
from workers.process.heartbeat import BOUNDS, Histogram
from workers.process.logs import tell
from workers.store.keys import FINISH, LANES, QUARANTINE, UNACKED, is_loopback, waiting_keys
from workers.store.redis_client import connect

if TYPE_CHECKING:
    from workers.process.engine import Engine

PORT, ADDRESS, TOKEN = "UPLIFT_METRICS_PORT", "UPLIFT_METRICS_ADDRESS", "UPLIFT_METRICS_TOKEN"
LONGEST_LABEL = 80
MOST_AT_ONCE = 8
PATIENCE_SECONDS = 5


class InvalidMetrics(ValueError):
    """The metrics cannot be served as they are asked for, for the reason given."""


@dataclass(frozen=True)
class Endpoint:
    """Where to serve metrics, and the bearer token that a scraper must show; None lets anybody on this machine read."""

    port: int
    address: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise InvalidMetrics(f"{TOKEN} is empty or not all printable ASCII characters")
        if self.token is None and not is_loopback(self.address):
            raise InvalidMetrics(f"metrics on {self.address} could be read by strangers; set {TOKEN}")


def endpoint(environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """What the environment asks for; None when it asks for nothing. Raises InvalidMetrics."""
    port = environment.get(PORT)
    if not port:
        return None
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidMetrics(f"{PORT} is {port!r}; give a port from 1 to 65535, or 0 for any that is free")
    return Endpoint(int(port), environment.get(ADDRESS) or "127.0.0.1", environment.get(TOKEN))


class Metrics(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Serves the metrics of a worker process for as long as it lives."""

    requires = ("celery.worker.components:Pool",)
    obj: Any

    def create(self, worker: Any) -> Any:
        """Made before the worker starts, because Celery keeps an exit code from here and loses one from later."""
        engine: Engine = worker.app.engine
        try:
            where = endpoint()
            assert where is not None
            client = connect(engine.settings.broker, timeout_seconds=2, retries=0)
            server = MetricsServer(where, Collector(engine, client))
        except InvalidMetrics as problem:
            tell(str(problem))
            raise SystemExit(3) from None
        tell(f"metrics are on {server.url}")
        return server

    def start(self, worker: Any) -> None:
        """It serves already."""

    def stop(self, worker: Any) -> None:
        if self.obj is not None:
            self.obj.shutdown()
            self.obj.server_close()
            self.obj = None

    terminate = stop


class Collector:
    """Turns a process's numbers into metric families, one scrape at a time."""

    def __init__(self, engine: Engine, client: redis.Redis) -> None:
        self._engine = engine
        self._client = client

    def collect(self) -> Iterator[Metric]:
        engine, tally = self._engine, self._engine.tally
        about = {"worker": engine.name, "version": version("skill-uplift")}
        yield InfoMetricFamily("uplift_worker", "This worker process", about)
        yield _counters("uplift_attempts", "Attempts that have ended", tally.attempts, "model", "outcome")
        yield _counters("uplift_retries", "Calls repeated because the model was busy", tally.retries, "model")
        yield _counters("uplift_spend_usd", "What attempts have cost", tally.spent, "model")
        words = "Attempts with a call of unknown cost"
        yield _counters("uplift_unpriced_attempts", words, tally.unpriced, "model")
        words = "Attempts that did not count, because another delivery or a later try did"
        yield CounterMetricFamily("uplift_wasted_attempts", words, tally.wasted_attempts)
        words = "What repeated and late deliveries have cost"
        yield CounterMetricFamily("uplift_wasted_usd", words, tally.wasted_usd)
        words = "From asking a model to its answer, waits for retries included"
        yield _histograms("uplift_model_seconds", words, tally.model_seconds, "model")
        yield _histograms("uplift_judge_seconds", "Judging an answer", tally.judge_seconds, "judge")
        yield GaugeMetricFamily("uplift_in_flight", "Model calls under way", engine.in_flight)
        slots = engine.settings.in_flight + engine.settings.agent_in_flight
        yield GaugeMetricFamily("uplift_slots", "Model calls that may be under way", slots)
        yield _gauges("uplift_claims_held", "Attempts claimed and not yet stored", self._claims(), "model")
        yield from self._broker()

    def _claims(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for run in self._engine.runs.known():
            models = run.manifest.models
            held.update(models[run.grid.cell(index).model] for index in list(run.claims.held))
        return held

    def _broker(self) -> Iterator[Metric]:
        """Queues are the server's, so every worker says the same of them; without a server there is nothing to say."""
        lanes = (*LANES, QUARANTINE, FINISH)
        pipe = self._client.pipeline(transaction=False)
        for lane in lanes:
            for key in waiting_keys(lane):
                pipe.llen(key)
        pipe.hlen(UNACKED)
        try:
            *lengths, taken = pipe.execute()
        except redis.RedisError:
            lengths = []
        yield GaugeMetricFamily("uplift_broker_up", "Whether the broker answers this worker", bool(lengths))
        if lengths:
            each = len(lengths) // len(lanes)
            waiting = {lane: sum(lengths[at * each : (at + 1) * each]) for at, lane in enumerate(lanes)}
            yield _gauges("uplift_queue_length", "Batches that wait, of all workers", waiting, "lane")
            words = "Batches that a worker has taken and not finished, of all workers"
            yield GaugeMetricFamily("uplift_batches_taken", words, taken)


def label(name: str) -> str:
    """A name from a run, fit for a label; a long one is cut and told apart by its digest."""
    text = plain(name, LONGEST_LABEL)
    return (
        text if text == name else f"{text} {hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


def _labelled(
    family_type: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    words: str,
    values: Mapping[Any, float],
    *labels: str,
) -> Metric:
    """A family with a value for each key of `values`, which names the labels' values: a text, or one for each label."""
    family = family_type(name, words, labels=labels)
    for key, value in dict(values).items():
        family.add_metric([label(part) for part in ([key] if isinstance(key, str) else key)], value)
    return family


_counters = partial(_labelled, CounterMetricFamily)
_gauges = partial(_labelled, GaugeMetricFamily)


def _histograms(name: str, words: str, values: Mapping[str, Histogram], kind: str) -> Metric:
    family = HistogramMetricFamily(name, words, labels=[kind])
    bounds = [*map(floatToGoString, BOUNDS), "+Inf"]
    for key, histogram in dict(values).items():
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([label(key)], buckets, histogram.sum)
    return family


class MetricsServer(ThreadingHTTPServer):
    """Serves from the moment it is made, in threads of its own, until it is closed."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, where: Endpoint, collector: Collector) -> None:
        self.address_family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        self.token = where.token
        self.registry = CollectorRegistry()
        self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        try:
            super().__init__((where.address, where.port), _Page)
        except (OSError, OverflowError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise InvalidMetrics(
                f"cannot serve metrics on {where.address}, port {where.port}: {why}"
            ) from None
        host = f"[{where.address}]" if ":" in where.address else where.address
        self.url = f"http://{host}:{self.server_address[1]}/metrics"
        threading.Thread(target=self.serve_forever, name="uplift-metrics", daemon=True).start()

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


class _Page(MetricsHandler):
    server: MetricsServer
    timeout = PATIENCE_SECONDS
    server_version = "uplift"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_admitted():
            self._refuse(401, "show the bearer token\n", ("WWW-Authenticate", 'Bearer realm="uplift"'))
        elif self.path.partition("?")[0] != "/metrics":
            self._refuse(404, "there is only /metrics\n")
        else:
            self.registry = self.server.registry
            super().do_GET()

    def _is_admitted(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").strip().partition(" ")
        # The header is what latin-1 made of its bytes; any of them can be compared, none can raise.
        token = given.strip().encode("latin-1", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(token, self.server.token.encode())

    def _refuse(self, status: int, words: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(words)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(words.encode())

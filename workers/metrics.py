"""Numbers of a worker process for Prometheus, read from its tally at the moment of a scrape.

Nothing here runs, and prometheus_client is not imported, unless UPLIFT_METRICS_PORT is set: an attempt costs the same
with it and without it. Labels are models, outcomes, judges and lanes; never a task, a prompt or a run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import redis
from celery import bootsteps

from aggregate.plain_text import plain
from workers.publish import waiting_keys
from workers.server import connect
from workers.settings import FINISH, LANES, QUARANTINE, from_environment, is_loopback
from workers.tally import BOUNDS, Histogram
from workers.tasks import engine

if TYPE_CHECKING:
    from prometheus_client import Metric

    from workers.engine import Engine

PORT, ADDRESS, TOKEN = "UPLIFT_METRICS_PORT", "UPLIFT_METRICS_ADDRESS", "UPLIFT_METRICS_TOKEN"
LONGEST_LABEL = 80


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
    """Serves the metrics of a worker process for as long as it lives, if the environment asks for that."""

    requires = ("celery.worker.components:Pool",)
    obj: Any

    def include_if(self, worker: Any) -> bool:
        return bool(os.environ.get(PORT))

    def create(self, worker: Any) -> Any:
        """Made before the worker starts, because Celery keeps an exit code from here and loses one from later."""
        from workers.metrics_server import CannotServe, MetricsServer

        settings = from_environment()
        stream = sys.__stderr__ or sys.stderr  # the other one is Celery's log by now
        try:
            where = endpoint()
            assert where is not None
            client = connect(settings.broker, timeout_seconds=2, retries=0)
            server = MetricsServer(where, Collector(engine(settings), client))
        except (InvalidMetrics, CannotServe) as problem:
            stream.write(f"uplift: {problem}\n")
            raise SystemExit(3) from None
        stream.write(f"uplift: metrics are on {server.url}\n")
        stream.flush()
        return server

    def start(self, worker: Any) -> None:
        """It serves already."""

    def stop(self, worker: Any) -> None:
        if self.obj is not None:
            self.obj.close()
            self.obj = None

    terminate = stop


class Collector:
    """Turns a process's numbers into metric families, one scrape at a time."""

    def __init__(self, ours: Engine, client: redis.Redis) -> None:
        self._engine = ours
        self._client = client

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        about = {"worker": self._engine.name, "version": version("skill-uplift")}
        yield InfoMetricFamily("uplift_worker", "This worker process", about)
        yield from self._attempts()
        yield from self._time()
        yield GaugeMetricFamily("uplift_in_flight", "Model calls under way", self._engine.in_flight)
        yield GaugeMetricFamily("uplift_slots", "Model calls that may be under way", self._slots())
        yield _gauges("uplift_claims_held", "Attempts claimed and not yet stored", "model", self._claims())
        yield from self._broker()

    def _attempts(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        tally = self._engine.tally
        ended = CounterMetricFamily(
            "uplift_attempts", "Attempts that have ended", labels=["model", "outcome"]
        )
        for (model, outcome), count in dict(tally.attempts).items():
            ended.add_metric([label(model), outcome], count)
        yield ended
        yield _counters("uplift_retries", "Calls repeated because the model was busy", dict(tally.retries))
        yield _counters("uplift_spend_usd", "What attempts have cost", dict(tally.spent))
        words = "Attempts with an answer of unknown cost"
        yield _counters("uplift_unpriced_attempts", words, dict(tally.unpriced))
        words = "Attempts that did not count, because another delivery or a later try did"
        yield CounterMetricFamily("uplift_wasted_attempts", words, tally.wasted_attempts)
        words = "What repeated and late deliveries have cost"
        yield CounterMetricFamily("uplift_wasted_usd", words, tally.wasted_usd)

    def _time(self) -> Iterator[Metric]:
        tally = self._engine.tally
        words = "From asking a model to its answer, waits for retries included"
        yield _histograms("uplift_model_seconds", words, "model", dict(tally.model_seconds))
        yield _histograms("uplift_judge_seconds", "Judging an answer", "judge", dict(tally.judge_seconds))

    def _slots(self) -> int:
        return self._engine.settings.in_flight + self._engine.settings.agent_in_flight

    def _claims(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for run in self._engine.runs.known():
            models = run.manifest.models
            held.update(models[run.grid.cell(index).model] for index in list(run.claims.held))
        return held

    def _broker(self) -> Iterator[Metric]:
        """Queues are the server's, so every worker says the same of them; without a server there is nothing to say."""
        from prometheus_client.core import GaugeMetricFamily

        lanes = (*LANES, QUARANTINE, FINISH)
        pipe = self._client.pipeline(transaction=False)
        for lane in lanes:
            for key in waiting_keys(lane):
                pipe.llen(key)
        pipe.hlen("unacked")
        up = GaugeMetricFamily("uplift_broker_up", "Whether the broker answers this worker")
        try:
            *lengths, taken = pipe.execute()
        except redis.RedisError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        each = len(lengths) // len(lanes)
        waiting = {lane: sum(lengths[at * each : (at + 1) * each]) for at, lane in enumerate(lanes)}
        yield _gauges("uplift_queue_length", "Batches that wait, of all workers", "lane", waiting)
        words = "Batches that a worker has taken and not finished, of all workers"
        yield GaugeMetricFamily("uplift_batches_taken", words, taken)


def label(name: str) -> str:
    """A name from a run, fit for a label; a long one is cut and told apart by its digest."""
    text = plain(name, LONGEST_LABEL)
    return (
        text if text == name else f"{text} {hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


def _counters(name: str, words: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, words, labels=["model"])
    for model, value in values.items():
        family.add_metric([label(model)], value)
    return family


def _gauges(name: str, words: str, kind: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, words, labels=[kind])
    for key, value in values.items():
        family.add_metric([label(key)], value)
    return family


def _histograms(name: str, words: str, kind: str, values: Mapping[str, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    family = HistogramMetricFamily(name, words, labels=[kind])
    bounds = [*map(floatToGoString, BOUNDS), "+Inf"]
    for key, histogram in values.items():
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([label(key)], buckets, histogram.sum)
    return family

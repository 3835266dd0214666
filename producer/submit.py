"""Bring a planned run to the server: bundles, manifest and tasks first, then one chord of batches."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

import redis
from celery import Celery
from kombu import pools
from kombu.exceptions import OperationalError

from aggregate.records import AttemptRecord
from producer.plan import Plan
from workers.app import build
from workers.finish import finish, grid_of, publish
from workers.publish import waiting_keys
from workers.server import RETRIES, connect
from workers.settings import LANES, Settings, from_environment
from workers.store import Store
from workers.waves import next_end

INSIST_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """A server with runs on it, as a producer sees it."""

    settings: Settings
    store: Store
    app: Celery

    def close(self) -> None:
        """Give back every connection; a program that runs many evaluations must not collect them."""
        held = ((pools.producers, self.app.amqp.producer_pool), (pools.connections, self.app.pool))
        with suppress(redis.RedisError, OperationalError, OSError):  # a server that is gone has closed them
            self.store.client.close()
            self.app.backend.client.connection_pool.disconnect()
            for group, pool in held:
                pool.force_close_all(close_pool=False)  # another run may share it
                for key in [key for key, known in group.items() if known is pool]:
                    dict.__delitem__(group, key)  # kombu keeps them for ever, under keys that it has hashed
        self.app.close()


def open_server(url: str, *, retries: int = RETRIES) -> Server:
    """Connect and look whether a run can be kept there; raises redis errors and UnusableServer."""
    settings = from_environment({**os.environ, "UPLIFT_BROKER": url})
    client = connect(url, retries=retries)
    client.ping()
    return Server(settings, Store(client), build(settings))


def submit(
    server: Server, plan: Plan, cached: dict[int, AttemptRecord], *, baseline_reuse_count: int = 1
) -> None:
    """Create the run and publish what is not in the cache. May be called again for the same plan."""
    store = server.store
    lane = quietest_lane(store)
    for bundle in plan.bundles:
        store.put_bundle(bundle.digest, bundle.data)
    info = plan.info(lane, baseline_reuse_count=baseline_reuse_count)
    store.create(plan.manifest(lane), info, plan.suite.tasks, cached)
    go_on(server, plan.run_id)


def go_on(server: Server, run_id: str, *, insist_seconds: float = INSIST_SECONDS) -> int:
    """Publish everything that has no final record; returns how many attempts.

    A server that goes away meanwhile is waited for, and everything is published anew: half a round that is out
    already costs nothing, because each attempt is claimed before it starts.
    """
    deadline = time.monotonic() + insist_seconds
    while True:
        try:
            return _go_on(server, run_id)
        except (redis.ConnectionError, redis.TimeoutError, OperationalError) as problem:
            if isinstance(problem, redis.AuthenticationError):
                raise
            if time.monotonic() > deadline:
                raise redis.ConnectionError(
                    f"{problem}; go on later with: uplift resume {run_id}"
                ) from problem
            time.sleep(0.5)


def _go_on(server: Server, run_id: str) -> int:
    """Start a new generation and publish everything that has no final record; returns how many attempts.

    Serves a fresh run and a resumed one alike. Where nothing is left to do, the run is finished at once.
    """
    store = server.store
    manifest = store.manifest(run_id)
    grid = grid_of(manifest)
    generation = store.next_generation(run_id)
    end = store.published(run_id) or next_end(manifest, grid, 0)
    store.set_published(run_id, end)
    unfinished = store.begin_round(run_id, generation, 1, store.unfinished(run_id, grid, end))
    if not unfinished:
        finish(server.app, server.settings, run_id, generation, 1)
        return 0
    publish(server.app, store, manifest, generation, 1, unfinished)
    return len(unfinished)


def quietest_lane(store: Store) -> str:
    """The lane with the fewest messages waiting, so that a small run does not stand behind a big one."""
    pipe = store.client.pipeline(transaction=False)
    keys = [waiting_keys(lane) for lane in LANES]
    for key in chain.from_iterable(keys):
        pipe.llen(key)
    lengths = iter(pipe.execute())
    waiting = [sum(islice(lengths, len(lane))) for lane in keys]
    # Equal lanes are told apart by how many runs there are, so that runs that start together spread out.
    turn = int(store.client.incr("uplift:turn")) % len(LANES)
    order = [*range(turn, len(LANES)), *range(turn)]
    quietest: int = min(order, key=waiting.__getitem__)
    return LANES[quietest]

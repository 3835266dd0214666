"""Bring a planned run to the server: bundles, manifest and tasks first, then one chord of batches."""

from __future__ import annotations

from dataclasses import dataclass

from celery import Celery

from aggregate.records import AttemptRecord
from producer.plan import Plan
from workers.app import build
from workers.finish import finish, grid_of, publish
from workers.server import connect
from workers.settings import LANES, Settings
from workers.store import Store
from workers.waves import next_end


@dataclass(frozen=True)
class Server:
    """A server with runs on it, as a producer sees it."""

    settings: Settings
    store: Store
    app: Celery


def open_server(url: str) -> Server:
    """Connect and look whether a run can be kept there; raises redis errors and UnusableServer."""
    settings = Settings(broker=url)
    client = connect(url)
    client.ping()
    return Server(settings, Store(client), build(settings))


def submit(
    server: Server, plan: Plan, cached: dict[int, AttemptRecord], *, baseline_reuse_count: int = 1
) -> None:
    """Create the run and publish what is not in the cache. May be called again for the same plan."""
    store = server.store
    lane = quietest_lane(store)
    for bundle in (plan.fixtures, *(arm.bundle for arm in plan.arms)):
        if bundle is not None:
            store.put_bundle(bundle.digest, bundle.data)
    info = plan.info(lane, baseline_reuse_count=baseline_reuse_count)
    store.create(plan.manifest(lane), info, plan.suite.tasks, cached)
    go_on(server, plan.run_id)


def go_on(server: Server, run_id: str) -> int:
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
    for lane in LANES:
        pipe.llen(lane)
    waiting: list[int] = pipe.execute()
    # Equal lanes are told apart by how many runs there are, so that runs that start together spread out.
    turn = int(store.client.incr("uplift:turn")) % len(LANES)
    order = [*range(turn, len(LANES)), *range(turn)]
    quietest: int = min(order, key=waiting.__getitem__)
    return LANES[quietest]

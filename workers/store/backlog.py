"""Count what there is to do on a server: the one number by which workers are started and stopped."""

from __future__ import annotations

import redis

from workers.store.keys import PROTOCOL
from workers.store.messages import Manifest
from workers.store.redis_client import workers
from workers.store.run_store import Look, OtherVersion, Store, UnknownRun


def backlog(client: redis.Redis) -> dict[str, int]:
    """Attempts that wait, attempts under way, runs of which only the end is missing, their `total`, and workers alive.

    Runs that are paused, or that workers of this version cannot serve, are not counted.
    """
    store, waiting, under_way, finishing = Store(client), 0, 0, 0
    for run_id, look in store.open_runs().items():
        try:
            left = _waiting(store, store.manifest(run_id), look)
        except (UnknownRun, OtherVersion):  # deleted meanwhile, or another version's
            continue
        except (ValueError, redis.ResponseError) as problem:
            store.leave_out(run_id, problem)
            continue
        if look.protocol == PROTOCOL:
            waiting += left
            under_way += look.in_flight
            finishing += not (left or look.in_flight)
    counts = {"waiting": waiting, "under_way": under_way, "finishing": finishing}
    return {"total": sum(counts.values()), **counts, "workers": len(workers(client))}


def _waiting(store: Store, manifest: Manifest, look: Look) -> int:
    """Attempts that were sent, have no record and are not under way."""
    if look.halt or look.sealed:
        return 0
    # Later rounds have errors to replace, and records from a cache may lie beyond what was sent.
    exact = look.round > 1 or look.published < manifest.grid.attempts
    left = len(store.missing(manifest, look)) if exact else look.published - look.recorded
    return max(0, left - look.in_flight)

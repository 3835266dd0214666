"""How much of the server's memory a run takes, found out before anything of it is there."""

from __future__ import annotations

from judges.errors import INFRASTRUCTURE, UpliftError
from producer.baselines.cache import Reuse
from producer.plan import Plan
from workers.store import keys, redis_client
from workers.store.run_store import Store, pack, pack_task

# Bytes, measured with `python -m bench.server_memory`; docs/scaling.md has its table.
ENTRY = 64  # what the server needs for a task or a record beside its text
SMALLEST_RECORD = 400  # with an answer of a few words
TYPICAL_RECORD = 900  # with an answer of 1 kB
MESSAGE = 120  # an attempt's share of its batch
FIXED = 700_000  # manifest, scripts, connections of a few workers


class DoesNotFit(UpliftError):
    """The server has less memory left than the run needs at least."""

    exit_code = INFRASTRUCTURE


def check(store: Store, plan: Plan, reuse: Reuse) -> str | None:
    """What to say of a run that may not fit into the server's maxmemory; raises DoesNotFit for one that cannot.

    New records are taken to be as large as those that are there already: from a cache, a blessed baseline or a
    recording. What agents leave in their folders is not foreseen.
    """
    memory = redis_client.memory(store.client)
    if memory is None or store.client.exists(keys.Keys(plan.run_id).state):
        return None
    used, most = memory
    reused = [len(pack(record)) + ENTRY for record in reuse.cached.values()]
    recorded = [len(pack(record)) + ENTRY for _, record in plan.placed(plan.recorded)]
    tasks = sum(len(pack_task(task)) + ENTRY for task in plan.suite.tasks)
    bundles = sum(
        len(data)
        for digest, data in {bundle.digest: bundle.data for bundle in plan.bundles}.items()
        if not store.client.exists(keys.bundle(digest))
    )
    known = tasks + bundles + sum(reused) + sum(recorded)
    new, options, seen = plan.grid.attempts - len(reused), plan.options, reused + recorded
    certain = 0 if options.stop_early or options.budget_usd is not None else new
    least = known + certain * SMALLEST_RECORD
    each = max(SMALLEST_RECORD, sum(seen) // len(seen)) if seen else TYPICAL_RECORD
    likely = known + new * (each + MESSAGE) + FIXED
    parts = f"tasks {_mb(tasks)}, bundles {_mb(bundles)}, records that are there {_mb(sum(seen))}"
    left = f"{_mb(max(0, most - used))} of its maxmemory ({_mb(most)}) are left"
    remedy = "raise maxmemory, delete runs, or run fewer attempts"
    if least > most - used:
        raise DoesNotFit(
            f"the run needs at least {_mb(least)} on the server ({parts}, and {certain:,} new ones of "
            f"{SMALLEST_RECORD} bytes), but {left}; {remedy}"
        )
    if likely > most - used:
        basis = f"as in the {len(seen):,} that are there" if seen else "an assumption"
        return (
            f"the run may fill the server: it takes about {_mb(likely)} ({parts}, and {new:,} new ones of "
            f"{each:,} bytes, {basis}), but {left}; while it is full the run waits: {remedy}"
        )
    return None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

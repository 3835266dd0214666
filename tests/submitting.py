"""Put runs on a server without the command line, and store their records without a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo, TaskInfo
from judges.spec import Contains
from producer.server import Server, open_server
from workers.store.keys import LANES, Keys, script
from workers.store.messages import Arm, Manifest, Task
from workers.store.run_store import Store, pack

RUN = "run-1"


def a_server(url: str) -> Server:
    return open_server(url)


def a_stored_run(
    store: Store,
    tasks: int = 3,
    *,
    run_id: str = RUN,
    cached: Mapping[int, AttemptRecord] | None = None,
    told: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Manifest:
    """A run with a bare baseline and a bare candidate that exists on the server; nothing of it is published.

    `fields` are the manifest's, `told` what is told of the run beside it.
    """
    made = [
        Task(id=f"task-{n}", prompt="Say it.", judge=Contains(type="contains", expected=["it"]))
        for n in range(tasks)
    ]
    settings: dict[str, Any] = {"models": ("sim",), "pass_k": 1, "lane": LANES[0], **fields}
    manifest = Manifest(
        run_id=run_id,
        created_at="2026-01-01T00:00:00Z",
        task_count=tasks,
        arms=(Arm(name="baseline"), Arm(name="candidate")),
        **settings,
    )
    info = RunInfo(
        run_id=run_id,
        pass_k=manifest.pass_k,
        models=manifest.models,
        tasks=tuple(TaskInfo(id=task.id, judge="contains") for task in made),
        baseline="bare",
        planned_attempts=manifest.grid.attempts,
    )
    store.create(manifest, info.model_copy(update=told or {}), made, cached or {})
    return manifest


def record_all(
    store: Store, manifest: Manifest, *, but: tuple[int, ...] = (), outcome: str = "passed"
) -> None:
    """Store a record for every attempt except some, as workers would."""
    grid = manifest.grid
    for index in range(grid.attempts):
        if index not in but:
            record_one(store, manifest, index, outcome)


def record_one(
    store: Store, manifest: Manifest, index: int, outcome: str = "passed", *, round: int = 1
) -> None:
    cell = manifest.grid.cell(index)
    record = AttemptRecord(
        run_id=manifest.run_id,
        task=f"task-{cell.task}",
        arm=manifest.arms[cell.arm].name,
        model=manifest.models[cell.model],
        attempt=cell.number,
        outcome=outcome,
        score={"passed": 1.0, "failed": 0.0}.get(outcome),
        error="no answer" if outcome == "error" else None,
        deliveries=round,
    )
    keys = Keys(manifest.run_id)
    names = [*keys.ledger, keys.records, keys.errors, keys.counts, keys.failures]
    put = store.client.register_script(script("store"))
    told = [index, index + 1000 * round, round, outcome, "0.01", "0.01", 0, cell.arm, pack(record)]
    put(keys=names, args=told)


def waiting(store: Store, lane: str = LANES[0]) -> int:
    """How many messages wait in a lane."""
    from workers.store.keys import waiting_keys

    return sum(int(store.client.llen(key)) for key in waiting_keys(lane))

"""Turn a sealed run's records into its artifacts, in a process of its own: `python -m workers.aggregate_run RUN`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version

from aggregate import artifact
from aggregate.records import AttemptRecord
from aggregate.run_info import RunInfo, Status
from workers.settings import from_environment
from workers.store import State, Store, connect

_STATUS: dict[str, Status] = {"cancelled": "cancelled", "over_budget": "over_budget"}


class _Seen:
    """Which workers and how many records went by."""

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.records = 0

    def passing(self, records: Iterator[AttemptRecord]) -> Iterator[AttemptRecord]:
        for record in records:
            if not record.cached:
                self.records += 1
                if record.worker:
                    self.workers.add(record.worker)
            yield record


def ended(info: RunInfo, state: State, seen: _Seen) -> RunInfo:
    """The run's description with how it ended; all times are the run's own."""
    wall = round(state.sealed_at - state.created, 3) if state.sealed_at else None
    environment = {
        **info.environment,
        "uplift": version("skill-uplift"),
        "python": platform.python_version(),
        "celery": version("celery"),
        "hosts": len({worker.rsplit(":", 1)[0] for worker in seen.workers}),
        "workers": sorted(seen.workers),
        "wall_seconds": wall,
        "attempts_per_second": round(seen.records / wall, 3) if wall else None,
    }
    return info.model_copy(
        update={
            "status": _STATUS.get(state.halt, "finished"),
            "wall_seconds": wall,
            "spent_usd": state.spent,
            "wasted_usd": state.wasted,
            "wasted_attempts": state.wasted_attempts,
            "environment": environment,
        }
    )


def main(run_id: str) -> None:
    client = connect(from_environment().broker)
    store = Store(client)
    state = store.seal(run_id)
    seen = _Seen()
    records = list(seen.passing(store.records(run_id)))
    store.put_artifacts(run_id, artifact.build(ended(store.info(run_id), state, seen), records))


if __name__ == "__main__":
    main(sys.argv[1])

"""Turn a sealed run into its artifacts, in a process of its own: `-m workers.rounds.aggregate_run RUN GENERATION`."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

import redis

from aggregate.records.run_info import RunInfo, Status
from workers.rounds.child_process import TRY_AGAIN, leave_with_parent, tune_interpreter
from workers.store.redis_client import connect
from workers.store.run_store import State, Store
from workers.store.settings import from_environment

_STATUS: dict[str, Status] = {
    "cancelled": "cancelled",
    "over_budget": "over_budget",
    "hopeless": "hopeless",
    "weak_baseline": "weak_baseline",
}


def ended(store: Store, run_id: str, state: State) -> RunInfo:
    """The run's description with how it ended; all times are the run's own."""
    run = store.run(run_id)
    info = run.info
    status = _STATUS.get(state.halt, "finished")
    wall = round(state.sealed_at - state.created, 3) if state.sealed_at else None
    workers = store.run_workers(run_id)
    recorded = store.progress(run_id).recorded
    environment = {
        **info.environment,
        "uplift": version("skill-uplift"),
        "python": platform.python_version(),
        "celery": version("celery"),
        "hosts": len({worker.rsplit(":", 1)[0] for worker in workers}),
        "workers": workers,
        "wall_seconds": wall,
        "attempts_per_second": round(recorded / wall, 3) if wall else None,
    }
    return info.model_copy(
        update={
            "status": status,
            "why": _why(info, state) if status != "weak_baseline" else store.weak_baseline(run) or "",
            "wall_seconds": wall,
            "spent_usd": state.spent,
            "assumed_usd": state.assumed,
            "wasted_usd": state.wasted,
            "wasted_attempts": state.wasted_attempts,
            "environment": environment,
        }
    )


def _why(info: RunInfo, state: State) -> str:
    """What ended a run before its time, with the sums where it was money."""
    if state.halt != "over_budget" or info.budget_usd is None:
        return state.why
    over = state.spent - info.budget_usd
    words = f"{state.spent:.6g} USD of {info.budget_usd:g} spent"
    if over > 0:
        words += f", {over:.6g} too much by attempts that were in flight"
    if state.assumed:
        words += f"; {state.assumed:.6g} assumed for calls of unknown cost"
    return words


def main(run_id: str, generation: int) -> int:
    """Exit code: 0, or TRY_AGAIN when the server went away meanwhile."""
    tune_interpreter()
    leave_with_parent(TRY_AGAIN)
    from aggregate.artifact import build

    store = Store(connect(from_environment().broker))
    try:
        state = store.seal(run_id, generation)
        if state is not None:
            info = ended(store, run_id, state)
            store.put_artifacts(run_id, generation, build.build(info, store.records(run_id)))
    except redis.RedisError as problem:
        sys.stderr.write(f"{problem}\n")
        return TRY_AGAIN
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2])))

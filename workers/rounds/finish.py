"""End a round of a run: try its errors again, or seal it and aggregate it into artifacts. Safe to run twice.

What needs pandas runs in a child process, so that it does not hold up the attempts of this one:
`-m workers.rounds.finish aggregate RUN GENERATION`, and `-m workers.rounds.finish look RUN` for "may it stop early?".
"""

from __future__ import annotations

import json
import logging
import platform
import signal
import sys
from importlib.metadata import version
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, get_args

import redis

from aggregate.records.run_info import RunInfo, Status
from aggregate.text.formats import usd
from workers.rounds.child_process import TRY_AGAIN, leave_with_parent, run_module, tune_interpreter
from workers.rounds.publish import next_end, publish_round, waves
from workers.store.process_settings import ProcessSettings, from_environment
from workers.store.redis_client import connect, is_away
from workers.store.run_store import State, Store, StoredRun, weak_baseline

if TYPE_CHECKING:
    from celery import Celery

MOST_ROUNDS = 12
log = logging.getLogger(__name__)
_THIS = "workers.rounds.finish"


# The server went away, or all processes around a worker were told to end, as systemd does.
_NOT_ITS_FAULT = (TRY_AGAIN, -signal.SIGTERM, -signal.SIGINT)


class TryAgain(redis.ConnectionError):
    """The server went away while a run was aggregated, or somebody ended the process that did it."""


def finish(app: Celery, settings: ProcessSettings, run_id: str, generation: int, number: int) -> str:
    """What to do when all batches of round `number` have returned; the answer says what was done.

    A callback of an earlier generation does nothing: whoever resumed the run has published everything anew.
    """
    client = connect(settings.broker)
    try:
        store = Store(client)
        state = store.state(run_id)
        if state is None:
            return "gone"
        if state.generation != generation or state.halt == "paused":
            return "not now"
        if store.artifacts(run_id) is not None:
            return "done already"
        with store.finishing(run_id, settings.lease_seconds) as alone:
            if not alone:
                return "not now"
            if not state.halt and _another_round(app, settings, store, store.run(run_id), state, number):
                return "another round"
            if store.seal(run_id, generation) is None:
                return "not now"
            aggregate(settings, store, run_id, generation)
            return "finished"
    finally:
        client.close()


def _another_round(
    app: Celery, settings: ProcessSettings, store: Store, run: StoredRun, state: State, number: int
) -> bool:
    """Publish what is to be tried again or, when that is done, the next wave; False when nothing is left to do."""
    if number >= MOST_ROUNDS + waves(run):
        return False
    end, generation = state.published, state.generation
    unfinished = store.unfinished(run, end)
    while not unfinished and end < run.grid.attempts:
        if end and may_stop(settings, store, run, generation):
            return False
        end = next_end(run, end)
        unfinished = store.unfinished(run, end)
    store.set_published(run.run_id, generation, end)
    if unfinished:
        number += 1
        indexes = store.begin_round(run.run_id, generation, number, unfinished)
        alone = store.deadly(run.run_id)
        publish_round(app, run, generation=generation, number=number, indexes=indexes, alone=alone)
    return bool(unfinished)


def may_stop(settings: ProcessSettings, store: Store, run: StoredRun, generation: int) -> bool:
    """Look at what there is; a run that may stop is halted as decided, and what is in flight may end.

    A run without a baseline never stops early: there is no difference to be sure of. A look that fails stops nothing,
    and the artifact says so; raises TryAgain when only the server was to blame.
    """
    if not run.manifest.stop_early or run.info.baseline == "none":
        return False
    looked = run_module(settings, _THIS, "look", run.run_id)
    if looked.returncode:
        why = _last_words(looked)
        log.warning("run %s: a look at its numbers failed: %s", run.run_id, why, extra={"run": run.run_id})
        store.set_warning(
            run.run_id, generation, f"a look at the numbers failed, and no early stop came of it: {why}"
        )
        return False
    stop = bool(json.loads(looked.stdout).get("stop"))
    if stop:
        store.halt(run.run_id, "decided", generation)
    return stop


def aggregate(settings: ProcessSettings, store: Store, run_id: str, generation: int) -> None:
    """Aggregate a sealed run; what goes wrong is written into its state, for whoever watches.

    Raises TryAgain when it is not to blame: whoever asked tries again.
    """
    child = run_module(settings, _THIS, "aggregate", run_id, str(generation))
    if child.returncode:
        store.set_trouble(run_id, generation, f"aggregating failed: {_last_words(child)}")


def _last_words(child: CompletedProcess[str]) -> str:
    """What a child said before it ended; raises TryAgain where it is not to blame for its end."""
    lines = child.stderr.strip().splitlines() or [f"its process ended with {child.returncode}"]
    if child.returncode in _NOT_ITS_FAULT:
        raise TryAgain(lines[-1])
    return lines[-1][:500]


def ended(store: Store, run_id: str, state: State) -> RunInfo:
    """The run's description with how it ended; all times are the run's own."""
    run = store.run(run_id)
    info = run.info
    status = state.halt if state.halt in get_args(Status) else "finished"
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
            "why": _why(info, state) if status != "weak_baseline" else weak_baseline(run, state) or "",
            "wall_seconds": wall,
            "spent_usd": state.spent,
            "assumed_usd": state.assumed,
            "wasted_usd": state.wasted,
            "wasted_attempts": state.wasted_attempts,
            "warnings": (*info.warnings, *filter(None, [state.warning])),
            "environment": environment,
        }
    )


def _why(info: RunInfo, state: State) -> str:
    """What ended a run before its time, with the sums where it was money."""
    if state.halt != "over_budget" or info.budget_usd is None:
        return state.why
    over = state.spent - info.budget_usd
    words = f"{usd(state.spent)} of {usd(info.budget_usd)} spent"
    if over > 0:
        words += f", {usd(over)} too much by attempts that were in flight"
    if state.assumed:
        words += f"; {usd(state.assumed)} assumed for calls of unknown cost"
    return words


def aggregate_here(run_id: str, generation: int) -> int:
    """Seal and aggregate a run in this process; the exit code: 0, or TRY_AGAIN when the server went away meanwhile."""
    from aggregate.artifact import build

    store = Store(connect(from_environment().broker))
    try:
        state = store.seal(run_id, generation)
        if state is not None:
            info = ended(store, run_id, state)
            store.put_artifacts(run_id, generation, build.build(info, store.records(run_id)))
    except redis.RedisError as problem:
        if not is_away(problem):
            raise
        sys.stderr.write(f"{problem}\n")
        return TRY_AGAIN
    return 0


def look_here(run_id: str) -> int:
    """Print as JSON whether the run's statistics allow it to stop; the exit code is as of `aggregate_here`."""
    from aggregate.artifact import build
    from aggregate.records import frames

    store = Store(connect(from_environment().broker))
    try:
        info = store.info(run_id)
        attempts = frames.collect(store.records(run_id), info.tasks).attempts
    except redis.RedisError as problem:
        if not is_away(problem):
            raise
        sys.stderr.write(f"{problem}\n")
        return TRY_AGAIN
    stop, reason = build.settled(info, attempts)
    sys.stdout.write(json.dumps({"stop": stop, "reason": reason}))
    return 0


def main(what: str, run_id: str, generation: str = "0") -> int:
    """What the child process does."""
    tune_interpreter()
    leave_with_parent(TRY_AGAIN)
    return aggregate_here(run_id, int(generation)) if what == "aggregate" else look_here(run_id)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

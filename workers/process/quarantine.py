"""Run one attempt in a process of its own, because its neighbours' processes died with it more than once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import redis

from workers.process.engine import MOST_ALONE, Batch, Drained, Engine
from workers.process.logs import JsonLines, is_json, write_json
from workers.rounds.child_process import TRY_AGAIN, leave_with_parent
from workers.store.process_settings import from_environment
from workers.store.redis_client import is_away
from workers.store.run_store import NotServed

HANDED_BACK, LEFT_TO_OTHERS = 77, 78
LOOK_SECONDS = 0.2
DROP_SECONDS = 15.0
# Each is a Python of its own: a worker that died twice with many attempts in flight would start as many at once.
_at_once = threading.BoundedSemaphore(MOST_ALONE)


class Died(Exception):
    """The process that ran nothing but this attempt died with it."""


def run_alone(batch: Batch, worker: Engine) -> int:
    """Run the batch in a child, as many at once as there are cores, and wait; returns the records stored.

    Raises Died when the child does: the batch is delivered again, and once the dead child's claim has run out,
    the next child finds one death too many and says so in the record. Raises Drained when this worker must stop.
    """
    with worker.load.runs_alone():
        while not _at_once.acquire(timeout=LOOK_SECONDS):
            if worker.draining:
                raise Drained
        try:
            stored = _in_a_child(batch, worker)
            worker.done += 1  # so many are in such a batch
            return stored
        finally:
            _at_once.release()


def _in_a_child(batch: Batch, worker: Engine) -> int:
    message = json.dumps([batch.run_id, batch.round, list(batch.indexes)])
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "workers.process.quarantine", message, *(["json"] if is_json() else [])],
        env={**os.environ, "UPLIFT_BROKER": worker.settings.broker},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        while child.poll() is None:
            if worker.draining:
                child.stdin.close()
            try:
                child.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        out = child.stdout.read() if child.stdout is not None else b""
    if child.returncode == HANDED_BACK:
        raise Drained
    if child.returncode == LEFT_TO_OTHERS:
        raise NotServed(out.decode())
    if child.returncode == TRY_AGAIN:
        raise redis.ConnectionError("the server was away, or refused to write")
    if child.returncode:
        raise Died(f"attempt {batch.indexes} of run {batch.run_id} ended its process ({child.returncode})")
    return int(out)


def main(message: str, *log_format: str) -> None:
    run_id, number, indexes = json.loads(message)
    if log_format:
        write_json("warning")
    engine = Engine(from_environment(), public=False)
    JsonLines.worker = engine.name
    leaving = leave_with_parent(HANDED_BACK, engine.drain)
    try:
        stored = engine.run_batch(Batch(run_id, number, tuple(indexes), quarantine=True))
    except Drained:
        leaving.join(DROP_SECONDS)  # it drops the claim and ends the process
        raise SystemExit(HANDED_BACK) from None
    except NotServed as problem:
        sys.stdout.write(str(problem))
        raise SystemExit(LEFT_TO_OTHERS) from None
    except Exception as problem:
        if not is_away(problem):
            raise
        raise SystemExit(TRY_AGAIN) from problem
    engine.close()
    sys.stdout.write(str(stored))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""May a run stop early? `python -m workers.rounds.look RUN` looks at the statistics and prints the answer as JSON."""

from __future__ import annotations

import json
import sys

from workers.rounds.child_process import leave_with_parent, tune_interpreter
from workers.store.redis_client import connect
from workers.store.run_store import Store
from workers.store.settings import from_environment


def main(run_id: str) -> None:
    tune_interpreter()
    leave_with_parent(1)
    from aggregate.artifact import sequential
    from aggregate.records import frames

    store = Store(connect(from_environment().broker))
    info = store.info(run_id)
    made = frames.collect(store.records(run_id), info.tasks)
    stop, reason = sequential.settled(info, made.attempts)
    sys.stdout.write(json.dumps({"stop": stop, "reason": reason}))


if __name__ == "__main__":
    main(sys.argv[1])

"""Look at a run's records: may it stop early? `python -m workers.look RUN` prints the answer as JSON."""

from __future__ import annotations

import json
import sys

from workers.garbage import search_seldom
from workers.server import connect
from workers.settings import from_environment
from workers.store import Store


def main(run_id: str) -> None:
    search_seldom()
    from aggregate import early_stop, frames

    store = Store(connect(from_environment().broker))
    info = store.info(run_id)
    stop, reason = early_stop.settled(info, frames.collect(store.records(run_id), info.tasks))
    sys.stdout.write(json.dumps({"stop": stop, "reason": reason}))


if __name__ == "__main__":
    main(sys.argv[1])

"""Run one attempt in a process of its own, because its neighbours' processes died with it more than once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from workers.engine import Batch, Engine
from workers.settings import Settings, from_environment


def run_alone(batch: Batch, settings: Settings) -> int:
    """Run the batch in a child; when the child dies, say so in its record. Returns the records stored."""
    environment = {**os.environ, "UPLIFT_BROKER": settings.broker}
    message = json.dumps([batch.run_id, batch.round, list(batch.indexes)])
    child = subprocess.run(
        [sys.executable, "-P", "-m", "workers.quarantine", message],
        env=environment,
        stdout=subprocess.PIPE,
        check=False,
    )
    if child.returncode == 0:
        return int(child.stdout)
    # The child's claim is still live; waiting for it to run out and claiming again counts this death too.
    from workers.tasks import engine

    return int(engine(settings).run_batch(batch))


def main(message: str) -> None:
    run_id, number, indexes = json.loads(message)
    engine = Engine(from_environment())
    stored = engine.run_batch(Batch(run_id, number, tuple(indexes), quarantine=True))
    engine.close()
    sys.stdout.write(str(stored))


if __name__ == "__main__":
    main(sys.argv[1])

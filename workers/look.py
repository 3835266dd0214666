"""May a run stop early? `python -m workers.look RUN` looks at the statistics and prints the answer as JSON.

Whether the verdict is settled takes counts only, and is looked at where the counts are.
"""

from __future__ import annotations

import json
import sys

from aggregate.run_info import BASELINE, RunInfo, is_candidate
from workers.children import leave_with_parent
from workers.grid import Grid
from workers.messages import Manifest
from workers.server import connect
from workers.settings import from_environment
from workers.store import Store
from workers.thrift import be_thrifty


def verdict_settled(store: Store, manifest: Manifest, info: RunInfo, grid: Grid) -> bool:
    """Whether no attempt that is left could change the verdict on any candidate."""
    from aggregate.stopping import TaskProgress, look_at_verdict

    counts = store.unit_counts(manifest.run_id, grid)
    arms: dict[str, list[TaskProgress]] = {arm.name: [] for arm in manifest.arms}
    for unit in range(grid.units):
        made, judged, passed = counts.get(unit, (0, 0, False))
        progress = TaskProgress(passed=passed, judged=judged, remaining=max(0, grid.pass_k - made))
        arms[manifest.arms[unit % grid.arms].name].append(progress)
    matters = info.weak_baseline == "error" and info.baseline == "skill"
    return all(
        look_at_verdict(progress, arms[BASELINE], weak_baseline_matters=matters).stop
        for arm, progress in arms.items()
        if is_candidate(arm)
    )


def main(run_id: str) -> None:
    be_thrifty()
    leave_with_parent(1)
    from aggregate import early_stop, frames

    store = Store(connect(from_environment().broker))
    info = store.info(run_id)
    made = frames.collect(store.records(run_id), info.tasks)
    stop, reason = early_stop.settled(info, made.attempts)
    sys.stdout.write(json.dumps({"stop": stop, "reason": reason}))


if __name__ == "__main__":
    main(sys.argv[1])

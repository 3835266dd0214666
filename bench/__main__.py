"""Print the whole bench table, each row with its bar and whether it holds: `python -m bench [--quick]`.

Bars of processor time mean the same on a busy machine; bars of wall time want an idle one. Not in it, because they take
minutes: `bench.limits`, `bench.engine --workers`, `bench.engine --attempts 1000000` and `bench.idle_workers 50`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from bench import (
    aggregate_records,
    command_line,
    distance,
    engine,
    idle_workers,
    kills,
    pytest_judge,
    validate_suite,
)
from bench.rows import Row, show


def help_rows(times: int = 5) -> list[Row]:
    """How long a user waits for `uplift --help`; the best of a few, since others use the machine too."""
    waits, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "producer.cli", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        waits.append(time.monotonic() - begun)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / times
    return [Row("uplift --help", min(waits), "s", 0.3, note=f"{cpu:.2f} s CPU")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer attempts and judgments")
    quick = parser.parse_args().quick
    # The engine first, and the SDKs loaded later: the memory that it tells is this process's largest so far.
    rows = [*help_rows(), *command_line.rows(1000 if quick else 10_000), *engine.rows(quick=quick)]
    rows += [*validate_suite.rows(), *aggregate_records.rows()]
    from bench import interval, sdk_throughput

    rows += interval.rows()
    rows += pytest_judge.rows(40 if quick else 200)
    rows += sdk_throughput.rows(200 if quick else 1000)
    rows += distance.rows(quick=quick)
    rows += idle_workers.rows(10 if quick else 30)
    rows += kills.rows(5 if quick else 20)
    show(rows)
    missed = [row.what for row in rows if row.holds is False]
    print(f"\n{len(missed)} bars missed" + (f": {'; '.join(missed)}" if missed else ""))


if __name__ == "__main__":
    main()

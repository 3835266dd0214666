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
from collections.abc import Callable

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


def _interval_rows() -> list[Row]:
    from bench import interval

    return interval.rows()


def _sdk_rows(calls: int) -> list[Row]:
    from bench import sdk_throughput

    return sdk_throughput.rows(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer attempts and judgments")
    quick = parser.parse_args().quick
    rows: list[Row] = []
    # The engine first, and the SDKs loaded later: the memory that it tells is this process's largest so far.
    parts: tuple[Callable[[], list[Row]], ...] = (
        help_rows,
        lambda: command_line.rows(1000 if quick else 10_000),
        lambda: engine.rows(quick=quick),
        validate_suite.rows,
        aggregate_records.rows,
        _interval_rows,
        lambda: pytest_judge.rows(40 if quick else 200),
        lambda: _sdk_rows(200 if quick else 1000),
        lambda: distance.rows(quick=quick),
        lambda: idle_workers.rows(10 if quick else 30),
        lambda: kills.rows(5 if quick else 20),
    )
    for part in parts:  # it takes minutes, so each part is shown as soon as it is there
        show(made := part())
        rows += made
    missed = [row.what for row in rows if row.holds is False]
    print(f"\n{len(missed)} bars missed" + (f": {'; '.join(missed)}" if missed else ""))


if __name__ == "__main__":
    main()

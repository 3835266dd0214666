"""How long 100,000 records take to become an artifact, summary and CSV files, and how much memory.

Run: python bench/aggregate_records.py [records]. The bar: at most 6 s and 600 MB for 100,000. Writing the
input is not counted; it happens in another process, so that its memory is not counted either.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ATTEMPTS = 5
T = TypeVar("T")


def write_records(path: Path, count: int) -> None:
    """Two arms, five attempts per task, texts of 400 characters, one task in ten with a panel of three and criteria."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            task, rest = divmod(number, 2 * ATTEMPTS)
            passed = (number * 7919) % 10 < (7 if rest % 2 else 5)
            file.write(json.dumps(_record(task, rest, passed)) + "\n")


def _record(task: int, rest: int, passed: bool) -> dict[str, Any]:
    judgment = {
        "judge": "contains",
        "passed": passed,
        "score": 1.0 if passed else 0.5,
        "details": "found 2 of 2" if passed else "missing: iOS",
        "matched": ["iOS", "Android"] if passed else ["Android"],
    }
    members = [
        {
            "judge": "llm-rubric",
            "judge_model": f"judge-{member}",
            "passed": passed,
            "score": 0.9 if passed else 0.3,
            "criteria": [{"name": f"c{number}", "achieved": 2.0, "max_points": 3.0} for number in range(3)],
            "cost_usd": 0.001,
        }
        for member in range(3)
    ]
    return {
        "run_id": "bench",
        "task": f"task-{task}",
        "tier": f"T{task % 3}",
        "arm": "candidate" if rest % 2 else "baseline",
        "model": "sim",
        "attempt": rest // 2 + 1,
        "outcome": "passed" if passed else "failed",
        "score": judgment["score"],
        "details": judgment["details"],
        "judgments": members if task % 10 == 0 else [judgment],
        "completion": {
            "text": "word " * 80,
            "input_tokens": 900,
            "output_tokens": 400,
            "cost_usd": 0.0012,
            "turns": 1,
        },
        "model_ms": 1200.0 + rest,
        "judge_ms": 3.0,
        "started_at": "2026-01-01T00:00:00Z",
        "worker": "worker@host",
        "deliveries": 1,
    }


def timed(name: str, work: Callable[[], T]) -> T:
    started, cpu = time.perf_counter(), time.process_time()
    result = work()
    print(f"{name:<28} {time.perf_counter() - started:6.2f} s wall {time.process_time() - cpu:6.2f} s CPU")
    return result


def measure(path: Path) -> None:
    def run() -> None:
        # Imports count: a chord callback pays for them in its own process.
        from aggregate import artifact, exports, frames, reading
        from aggregate.run_info import Observer

        observer = Observer()
        records = observer.watch(reading.read_jsonl(path))
        made = timed("  read into frames", lambda: frames.collect(records))
        info = observer.info()
        built = timed("  artifact", lambda: artifact.from_frames(info, made))
        timed("  write artifact", lambda: artifact.write(built[0], path.with_name("artifact.json")))
        timed("  summary and CSV files", lambda: exports.write_exports(info, made, path.parent / "exports"))

    timed("all, with imports", run)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        measure(Path(sys.argv[2]))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        write_records(path, count)
        print(f"{count:,} records, {path.stat().st_size / 1e6:.0f} MB")
        subprocess.run([sys.executable, __file__, "--measure", str(path)], check=True)


if __name__ == "__main__":
    main()

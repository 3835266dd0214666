"""How long 100,000 records take to become an artifact, summary and CSV files, and how much memory.

Run: python -m bench.aggregate_records [records]. The bar: at most 6 s and 600 MB for 100,000. Writing the
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

from bench.rows import Row, show
from workers.rounds.child_process import tune_interpreter

ATTEMPTS = 5
T = TypeVar("T")


def write_records(path: Path, count: int, *, panels: bool = False) -> None:
    """Two arms, five attempts per task, texts of 400 characters; one judge, or in every tenth task a panel of three."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            task, rest = divmod(number, 2 * ATTEMPTS)
            passed = (number * 7919) % 10 < (7 if rest % 2 else 5)
            file.write(json.dumps(_record(task, rest, passed, panel=panels and task % 10 == 0)) + "\n")


def _record(task: int, rest: int, passed: bool, *, panel: bool) -> dict[str, Any]:
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
        "judgments": members if panel else [judgment],
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


def timed(parts: dict[str, float], name: str, work: Callable[[], T]) -> T:
    started = time.process_time()
    result = work()
    parts[name] = time.process_time() - started
    return result


def measure(path: Path) -> None:
    """Print seconds of CPU by part, and the peak memory, as JSON. Imports count: a chord's callback pays them too."""
    parts: dict[str, float] = {}
    started = time.process_time()
    tune_interpreter()  # as every process of ours does
    from aggregate.artifact import build, file
    from aggregate.records import frames, jsonl
    from aggregate.records.run_info import Observer
    from aggregate.report import csv_tables

    parts["imports"] = time.process_time() - started
    observer = Observer()
    records = observer.watch(jsonl.read_jsonl(path))
    made = timed(parts, "frames", lambda: frames.collect(records))
    info = observer.info()
    built = timed(parts, "artifact", lambda: build.from_frames(info, made))
    timed(parts, "writing", lambda: file.write(built[0], path.with_name("artifact.json")))
    parts["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    timed(parts, "exports", lambda: csv_tables.write_exports(info, made, path.parent / "exports"))
    print(json.dumps(parts))


def _to_artifact(parts: dict[str, float]) -> float:
    return sum(parts[name] for name in ("imports", "frames", "artifact", "writing"))


def rows(count: int = 100_000) -> list[Row]:
    """This file's part of the bench table: what a run of `contains` tasks leaves, and the same with some panels."""
    found = []
    for kind, panels in (("contains", False), ("a tenth with panels", True)):
        parts = best(count, panels=panels)
        note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items() if name != "MB")
        found.append(Row(f"aggregate {count} records, {kind}", _to_artifact(parts), "s CPU", 6, note=note))
        found.append(Row("memory for that", parts["MB"], "MB", 600))
    return found


def best(count: int, *, panels: bool, times: int = 5) -> dict[str, float]:
    """The best of a few, since others use the machine too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        write_records(path, count, panels=panels)
        command = [sys.executable, "-m", "bench.aggregate_records", "--measure", str(path)]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(times)]
    return min((json.loads(run.stdout) for run in runs), key=_to_artifact)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        measure(Path(sys.argv[2]))
    else:
        show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))

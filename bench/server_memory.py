"""How many bytes an attempt takes on the server: real server, real submitting, real store script, made-up answers.

    python -m bench.server_memory [ATTEMPTS]

Nothing is compressible but what language makes so: an answer is drawn from 50,000 made-up words, the frequent ones
more often (Zipf), which compresses like English prose, to about half. The server's `used_memory` is read before
the run is submitted, with everything published, and with all records there and all messages taken.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from aggregate.records.record import AttemptRecord
from bench.engine import SKILL
from judges.judgment import Completion, Judgment
from producer import plan
from producer import server as servers
from producer.baselines.cache import Reuse
from producer.plan import Plan
from producer.runs.submit import submit
from producer.server import Server, open_server
from producer.settings.run_settings import RunSettings
from workers.store.claims import Finished, RunClaims
from workers.store.keys import LANES, Keys, waiting_keys
from workers.store.redis_client import connect_insisting
from workers.store.run_store import pack

ANSWERS = (0, 1_000, 10_000, 100_000)
PASS_K = 5


@dataclass(frozen=True)
class Measured:
    """Bytes per attempt: published and not begun, its record as it is sent, its share of all records, and of all."""

    answer: int
    published: float
    packed: float
    record: float
    whole: float


class Words:
    """Text that is made up and compresses like prose."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        lengths = self._random.choices(range(2, 13), (3, 9, 12, 12, 11, 10, 8, 6, 4, 2, 1), k=50_000)
        self._words = ["".join(self._random.choices(letters, range(26, 0, -1), k=n)) for n in lengths]
        self._weights = [1 / rank for rank in range(1, len(self._words) + 1)]

    def text(self, characters: int) -> str:
        words = self._random.choices(self._words, self._weights, k=characters // 3 + 1)
        return " ".join(words)[:characters]


def measure(answer: int, attempts: int) -> Measured:
    """Submit a run of so many attempts, and store a record with an answer of so many bytes for each."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, words = Path(name), Words()
        planned = _plan(folder, words, attempts)
        with (
            servers.serving(folder / "server") as private,
            closing(open_server(private.url)) as server,
        ):
            before = _used(server)
            submit(server, planned, Reuse())
            published = _used(server)
            for lane in LANES:
                server.store.client.delete(*waiting_keys(lane))
            packed = asyncio.run(_store_all(private.url, planned, words, answer))
            whole = _used(server)
            records = server.store.client.memory_usage(Keys(planned.run_id).records, samples=0)
    count = planned.grid.attempts
    return Measured(
        answer,
        (published - before) / count,
        packed / count,
        int(records or 0) / count,
        (whole - before) / count,
    )


def _plan(folder: Path, words: Words, attempts: int) -> Plan:
    (folder / "SKILL.md").write_text(SKILL)
    lines = ["skill_id: bench", 'version: "1.0"', "tasks:"]
    for number in range(max(1, attempts // (2 * PASS_K))):
        lines += [f"  - id: task-{number}", f"    prompt: {words.text(500)}"]
        lines += [f"    judge: {{type: contains, expected: [word{number}]}}"]
    suite = folder / "suite.yaml"
    suite.write_text("\n".join(lines) + "\n")
    return plan.make(
        RunSettings(
            task_suite=suite,
            state_root=folder / "state",
            standalone=True,
            skill_path=folder / "SKILL.md",
            models=("sim",),
            pass_k=PASS_K,
        )
    )


async def _store_all(url: str, planned: Plan, words: Words, answer: int) -> int:
    """Store a record for every attempt as a worker does; returns how many bytes they have."""
    client, total = connect_insisting(url), 0
    claims = RunClaims(client, planned.run_id, "bench", lease_seconds=30)
    for index in range(planned.grid.attempts):
        cell = planned.grid.cell(index)
        payload = pack(_record(planned, index, words.text(answer)))
        total += len(payload)
        await claims.store(Finished(index, index + 1, 1, "passed", 0.001, 0.0, 0, cell.arm, payload))
    await client.aclose()
    return total


def _record(planned: Plan, index: int, text: str) -> AttemptRecord:
    cell = planned.grid.cell(index)
    return AttemptRecord(
        run_id=planned.run_id,
        task=planned.suite.tasks[cell.task].id,
        arm=planned.arms[cell.arm].name,
        model=planned.options.models[cell.model],
        attempt=cell.number,
        outcome="passed",
        score=1.0,
        judgments=(Judgment(judge="contains", passed=True, score=1.0, details="found 1 of 1"),),
        completion=Completion(
            text=text, input_tokens=900, output_tokens=400, cost_usd=0.0012, cost_source="table", turns=1
        ),
        model_ms=1200.0 + index,
        judge_ms=0.1,
        started_at="2026-01-01T00:00:00Z",
        worker="worker-1.example:4711-1a2b3c",
        deliveries=1,
    )


def _used(server: Server) -> int:
    info = server.store.client.info("memory")
    return int(info["used_memory"]) - int(info["mem_not_counted_for_evict"])


def main() -> None:
    attempts = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    print(f"Bytes per attempt on the server, {attempts} attempts:\n")
    print("| answer | published | record, packed | record, stored | in all |")
    print("|---|---|---|---|---|")
    for answer in ANSWERS:
        found = measure(answer, attempts)
        figures = (found.answer, found.published, found.packed, found.record, found.whole)
        print("|" + "|".join(f" {figure:,.0f} " for figure in figures) + "|", flush=True)


if __name__ == "__main__":
    main()

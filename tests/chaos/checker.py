"""The six promises that hold after any fault; each check returns what it found wrong, in words."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from running import processes_below

from aggregate.artifact import build as artifacts
from aggregate.records.record import AttemptRecord
from workers.rounds.finish import ended
from workers.store.keys import FINISH, LANES, QUARANTINE, UNACKED, Keys, waiting_keys

from .stage import Stage

LEAVE_SECONDS = 10.0
INVARIANTS = {
    1: "one terminal record per planned attempt",
    2: "nothing counted twice",
    3: "cost is what was billed",
    4: "the artifact equals a recomputation, and that of an undisturbed run",
    5: "an error never became pass, fail or 0",
    6: "nothing left behind",
}
# What two runs may differ in: who, where and when, and what the faults wasted.
APART = frozenset(
    {
        *("run_id", "created_at", "truth_anchor", "task_suite", "lane", "environment", "next_step"),
        *(
            "duration_ms",
            "model_ms",
            "model_seconds",
            "judge_ms",
            "mean_model_ms",
            "mean_judge_ms",
            "wall_seconds",
            "started_at",
        ),
        *("spent_usd", "wasted_usd", "assumed_usd", "wasted_attempts", "worker", "deliveries"),
        *("answer", "summary"),  # made of the other fields, with run, folder, times and money in their words
    }
)

Violations = list[tuple[int, str]]


def check(stage: Stage, undisturbed: dict[str, Any] | None) -> Violations:
    """Everything that is wrong with a run that has ended, before its workers are told to leave."""
    artifact = json.loads(stage.artifact_path().read_text())
    records = list(stage.store.records(stage.run_id))
    return [
        *((1, text) for text in _complete(stage, records)),
        *((2, text) for text in _counted_once(stage, artifact, records)),
        *((3, text) for text in _billed(stage, artifact, records)),
        *((4, text) for text in _recomputed(stage, artifact, undisturbed)),
        *((5, text) for text in _honest_errors(artifact, records)),
    ]


def check_left_behind(stage: Stage) -> Violations:
    """What is still there after every process was told to leave."""
    return [(6, text) for text in _left_behind(stage)]


def _complete(stage: Stage, records: list[AttemptRecord]) -> Iterator[str]:
    run = stage.store.run(stage.run_id)
    manifest, grid = run.manifest, run.grid
    tasks = [task.id for task in stage.store.tasks(run)]
    planned = set()
    for index in range(grid.attempts):
        cell = grid.cell(index)
        planned.add(
            (tasks[cell.task], manifest.arms[cell.arm].name, manifest.models[cell.model], cell.number)
        )
    seen = Counter((r.task, r.arm, r.model, r.attempt) for r in records)
    if missing := planned - set(seen):
        yield f"{len(missing)} attempts have no record, such as {min(missing)}"
    if extra := set(seen) - planned:
        yield f"{len(extra)} records were never planned, such as {min(extra)}"
    if stage.store.unfinished(run, grid.attempts):
        yield "an error was not tried again"


def _counted_once(stage: Stage, artifact: dict[str, Any], records: list[AttemptRecord]) -> Iterator[str]:
    twice = [key for key, n in Counter((r.task, r.arm, r.model, r.attempt) for r in records).items() if n > 1]
    if twice:
        yield f"counted twice: {twice[0]}"
    arms = [arm.name for arm in stage.store.manifest(stage.run_id).arms]
    counted = {
        (arms[arm], outcome): n
        for arm, outcomes in stage.store.progress(stage.run_id).outcomes.items()
        for outcome, n in outcomes.items()
        if n
    }
    if counted != dict(Counter((r.arm, str(r.outcome)) for r in records)):
        yield f"the counters say {counted}"
    if artifact["attempts"]["run"] != len(records):
        yield f"the artifact counts {artifact['attempts']['run']} attempts of {len(records)}"
    with gzip.open(stage.folder / "state" / "runs" / stage.run_id / "records.jsonl.gz") as file:
        at_home = [json.loads(line) for line in file]
    if len(at_home) != len(records):
        yield f"{len(at_home)} records came home of {len(records)}"


def _billed(stage: Stage, artifact: dict[str, Any], records: list[AttemptRecord]) -> Iterator[str]:
    state = stage.store.state(stage.run_id)
    assert state is not None
    kept = sum(r.completion.cost_usd or 0.0 for r in records if r.completion is not None)
    # Late records may have come after the artifact was made; both sides know of them.
    if not math.isclose(state.spent, kept + state.wasted, abs_tol=1e-6):
        yield f"spent {state.spent:.4f}, but records say {kept:.4f} and waste {state.wasted:.4f}"
    total = sum(cost or 0.0 for cost in artifact["cost"]["cost_by_model"].values())
    if not math.isclose(total, kept, abs_tol=1e-6):
        yield f"the artifact's cost is {total:.4f}, the records' {kept:.4f}"


def _recomputed(stage: Stage, artifact: dict[str, Any], undisturbed: dict[str, Any] | None) -> Iterator[str]:
    state = stage.store.state(stage.run_id)
    assert state is not None
    info = ended(stage.store, stage.run_id, state)
    (again,) = artifacts.build(info, stage.store.records(stage.run_id))
    yield from _different(
        "recomputed", comparable(artifact), comparable(json.loads(again.model_dump_json(exclude_unset=True)))
    )
    if undisturbed is not None:
        yield from _different("undisturbed", comparable(artifact), comparable(undisturbed))


def comparable(value: Any) -> Any:
    """An artifact without what may differ between two runs of the same seed."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key not in APART}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return value


def _different(name: str, ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(set(ours) | set(theirs)):
            yield from _different(name, ours.get(key), theirs.get(key), f"{where}.{key}")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if not math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9):
            yield f"{where} is {ours!r}, {name}: {theirs!r}"
    elif ours != theirs:
        yield f"{where} is {ours!r}, {name}: {theirs!r}"


def _honest_errors(artifact: dict[str, Any], records: list[AttemptRecord]) -> Iterator[str]:
    for record in records:
        if record.outcome == "error" and record.score is not None:
            yield f"an error of {record.task} has the score {record.score}"
    for arm in ("candidate", "baseline"):
        mine = [r for r in records if r.arm == arm]
        stats = artifact["arms"][arm]
        errors = sum(r.outcome == "error" for r in mine)
        if (stats["n_errors"], stats["n_judged"]) != (errors, len(mine) - errors):
            yield f"{arm} has {errors} errors, the artifact says {stats['n_errors']}"


def queues_are_empty(stage: Stage) -> bool:
    """Whether workers have taken, and done with, everything that faults delivered more than once."""
    return not list(_messages(stage))


def _messages(stage: Stage) -> Iterator[str]:
    for key in (key for lane in (*LANES, QUARANTINE, FINISH) for key in waiting_keys(lane)):
        if count := stage.client.llen(key):
            yield f"{count} messages wait in {key!r}"
    if count := stage.client.hlen(UNACKED):
        held = {key: stage.client.get(key) for key in stage.client.keys("uplift:held:*")}
        yield f"{count} messages are unacknowledged: {stage.client.hgetall(UNACKED)}; held: {held}"


def _processes(stage: Stage) -> list[str]:
    return [words for words in processes_below(stage.folder) if str(stage.folder / "data") not in words]


def _left_behind(stage: Stage) -> Iterator[str]:
    keys = Keys(stage.run_id)
    for name, key in (("claims", keys.claims), ("owners", keys.owners)):
        if stage.client.exists(key):
            yield f"{name} are left: {stage.client.type(key)!r}"
    if float(stage.client.hget(keys.state, "reserved") or 0) > 1e-9:
        yield "budget is still reserved"
    yield from _messages(stage)
    # A child that has hardly begun ends once it runs and finds its worker gone.
    if not stage.until(lambda: not _processes(stage), LEAVE_SECONDS):
        yield f"processes are left: {_processes(stage)} (the server is {stage.server.pid})"
    if "killed" not in stage.hurt and (names := [p.name for p in (stage.folder / "tmp").iterdir()]):
        yield f"temporary files are left: {names}"
    half = [str(p) for p in (stage.folder / "state").rglob(".*") if p.is_file()]
    if half and "killed" not in stage.hurt:
        yield f"half-written files are left: {half}"

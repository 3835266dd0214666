"""Judge a finished run's completions again: other judges, another rubric, another judge's model; no model call.

The run goes the way of any other, on the same workers; they find its answers in the store instead of asking.
An attempt that left no completion keeps its outcome: a time-out stays one, and what is missing is an `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from aggregate.reading import read_jsonl
from aggregate.records import AttemptRecord
from judges.judgment import Sandbox
from producer import evaluation, grounds, session, task_remarks
from producer import plan as plans
from producer import suite as suites
from producer.evaluation import Surroundings
from producer.options import InvalidOption, Options
from producer.places import Places
from producer.plan import Plan, PlannedArm
from producer.reuse import Reuse
from producer.suite import Suite
from producer.workspaces import Workspaces
from workers.grid import Cell
from workers.messages import ModelSettings, Task
from workers.models.choose import parse
from workers.store import Store, UnknownRun


@dataclass(frozen=True)
class Wishes:
    """What is to be different this time; None is as it was. Only judges, and how the result is read, can be."""

    task_suite: Path | None = None
    judge_model: str | None = None
    sandbox: Sandbox = "auto"
    gate: Literal["verdict", "decision"] | None = None
    margin: float | None = None
    weak_baseline: Literal["error", "warn"] = "error"
    output: Path | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)


def plan(made: list[dict[str, Any]], places: Places, wishes: Wishes, *, run_id: str | None = None) -> Plan:
    """A run that judges the run of these artifacts again; raises before anything is written."""
    ran = [artifact for artifact in made if artifact["verdict"] != "skipped"]
    if not ran:
        raise InvalidOption("nothing was run there, so there is nothing to judge again")
    first, earlier = ran[0], ran[0]["run_id"]
    if not places.records(earlier).is_file():
        raise UnknownRun(
            f"{places.records(earlier)}: the run's records are not there; nothing to judge again"
        )
    options = _options(first, places, wishes)
    whole = _suite(first, wishes)
    suite, warnings = _known_tasks(whole, places, earlier)
    moment = datetime.now(UTC)
    return Plan(
        run_id=run_id or plans.new_run_id(moment),
        created_at=moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        options=options,
        suite=suite,
        arms=_arms(ran),
        fixtures=plans.fixtures_of(suite.folder),
        warnings=(
            f"these are the completions of run {earlier}, judged again; no model was asked for new ones",
            *suite.warnings,
            *warnings,
        ),
        whole_suite=whole.tasks,
        rejudged_from=earlier,
        baseline_kind=first["baseline"],
    )


def rejudge(made: Plan, where: Surroundings) -> list[dict[str, Any]]:
    """Run it to its end and bring everything home; raises Interrupted when it was stopped."""
    evaluation.prepare(made, where)
    _note_grounds(made, where.places)
    with session.for_new_run(where.places, made.run_id, where.broker, in_flight=where.in_flight) as opened:
        store = opened.server.store
        unanswered = _bring(made, where.places, store)
        reuse = Reuse(cached=unanswered, told="attempts have no completion to judge and keep their outcome")
        evaluation.begin(made, reuse, opened, where.display.say)
        return evaluation.follow(made.run_id, opened, where)


def _note_grounds(made: Plan, places: Places) -> None:
    """The answers rest on what the earlier run noted; tasks that ask something else now rest on nothing."""
    assert made.rejudged_from is not None
    noted = grounds.read(places, made.rejudged_from)
    if noted is None:
        return
    asked = {task.id: task for task in read_tasks(places.tasks(made.rejudged_from))}
    same = {task.id for task in made.suite.tasks if not is_other_question(task, asked[task.id])}
    now = grounds.of(made)
    tasks = {task: content for task, content in now.tasks.items() if task in same}
    grounds.write(
        places, made.run_id, noted.model_copy(update={"tasks": tasks, "judge_model": now.judge_model})
    )


def _options(first: dict[str, Any], places: Places, wishes: Wishes) -> Options:
    noted = grounds.read(places, first["run_id"])
    judge_model = wishes.judge_model or (noted.judge_model if noted else None)
    if judge_model is not None:
        parse(judge_model)
    return Options(
        task_suite=wishes.task_suite or Path(first["task_suite"]),
        state_root=places.root,
        models=tuple(first["models"]),
        judge_model=judge_model,
        pass_k=first["pass_k"],
        sandbox=wishes.sandbox,
        margin=first["margin"] if wishes.margin is None else wishes.margin,
        gate=wishes.gate or first["gate"],
        weak_baseline=wishes.weak_baseline,
        output=wishes.output,
        settings=wishes.settings,
    )


def _suite(first: dict[str, Any], wishes: Wishes) -> Suite:
    path = wishes.task_suite or Path(first["task_suite"])
    if wishes.task_suite is None and not path.is_file():
        raise InvalidOption(f"the run's suite {path} is gone; name one with --task-suite")
    return suites.load(path)


def _known_tasks(suite: Suite, places: Places, earlier: str) -> tuple[Suite, list[str]]:
    """The suite without tasks that the run did not have, and what to say about those and about changed ones."""
    asked = {task.id: task for task in read_tasks(places.tasks(earlier))}
    kept = tuple(task for task in suite.tasks if task.id in asked)
    if not kept:
        raise InvalidOption(
            f"{suite.path} has no task of run {earlier}; judge it with a suite of the same tasks"
        )
    remarks = {}
    for task in suite.tasks:
        if task.id not in asked:
            remarks[task.id] = f"run {earlier} has no completions of this task; left out"
        elif is_other_question(task, asked[task.id]):
            remarks[task.id] = f"the completions of run {earlier} answer an earlier version of this prompt"
    warnings = task_remarks.located(suite.path, remarks)
    if dropped := len(asked) - len(kept):
        warnings.append(f"{suite.path}: {dropped} tasks of run {earlier} are not in this suite; left out")
    return replace(suite, tasks=kept), warnings


def is_other_question(task: Task, before: Task) -> bool:
    """Whether a model was asked something else: another prompt, or other names of files."""
    return (task.prompt, task.files) != (before.prompt, before.files)


def read_tasks(path: Path) -> Iterator[Task]:
    """The tasks that a run was made of, as it left them in the state root."""
    import gzip

    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                yield Task.model_validate_json(line)
    except (OSError, EOFError, ValueError) as problem:
        raise UnknownRun(f"{path}: the run's tasks cannot be read ({problem})") from None


def _arms(ran: list[dict[str, Any]]) -> tuple[PlannedArm, ...]:
    candidates = [
        PlannedArm(one["arm"], candidate_id=one["candidate_id"], score=one["candidate_score"]) for one in ran
    ]
    return (*([] if ran[0]["baseline"] == "none" else [PlannedArm("baseline")]), *candidates)


def _bring(made: Plan, places: Places, store: Store) -> dict[int, AttemptRecord]:
    """Put the completions and agents' files on the server; returns the records of attempts that have none."""
    assert made.rejudged_from is not None
    kept = Workspaces(places.workspaces(made.rejudged_from))
    brought, seen = set[str](), set[int]()
    unanswered: dict[int, AttemptRecord] = {}

    def answers() -> Iterator[tuple[int, AttemptRecord]]:
        for index, record in _placed(made, places):
            seen.add(index)
            if record.outcome == "timeout" or record.completion is None:
                unanswered[index] = _again(made, record)
                continue
            if record.workspace and record.workspace not in brought:
                brought.add(record.workspace)
                if (data := kept.read(record.workspace)) is not None:
                    store.put_bundle(record.workspace, data)
            yield index, record

    store.put_stored(made.run_id, answers())
    missing = (index for index in range(made.grid.attempts) if index not in seen)
    return {**unanswered, **{index: _missing(made, index) for index in missing}}


def _placed(made: Plan, places: Places) -> Iterator[tuple[int, AttemptRecord]]:
    """The earlier run's records with the index that each has in this run; others are left out."""
    assert made.rejudged_from is not None
    tasks = {task.id: number for number, task in enumerate(made.suite.tasks)}
    arms = {arm.name: number for number, arm in enumerate(made.arms)}
    models = {model: number for number, model in enumerate(made.options.models)}
    for record in read_jsonl(places.records(made.rejudged_from)):
        model = record.model or ""
        known = record.task in tasks and record.arm in arms and model in models
        if known and record.attempt <= made.options.pass_k:
            cell = Cell(tasks[record.task], models[model], arms[record.arm], record.attempt)
            yield made.grid.index(cell), record


def _again(made: Plan, record: AttemptRecord) -> AttemptRecord:
    """An attempt without an answer to judge, as it was."""
    said = record.completion
    if said is not None:
        said = said.model_copy(update={"cost_source": "replay"})
    return record.model_copy(update={"run_id": made.run_id, "completion": said, "judgments": ()})


def _missing(made: Plan, index: int) -> AttemptRecord:
    """The error that stands for an attempt that the earlier run did not make."""
    cell = made.grid.cell(index)
    task = made.suite.tasks[cell.task]
    return AttemptRecord(
        run_id=made.run_id,
        task=task.id,
        tier=task.tier,
        tags=task.tags,
        arm=made.arms[cell.arm].name,
        model=made.options.models[cell.model],
        attempt=cell.number,
        outcome="error",
        error=f"run {made.rejudged_from} made no such attempt",
    )

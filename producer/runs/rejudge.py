"""Judge a finished run's completions again: other judges, another rubric, another judge's model; no model call.

The run goes the way of any other, on the same workers; they find its answers in the store instead of asking.
An attempt that left no completion keeps its outcome: a time-out stays one, and what is missing is an `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aggregate.artifact.model import Artifact
from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord, KeptSteps
from aggregate.records.settings import ResultSettings
from aggregate.text import files
from aggregate.text.files import is_file
from producer import plan as plans
from producer.baselines import fingerprints
from producer.baselines.cache import Reuse
from producer.baselines.fingerprints import paid_before
from producer.importers import evals_json
from producer.plan import Plan, PlannedArm, Source
from producer.runs import evaluate
from producer.runs.collect import Workspaces
from producer.runs.evaluate import RunContext
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Places
from producer.suites import suite as suites
from producer.suites.suite import Suite
from workers.models.choose import parse
from workers.store.messages import Task
from workers.store.run_store import Store, UnknownRun

# A config is for runs that start: what it says of these does not hold for a run that was.
OF_RUN = (
    *ResultSettings.model_fields,
    *("task_suite", "judge_model", "skill_path", "skill_mode", "baseline_cache_dir"),
)
# Artifacts of 0.1.0 lack the last two.
_TAKEN_OVER = (
    *("task_suite", "models", "pass_k", "margin", "gate", "gate_cost"),
    *("weak_baseline", "unloaded", "eval_threshold"),
)


def plan(made: list[Artifact], places: Places, wishes: RunSettings, *, run_id: str | None = None) -> Plan:
    """A run that judges the run of these artifacts again; raises before anything is written.

    Of `wishes`, what is set is to be different this time. Only judges, and how the result is read, can be.
    """
    ran = [artifact for artifact in made if artifact.was_run]
    if not ran:
        raise InvalidOption("nothing was run there, so there is nothing to judge again")
    first, earlier = ran[0], ran[0].run_id
    if not is_file(places.records(earlier)):
        raise UnknownRun(
            f"{places.records(earlier)}: the run's records are not there; nothing to judge again"
        )
    options, facts = _options(first, places, wishes), first.environment.model_extra or {}
    whole = _suite(first, wishes)
    suite, warnings = _known_tasks(whole, places, earlier)
    return Plan(
        run_id=run_id or plans.new_run_id(),
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
        baseline_kind=first.baseline,
        mounted=tuple(
            dict.fromkeys(model for models in (first.skill_loads or {}).values() for model in models)
        ),
        environment={name: str(value) for name, value in facts.items() if name.startswith("git_")},
        source=Source.of(first),
    )


def rejudge(made: Plan, where: RunContext) -> list[Artifact]:
    """Run it to its end and bring everything home; raises Interrupted when it was stopped."""
    return evaluate.evaluate(made, where, lambda store: _bring(made, where.places, store))


def _note_grounds(made: Plan, earlier: str, places: Places) -> None:
    """The answers rest on what the earlier run noted; tasks that ask something else now rest on nothing."""
    noted = fingerprints.read(places, earlier)
    if noted is None:
        return
    asked = {task.id: task for task in read_tasks(places.tasks(earlier))}
    same = {task.id for task in made.suite.tasks if not is_other_question(task, asked[task.id])}
    now = fingerprints.of(made)
    tasks = {task: content for task, content in now.tasks.items() if task in same}
    noted = noted.model_copy(update={"tasks": tasks, "judge_model": now.judge_model})
    fingerprints.write(places, made.run_id, noted)


def _options(first: Artifact, places: Places, wishes: RunSettings) -> RunSettings:
    noted = fingerprints.read(places, first.run_id)
    of_run = {name: value for name in _TAKEN_OVER if (value := getattr(first, name)) is not None}
    judging = {"judge_model": noted.judge_model} if noted else {}
    asked = wishes.model_dump(exclude_unset=True)
    options = RunSettings.checked({**of_run, **judging, **asked, "state_root": places.root})
    if options.judge_model is not None:
        parse(options.judge_model)
    return options


def _suite(first: Artifact, wishes: RunSettings) -> Suite:
    path = wishes.task_suite or Path(first.task_suite)
    if wishes.task_suite is None and not is_file(path):
        raise InvalidOption(f"the run's suite {path} is gone; name one with --task-suite")
    return evals_json.load(path)


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
    warnings = suites.located(suite.path, remarks)
    if dropped := len(asked) - len(kept):
        warnings.append(f"{suite.path}: {dropped} tasks of run {earlier} are not in this suite; left out")
    return replace(suite, tasks=kept), warnings


def is_other_question(task: Task, before: Task) -> bool:
    """Whether a model was asked something else: another prompt, or other names of files."""
    return (task.prompt, task.files) != (before.prompt, before.files)


def read_tasks(path: Path) -> Iterator[Task]:
    """The tasks that a run was made of, as it left them in the state root."""
    try:
        for line in files.lines(path):
            yield Task.model_validate_json(line)
    except (OSError, ValueError) as problem:
        raise UnknownRun(f"{path}: the run's tasks cannot be read ({problem})") from None


def _arms(ran: list[Artifact]) -> tuple[PlannedArm, ...]:
    candidates = [
        PlannedArm(one.arm, candidate_id=one.candidate_id, score=one.candidate_score) for one in ran
    ]
    return (*([] if ran[0].baseline == "none" else [PlannedArm("baseline")]), *candidates)


def _bring(made: Plan, places: Places, store: Store) -> Reuse:
    """Put the completions and agents' files on the server; attempts that have none are not made again."""
    earlier = made.rejudged_from or ""
    _note_grounds(made, earlier, places)
    kept = Workspaces(places.workspaces(earlier))
    brought, seen, steps = set[str](), set[int](), set[str]()
    unanswered: dict[int, AttemptRecord] = {}

    def answers() -> Iterator[tuple[int, AttemptRecord]]:
        for index, record in made.placed(map(paid_before, read_jsonl(places.records(earlier)))):
            seen.add(index)
            said = record.completion
            # A model that failed tells what it has used, which is no answer.
            failed = record.outcome == "error" and not record.judgments and not (said and said.text)
            if record.outcome == "timeout" or said is None or failed:
                unanswered[index] = record.model_copy(update={"run_id": made.run_id, "judgments": ()})
                continue
            if record.workspace and record.workspace not in brought:
                brought.add(record.workspace)
                if (data := kept.read(record.workspace)) is not None:
                    store.put_bundle(record.workspace, data)
            steps.update(filter(None, [record.trajectory]))
            yield index, record

    store.put_stored(made.run_id, answers())
    store.put_steps(made.run_id, KeptSteps(places.steps(earlier)).packed(steps))
    missing = (index for index in range(made.grid.attempts) if index not in seen)
    unanswered |= {index: _missing(made, index) for index in missing}
    return Reuse(cached=unanswered, told="attempts have no completion to judge and keep their outcome")


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

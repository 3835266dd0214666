"""Bless a run: keep its candidate's records in one file, to be the baseline of later runs without being run again.

The blessed skill may be gone, so a task that asks something else since cannot be run with it: such a task is left out
of the comparison, in both arms, with a warning at its place. Where only its judging has changed, its answers are judged
anew. Other models, judges' models or settings are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aggregate.artifact.model import Artifact
from aggregate.records.jsonl import BoundedRecord, read_jsonl
from aggregate.records.record import AttemptRecord
from aggregate.text import files
from judges.errors import UpliftError
from judges.safe_text import broken_fields
from producer.baselines import fingerprints
from producer.baselines.fingerprints import Grounds, digest, served
from producer.plan import Plan, PlannedArm
from producer.settings.run_settings import InvalidOption
from producer.state_root import Places
from producer.suites import suite
from workers.attempts.workspace import reads_files
from workers.models.choose import agent_version, is_agent, is_simulated

if TYPE_CHECKING:
    _Record = AttemptRecord
else:
    _Record = BoundedRecord  # made at run time, so that mypy cannot know it

MAX_BYTES = 256 * 1024 * 1024
_NOT_KEPT = {
    "run_id",
    "arm",
    "tier",
    "tags",
    "worker",
    "deliveries",
    "retries",
    "workspace",
    "trajectory",
    "cached",
}


class NotBlessed(UpliftError):
    """A run that cannot be blessed, or a file that holds no blessed baseline; one line with the remedy."""


class Blessed(BaseModel):
    """A candidate's judged attempts, `pass_k` for each task and model, and what they rest on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["uplift-baseline"] = "uplift-baseline"
    format_version: Literal[1] = 1
    run_id: str
    created_at: str | None = None
    skill_id: str
    candidate_id: str | None = None
    skill: str | None = None
    models: tuple[str, ...] = Field(min_length=1)
    pass_k: int = Field(ge=1)
    grounds: Grounds
    records: tuple[_Record, ...] = Field(min_length=1)

    @property
    def digest(self) -> str:
        """Names this baseline, whatever file it is in."""
        return digest([self.run_id, self.candidate_id, self.skill, sorted(self.grounds.tasks.items())])


def choose(artifacts: list[Artifact], candidate_id: str | None) -> Artifact:
    """The artifact of the candidate that is meant; raises NotBlessed where that is not clear."""
    ran = [artifact for artifact in artifacts if artifact.was_run]
    chosen = [artifact for artifact in ran if candidate_id in (None, artifact.candidate_id)]
    if len(chosen) == 1:
        return chosen[0]
    if not ran:
        raise NotBlessed("nothing was run there; there is nothing to bless")
    names = ", ".join(artifact.candidate_id for artifact in ran if artifact.candidate_id is not None)
    if not names:
        raise NotBlessed("the run has one candidate, without an id; leave --candidate-id out")
    raise NotBlessed(f"choose a candidate with --candidate-id; the run has {names}")


def bless(artifact: Artifact, places: Places) -> tuple[Blessed, list[str]]:
    """The baseline that a run's candidate makes, and what to say about tasks that it cannot cover."""
    run_id, arm = artifact.run_id, artifact.arm
    noted = fingerprints.read(places, run_id)
    if artifact.status != "finished":
        raise NotBlessed(f"run {run_id} is {artifact.status}; bless one that ran to its end")
    if artifact.stop_early is not None and artifact.attempts and artifact.attempts.skipped:
        raise NotBlessed(f"run {run_id} stopped early; bless one that made all its attempts")
    if noted is None:
        raise NotBlessed(
            f"what run {run_id} rests on is not in {places.run(run_id)}; bless it where it was started"
        )
    complete = _complete(places, artifact)
    covered = {task: noted.tasks[task] for task in complete if task in noted.tasks}
    asked = {task: question for task, question in noted.questions.items() if task in covered}
    records = [record for task in sorted(covered) for record in complete[task]]
    if not records:
        raise NotBlessed(f"run {run_id} has no task whose attempts were all judged; nothing to bless")
    blessed = Blessed(
        run_id=run_id,
        created_at=artifact.created_at,
        skill_id=artifact.skill_id,
        candidate_id=artifact.candidate_id,
        skill=noted.skills.get(arm),
        models=tuple(artifact.models),
        pass_k=artifact.pass_k,
        grounds=noted.model_copy(update={"tasks": covered, "questions": asked, "skills": {}}),
        records=tuple(records),
    )
    left_out = sorted({row.task_id for row in artifact.candidate_results} - set(covered))
    return blessed, [f"task {task} is left out: not all its attempts were judged" for task in left_out]


def dumps(blessed: Blessed) -> str:
    """The file's text: one line for each record, so that a change of the baseline can be read as a diff."""
    head = blessed.model_dump_json(exclude={"records"}, exclude_none=True)
    lines = (record.model_dump_json(exclude=_NOT_KEPT, exclude_defaults=True) for record in blessed.records)
    arm = '"arm":"baseline",'
    return head[:-1] + ',"records":[\n' + ",\n".join("{" + arm + line[1:] for line in lines) + "\n]}\n"


def load(path: Path) -> Blessed:
    """Read a blessed baseline; raises NotBlessed with the first things that are wrong."""
    try:
        return Blessed.model_validate_json(files.read(path, MAX_BYTES, pipes=True))
    except FileNotFoundError:
        raise NotBlessed(f"blessed baseline not found: {path}; `uplift bless RUN` writes one") from None
    except OSError as problem:
        raise NotBlessed(f"{path}: cannot be read: {problem.strerror}") from None
    except ValidationError as invalid:
        if any(error["loc"] == ("truth_anchor",) for error in invalid.errors(include_url=False)):
            raise NotBlessed(
                f"{path} is the artifact of a run; `uplift bless RUN` makes a baseline"
            ) from None
        wrong = broken_fields(invalid, whole="file", most=5)
        raise NotBlessed("\n".join(f"{path}: {problem}" for problem in wrong)) from None


def with_baseline(plan: Plan, path: Path) -> Plan:
    """The plan with the blessed baseline of a file instead of one to be run; may raise NotBlessed."""
    blessed = load(path)
    if plan.baseline is None:  # every candidate is below the threshold: nothing will be run
        return plan
    now = fingerprints.of(plan)
    for other in _other_conditions(plan, now, blessed):
        raise InvalidOption(f"{path}{other}")
    remarks = dict(_changed(plan, now, blessed, path))
    kept = tuple(task for task in plan.suite.tasks if task.id not in remarks)
    if not kept:
        raise InvalidOption(f"{path} covers no task of {plan.suite.path} as it is now; bless a new run")
    warnings = [
        f"the baseline is the candidate of run {blessed.run_id}, blessed in {path}; it was not run again",
        *suite.located(plan.suite.path, remarks),
        *_versions(plan, blessed),
    ]
    return replace(
        plan,
        suite=replace(plan.suite, tasks=kept),
        arms=tuple(PlannedArm("baseline") if arm is plan.baseline else arm for arm in plan.arms),
        warnings=(*plan.warnings, *warnings),
        baseline_kind="skill",
        blessed=blessed,
    )


def baseline_records(plan: Plan, blessed: Blessed) -> dict[int, AttemptRecord]:
    """The blessed records by the index that each has in a plan, as records of its baseline whatever the file says."""
    tasks = plan.suite.tasks
    records = (record.model_copy(update={"arm": "baseline"}) for record in blessed.records)
    return {
        index: served(record, run_id=plan.run_id, task=tasks[plan.grid.cell(index).task])
        for index, record in plan.placed(records)
    }


def _complete(places: Places, artifact: Artifact) -> dict[str, list[AttemptRecord]]:
    """The candidate's records of every task that has all attempts of all models judged, in order."""
    by_task: dict[str, list[AttemptRecord]] = {}
    for record in read_jsonl(places.records(artifact.run_id)):
        if record.arm == artifact.arm and record.judged:
            by_task.setdefault(record.task, []).append(record)
    wanted = len(artifact.models) * artifact.pass_k
    return {
        task: sorted(records, key=lambda record: (record.model or "", record.attempt))
        for task, records in by_task.items()
        if len(records) == wanted
    }


def _other_conditions(plan: Plan, now: Grounds, blessed: Blessed) -> Iterator[str]:
    """What would compare two things at once: a skill and a model, a judge or a setting; to follow the file's name."""
    options, then = plan.options, blessed.grounds
    for model in options.models:
        if model not in blessed.models:
            yield f" has no attempts of {model}; it was blessed with {', '.join(blessed.models)}"
    if options.pass_k > blessed.pass_k:
        yield f" has {blessed.pass_k} attempts a task; --pass-k {options.pass_k} needs a baseline with as many"
    judged = any(task.rubrics for task in plan.suite.tasks)
    if judged and now.judge_model != then.judge_model:
        yield f" was judged by {_name(then.judge_model)}, not by {_name(now.judge_model)}"
    if now.skill_mode != then.skill_mode:
        yield f" was made with --skill-mode {then.skill_mode}, not {now.skill_mode}"
    for model in options.models:
        if now.settings[model] != then.settings.get(model):
            yield f": parameters, tools, program or another setting of {model} were others; bless a new run"


def _changed(plan: Plan, now: Grounds, blessed: Blessed, path: Path) -> Iterator[tuple[str, str]]:
    judged = {(record.task, record.model, record.attempt) for record in blessed.records if record.judged}
    numbers = range(1, plan.options.pass_k + 1)
    for task, content in now.tasks.items():
        then = blessed.grounds.tasks.get(task)
        wanted = {(task, model, number) for model in plan.options.models for number in numbers}
        if then is None or not wanted <= judged:
            yield task, f"not in {path}; left out of the comparison"
        elif then != content and not _asks_the_same(plan, now, blessed, task):
            yield task, f"changed since {path} was blessed; left out of the comparison"


def _asks_the_same(plan: Plan, now: Grounds, blessed: Blessed, task_id: str) -> bool:
    """Whether only the judging of a task has changed, and its blessed answers can be judged anew."""
    (task,) = (task for task in plan.suite.tasks if task.id == task_id)
    same, models = now.questions[task_id] == blessed.grounds.questions.get(task_id), plan.options.models
    files = reads_files(task) and any(is_agent(model, plan.options.settings) for model in models)
    return same and not files and not any(map(is_simulated, models))


def _versions(plan: Plan, blessed: Blessed) -> Iterator[str]:
    """An agent's program that is another than the baseline's: a difference may be its doing."""
    for model in plan.options.models:
        completions = (record.completion for record in blessed.records if record.model == model)
        then = sorted({answer.agent_version for answer in completions if answer and answer.agent_version})
        now = agent_version(model)
        if now and then and then != [now]:
            yield f"{model} was version {', '.join(then)} when the baseline was blessed and is {now} now"


def _name(judge_model: str | None) -> str:
    return judge_model or "the run's own model"

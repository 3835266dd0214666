"""Fingerprints of everything but the skill that can change outcomes: tasks, fixtures, judges, model settings."""

from __future__ import annotations

import hashlib
import json
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aggregate.records.record import AttemptRecord
from aggregate.text import files
from aggregate.text.files import is_folder, write_text
from judges.judgment import Sandbox
from judges.spec import Benchmark, CommandCheck, Pytest, PythonFunction
from producer.plan import Plan
from producer.state_root import MAX_STATE_BYTES, Places
from workers.models import replay
from workers.models.choose import parse
from workers.store import bundles
from workers.store.messages import ModelSettings, SkillMode, Task

# Raise it when the same ingredients come to mean another question, for example other words around a skill.
FORMAT_VERSION: Literal[1] = 1
FIXTURES = "fixtures"
LABELS = {"description", "tier", "tags"}
# Of the settings of calls, those that change no answer. Whatever a later version adds does, once it is set.
CHANGES_NO_ANSWER = {"prices", "retry", "limits", "default_limits"}


class Grounds(BaseModel):
    """Digests of each task by its id, of each model's settings, and of each arm's skill.

    A task's labels (description, tier, tags) change neither the question nor the judging and are left out. `questions`
    are digests of what a model is asked, without how it is judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, str]
    questions: Annotated[dict[str, str], Field(exclude_if=lambda questions: not questions)] = {}
    judge_model: str | None = None
    skill_mode: SkillMode | None = None
    settings: dict[str, str] = {}
    skills: dict[str, str | None] = {}


def of(plan: Plan) -> Grounds:
    """The grounds of a run that is about to start."""
    options = plan.options
    whole = plan.whole_suite or plan.suite.tasks
    fixtures, given = (fixture_digests(whole, plan.suite.folder, judged=judged) for judged in (True, False))
    panels = sorted({model for task in whole for model in panel(task)})
    return Grounds(
        tasks={
            task.id: digest([_judged_as(task, spare=options.spare_checks), fixtures[task.id]])
            for task in plan.suite.tasks
        },
        questions={task.id: digest([_asked(task), given[task.id]]) for task in plan.suite.tasks},
        judge_model=options.judge_model,
        skill_mode=options.skill_mode,
        settings={
            model: digest(
                used_settings(options.settings, options.sandbox, model, options.judge_model, *panels)
            )
            for model in options.models
        },
        skills={arm.name: arm.bundle.digest if arm.bundle else None for arm in plan.arms},
    )


def write(places: Places, run_id: str, grounds: Grounds) -> None:
    write_text(grounds.model_dump_json(), places.grounds(run_id))


def read(places: Places, run_id: str) -> Grounds | None:
    """None for a run that was started elsewhere, or before its grounds were noted."""
    try:
        return Grounds.model_validate_json(files.read(places.grounds(run_id), MAX_STATE_BYTES))
    except (OSError, ValueError):
        return None


def key(
    *,
    skill: str | None,
    task: Task,
    fixtures: str,
    model: str,
    settings: ModelSettings,
    judge_model: str | None,
    skill_mode: SkillMode | None,
    agent_version: str | None,
    attempt: int,
    sandbox: Sandbox = "auto",
    spare: bool = False,
    judged: bool = True,
) -> str:
    """What an attempt depends on, as one digest.

    `skill` is its bundle's digest (None: the bare model), `fixtures` comes from `fixture_digests`,
    `agent_version` is that of an agent's program. The attempt's number makes k attempts k calls.
    Without `judged`, this is what the answer alone depends on.
    """
    judges = [judge_model, *panel(task)] if judged else []
    return digest(
        {
            "format": FORMAT_VERSION,
            "skill": skill,
            "task": _judged_as(task, spare=spare) if judged else _asked(task),
            "fixtures": fixtures,
            "model": model,
            "settings": used_settings(settings, sandbox, model, *judges),
            "judge_model": judge_model if judged else None,
            "skill_mode": skill_mode,
            "agent_version": agent_version,
            "attempt": attempt,
        }
    )


def _judged_as(task: Task, *, spare: bool) -> dict[str, Any]:
    """All of a task but its labels; with `spare`, which leaves scores out, where that can happen."""
    spares = spare and any(judge.asks_a_model for judge in task.checks)
    return task.model_dump(mode="json", exclude=LABELS) | ({"spare_checks": True} if spares else {})


def _asked(task: Task) -> dict[str, Any]:
    """What of a task a model's answer depends on; a simulated model, which looks at the judge, is not meant."""
    asked = {"id", "prompt", "timeout_seconds", "files", "network", "should_trigger"}
    return {"answer": task.model_dump(mode="json", include=asked)}


def baseline_key(keys: Iterable[str]) -> str:
    """One digest for a whole baseline, from the keys of its attempts in any order."""
    return digest(sorted(keys))


def fixture_digests(tasks: Sequence[Task], suite_folder: Path, *, judged: bool = True) -> dict[str, str]:
    """For each task id, a digest of the files that the task depends on, or that its answer does; give all tasks.

    A task depends on the files that it names. A judge that runs code may import helpers, so there the files that
    no task names count too; a helper that another task names is not noticed.
    """
    folder = suite_folder / FIXTURES
    inside = bundles.files(folder) if is_folder(folder) else {}
    paths = {f"{FIXTURES}/{name}": path for name, path in inside.items()}
    content = cache(_content_digest)  # each file is read once, however many tasks name it

    @cache
    def digest_of(names: frozenset[str]) -> str:
        return digest([[name, content(paths[name]) if name in paths else None] for name in sorted(names)])

    if not judged:
        return {task.id: digest_of(frozenset(map(posixpath.normpath, task.files))) for task in tasks}
    named = {task.id: frozenset(_named(task)) for task in tasks}
    shared = frozenset(paths).difference(*named.values())
    beside = {task.id: digest_of(shared) if _runs_code(task) else None for task in tasks}
    return {task.id: digest([digest_of(named[task.id]), beside[task.id]]) for task in tasks}


def _runs_code(task: Task) -> bool:
    return any(isinstance(judge, Pytest | Benchmark | PythonFunction | CommandCheck) for judge in task.leaves)


def _content_digest(path: Path) -> str:
    runnable = bool(path.stat().st_mode & stat.S_IXUSR)
    return f"{hashlib.sha256(files.read(path, bundles.MAX_TOTAL_BYTES)).hexdigest()} {runnable}"


def _named(task: Task) -> Iterator[str]:
    judged = [
        value for judge in task.leaves for setting, value in judge if setting.endswith("_file") and value
    ]
    for judge in task.leaves:
        if isinstance(judge, PythonFunction):
            judged.append(judge.function.rpartition(":")[0])
        if isinstance(judge, CommandCheck):
            judged += [word for word in judge.argv if word.startswith(f"{FIXTURES}/")]
    replies = [task.replies.passing, task.replies.failing] if task.replies else []
    for name in (*task.files, *judged, *replies):
        if name:
            yield posixpath.normpath(name)


def panel(task: Task) -> list[str]:
    return [model for rubric in task.rubrics for model in rubric.judges]


def used_settings(settings: ModelSettings, sandbox: Sandbox, *models: str | None) -> dict[str, Any]:
    """What of the settings changes these models' answers: of declared programs those asked, and what they may reach."""
    used: dict[str, Any] = {"params": settings.params, "tools": settings.tools}
    used |= settings.model_dump(
        mode="json", exclude={*CHANGES_NO_ANSWER, *used, "commands", "network"}, exclude_defaults=True
    )
    for model in filter(None, models):
        spec = parse(model)
        if spec.kind in ("claude-code", "command"):
            used["network"] = "all" if sandbox == "off" else settings.network
        if spec.kind == "command" and spec.program in settings.commands:
            program = settings.commands[spec.program]
            # Baselines that were kept by a release without this field are as good as before.
            without = set() if program.model_argv else {"model_argv"}
            used[model] = program.model_dump(mode="json", exclude=without)
        if spec.kind == "replay":
            with suppress(OSError):
                recording = files.read(Path(spec.name), replay.MAX_BYTES)
                used[model] = hashlib.sha256(recording).hexdigest()
    return used


def digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def paid_before(record: AttemptRecord) -> AttemptRecord:
    """The record with a cost that no run pays again."""
    if record.completion is None:
        return record
    completion = record.completion.model_copy(update={"cost_source": "replay"})
    return record.model_copy(update={"completion": completion})


def served(record: AttemptRecord, *, run_id: str, task: Task) -> AttemptRecord:
    """A cached record as part of a run: with the run's id and the task's labels of today."""
    return record.model_copy(update={"run_id": run_id, "tier": task.tier, "tags": task.tags, "cached": True})

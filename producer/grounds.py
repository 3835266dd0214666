"""What a run's outcomes rest on, beside the skill: tasks, files, judges and settings, noted when it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from aggregate.files import write_text
from producer.baseline_cache import LABELS, digest, fixture_digests, panel, used_settings
from producer.places import Places
from producer.plan import Plan
from workers.messages import SkillMode, Task


class Grounds(BaseModel):
    """Digests of each task by its id, of each model's settings, and of each arm's skill.

    A task's labels (description, tier, tags) change neither the question nor the judging and are left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, str]
    judge_model: str | None = None
    skill_mode: SkillMode | None = None
    settings: dict[str, str] = {}
    skills: dict[str, str | None] = {}


def of(plan: Plan) -> Grounds:
    """The grounds of a run that is about to start."""
    options = plan.options
    whole = plan.whole_suite or plan.suite.tasks
    panels = sorted({model for task in whole for model in panel(task)})
    return Grounds(
        tasks=task_digests(plan.suite.tasks, whole, plan.suite.folder),
        judge_model=options.judge_model,
        skill_mode=options.skill_mode,
        settings={
            model: digest(used_settings(options.settings, model, options.judge_model, *panels))
            for model in options.models
        },
        skills={arm.name: arm.bundle.digest if arm.bundle else None for arm in plan.arms},
    )


def task_digests(tasks: tuple[Task, ...], whole_suite: tuple[Task, ...], folder: Path) -> dict[str, str]:
    """For each task, a digest of its question, its judge and the files that both name."""
    fixtures = fixture_digests(whole_suite, folder)
    return {
        task.id: digest([task.model_dump(mode="json", exclude=LABELS), fixtures[task.id]]) for task in tasks
    }


def write(places: Places, run_id: str, grounds: Grounds) -> None:
    write_text(grounds.model_dump_json(), _place(places, run_id))


def read(places: Places, run_id: str) -> Grounds | None:
    """None for a run that was started elsewhere, or before its grounds were noted."""
    try:
        return Grounds.model_validate_json(_place(places, run_id).read_bytes())
    except (OSError, ValueError):
        return None


def _place(places: Places, run_id: str) -> Path:
    return places.run(run_id) / "grounds.json"

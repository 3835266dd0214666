"""What `uplift evaluate` takes where nobody names it: the skill of a folder, and the suite that lies with it."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path

from aggregate.text.files import exists, is_folder
from aggregate.text.formats import plain
from producer.importers import evals_json
from producer.settings.config_file import Config
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.skills.skill import FILE_NAME

SUITES = ("evals/suite.yaml", f"evals/{evals_json.FILE_NAME}")
_SHOWN = 5


def complete(
    options: RunSettings, config: Config, typed: Collection[str], path: Path | None
) -> tuple[RunSettings, str]:
    """Settings with the skill at `path`, else the one that is named, else the one in this folder, and its suite.

    Also one line that says what came from where; it is empty where flags say all. Flags win over what is found, and
    what is found beside a `path` wins over the config. Raises InvalidOption with what to type where something lacks.
    """
    if options.ranking is not None:
        if path is not None:
            raise InvalidOption(f"{path} and --input exclude each other: the ranking names its skills")
        return options, ""
    if path is not None and "skill_path" in typed:
        raise InvalidOption(f"{path} and --skill-path name two skills; leave one out")
    skill = path or options.skill_path or Path()
    _check_skill(skill)
    found = suite_of(skill)
    suite = options.task_suite if "task_suite" in typed or path is None else found or options.task_suite
    suite = suite or found
    if suite is None:
        here = suite_of(Path())
        known = f"name one: uplift evaluate {skill} --task-suite {here}" if here else "name one"
        raise InvalidOption(
            f"skill {skill} has no suite: --task-suite is missing, and so are {' and '.join(SUITES)} beside its "
            f"{FILE_NAME}; {known}; or write one: cd {_home(skill)} && uplift init"
        )
    completed = options.model_copy(update={"skill_path": skill, "task_suite": suite})
    if {"skill_path", "task_suite"} <= {*typed}:
        return completed, ""

    def origin(name: str, *, here: bool) -> str:
        return "flag" if name in typed else "found" if here else config.origins.get(name, "default")

    imported = ", imported" if suite.name == evals_json.FILE_NAME else ""
    where_suite = origin("task_suite", here=suite == found and options.task_suite != suite)
    words = [
        f"skill {skill} ({'given' if path else origin('skill_path', here=options.skill_path is None)})",
        f"suite {suite} ({where_suite}{imported})",
        f"model {', '.join(options.models)} ({origin('models', here=False)})",
        f"baseline {_baseline(options)}",
    ]
    own = [name for name in config.origins if name not in (*typed, "skill_path", "task_suite", "models")]
    files = sorted({config.origins[name] for name in own})
    words += [f"{', '.join(name for name in own if config.origins[name] == file)} ({file})" for file in files]
    return completed, plain("; ".join(words), 1000)


def suite_of(skill: Path) -> Path | None:
    """The suite that lies with a skill: its own, or one that another tool's evals.json becomes."""
    return next((_home(skill) / name for name in SUITES if exists(_home(skill) / name)), None)


def _home(skill: Path) -> Path:
    return skill if is_folder(skill) else skill.parent


def _check_skill(skill: Path) -> None:
    if skill.suffix in (".yaml", ".yml"):
        raise InvalidOption(f"{skill} is no skill; give a suite with --task-suite {skill}")
    if not is_folder(skill) or exists(skill / FILE_NAME):
        return  # what is wrong with a file is told by whoever reads it
    below = (
        path.parent for depth in ("*", "*/*", "*/*/*") for path in sorted(skill.glob(f"{depth}/{FILE_NAME}"))
    )
    names = [str(path) for path in islice((one for one in below if ".git" not in one.parts), _SHOWN)]
    if exists(skill / ".." / FILE_NAME):
        names = [".."]
    hint = f"uplift evaluate {names[0]} (there is: {', '.join(names)})" if names else "uplift evaluate PATH"
    raise InvalidOption(
        f"no SKILL.md in {skill.resolve()}; name a skill's folder: {hint}; or start one here: uplift init; "
        "or give a ranking: --input with --candidate-id"
    )


def _baseline(options: RunSettings) -> str:
    named = options.baseline or options.baseline_artifact or options.baseline_path
    return "none" if options.no_baseline else str(named or "bare")

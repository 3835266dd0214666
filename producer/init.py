"""Give a skill its first suite: commented examples, fixtures and a CI workflow, without overwriting anything."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from producer import schema, skills
from producer.importers.found import slug
from producer.names import file_name

FOLDER = "evals"
SUITE = f"{FOLDER}/suite.yaml"
WORKFLOW = ".github/workflows/uplift.yml"
_FIXTURES = ("input.txt", "good_summary.txt", "test_summary.py")
_DEFAULT_DESCRIPTION = "say what the skill is for"


@dataclass(frozen=True)
class Started:
    """What `init` did: files it made, files that were there and stay, and the command to run next."""

    made: tuple[str, ...]
    kept: tuple[str, ...]
    command: str
    skill_id: str
    repository: Path | None = None


def start(folder: Path) -> Started:
    """Write what is missing for the skill in a folder; raises InvalidSkill when its SKILL.md cannot be used.

    Each file appears whole or not at all, and one that exists is left alone.
    """
    made, kept = [], []
    name = slug(folder.resolve().name) or "my-skill"
    if not (folder / skills.FILE_NAME).exists():
        _create(folder / skills.FILE_NAME, _template("SKILL.md").replace("@name@", name))
        made.append(skills.FILE_NAME)
    skill = skills.load(folder)
    for path, text in _files(skill.name or name, skill.description):
        if _create(folder / path, text):
            made.append(path)
        else:
            kept.append(path)
    return Started(
        made=tuple(made),
        kept=tuple(kept),
        command=f"uplift evaluate --standalone --task-suite {SUITE} --skill-path . --mock",
        skill_id=skill.name or name,
        repository=_repository_above(folder),
    )


def _files(skill_id: str, description: str) -> Iterator[tuple[str, str]]:
    shown = " ".join(description.split())[:200] or _DEFAULT_DESCRIPTION
    for name in _FIXTURES:
        yield f"{FOLDER}/fixtures/{name}", _template(name)
    yield f"{FOLDER}/{schema.FILE_NAME}", schema.text()
    suite = _template("suite.yaml").replace("@skill_id@", json.dumps(skill_id, ensure_ascii=False))
    yield SUITE, _placed(suite).replace("@description@", shown)
    yield WORKFLOW, _placed(_template("workflow.yml"))


def _placed(text: str) -> str:
    return text.replace("@suite@", SUITE).replace("@skill@", ".")


def _template(name: str) -> str:
    return files("producer").joinpath("templates", name).read_text(encoding="utf-8")


def _create(path: Path, text: str) -> bool:
    """Write a new file; False, and nothing done, where there is one already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{file_name(path.name)}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(partial).chmod(0o644)
        # Linking fails where the name is taken, even by a file that appeared this moment.
        path.hardlink_to(partial)
    except FileExistsError:
        return False
    finally:
        Path(partial).unlink(missing_ok=True)
    return True


def _repository_above(folder: Path) -> Path | None:
    """The repository that a skill's folder lies in, where that is not the folder itself."""
    home = folder.resolve()
    if (home / ".git").exists():
        return None
    return next((parent for parent in home.parents if (parent / ".git").exists()), None)

"""A skill's folder: what a run takes from it, and its first suite with fixtures and a CI workflow, overwriting nothing.

The workflow installs this very copy of Uplift, in words that pip understands. The name alone is not enough: no index
has to know it, and a stranger could take it there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from aggregate.text.files import exists, is_folder
from aggregate.text.formats import plain
from producer.importers import evals_json, imported
from producer.importers.imported import slug
from producer.settings.config_file import Config
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.skills import skill as skills
from producer.skills.skill import InvalidSkill
from producer.state_root import file_name
from producer.suites import rules
from workers.models.choose import OURS

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
            f"{skills.FILE_NAME}; {known}; or write one: cd {_home(skill)} && uplift init"
        )
    completed = options.model_copy(update={"skill_path": skill, "task_suite": suite})
    if {"skill_path", "task_suite"} <= {*typed}:
        return completed, ""

    def origin(name: str, *, here: bool) -> str:
        return "flag" if name in typed else "found" if here else config.origins.get(name, "default")

    named = options.baseline or options.baseline_artifact or options.baseline_path
    taken_over = ", imported" if suite.name == evals_json.FILE_NAME else ""
    where_suite = origin("task_suite", here=suite == found and options.task_suite != suite)
    words = [
        f"skill {skill} ({'given' if path else origin('skill_path', here=options.skill_path is None)})",
        f"suite {suite} ({where_suite}{taken_over})",
        f"model {', '.join(options.models)} ({origin('models', here=False)})",
        f"baseline {'none' if options.no_baseline else named or 'bare'}",
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
    if not is_folder(skill) or exists(skill / skills.FILE_NAME):
        return  # what is wrong with a file is told by whoever reads it
    below = (
        path.parent
        for depth in ("*", "*/*", "*/*/*")
        for path in sorted(skill.glob(f"{depth}/{skills.FILE_NAME}"))
    )
    names = [str(path) for path in islice((one for one in below if ".git" not in one.parts), _SHOWN)]
    if exists(skill / ".." / skills.FILE_NAME):
        names = [".."]
    hint = f"uplift evaluate {names[0]} (there is: {', '.join(names)})" if names else "uplift evaluate PATH"
    raise InvalidOption(
        f"no SKILL.md in {skill.resolve()}; name a skill's folder: {hint}; or start one here: uplift init; "
        "or give a ranking: --input with --candidate-id"
    )


# The first suite

GIT_SECONDS = 10
# No space, quote or `$`: the words end up in other people's workflows.
_PLAIN_URL = re.compile(r"(https|ssh)://[\w.~%+@:/=&?,#-]+")


def requirement(extra: str) -> str | None:
    """This copy with an extra, pinned; None where it came from a place that other machines cannot reach."""
    url = _address(json.loads(distribution(OURS).read_text("direct_url.json") or "{}"))
    return f"{OURS}[{extra}] @ {url}" if url else None


def _address(came_from: dict[str, Any]) -> str | None:
    """What the installer has noted, or for a folder the repository that it was cloned from."""
    url = str(came_from.get("url", ""))
    if "vcs_info" in came_from:
        return _pinned(url, str(came_from["vcs_info"].get("commit_id", "")))
    if "dir_info" in came_from:
        return _cloned(Path(unquote(urlsplit(url).path)))
    if "archive_info" not in came_from or (found := _public(url)) is None:
        return None
    digest = came_from["archive_info"].get("hashes", {}).get("sha256")
    return f"{found}#sha256={digest}" if digest else found


def _cloned(folder: Path) -> str | None:
    """The commit of a checkout at its remote, if nothing was changed since and the remote has it."""
    with suppress(OSError, subprocess.SubprocessError):
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        pushed = _git(folder, "branch", "--remotes", "--contains", "HEAD")
        if pushed and not changed:
            return _pinned(_git(folder, "remote", "get-url", "origin"), _git(folder, "rev-parse", "HEAD"))
    return None


def _pinned(url: str, commit: str) -> str | None:
    found = _public(re.sub(r"^git@([\w.-]+):", r"https://\1/", url))
    return f"git+{found}@{commit}" if found and re.fullmatch(r"[0-9a-f]{40,64}", commit) else None


def _public(url: str) -> str | None:
    """An address without the name and password that somebody's clone may hold."""
    url = re.sub(r"^https://[^/@]*@", "https://", url)
    return url if _PLAIN_URL.fullmatch(url) else None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
    )
    return done.stdout.strip()


FOLDER = "evals"
SUITE = f"{FOLDER}/suite.yaml"
WORKFLOWS = ".github/workflows"
_PROMPTFOO = ("promptfooconfig.yaml", "promptfooconfig.yml", "promptfooconfig.json")
_FIXTURES = ("input.txt", "good_summary.txt", "test_summary.py")
_DEFAULT_DESCRIPTION = "say what the skill is for"
_LONGEST_DESCRIPTION = 200
_INSTALLED = "What pip installs: where this copy of Uplift came from."
_UNKNOWN = (
    "FILL IN what pip installs: skill-uplift[anthropic] @ the address of a wheel or a repository that you trust, "
    "pinned to a version."
)


@dataclass(frozen=True, kw_only=True)
class NewSuite:
    """What `init` did: files it made, files that were there and stay, the suite, and the command to run next.

    `fill_in` is the file in which a line waits to be filled in, where there is one. `notes` tells what another tool's
    configuration had that the suite has not.
    """

    made: tuple[str, ...]
    kept: tuple[str, ...]
    command: str = "uplift evaluate --mock"
    skill_id: str
    suite: str = SUITE
    fill_in: str | None = None
    notes: tuple[str, ...] = ()


def start(folder: Path) -> NewSuite:
    """Write what is missing for the skill in a folder; raises InvalidSkill when its SKILL.md cannot be used.

    Each file appears whole or not at all, and one that exists is left alone.
    """
    made, kept = [], []
    name = slug(folder.resolve().name) or "my-skill"
    if not exists(folder / skills.FILE_NAME):
        _create(folder / skills.FILE_NAME, _template("SKILL.md").replace("@name@", name), folder)
        made.append(skills.FILE_NAME)
    skill = skills.load(folder)
    home, source = folder.resolve(), requirement("anthropic")
    top = next((parent for parent in (home, *home.parents) if (parent / ".git").exists()), home)
    place = home.relative_to(top).as_posix()
    if "${{" in place:  # GitHub would take it for something to evaluate
        raise InvalidSkill(f"{place}: a workflow cannot name this folder; rename it")
    suite, notes, files = SUITE, list[str](), list[tuple[str, str | bytes]]()
    started = suite_of(home)
    config = next((folder / one for one in _PROMPTFOO if exists(folder / one)), None)
    if started is not None and started != home / SUITE:
        suite = started.relative_to(home).as_posix()
        kept.append(suite)
    elif started is None and config is not None:
        files = list(_imported(config, notes))
    else:
        files = list(_files(skill.name or name, skill.description))
    workflow = "uplift" if place == "." else f"uplift-{slug(place) or 'skill'}"
    shown = f"{os.path.relpath(top, home)}/{WORKFLOWS}/{workflow}.yml".removeprefix("./")
    for path, text in (*files, (shown, _workflow(workflow, place, suite, source))):
        (made if _create(home / path, text, top) else kept).append(path)
    return NewSuite(
        made=tuple(made),
        kept=tuple(kept),
        skill_id=skill.name or name,
        suite=suite,
        fill_in=shown if source is None and shown in made else None,
        notes=tuple(notes),
    )


def _imported(config: Path, notes: list[str]) -> Iterator[tuple[str, str | bytes]]:
    """The files of a suite made from a promptfoo configuration; what is left out of it goes to the notes."""
    from producer.importers import promptfoo  # few skills have one

    found = promptfoo.convert(config)
    notes += found.told()
    with tempfile.TemporaryDirectory(prefix="uplift-init-") as temporary:
        folder = imported.write(found, Path(temporary, FOLDER)).parent
        # The suite last: where it is, the rest is, too.
        for path in sorted(folder.rglob("*"), key=lambda path: path.name == imported.SUITE_NAME):
            if path.is_file():
                yield f"{FOLDER}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _files(skill_id: str, description: str) -> Iterator[tuple[str, str | bytes]]:
    shown = _shortened(" ".join(description.split())) or _DEFAULT_DESCRIPTION
    for name in _FIXTURES:
        yield f"{FOLDER}/fixtures/{name}", _template(name)
    yield f"{FOLDER}/{rules.SCHEMA_FILE}", rules.schema_text()
    suite = _template("suite.yaml").replace("@skill_id@", json.dumps(skill_id, ensure_ascii=False))
    yield SUITE, suite.replace("@description@", shown)


def _workflow(name: str, place: str, suite: str, source: str | None) -> str:
    """The workflow for a skill at a place in its repository; without a `source` one line is left to fill in."""
    words = {
        "name": name,
        "remark": _INSTALLED if source else _UNKNOWN,
        "source": json.dumps(source or ""),
        "changes": json.dumps("**" if place == "." else f"{place}/**", ensure_ascii=False),
        "suite": json.dumps(suite if place == "." else f"{place}/{suite}", ensure_ascii=False),
        "skill": json.dumps(place, ensure_ascii=False),
        "others": " ".join(f'":!$SKILL/{name}"' for name in skills.NOT_THE_SKILL),
    }
    # A value may look like another placeholder, so all are filled in at once.
    return re.sub("@(\\w+)@", lambda found: words[found[1]], _template("workflow.yml"))


def _shortened(text: str) -> str:
    """As many whole words as a prompt has room for."""
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    cut = text[: _LONGEST_DESCRIPTION + 1]
    return (cut.rpartition(" ")[0] or cut[:-1]) + " …"


def _template(name: str) -> str:
    return files("producer").joinpath("templates", name).read_text(encoding="utf-8")


def _create(path: Path, content: str | bytes, top: Path) -> bool:
    """Write a new file below the repository's top; False, and nothing done, where there is one already."""
    if not path.parent.resolve().is_relative_to(top.resolve()):
        raise InvalidSkill(f"{path.parent} leads out of {top}; nothing is written there")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{file_name(path.name)}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        Path(partial).chmod(0o644)
        # Linking fails where the name is taken, even by a file that appeared this moment.
        path.hardlink_to(partial)
    except FileExistsError:
        return False
    finally:
        Path(partial).unlink(missing_ok=True)
    return True

"""Read a folder of Harbor tasks: those whose tests are Python and need no container become pytest tasks.

A task is a folder with `instruction.md` and `tests/`; `task.toml` may say times, difficulty and tags. Harbor
runs an agent inside a container and looks at what it left there; Uplift has no container, so a task that
needs one is refused by name, with the reason. `docs/importing.md` says what a test can look at instead.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

from aggregate.text.files import exists, is_folder
from judges.safe_text import shown
from producer.importers import imported
from producer.importers.imported import Found, ImportedTask, Refused, Unimportable, unimportable
from producer.suites.yaml_file import Problem

INSTRUCTION, SETTINGS = "instruction.md", "task.toml"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_HARMLESS = re.compile(r"\s*(?:#.*|(?:FROM|WORKDIR|LABEL|MAINTAINER)\b.*|)", re.IGNORECASE)
_CONTAINER_PATH = re.compile(r"(?<![\w.])/(?:app|logs|tests|workspace|root|solution|oracle|home)(?:/|\b)")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")
_SCRIPTS = (".sh", ".bash", ".py", ".ps1")


def convert(path: Path) -> Found:
    """The tasks of a folder, or of one task's own folder; raises Unimportable for broken settings."""
    if not is_folder(path):
        raise unimportable(path, f"nothing to import at {path}")
    below = (child for child in path.iterdir() if is_folder(child))
    tasks = (child for child in below if exists(child / INSTRUCTION) or exists(child / SETTINGS))
    folders = [path] if exists(path / INSTRUCTION) else sorted(tasks)
    if not folders:
        raise unimportable(path, f"{path}: no folder in it has an {INSTRUCTION}")
    if len(folders) > imported.MAX_TASKS:
        raise unimportable(path, f"{path}: more than {imported.MAX_TASKS:,} tasks; split it")
    found = Found(
        source=str(path), skill_id=imported.slug(path.resolve().name) or "skill", task_count=len(folders)
    )
    problems: list[Problem] = []
    for folder in folders:
        settings = _settings(folder, problems)
        try:
            _task(folder, settings, found)
        except Refused as refused:
            found.leave_out("task", str(folder), folder.name, str(refused))
    if problems:
        raise Unimportable(problems)
    return found


def _settings(folder: Path, problems: list[Problem]) -> dict[str, Any]:
    file = str(folder / SETTINGS)
    if not exists(folder / SETTINGS):
        return {}
    try:
        return tomllib.loads(imported.text_beside(folder, SETTINGS))
    except Refused as refused:
        problems.append(Problem(file, 1, 1, "", str(refused)))
    except tomllib.TOMLDecodeError as wrong:
        place = _TOML_PLACE.search(str(wrong))
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (1, 1)
        problems.append(Problem(file, line, column, "", f"invalid TOML: {_TOML_PLACE.sub('', str(wrong))}"))
    except RecursionError:
        problems.append(Problem(file, 1, 1, "", "invalid TOML: nested too deeply"))
    return {}


def _task(folder: Path, settings: dict[str, Any], found: Found) -> None:
    instruction = imported.text_beside(folder, INSTRUCTION)
    if not instruction.strip():
        raise Refused(f"{INSTRUCTION} is blank")
    files = _environment(folder, settings)
    test_name, test_count, tests = _tests(folder)
    id_ = found.new_id(imported.slug(folder.name, 56) or "task")
    home = re.sub(r"\W+", "_", id_)
    fixtures = tests | {f"files/{name}": data for name, data in files.items()}
    judge = {"type": "pytest", "test_file": f"fixtures/{home}/{test_name}"}
    judge |= _seconds(settings, "verifier", folder, found)
    fields: dict[str, Any] = {"id": id_, "prompt": instruction, "judge": judge}
    fields |= {**_seconds(settings, "agent", folder, found), **_labels(settings)}
    if files:
        fields["files"] = [f"fixtures/{home}/files/{name}" for name in sorted(files)]
    if (reply := _reply(folder)) is not None:
        fixtures[f"reply{reply[0]}"] = reply[1]
        fields["replies"] = {"pass": f"fixtures/{home}/reply{reply[0]}"}
    found.assertion_count += test_count
    found.fixtures.update({f"{home}/{name}": data for name, data in fixtures.items()})
    found.tasks.append(ImportedTask(str(folder), fields))


def _environment(folder: Path, settings: dict[str, Any]) -> dict[str, bytes]:
    """The files to put into the agent's workspace; raises Refused where the task needs a container."""
    environment = _table(settings, "environment")
    for key in ("docker_image", "mcp_servers", "gpus"):
        if environment.get(key):
            raise Refused(f"{SETTINGS} asks for {key}, which needs a container")
    if settings.get("steps") or exists(folder / "steps"):
        raise Refused("it has several steps; Uplift asks once")
    files = imported.files_in(folder, "environment")
    for name in files:
        if name in _COMPOSE:
            raise Refused(f"environment/{name} starts containers")
    dockerfile = files.pop("Dockerfile", b"").decode(errors="replace")
    for number, line in enumerate(dockerfile.splitlines(), start=1):
        if not _HARMLESS.fullmatch(line):
            raise Refused(f"environment/Dockerfile:{number} needs a container: {shown(line.strip())}")
    # Without a COPY, an agent in a container would not see these files; with one, it was refused above.
    return {} if dockerfile else files


def _tests(folder: Path) -> tuple[str, int, dict[str, bytes]]:
    """The one test file's name, how many tests it has, and all files of `tests/`; raises Refused."""
    files = imported.files_in(folder, "tests")
    python = [name for name in files if re.fullmatch(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py", name)]
    if not python:
        why = "its tests are a shell script, which needs a container" if files else "it has no tests"
        raise Refused(f"{why}; Uplift runs tests in Python (tests/test_*.py)")
    if len(python) > 1:
        raise Refused(
            f"it has {len(python)} test files, and a judge runs one ({', '.join(python)}); join them"
        )
    counts = {name: _count(name, data) for name, data in files.items() if name.endswith(".py")}
    kept = {name: data for name, data in files.items() if not name.endswith(".sh")}
    return python[0], counts[python[0]], kept


def _count(name: str, data: bytes) -> int:
    """How many test functions a file has; raises Refused where it cannot be run without a container."""
    try:
        nodes = list(ast.walk(ast.parse(data)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        raise Refused(f"tests/{name} is no Python that can be read: {wrong}") from None
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _CONTAINER_PATH.match(text):
            where = f"tests/{name}:{getattr(node, 'lineno', 1)}"
            raise Refused(
                f"{where} looks at {shown(text)} in a container; use AI_OUTPUT_FILE or AI_WORKSPACE"
            )
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in nodes)


def _reply(folder: Path) -> tuple[str, bytes] | None:
    """The reference answer and its file's ending, if `solution/` holds one file that is no script."""
    files = list(imported.files_in(folder, "solution").items())
    if len(files) != 1 or files[0][0].endswith(_SCRIPTS):
        return None
    suffix = Path(files[0][0]).suffix
    return (suffix if re.fullmatch(r"\.\w{1,10}", suffix) else ".txt"), files[0][1]


def _seconds(settings: dict[str, Any], table: str, folder: Path, found: Found) -> dict[str, Any]:
    """The time limit of a table, if it has one, within what Uplift allows."""
    value = _table(settings, table).get("timeout_sec")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {}
    allowed = min(max(float(value), 1.0), 3600.0) if value == value else 3600.0
    if allowed != value:
        found.note(f"{folder}: {table}.timeout_sec was {value:g}; Uplift allows 1 to 3600")
    return {"timeout_seconds": int(allowed) if allowed == int(allowed) else allowed}


def _labels(settings: dict[str, Any]) -> dict[str, Any]:
    metadata, task = _table(settings, "metadata"), _table(settings, "task")
    tags = metadata.get("tags", task.get("keywords"))
    texts = {
        "description": task.get("description", metadata.get("description")),
        "tier": metadata.get("difficulty"),
    }
    labels = {key: text for key, text in texts.items() if _is_text(text)}
    kept = list(filter(_is_text, tags)) if isinstance(tags, list) else []
    return {**labels, "tags": kept} if kept else labels


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _table(settings: dict[str, Any], name: str) -> dict[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, dict) else {}

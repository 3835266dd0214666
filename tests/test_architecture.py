"""The architecture as tests: packages and rooms import downwards only, rooms are small, and names are told apart."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = ("producer", "workers", "aggregate", "judges")
ROOT = Path(__file__).parent.parent
MOST_FILES = 20
MOST_MODULES = 155


def modules(root: Path, below: str = "") -> list[Path]:
    packages = [below] if below else LAYERS
    return [
        path
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
        if "templates" not in path.parts
    ]


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, inside functions too; relative ones, which nothing here may use, as `.name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of a copy of the packages, by the contracts of our own pyproject.toml."""
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--config",
        ROOT / "pyproject.toml",
        "--no-cache",
    ]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def foreign_inside(root: Path) -> list[str]:
    """Imports of `judges.inside` that are not there in a sandbox."""
    allowed = {*sys.stdlib_module_names, "pytest", "uplift_judge"}
    return [
        f"{path.name} imports {name}"
        for path in modules(root, "judges/inside")
        for name in imported(path)
        if name.split(".")[0] not in allowed
        and name != "judges.inside"
        and not name.startswith("judges.inside.")
    ]


def full_folders(root: Path) -> list[str]:
    """Folders with more files than anybody looks through."""
    counts: dict[Path, int] = defaultdict(int)
    for path in modules(root):
        counts[path.parent.relative_to(root)] += path.name != "__init__.py"
    return [f"{folder}: {count}" for folder, count in counts.items() if count > MOST_FILES]


def shared_names(root: Path) -> dict[str, list[str]]:
    """Public classes of one name in several modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules(root):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(root)))
    return {name: places for name, places in homes.items() if len(places) > 1}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The packages, to be spoiled."""
    for package in LAYERS:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_packages_and_rooms_import_downwards_only_and_never_in_a_circle() -> None:
    said = linted(ROOT)
    assert said.returncode == 0, said.stdout


def test_an_upward_import_is_found(copied: Path) -> None:
    with (copied / "workers/store/keys.py").open("a") as file:
        file.write("\n\ndef up() -> None:\n    from workers.rounds import publish\n")
    said = linted(copied)
    assert said.returncode == 1
    assert "workers.store.keys -> workers.rounds.publish" in said.stdout


def test_a_circle_of_imports_inside_functions_is_found(copied: Path) -> None:
    for one, other in (("runs/submit", "watch"), ("runs/watch", "submit")):
        with (copied / f"producer/{one}.py").open("a") as file:
            file.write(f"\n\ndef around() -> None:\n    from producer.runs import {other}\n")
    said = linted(copied)
    assert said.returncode == 1
    assert "No cycles are allowed in producer.runs" in said.stdout


def test_what_runs_in_the_sandbox_imports_only_what_is_there(copied: Path) -> None:
    assert foreign_inside(ROOT) == []
    with (copied / "judges/inside/pytest_plugin.py").open("a") as file:
        file.write("\n\ndef out() -> None:\n    from judges.spec import Pytest\n    import pydantic\n")
    assert foreign_inside(copied) == [
        "pytest_plugin.py imports judges.spec",
        "pytest_plugin.py imports pydantic",
    ]


def test_no_folder_is_too_full_and_there_are_not_too_many_modules(copied: Path) -> None:
    assert full_folders(ROOT) == []
    assert sum(path.name != "__init__.py" for path in modules(ROOT)) <= MOST_MODULES
    for number in range(MOST_FILES + 1 - len(list((copied / "judges/checks").glob("[!_]*.py")))):
        (copied / f"judges/checks/check_{number}.py").touch()
    assert full_folders(copied) == ["judges/checks: 21"]


def test_no_two_public_classes_share_a_name(copied: Path) -> None:
    assert shared_names(ROOT) == {}
    (copied / "judges/checks/twice.py").write_text("class Manifest:\n    pass\n")
    assert shared_names(copied) == {"Manifest": ["workers/store/messages.py", "judges/checks/twice.py"]}


def test_the_page_of_the_architecture_names_rooms_and_files_that_are_there() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:producer|workers|aggregate|judges)/[\w/.]*)`", page))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    changes = page.partition("## To change something")[2].partition("\n## ")[0].splitlines()[4:]
    assert len([line for line in changes if line.startswith("| ")]) >= 25
    rooms = {f"{path.parent.relative_to(ROOT)}" for path in modules(ROOT)} - set(LAYERS)
    assert sorted(room for room in rooms if f"| `{room.split('/')[1]}/` |" not in page) == []


def test_packages_use_absolute_imports() -> None:
    assert [path for path in modules(ROOT) if any(name.startswith(".") for name in imported(path))] == []


def test_judges_know_no_celery_no_vendor_and_no_pandas() -> None:
    unknown = {"celery", "kombu", "redis", "anthropic", "openai", "pandas"}
    found = {name.split(".")[0] for path in modules(ROOT, "judges") for name in imported(path)}
    assert not found & unknown

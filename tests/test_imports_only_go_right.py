"""The architecture as a test: producer → workers → aggregate → judges, never the other way."""

import ast
from pathlib import Path

import pytest

LAYERS = ("producer", "workers", "aggregate", "judges")
ROOT = Path(__file__).parent.parent


def imported_packages(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_package_imports_only_packages_to_its_right(layer):
    forbidden = set(LAYERS[: LAYERS.index(layer)])
    wrong = {
        f"{path.relative_to(ROOT)} imports {package}"
        for path in (ROOT / layer).rglob("*.py")
        for package in imported_packages(path.read_text(encoding="utf-8")) & forbidden
    }
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_packages_use_absolute_imports_so_that_the_check_above_sees_them(layer):
    relative = [
        str(path)
        for path in (ROOT / layer).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_judges_know_no_celery_no_vendor_and_no_pandas():
    for path in (ROOT / "judges").rglob("*.py"):
        found = imported_packages(path.read_text(encoding="utf-8"))
        assert not found & {"celery", "kombu", "redis", "anthropic", "openai", "pandas"}, path


def test_the_check_sees_imports_inside_functions():
    assert imported_packages("def f():\n    from workers.store import Store\n") == {"workers"}

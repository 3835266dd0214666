"""Hints for what is missing name packages that pip knows, wherever Uplift itself was installed from."""

import tomllib
from pathlib import Path

import pytest

from workers.models.choose import how_to_install

HERE = Path(__file__).parent.parent


@pytest.mark.parametrize("extra", ["anthropic", "openai", "monitor"])
def test_a_hint_names_the_packages_of_an_extra(extra):
    declared = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    hint = how_to_install(extra)
    assert hint.startswith("pip install ")
    assert hint.count("'") == 2 * len(declared)
    for package in declared:
        assert package.split(">")[0] in hint


def test_no_hint_asks_for_a_checkout():
    code = [
        path
        for name in ("judges", "aggregate", "workers", "producer")
        for path in (HERE / name).rglob("*.py")
    ]
    assert [path for path in code if "pip install '." in path.read_text()] == []

"""Write small suites to test, and read what is wrong with them."""

from pathlib import Path

import pytest

from producer.suites import suite

TASK = """
- id: names-the-platform
  prompt: Write release notes.
  judge: {type: contains, expected: [iOS]}
"""


def a_suite(folder: Path, tasks: str = TASK, *, head: str = 'skill_id: notes\nversion: "1.0"\n') -> Path:
    path = folder / "suite.yaml"
    path.write_text(f"{head}tasks:{tasks}", encoding="utf-8")
    return path


def a_fixture(folder: Path, name: str, text: str = "x") -> Path:
    path = folder / "fixtures" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems_of(path: Path) -> list[str]:
    """What is wrong with a suite, without its path in front."""
    with pytest.raises(suite.InvalidSuite) as caught:
        suite.load(path)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def problem_of(path: Path) -> str:
    (only,) = problems_of(path)
    return only


def a_task(**fields: str) -> str:
    """One task whose fields are given as YAML, one a line, in the order: id, prompt, judge, the rest."""
    written = {"id": "a", "prompt": "hi", "judge": "{type: contains, expected: [x]}"} | fields
    lines = [f"{key}: {value}" for key, value in written.items() if value != "-"]
    return "\n- " + "\n  ".join(lines) + "\n"

"""Suites that are damaged or hold anything anywhere: they load or are told what is wrong, and never crash."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from suites import a_fixture

from producer.suites import suite

VALID = """skill_id: s
version: "1.0"
defaults: {timeout_seconds: 5, tags: [a]}
tasks:
  - id: a
    prompt: |
      hello
    judge: {type: contains, expected: ["iOS", x], forbidden: [y]}
    replies: {pass: fixtures/a}
  - id: b
    prompt: hi
    judge:
      type: llm-rubric
      rubric: polite?
      criteria: [{name: n, max_points: 2}]
  - {id: c, prompt: x, judge: {type: pytest, test_file: fixtures/t.py}, files: [fixtures/a], should_trigger: true}
"""
replacements = st.sampled_from(
    [
        "",
        "\n",
        " ",
        ":",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "*a",
        "&a ",
        "!!x ",
        "<<: ",
        ".nan",
        "null",
        "~",
        "\x00",
        "\t",
        '"',
    ]
)
edits = st.lists(
    st.tuples(st.integers(0, len(VALID)), st.integers(0, 6), replacements), min_size=1, max_size=4
)
scalars = st.sampled_from(
    [None, True, 5, 0.5, "", " ", "x", "contains", "fixtures/a", "fixtures/../a", "\u202e"]
)
wrong_values = st.recursive(
    scalars,
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "expected", "z"]), parts)
    ),
    max_leaves=6,
)


def loads_or_tells(parent: Path, text: str) -> None:
    folder = parent / "hostile"
    a_fixture(folder, "a")
    a_fixture(folder, "t.py")
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    problems = suite.validate([path])
    assert all(problem.line > 0 and problem.column > 0 and problem.message for problem in problems)
    assert all(str(problem).isprintable() for problem in problems)
    places = [(problem.line, problem.column) for problem in problems]
    assert places == sorted(places)


@given(edits)
@settings(deadline=None, max_examples=300)
def test_a_suite_damaged_anywhere_loads_or_is_told_what_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]]
) -> None:
    text = VALID
    for start, length, replacement in edits:
        text = text[:start] + replacement + text[start + length :]
    loads_or_tells(tmp_path_factory.getbasetemp(), text)


@given(
    st.sampled_from(
        [("skill_id",), ("version",), ("defaults",), ("defaults", "tags"), ("tasks",), ("tasks", 0)]
    )
    | st.tuples(
        st.just("tasks"), st.integers(0, 2), st.sampled_from(["id", "prompt", "judge", "files", "replies"])
    )
    | st.tuples(
        st.just("tasks"),
        st.integers(0, 2),
        st.just("judge"),
        st.sampled_from(["type", "expected", "criteria"]),
    ),
    wrong_values,
)
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_place_loads_or_is_told_what_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, steps: tuple[Any, ...], value: Any
) -> None:
    content = yaml.safe_load(VALID)
    holder = content
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    loads_or_tells(tmp_path_factory.getbasetemp(), yaml.safe_dump(content, allow_unicode=True))

"""Whatever a source holds, importing it ends in a valid suite or in a complaint, and leaves nothing half-written."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_producer_import_evals import SKILL_CREATOR
from test_producer_import_promptfoo import CONFIG

from producer.importers import evals_json, imported, promptfoo
from producer.importers.imported import Found, Unimportable
from producer.suites import suite, yaml_file

EVALS = json.dumps(
    {**SKILL_CREATOR, "evals": [{**each, "files": []} for each in SKILL_CREATOR["evals"]]}, indent=1
)  # type: ignore[union-attr,dict-item]  # a literal list of mappings
PIECES = """\n|:|- |[|]|{|}|"|'|\\|{{|}}|{% x %}|null|1e999|file://../x|file:///etc/passwd|type: python|$ref|*a|&a """
pieces = st.sampled_from(
    [*PIECES.split("|"), "&a ", "*a ", "<<: *a", "", " ", "|", "\x00", "\ud800", "\u2028"]
)
scalars = st.sampled_from(
    [
        None,
        True,
        0,
        -1.5,
        "",
        " ",
        "x",
        "tests.csv",
        "{{question}}",
        "{{x|y}}",
        "file://x.py",
        "(a+",
        "\u202e",
    ]
)
values = st.recursive(
    scalars,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "value", "assert", "vars", "id", "text", "raw"]), parts)
    ),
    max_leaves=6,
)


def ends_well(parent: Path, convert: Callable[[Path], Found], name: str, text: str) -> None:
    home = parent / "import"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    source = home / name
    source.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        found = convert(source)
        path = imported.write(found, home / "out")
    except Unimportable:
        assert [entry.name for entry in home.iterdir()] == [name]
        return
    assert len(suite.load(path).tasks) == len(found.tasks)
    assert found.task_count >= found.tasks_left_out
    assert found.assertion_count >= found.counts["assertion"]["lost"]
    assert sorted(entry.name for entry in home.iterdir()) == sorted([name, "out"])


def damaged(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, length, piece in edits:
        start %= len(text) + 1
        text = text[:start] + piece + text[start + length :]
    return text


@pytest.mark.parametrize(
    ("convert", "name", "text"),
    [(evals_json.convert, "evals.json", EVALS), (promptfoo.convert, "promptfooconfig.yaml", CONFIG)],
)
@given(edits=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 30), pieces), min_size=1, max_size=4))
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.differing_executors])
def test_a_source_damaged_anywhere_ends_well(
    tmp_path_factory: pytest.TempPathFactory,
    convert: Callable[[Path], Found],
    name: str,
    text: str,
    edits: list[tuple[int, int, str]],
) -> None:
    ends_well(tmp_path_factory.getbasetemp(), convert, name, damaged(text, edits))


@given(
    st.sampled_from(
        [(key,) for key in ("prompts", "tests", "defaultTest", "assertionTemplates", "description")]
        + [("providers",), ("scenarios",), ("tests", 0)]
        + [("tests", n, key) for n in range(3) for key in ("vars", "assert", "description", "prompts")]
        + [("tests", 0, key) for key in ("options", "threshold", "metadata")]
        + [
            ("tests", 0, "assert", n, key)
            for n in range(4)
            for key in ("type", "value", "threshold", "config")
        ]
    ),
    values,
)
@settings(deadline=None, max_examples=150)
def test_any_value_in_any_place_of_a_configuration_ends_well(
    tmp_path_factory: pytest.TempPathFactory, steps: tuple[Any, ...], value: Any
) -> None:
    root = yaml_file.parse(CONFIG, "config").root
    assert root is not None
    content = copy.deepcopy(root.value)
    holder = content
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    text = yaml.safe_dump(content, allow_unicode=True)
    ends_well(tmp_path_factory.getbasetemp(), promptfoo.convert, "promptfooconfig.yaml", text)


@given(
    st.sampled_from(
        [("skill_name",), ("evals",), ("evals", 0)]
        + [
            ("evals", 0, key)
            for key in ("id", "prompt", "expected_output", "files", "expectations", "assertions")
        ]
    ),
    values,
)
@settings(deadline=None, max_examples=150)
def test_any_value_in_any_place_of_evals_ends_well(
    tmp_path_factory: pytest.TempPathFactory, steps: tuple[Any, ...], value: Any
) -> None:
    content = json.loads(EVALS)
    holder = content
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    ends_well(tmp_path_factory.getbasetemp(), evals_json.convert, "evals.json", json.dumps(content))

"""Whatever lists the types of judges follows the one union of them, or a test here names what was forgotten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from judges import judge, text_judge
from judges.judgment import Completion, Workspace
from judges.spec import JudgeSpec
from producer.suites import rules
from producer.suites.rules import JUDGE_TYPES
from workers.models.model import Request
from workers.models.sim import Sim, SimSettings, missing_reply
from workers.store.messages import Replies, Task

ROOT = Path(__file__).parent.parent
# Every document that lists all types of judges.
DOCUMENTS = (
    *("docs/judges.md", "docs/suite-format.md", "docs/models.md", "docs/index.md"),
    *("docs/suite.schema.json", "producer/templates/suite.yaml"),
)
# The shortest settings of each type; tests below cannot do without one for a new type.
SETTINGS: dict[str, dict[str, Any]] = {
    "contains": {"expected": ["a"]},
    "pytest": {"test_file": "fixtures/test_it.py"},
    "llm-rubric": {"rubric": "is it good?"},
    "benchmark": {"benchmark_file": "fixtures/b.py", "original_file": "fixtures/o.py"},
    "regex": {"pattern": "a"},
    "equals": {"text": "a"},
    "json-schema": {"schema": {"type": "array"}},
    "length": {"max_words": 80},
    "python": {"function": "fixtures/checks.py:is_good"},
    "command": {"argv": ["true"]},
    "files": {"exists": ["out.csv"]},
    "tools": {"expect": ["Bash"]},
    "steps": {"max_turns": 5},
    "skill-loaded": {},
}


def a_judge(name: str) -> JudgeSpec:
    made: JudgeSpec = TypeAdapter(JudgeSpec).validate_python({"type": name, **SETTINGS[name]})
    return made


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("no model may be asked")


def test_the_types_are_those_of_the_union_and_each_has_settings_to_test_with() -> None:
    assert len(JUDGE_TYPES) == len(get_args(JudgeSpec)) - len(("not", "any")) == len(set(JUDGE_TYPES))
    assert sorted(SETTINGS) == sorted(JUDGE_TYPES)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_list_of_judges_names_every_type(document: str) -> None:
    words = set(re.findall(r"[a-z][a-z_-]*", (ROOT / document).read_text(encoding="utf-8")))
    missing = sorted(set(JUDGE_TYPES) - words)
    assert missing == [], f"{document} does not say a word about {', '.join(missing)}"


def test_importers_write_no_other_type() -> None:
    written = {
        name
        for path in sorted((ROOT / "producer" / "importers").glob("*.py"))
        for name in re.findall(r'"type": "([a-z_-]+)"', path.read_text(encoding="utf-8"))
    }
    assert {"contains", "llm-rubric", "json-schema"} <= written <= set(JUDGE_TYPES)


@pytest.mark.parametrize("name", JUDGE_TYPES)
def test_a_suite_may_name_every_type_and_a_misspelt_one_is_told_them_all(name: str) -> None:
    rules.TaskRules(id="a", prompt="p", judge=a_judge(name))
    problem = next(iter(broken(f"{name}x")))
    assert all(known in problem for known in JUDGE_TYPES)
    assert f"did you mean {name}?" in problem


def broken(name: str) -> list[str]:
    from producer.suites import yaml_file

    text = f'skill_id: s\nversion: "1.0"\ntasks:\n  - {{id: a, prompt: p, judge: {{type: {name}}}}}\n'
    document = yaml_file.parse(text, "suite.yaml")
    assert document.root is not None
    return [finding.message for finding in rules.broken_rules(document.root, text)]


@pytest.mark.parametrize("name", JUDGE_TYPES)
async def test_every_type_is_judged_by_its_own_check(name: str) -> None:
    """Without suite, sandbox and model: each gives its judgment, or says what it lacks in its own words."""
    spec = a_judge(name)
    judgment = await judge(spec, Completion(text="a"), nobody, Workspace(sandbox="off"))
    assert judgment.judge == name
    assert "AssertionError: " + name not in judgment.details
    if (judged := text_judge(spec, Workspace())) is not None:
        assert judged("a").passed is judgment.passed


@pytest.mark.parametrize("name", JUDGE_TYPES)
async def test_the_simulated_model_answers_every_type_or_says_that_it_needs_replies(
    name: str, tmp_path: Path
) -> None:
    spec = a_judge(name)
    task = Task(id="a", prompt="p", judge=spec)
    judged = text_judge(spec, Workspace())
    for passes in (True, False):
        sim = Sim(SimSettings(candidate=float(passes)))
        request = Request(prompt="p", task=task, arm="candidate", attempt=1, suite=tmp_path)
        if missing_reply(task):
            assert judged is None, f"sim cannot answer a {name} task, though its judge needs only a text"
            (tmp_path / "good.txt").write_text("good")
            request = Request(
                prompt="p",
                task=task.model_copy(update={"replies": Replies.model_validate({"pass": "good.txt"})}),
                arm="candidate",
                attempt=1,
                suite=tmp_path,
            )
        text = (await sim.complete(request)).text
        if judged is not None:
            assert judged(text).passed is passes

"""Checks of what an attempt did: its tools, what it took, and whether the skill was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from judges import judge
from judges.judgment import Completion, Judgment, Workspace
from judges.spec import CommandCheck, JudgeSpec, Pytest, PythonFunction
from judges.trajectory import Step, ToolCall, Trajectory

DONE = Trajectory(
    steps=(
        Step(source="user", text="do it"),
        Step(
            source="agent",
            calls=(ToolCall(number=1, name="Read"), ToolCall(number=2, name="Bash", failed=True)),
        ),
        Step(source="agent", within=1, calls=(ToolCall(number=3, name="Grep"),)),
        Step(source="agent", text="done", calls=(ToolCall(number=4, name="Edit"),)),
    )
)
SAID = Completion(text="done", input_tokens=900, output_tokens=100, turns=3, cost_usd=0.25, skill_loaded=True)


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("no model may be asked")


async def judged(spec: dict[str, Any], said: Completion = SAID, **where: Any) -> Judgment:
    made: JudgeSpec = TypeAdapter(JudgeSpec).validate_python(spec)
    return await judge(made, said, nobody, Workspace(**{"trajectory": DONE, "seconds": 12.0, **where}))


@pytest.mark.parametrize(
    ("asked", "score", "words"),
    [
        ({"expect": ["Read", "Edit"]}, 1, "all 2 conditions met"),
        ({"expect": ["Read", "Bash"]}, 0.5, "Bash is used: it failed"),
        ({"expect": ["Write"]}, 0, "Write is used: it was not"),
        ({"forbid": ["Write"]}, 1, "met"),
        ({"forbid": ["Bash"]}, 0, "it was, 1 times"),
        ({"order": ["Read", "Edit"]}, 1, "met"),
        ({"order": ["Read", "Grep", "Edit"]}, 1, "met"),
        ({"order": ["Edit", "Read"]}, 0, "no Read in its place"),
        ({"order": ["Read", "Bash"]}, 0, "no Bash in its place"),
        ({"max_calls": 4}, 1, "met"),
        ({"max_calls": 3}, 0, "there were 4"),
    ],
)
async def test_tools_that_were_used_are_judged_one_condition_each(
    asked: dict[str, Any], score: float, words: str
) -> None:
    judgment = await judged({"type": "tools", **asked})
    assert (judgment.score, judgment.passed) == (score, score == 1)
    assert words in judgment.details


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ({"max_turns": 3, "max_tokens": 1000, "max_seconds": 12, "max_usd": 0.25}, True),
        ({"max_turns": 2}, False),
        ({"max_tokens": 999}, False),
        ({"max_seconds": 11.9}, False),
        ({"max_usd": 0.2}, False),
    ],
)
async def test_an_attempt_may_take_so_much_and_no_more(asked: dict[str, Any], passed: bool) -> None:
    assert (await judged({"type": "steps", **asked})).passed is passed


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_skill_was_loaded_or_not(loaded: bool) -> None:
    said = SAID.model_copy(update={"skill_loaded": loaded})
    assert (await judged({"type": "skill-loaded"}, said)).passed is loaded


@pytest.mark.parametrize(
    ("spec", "lacks"),
    [
        ({"type": "tools", "forbid": ["Bash"]}, "the steps"),
        ({"type": "steps", "max_turns": 1}, "its turns"),
        ({"type": "steps", "max_tokens": 1}, "its tokens"),
        ({"type": "steps", "max_seconds": 1}, "its seconds"),
        ({"type": "steps", "max_usd": 1}, "its usd"),
        ({"type": "skill-loaded"}, "whether a skill was loaded"),
    ],
)
async def test_where_nobody_tells_it_is_an_error_that_says_what_is_lacking(
    spec: dict[str, Any], lacks: str
) -> None:
    judgment = await judged(spec, Completion(text="done"), trajectory=None, seconds=None)
    assert (judgment.passed, judgment.score) == (None, None)
    assert lacks in (judgment.error or "")
    turned = await judged({"not": spec}, Completion(text="done"), trajectory=None, seconds=None)
    assert (turned.passed, turned.score) == (None, None)


@pytest.mark.parametrize("spec", [{"type": "tools"}, {"type": "steps"}, {"type": "steps", "max_turns": -1}])
def test_a_check_that_asks_for_nothing_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(JudgeSpec).validate_python(spec)


SAYS = "import json, os; told = json.load(open(os.environ['AI_TRAJECTORY_FILE']))"
CODE = f"{SAYS}\nassert [c['name'] for c in told['steps'][1]['calls']] == ['Read', 'Bash'], told\n"


@pytest.mark.parametrize(
    "spec",
    [
        Pytest(type="pytest", test_file="fixtures/test_it.py"),
        CommandCheck(type="command", argv=["python", "-c", CODE]),
        PythonFunction(type="python", function="fixtures/checks.py:good"),
    ],
    ids=lambda spec: spec.type,
)
@pytest.mark.parametrize("sandbox", ["off", "auto"])
async def test_tests_functions_and_commands_find_the_steps_in_a_file(
    spec: JudgeSpec, sandbox: Any, tmp_path: Path
) -> None:
    (tmp_path / "fixtures").mkdir()
    inside = "".join(f"    {line}\n" for line in CODE.splitlines())
    (tmp_path / "fixtures/test_it.py").write_text(f"def test_it():\n{inside}")
    (tmp_path / "fixtures/checks.py").write_text(f"def good(text):\n{inside}    return True\n")
    where = Workspace(tmp_path, sandbox=sandbox, trajectory=DONE)
    judgment = await judge(spec, SAID, nobody, where)
    assert judgment.passed, judgment.details

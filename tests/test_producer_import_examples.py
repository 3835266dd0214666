"""Sixty configurations as promptfoo's users write them: most assertions are kept, and none changes silently.

What is kept is held against a reading of the same file with PyYAML and a few lines of Python that know what promptfoo's
assertions mean: on many outputs, a task passes exactly when the test would.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from judges import judge_all
from judges.judgment import Completion, Workspace
from producer.importers import imported, promptfoo
from producer.importers.imported import Found
from producer.suites import suite

FILES = {
    "ask.txt": "Answer in one sentence: {{q}}\n",
    "two.md": "Be brief. {{q}}\n---\nBe exact. {{q}}\n",
    "chat.json": '[{"role": "system", "content": "You are a {{who}}."}, {"role": "user", "content": "{{q}}"}]',
    "chat.yaml": "- {role: system, content: You help sailors.}\n- {role: user, content: '{{q}}'}\n",
    "tide.md": "High water is at 6:40.\n",
    "port.json": '{"name": "Emden", "depth": 9}',
    "schema.json": '{"type": "object", "required": ["port"]}',
    "kind.txt": "Is kind to {{who}}",
    "checks.py": "def get_assert(output, context):\n    return 'tide' in output\n",
    "more.yaml": "- vars: {q: When is slack water?}\n  assert: [{type: icontains, value: slack}]\n",
    "one.json": '[{"vars": {"q": "Which flag is yellow?"}, "assert": [{"type": "contains", "value": "Q"}]}]',
    "rows.csv": "q,__expected1,__expected2\nName a knot,icontains:bowline,not-contains:noose\n"
    "Name a sail,contains-any:jib|main,javascript:output.length\n",
    "lines.jsonl": '{"vars": {"q": "Port or starboard?"}, "assert": [{"type": "regex", "value": "port|starboard"}]}\n'
    '{"vars": {"q": "Red or green?"}, "assert": [{"type": "icontains", "value": "red"}]}\n',
    "SKILL.md": "---\nname: sailing\ndescription: How to sail\n---\nMind the boom.\n\n{{q}}\n",
    "v1/.claude/skills/sail/SKILL.md": "---\nname: sail\ndescription: Sail\n---\nReef early.\n",
    "v2/.claude/skills/sail/SKILL.md": "---\nname: sail\ndescription: Sail\n---\nReef late.\n",
    "v1/log.txt": "wind 5\n",
    "v2/log.txt": "wind 5\n",
}

PHRASES = [
    *("ebb", "flood", "slack", "moon", "Moon", "tide", "storm", "panic", "sorry", "Sorry", "maybe", "Emden"),
    *("emden", "Hamburg", "jib", "main", "reef", "wind", "North", "Sea", "6:40", "6", "Aye", "No", "none"),
    *('{"port": "Emden"}', "{}", "as an AI", "mate", "port", "starboard", "side", "moon, sun", "  ", "boom"),
    *(
        "Dutch",
        "Danish",
        "Ahoy",
        "pilot",
        "9 metres",
        "{",
        "bowline",
        "noose",
        "jib|main",
        "red",
        "Q",
        "sail",
    ),
]
OUTPUTS = ["", *PHRASES, *(" ".join(pair) for pair in itertools.permutations(PHRASES[:18], 2))]


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        value = next(csv.reader(io.StringIO(value), skipinitialspace=True))
    return [str(text) for text in value]


def holds(kind: str, value: Any, output: str) -> bool:
    """What promptfoo says of an assertion whose variables are filled in."""
    if kind.startswith("not-"):
        return not holds(kind.removeprefix("not-"), value, output)
    if kind.startswith("icontains"):
        value = value.lower() if isinstance(value, str) else [text.lower() for text in value]
        return holds(kind[1:], value, output.lower())
    match kind:
        case "contains":
            return str(value) in output
        case "contains-any":
            return any(text in output for text in texts_of(value))
        case "contains-all":
            return all(text in output for text in texts_of(value))
        case "starts-with":
            return output.startswith(value)
        case "regex":
            return re.search(value, output) is not None
        case "word-count":
            return value.get("min", 0) <= len(output.split()) <= value.get("max", 10**9)
    raise AssertionError(kind)


PROGRAMS = re.compile(r"(not-)?(i?contains(-any|-all)?|starts-with|regex|word-count)")


def mean(results: list[tuple[float, float]]) -> float:
    whole = sum(weight for _, weight in results)
    return sum(score * weight for score, weight in results) / whole if whole else 0.0


def passes(test: dict[str, Any], output: str) -> bool:
    """What promptfoo says of a test all of whose assertions are programs."""
    results, hold = [], True
    for one in test["assert"]:
        weight = one.get("weight", 1)
        if one["type"] == "assert-set":
            parts = [(float(holds(a["type"], a["value"], output)), a.get("weight", 1)) for a in one["assert"]]
            score = mean(parts)
            passed = score >= one["threshold"] if "threshold" in one else score == 1
        else:
            passed = holds(one["type"], one["value"], output)
            score = float(passed)
        results.append((score, weight))
        hold = hold and (passed or weight == 0)
    return mean(results) >= test["threshold"] - 1e-9 if "threshold" in test else hold


def configurations() -> list[str]:
    made = []
    whole = Path(__file__).with_name("promptfoo_examples.yaml").read_text()
    for text in whole.partition("\n")[2].strip().split("\n---\n"):
        short = "prompts: ['Tell me of {{q}}']", "defaultTest: {vars: {q: tides, who: sailors}}"
        if "defaultTest" in text:  # which then has the variables too
            short = (short[0],)
            text = text.replace("defaultTest: {", "defaultTest: {vars: {q: tides, who: sailors}, ")
        joined = ("\n" if text.startswith("Q") else ", ").join(short)
        made.append(text.replace("Q: 1", joined, 1) + "\n")
    return made


def written(folder: Path, number: int) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path = folder / "promptfooconfig.yaml"
    path.write_text(configurations()[number])
    return path


NUMBERS = range(60)


def test_there_are_sixty() -> None:
    assert len(configurations()) == len(NUMBERS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return [promptfoo.convert(written(tmp_path_factory.mktemp(f"c{n}"), n)) for n in NUMBERS]


def test_three_quarters_of_the_assertions_are_kept_and_all_are_accounted_for(found: list[Found]) -> None:
    counts = [one.counts["assertion"] for one in found]
    for each in counts:
        assert each["found"] == each["kept"] + each["changed"] + each["lost"]
    whole = sum(each["found"] for each in counts)
    kept = sum(each["kept"] for each in counts)
    assert whole > 120
    assert kept / whole >= 0.75, (kept, whole)


def test_what_is_lost_or_changed_is_named_with_its_kind_and_place(found: list[Found]) -> None:
    kinds = {item.what for one in found for item in one.left_out if item.kind == "assertion"}
    known = {"javascript", "similar", "cost", "moderation", "skill-used", "trace-span-count"}
    # contains is among them for a filter in its value, and for a transform of the output.
    assert kinds == {*known, "is-valid-openai-tools-call", "contains"}
    changed = {item.what for one in found for item in one.changed}
    graded = {"model-graded-closedqa", "factuality", "g-eval", "llm-rubric"}
    assert changed == {*graded, "equals", "not-equals", "is-json", "not-is-json", "contains-json", "latency"}
    for one in found:
        for item in (*one.left_out, *one.changed):
            assert re.match(r".*\.(yaml|csv|jsonl):\d+:\d+$", item.place), item


@pytest.mark.parametrize("number", NUMBERS)
def test_every_suite_is_valid_and_says_what_the_source_asserts(tmp_path: Path, number: int) -> None:
    made = promptfoo.convert(written(tmp_path / "source", number))
    if not made.tasks:
        assert made.counts["assertion"]["kept"] == 0
        return
    assert suite.load(imported.write(made, tmp_path / "suite")).tasks


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("nobody is to be asked")


def programs_alone(number: int) -> bool:
    """Whether Python can say what becomes of all assertions: no files, sets of values, templates or lost ones."""
    config = yaml.safe_load(configurations()[number])
    told = json.dumps([config.get("defaultTest"), config.get("tests")])
    kinds = re.findall(r'"type": "([\w-]+)"', told)
    strange = ("file://", ".csv", "$ref", "transform", "scenarios", "|", "disableVar", '"q": [')
    known = all(PROGRAMS.fullmatch(kind) or kind == "assert-set" for kind in kinds)
    return known and isinstance(config.get("tests"), list) and not any(word in told for word in strange)


COMPARED = list(filter(programs_alone, NUMBERS))


def test_many_are_compared() -> None:
    assert len(COMPARED) > 20


@pytest.mark.parametrize("number", COMPARED)
async def test_a_task_passes_exactly_what_its_test_passed(tmp_path: Path, number: int) -> None:
    path = written(tmp_path / "source", number)
    config = yaml.safe_load(path.read_text())
    made = promptfoo.convert(path)
    counts = made.counts["assertion"]
    assert counts["kept"] == counts["found"]
    tasks = suite.load(imported.write(made, tmp_path / "suite")).tasks
    default = config.get("defaultTest", {})
    for task, test in zip(tasks, config["tests"], strict=True):
        values = {**default.get("vars", {}), **test.get("vars", {})}
        words = json.dumps([*default.get("assert", []), *test["assert"]])
        for _ in range(2):  # values may hold variables
            for name, value in values.items():
                words = words.replace("{{" + name + "}}", str(value))
        whole = {**test, "assert": json.loads(words)}
        for output in OUTPUTS:
            said = await judge_all(
                task.judges, task.threshold, Completion(text=output), lambda *_: nobody, Workspace()
            )
            assert said.passed is passes(whole, output), (output, whole, said.details)

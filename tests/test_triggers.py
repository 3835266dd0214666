"""Is the skill invoked when it should be, and only then? From an agent's own words to artifact, table and reports."""

import gzip
import json
import sys
from html import unescape

import pytest
from builders import a_record
from rich.console import Console
from running import a_suite, standalone, uplift

from aggregate.artifact import sentences
from aggregate.artifact.build import build
from aggregate.artifact.model import SkillLoads
from aggregate.records.run_info import RunInfo, TaskInfo
from aggregate.report import html, junit
from aggregate.report.result_tables import Material
from aggregate.report.terminal import result_table

# Invokes the skill whenever the prompt names a release and it has one, rightly or not.
AGENT = """\
import json, pathlib
prompt = open(0).read()
skill = any(pathlib.Path(".skills").glob("*/SKILL.md")) and "release" in prompt
print(json.dumps({"text": "done", "skill": {"used": skill}}))
"""
SUITE = """\
skill_id: haiku
version: "1.0"
tasks:
  - {id: wanted, prompt: Write the release notes., judge: {type: contains, expected: [done]}, should_trigger: true}
  - {id: missed, prompt: What changed since May?, judge: {type: contains, expected: [done]}, should_trigger: true}
  - {id: unwanted, prompt: Do not release anything., judge: {type: contains, expected: [done]}, should_trigger: false}
  - {id: rightly-not, prompt: What is 17 times 3?, judge: {type: contains, expected: [done]}, should_trigger: false}
  - {id: whatever, prompt: A release is due., judge: {type: contains, expected: [done]}}
"""
SENTENCE = (
    "the skill was invoked in 50.0 % of attempts where it should be (not in missed) "
    "and in 50.0 % of those where it should not be (in unwanted)"
)


def invoked(task, *, wanted, was, **fields):
    return a_record(task, completion={"text": "hi", "skill_loaded": was}, should_trigger=wanted, **fields)


def test_records_alone_tell_what_was_wanted():
    records = [invoked("a", wanted=True, was=False), invoked("b", wanted=False, was=False), a_record("c")]
    info = RunInfo.from_records(records)
    assert [task.should_trigger for task in info.tasks] == [True, False, None]
    block = build(info, records)[0].triggers
    assert (block.n, block.rate, block.trigger_rate, block.false_trigger_rate) == (
        2,
        0.5,
        0.0,
        0.0,
    )


def test_records_that_contradict_each_other_are_named():
    records = [invoked("a", wanted=True, was=True), invoked("a", wanted=False, was=True, attempt=2)]
    for order in (records, records[::-1]):
        info = RunInfo.from_records(order)
        assert info.tasks[0].should_trigger is True
        assert info.warnings == ("task a should trigger and should not; that it should is used",)


@pytest.mark.parametrize(
    ("wanted", "was", "says"),
    [
        (True, True, "The skill was invoked in 100.0 % of attempts where it should be."),
        (False, True, "The skill was invoked in 100.0 % of attempts where it should not be (in a)."),
        (True, None, ""),
        (None, True, ""),
    ],
)
def test_the_sentence_tells_only_what_was_asked_and_is_known(wanted, was, says):
    record = invoked("a", wanted=wanted, was=was)
    (made,) = build(RunInfo(run_id="r", tasks=(TaskInfo(id="a", should_trigger=wanted),)), [record])
    assert sentences.triggered(made) == says


def four(arm="candidate", *, was, **fields):
    return [invoked(task, wanted=None, was=was(task), arm=arm, **fields) for task in "abcd"]


def test_attempts_without_an_answer_have_not_failed_to_load_a_skill():
    records = four(was=lambda task: False, outcome="error", score=None)
    (made,) = build(RunInfo.from_records(records), records)
    assert not made.skill_loads
    assert not [one for one in made.warnings if "loaded" in one]


def test_a_skill_that_was_never_loaded_is_told_in_table_page_and_artifact_and_warned_of(tmp_path):
    records = [*four(was=lambda task: False), *four("baseline", was=lambda task: task != "a")]
    (made,) = build(RunInfo.from_records(records), records)
    model = records[0].model
    assert made.skill_loads == {
        "candidate": {model: SkillLoads(loaded=0, n=4)},
        "baseline": {model: SkillLoads(loaded=3, n=4)},
    }
    told = "skill loaded in 0 of 4 attempts (baseline 3 of 4)"
    warning = f"{model} loaded the skill of the candidate in 0 of 4 attempts: these answers came without it"
    assert told in made.summary
    assert made.diagnosis[0].code == "never_loaded"
    assert [one for one in made.warnings if "loaded" in one] == [warning]
    console = Console(record=True, width=200)
    console.print(result_table([made]))
    table = console.export_text()
    page = unescape(html.write(Material(made, lambda: records), tmp_path / "report.html").read_text())
    assert told in page
    for text in (table, page):
        assert warning in text


def test_each_model_that_never_loaded_the_skill_is_named():
    records = [*four(was=lambda task: True, model="one"), *four(was=lambda task: False, model="two")]
    (made,) = build(RunInfo.from_records(records), records)
    assert "skill loaded in 4 of 8 attempts" in made.summary
    assert [one.split()[0] for one in made.warnings if "loaded" in one] == ["two"]


def test_a_bare_baseline_a_model_that_does_not_tell_and_tasks_that_should_not_load_it_are_no_matter():
    silent = [*four(was=lambda task: None), *four("baseline", was=lambda task: False)]
    rightly_not = [invoked("e", wanted=False, was=False)]
    for records in (silent, rightly_not):
        info = RunInfo.from_records(records).model_copy(update={"baseline": "bare"})
        (made,) = build(info, records)
        assert made.skill_loads == {}
        assert "loaded" not in made.summary
        assert not any("loaded" in one for one in made.warnings)


@pytest.mark.slow
def test_an_agent_that_invokes_the_skill_wrongly_is_seen_in_artifact_table_reports_and_aggregate(short_tmp):
    suite = a_suite(short_tmp, 1)
    suite.write_text(SUITE)
    argv = json.dumps([sys.executable, "-c", AGENT])
    (short_tmp / "uplift.toml").write_text(
        f'[commands.agent]\nargv = {argv}\noutput = "json"\ntext_path = "text"\n'
        'skill_invoked_path = "skill.used"\nskill_folder = "{workspace}/.skills"\n'
    )
    words = standalone(suite, "--model", "command:agent", "--output", "artifact.json", "--details")
    ran = uplift(*words, cwd=short_tmp)
    assert ran.code == 0, ran.err
    artifact = json.loads((short_tmp / "artifact.json").read_text())
    assert artifact["triggers"] == {
        "n": 4,
        "rate": 0.5,
        "trigger_rate": 0.5,
        "false_trigger_rate": 0.5,
        "missed": 1,
        "false_triggers": 1,
        "missed_tasks": ["missed"],
        "false_trigger_tasks": ["unwanted"],
    }
    assert SENTENCE in " ".join(ran.err.split())
    assert "skill loaded in 2 of 3 attempts" in " ".join(ran.err.split())
    assert SENTENCE in artifact["summary"]
    run = short_tmp / "state" / "runs" / artifact["run_id"]
    assert "invoked in 50" in (run / "report.html").read_text()
    with gzip.open(run / "records.jsonl.gz") as file:
        (short_tmp / "records.jsonl").write_bytes(file.read())
    told = uplift("aggregate", "records.jsonl", "--state-root", "other", "--json", cwd=short_tmp)
    assert told.line["triggers"] == artifact["triggers"], told.err


def mounted(candidate, other="?", tasks=9, **info):
    """A run of three attempts a task, whose n-th attempt loaded the skill where the letter is `l`."""
    letters = {"l": True, "n": False, "?": None}
    records = [
        invoked(
            f"t{number // 3}",
            wanted=None,
            was=letters[(said * 27)[number]],
            arm=arm,
            attempt=number % 3 + 1,
            model="claude-code",
        )
        for arm, said in (("candidate", candidate), ("baseline", other))
        for number in range(3 * tasks)
    ]
    told = {"models": ("claude-code",), "mounted": ("claude-code",), **info}
    (artifact,) = build(RunInfo.from_records(records).model_copy(update=told), records)
    return artifact


def test_every_surface_says_in_how_many_attempts_the_skill_was_loaded(tmp_path):
    artifact = mounted("lnnn")
    words = "skill loaded in 7 of 27 attempts"
    assert artifact.skill_loads["candidate"]["claude-code"] == SkillLoads(loaded=7, n=27)
    assert words in " ".join(line.text for line in artifact.answer.lines)
    material = Material(artifact, list)
    assert words in junit.text(material)
    assert words in unescape(html.write(material, tmp_path / "report.html").read_text())


def test_a_skill_that_nobody_loaded_makes_no_result_unless_that_may_be():
    artifact = mounted("n")
    assert (artifact.verdict, artifact.reason_codes) == ("error", ["never_loaded"])
    assert artifact.exit_code() == 3
    assert artifact.answer.headline == "NO RESULT: the skill was never loaded"
    lines = {line.kind: line.text for line in artifact.answer.lines}
    assert "--unloaded warn" in lines["why"]
    assert "skill loaded in 0 of 27 attempts" in lines["what"]
    forgiven = mounted("n", unloaded="warn")
    assert forgiven.verdict == "pass"
    assert any("in 0 of 27 attempts" in warning for warning in forgiven.warnings)


def test_one_load_is_enough_and_tasks_that_should_not_load_it_do_not_count():
    assert mounted("l" + "n" * 26).verdict == "pass"
    records = [
        invoked(task, wanted=wanted, was=was, arm=arm)
        for arm in ("candidate", "baseline")
        for task, wanted, was in (("a", False, False), ("b", False, True))
    ]
    assert build(RunInfo.from_records(records), records)[0].verdict == "pass"


def test_loads_that_nobody_tells_are_unknown_and_no_error():
    artifact = mounted("?")
    assert artifact.verdict == "pass"
    assert artifact.skill_loads["candidate"]["claude-code"] == SkillLoads(loaded=None, n=27)
    assert "skill loaded in – of 27 attempts" in " ".join(line.text for line in artifact.answer.lines)
    assert mounted("?", mounted=()).skill_loads == {}


def test_a_bare_baseline_that_read_the_skill_is_an_error_and_a_baseline_skill_that_was_loaded_is_right():
    artifact = mounted("l", "nnnnnnnnl", baseline="bare")
    assert (artifact.verdict, artifact.reason_codes) == ("error", ["baseline_loaded"])
    assert "the bare baseline read the candidate's skill in 3 attempts" in artifact.reason
    assert mounted("l", "n", baseline="bare").verdict == "pass"
    assert mounted("l", "l", baseline="skill").verdict == "pass"


LEAVES = """\
import json, os, pathlib
found = [str(one) for one in pathlib.Path(".").rglob("SKILL.md")]
calls = [{"tool_call_id": "1", "function_name": "read", "arguments": {"path": one}} for one in found]
seen = [{"source_call_id": "1", "content": pathlib.Path(one).read_text()} for one in found]
step = {"source": "agent", "message": "hm", "tool_calls": calls, "observation": {"results": seen}}
told = {"schema_version": "ATIF-v1.8", "steps": [step]}
(pathlib.Path(os.environ["HOME"]) / "steps.json").write_text(json.dumps(told))
print("done")
"""


@pytest.mark.slow
def test_a_load_that_only_the_steps_tell_is_counted_listed_and_exported(short_tmp):
    suite = a_suite(short_tmp, 1)
    (short_tmp / "agent.py").write_text(LEAVES)
    (short_tmp / "uplift.toml").write_text(
        f"[commands.it]\nargv = [{sys.executable!r}, {str(short_tmp / 'agent.py')!r}]\n"
        'trajectory = "{home}/steps.json"\nskill_folder = "{workspace}/skills"\n'
    )
    ended = uplift(*standalone(suite, "--model", "command:it", "--sandbox", "off"), cwd=short_tmp)
    assert "skill loaded in 1 of 1 attempt" in ended.out + ended.err
    shown = uplift("show", "last", "--steps", "--state-root", "state", cwd=short_tmp)
    assert shown.out.count("→ read") == 1
    exported = uplift("export", "last", "--atif", "out", "--state-root", "state", cwd=short_tmp)
    assert "the steps of 2 of 2 attempts" in exported.err
    assert len(list((short_tmp / "out").iterdir())) == 2

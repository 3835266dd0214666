"""Is the skill invoked when it should be, and only then? From an agent's own words to artifact, table and reports."""

import gzip
import json
import sys

import pytest
from builders import a_record
from running import a_suite, standalone, uplift

from aggregate import sentences
from aggregate.artifact import build
from aggregate.run_info import RunInfo, TaskInfo

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
    "The skill was invoked in 50 % of attempts that should (not in missed) "
    "and in 50 % of those that should not (in unwanted)."
)


def invoked(task, *, wanted, was, **fields):
    return a_record(task, completion={"text": "hi", "skill_invoked": was}, should_trigger=wanted, **fields)


def test_records_alone_tell_what_was_wanted():
    records = [invoked("a", wanted=True, was=False), invoked("b", wanted=False, was=False), a_record("c")]
    info = RunInfo.from_records(records)
    assert [task.should_trigger for task in info.tasks] == [True, False, None]
    block = build(info, records)[0]["triggers"]
    assert (block["n"], block["rate"], block["trigger_rate"], block["false_trigger_rate"]) == (
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
        (True, True, "The skill was invoked in 100 % of attempts that should."),
        (False, True, "The skill was invoked in 100 % of attempts that should not (in a)."),
        (True, None, ""),
        (None, True, ""),
    ],
)
def test_the_sentence_tells_only_what_was_asked_and_is_known(wanted, was, says):
    record = invoked("a", wanted=wanted, was=was)
    (made,) = build(RunInfo(run_id="r", tasks=(TaskInfo(id="a", should_trigger=wanted),)), [record])
    assert sentences.triggered(made) == says


@pytest.mark.slow
def test_an_agent_that_invokes_the_skill_wrongly_is_seen_in_artifact_table_reports_and_aggregate(short_tmp):
    suite = a_suite(short_tmp, 1)
    suite.write_text(SUITE)
    argv = json.dumps([sys.executable, "-c", AGENT])
    (short_tmp / "uplift.toml").write_text(
        f'[commands.agent]\nargv = {argv}\noutput = "json"\ntext_path = "text"\n'
        'skill_invoked_path = "skill.used"\nskill_folder = "{workspace}/.skills"\n'
    )
    ran = uplift(*standalone(suite, "--model", "command:agent", "--output", "artifact.json"), cwd=short_tmp)
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
    assert SENTENCE in artifact["summary"]
    run = short_tmp / "state" / "runs" / artifact["run_id"]
    assert "invoked in 50" in (run / "report.html").read_text()
    with gzip.open(run / "records.jsonl.gz") as file:
        (short_tmp / "records.jsonl").write_bytes(file.read())
    told = uplift("aggregate", "records.jsonl", "--state-root", "other", "--json", cwd=short_tmp)
    assert told.line["triggers"] == artifact["triggers"], told.err

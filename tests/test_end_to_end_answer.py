"""What the answer tells to type next works as it is printed, and helps."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from running import Ended, a_suite, standalone, start_uplift, uplift, worker

pytestmark = pytest.mark.slow
PROGRAM = """\
import re
prompt = open(0).read()
print(re.search(r"word\\d+", prompt)[0] if "three lines" in prompt else "no")
"""


def advised(ended: Ended) -> list[str]:
    """The words of the command in the answer's line on what to do next."""
    (line,) = [line for line in ended.err.splitlines() if line.startswith("  next: ")]
    return shlex.split(line[line.index("uplift ") :])[1:]


def ran(folder: Path, *words: str | Path, model: str, tasks: int = 4) -> Ended:
    suite = a_suite(folder, tasks).relative_to(folder)
    return uplift(*standalone(suite, *words, "--model", model), cwd=folder)


def answers(folder: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted((folder / "state" / "evaluations").glob("*.json"))]
    return [json.loads(text)["answer"] for text in texts]


def test_a_run_whose_attempts_ended_in_error_is_resumed_until_they_do_not(short_tmp):
    ended = ran(short_tmp, "--pass-k", "2", model="sim:baseline=0.5,candidate=0.7,error=0.6,seed=4")
    assert ended.code == 3
    assert "NO RESULT: 5 of 16 attempts ended in error" in ended.err
    resumed = uplift(*advised(ended), cwd=short_tmp)
    assert resumed.code == 0, resumed.err
    assert "uplift: 5 attempts left to run" in resumed.err
    assert answers(short_tmp)[0]["state"] == "better"
    assert not list(
        (short_tmp / "state" / "embedded").glob("*")
    )  # kept only while there was something to go on with
    run, headline = advised(ended)[1], answers(short_tmp)[0]["headline"]
    reported = uplift("report", run, "--md", "--junit", "--state-root", "state", cwd=short_tmp)
    assert reported.code == 0, reported.err
    stands = uplift("status", run, "--state-root", "state", cwd=short_tmp).out
    folder = short_tmp / "state" / "runs" / run
    page, junit = ((folder / name).read_text() for name in ("report.html", "junit.xml"))
    for surface in (resumed.err, stands, page, junit):
        assert headline in surface
    assert "BETTER on" in (folder / "report.md").read_text()
    assert "better" in uplift("runs", "--state-root", "state", cwd=short_tmp).out
    again = uplift("resume", advised(ended)[1], "--state-root", "state", cwd=short_tmp)
    assert (again.code, again.out) == (0, resumed.out)


@pytest.mark.parametrize("sign", ["--pass-k", "tasks"])
def test_so_many_attempts_or_tasks_as_are_advised_show_the_difference(short_tmp, sign):
    """A large difference on few tasks asks for more attempts, a small one for more tasks."""
    model, effect = {
        "--pass-k": ("sim:baseline=0.4,candidate=0.75,seed=6", "0.35"),
        "tasks": ("sim:baseline=0.4,candidate=0.7,seed=5", "0.3"),
    }[sign]
    tasks = 10 if sign == "--pass-k" else 4
    ended = ran(short_tmp, "--effect", effect, model=model, tasks=tasks)
    assert answers(short_tmp)[0]["state"] == "cannot_tell", ended.err
    said = " ".join(ended.err.split())
    attempts = re.search(r"next: run it again with --pass-k (\d+)", said)
    more = re.search(r"next: add tasks like these, (\d+) in all, and run them with --pass-k (\d+)", said)
    if sign == "--pass-k":
        assert attempts, ended.err
        again = ran(short_tmp, "--effect", effect, "--pass-k", attempts[1], model=model, tasks=tasks)
    else:
        assert more, ended.err
        again = ran(short_tmp, "--effect", effect, "--pass-k", more[2], model=model, tasks=int(more[1]))
    assert answers(short_tmp)[-1]["state"] == "better", again.err


def test_an_interrupted_run_says_so_everywhere_and_goes_on_as_it_says(short_tmp):
    suite = a_suite(short_tmp, 20).relative_to(short_tmp)
    words = standalone(suite, "--model", "sim:baseline=0.2,candidate=0.9,latency=1", "--in-flight", "2")
    process = start_uplift(*words, cwd=short_tmp)
    try:
        while not list((short_tmp / "state" / "embedded").glob("*")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(2)  # some attempts are made, and 20 seconds of them are left
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 30
    while "running" in (listed := uplift("runs", "--state-root", "state", cwd=short_tmp)).out:
        assert time.monotonic() < deadline, "its server dies with it"
        time.sleep(0.1)
    stands = uplift("status", "--state-root", "state", cwd=short_tmp)
    assert "interrupted" in listed.out
    assert "state     interrupted" in stands.out
    facts = json.loads(uplift("status", "--json", "--state-root", "state", cwd=short_tmp).out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["created_at"])
    (line,) = [line for line in stands.out.splitlines() if line.startswith("next ")]
    resumed = uplift(*shlex.split(line)[2:], cwd=short_tmp)
    assert resumed.line["verdict"] == "pass", resumed.err
    assert answers(short_tmp)[0]["headline"].startswith("BETTER")
    assert "better +" in uplift("runs", "--state-root", "state", cwd=short_tmp).out


def test_errors_that_stay_are_tried_three_times_more_and_stay_errors(valkey, short_tmp):
    with worker(valkey, short_tmp):
        ended = ran(short_tmp, "--broker", valkey, model="sim:error=1", tasks=2)
        first, words = ended.line, advised(ended)
        for _ in range(2):
            assert uplift(*words, cwd=short_tmp).line == first
    records = uplift("show", words[1], "task-0", "--json", "--state-root", "state", cwd=short_tmp).out
    assert {json.loads(line)["deliveries"] for line in records.splitlines()} == {9}


def test_a_run_whose_budget_ran_out_ends_with_the_budget_that_is_named(short_tmp):
    words = ("--budget-usd", "0.06", "--in-flight", "1")
    ended = ran(short_tmp, *words, model="sim:baseline=0.4,candidate=0.8,cost=0.01", tasks=6)
    assert ended.code == 3
    resumed = uplift(*advised(ended), cwd=short_tmp)
    assert resumed.line["verdict"] != "error", resumed.err


def test_a_cancelled_run_is_resumed(valkey, short_tmp):
    begun = ran(short_tmp, "--broker", valkey, "--detach", model="sim:baseline=0.5,candidate=0.9")
    ended = uplift("cancel", begun.out.strip(), "--broker", valkey, "--state-root", "state", cwd=short_tmp)
    assert "CANCELLED after 0 of 8 attempts" in ended.err
    with worker(valkey, short_tmp):
        resumed = uplift(*advised(ended), cwd=short_tmp)
    assert resumed.line["verdict"] != "error", resumed.err


def test_what_broke_is_shown(short_tmp):
    ended = ran(short_tmp, "--pass-k", "2", model="sim:baseline=0.9,candidate=0.1", tasks=6)
    shown = uplift(*advised(ended), cwd=short_tmp)
    assert shown.code == 0, shown.err
    assert shown.out.count("attempt ") == 4


def test_a_better_skill_becomes_a_baseline_of_later_runs(short_tmp):
    argv = json.dumps([sys.executable, "-c", PROGRAM])
    (short_tmp / "uplift.toml").write_text(f"[commands.agent]\nargv = {argv}\n")
    ended = ran(short_tmp, "--skill-mode", "prepend", model="command:agent", tasks=8)
    assert answers(short_tmp)[0]["state"] == "better"
    blessed = uplift(*advised(ended), cwd=short_tmp)
    assert blessed.code == 0, blessed.err
    assert Path(blessed.out.strip()).is_file() or (short_tmp / blessed.out.strip()).is_file()


@pytest.mark.parametrize(
    ("words", "flag"),
    [(("--baseline-path", "old"), "--weak-baseline warn"), (("--no-baseline",), "--no-baseline")],
)
def test_flags_that_are_named_for_the_next_run_help(short_tmp, words, flag):
    a_suite(short_tmp)
    (short_tmp / "old").mkdir()
    (short_tmp / "old" / "SKILL.md").write_text("---\nname: old\ndescription: Old.\n---\nWrite.\n")
    ended = ran(short_tmp, *words, model="sim:baseline=0,candidate=1")
    assert flag in ended.err
    more = flag.split() if len(flag.split()) > 1 else []
    kept = [word for word in words if word != flag]
    again = ran(short_tmp, *kept, *more, model="sim:baseline=0,candidate=1")
    assert again.line["verdict"] == "pass", again.err
    assert answers(short_tmp)[-1]["state"] == "better"


AGENT = """\
import json, sys, time
prompt = open(0).read()
number = int(prompt.split("word")[1].split(".")[0])
skill = "three lines" in prompt
passes = number % 2 == 0
if skill and number < 5 and sys.argv[1] == "errors":
    sys.exit("the key is wrong")
if skill and number < 5 and sys.argv[1] == "timeouts":
    time.sleep(30)
if number == 1 and sys.argv[1] == "one_task":
    passes = skill
text = f"word{number}" if passes else "no"
print(json.dumps({"text": text, "skill": sys.argv[1] != "never_loaded"}))
"""
LIKE_REAL = "sim:baseline=0.3,candidate=0.6,seed=3"
INSTRUMENTS: dict[str, tuple[int, str, tuple[str, ...]]] = {  # tasks, model, more words
    "errors": (12, "agent", ("--no-retry", "--skill-mode", "prepend")),
    "never_loaded": (12, "agent", ()),
    "timeouts": (12, "agent", ("--in-flight", "16", "--skill-mode", "prepend")),
    "saturated": (12, "sim:baseline=0.99,candidate=0.99", ("--pass-k", "3")),
    "floor": (12, "sim:baseline=0.01,candidate=0.01", ("--pass-k", "3", "--weak-baseline", "warn")),
    "quotes_skill": (20, LIKE_REAL, ()),
    "one_task": (12, "agent", ("--skill-mode", "prepend")),
    "few_tasks": (4, LIKE_REAL, ()),
}


@pytest.mark.parametrize("code", INSTRUMENTS)
def test_a_run_of_a_broken_instrument_names_what_is_wrong_with_it(short_tmp, code):
    tasks, model, words = INSTRUMENTS[code]
    suite = a_suite(short_tmp, tasks)
    if code == "quotes_skill":
        rules = "Write three lines, of five and seven and again five syllables, and name the season."
        (short_tmp / "skill" / "SKILL.md").write_text(
            f"---\nname: haiku\ndescription: Poems.\n---\n{rules}\n"
        )
        suite.write_text(suite.read_text().replace("Say word3.", f"Say word3. {rules}"))
    if model == "agent":
        suite.write_text(suite.read_text().replace("    tier:", "    timeout_seconds: 2\n    tier:"))
        argv = json.dumps([sys.executable, "-c", AGENT, code])
        paths = {"output": "json", "text_path": "text", "skill_invoked_path": "skill"}
        paths["skill_folder"] = "{workspace}/.skills"
        lines = [f"{name} = {json.dumps(path)}\n" for name, path in paths.items()]
        (short_tmp / "uplift.toml").write_text(f"[commands.agent]\nargv = {argv}\n{''.join(lines)}")
        model = "command:agent"
    suite = suite.relative_to(short_tmp)
    ended = uplift(*standalone(suite, *words, "--model", model), cwd=short_tmp)
    (artifact,) = (
        json.loads(path.read_text()) for path in (short_tmp / "state" / "evaluations").glob("*.json")
    )
    assert artifact["diagnosis"][0]["code"] == code, ended.err
    assert f"! {code.replace('_', ' ')}" in uplift("runs", "--state-root", "state", cwd=short_tmp).out


@pytest.mark.parametrize(
    ("baseline", "candidate", "state"), [(0.3, 0.7, "better"), (0.7, 0.3, "worse"), (0.6, 0.6, "no_worse")]
)
def test_a_run_of_a_sound_instrument_raises_no_alarm(short_tmp, baseline, candidate, state):
    ended = ran(
        short_tmp,
        *("--pass-k", "5", "--effect", "0.2", "--margin", "0.2"),
        model=f"sim:baseline={baseline},candidate={candidate},seed=3",
        tasks=40,
    )
    (answer,) = answers(short_tmp)
    assert answer["state"] == state, ended.err
    assert "careful" not in ended.err
    assert "!" not in uplift("runs", "--state-root", "state", cwd=short_tmp).out


def a_ranking(folder: Path, **scores: float) -> list[str]:
    """The words of an evaluation of candidates with these scores."""
    suite = a_suite(folder, 6)
    candidates = [
        {"id": name, "score": score, "skill_content": f"---\nname: haiku\ndescription: x\n---\nBe {name}."}
        for name, score in scores.items()
    ]
    ranking = {"run_id": "source", "target": {"path": "skill"}, "scored_candidates": candidates}
    (folder / "ranking.json").write_text(json.dumps(ranking))
    words = ["evaluate", "--input", "ranking.json", "--candidate-id", "all", "--task-suite", suite.name]
    return [*words, "--state-root", "state", "--pass-k", "2", "--model", "sim:baseline=0.1,candidate=0.9"]


def test_what_several_candidates_advise_is_the_same_in_status_and_works(short_tmp):
    words = [*a_ranking(short_tmp, brief=8.0, kind=7.0, low=2.0), "--weak-baseline", "warn"]
    ended = uplift(*words, cwd=short_tmp)
    assert "3 candidates, best first (simulated)" in ended.err
    shown = uplift(*advised(ended), cwd=short_tmp)
    assert (shown.code, shown.out.count("attempt ")) == (0, 6), shown.err
    stands = uplift("status", "--state-root", "state", cwd=short_tmp).out
    (line,) = [line for line in stands.splitlines() if line.startswith("next ")]
    assert shlex.split(line[line.index("uplift ") :])[1:] == advised(ended)
    row = next(line for line in ended.err.splitlines() if line.startswith("  brief "))
    (told,) = [line for line in stands.splitlines() if line.split()[:1] == ["brief:"]]
    assert told.endswith(f": {row.split()[-1]}")
    assert row.split()[2] in told


def test_of_candidates_that_are_all_skipped_the_best_is_run_with_the_threshold_that_is_named(short_tmp):
    words = a_ranking(short_tmp, a=1.5, z=4.2)
    ended = uplift(*words, cwd=short_tmp)
    assert "next: to run z all the same, add --eval-threshold 4.2" in ended.err
    again = uplift(*words, "--eval-threshold", "4.2", "--weak-baseline", "warn", cwd=short_tmp)
    assert [json.loads(line)["verdict"] for line in again.out.splitlines()] == ["pass", "skipped"]


def test_a_candidate_below_the_threshold_is_run_with_the_threshold_that_is_named(short_tmp):
    suite = a_suite(short_tmp, 4)
    ranking = {
        "run_id": "source",
        "target": {"path": "skill"},
        "scored_candidates": [
            {"id": "low", "score": 2.5, "skill_content": "---\nname: haiku\ndescription: x\n---\nFour."}
        ],
    }
    (short_tmp / "ranking.json").write_text(json.dumps(ranking))
    words = ["evaluate", "--input", "ranking.json", "--candidate-id", "low", "--task-suite", suite.name]
    words += ["--state-root", "state", "--model", "sim:baseline=0.5,candidate=0.9"]
    ended = uplift(*words, cwd=short_tmp)
    assert "SKIPPED: nothing was run" in ended.err
    assert "--eval-threshold 2.5" in ended.err
    home = ("--state-root", "state")
    assert "skipped  skipped" in uplift("runs", *home, cwd=short_tmp).out
    assert "next      to run low" in uplift("status", *home, cwd=short_tmp).out
    assert "made no attempt: score 2.5 is below" in uplift("show", *home, cwd=short_tmp).err
    assert uplift(*words, "--eval-threshold", "2.5", cwd=short_tmp).line["verdict"] in ("pass", "fail")

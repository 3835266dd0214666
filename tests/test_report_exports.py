"""Markdown, JUnit XML, CSV and skill-creator's workspace: each is accepted by a strict reader of its format."""

import csv
import html
import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest
from builders import a_record, both_arms, many
from hostile_texts import PAYLOADS, hostile_material
from test_report_page import a_run

from aggregate.report import csv_tables, junit, markdown, skill_creator
from aggregate.report.result_tables import TaskText


def refuse(name):
    raise AssertionError(f"{name} is not standard JSON")


def strictly(path):
    return json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)


def folds(text):
    """What is folded away, by its title."""
    return dict(re.findall(r"<summary>(.*?)</summary>(.*?)</details>", text, re.DOTALL))


def test_markdown_has_the_answer_and_folded_why_the_numbers_and_the_tasks():
    text = markdown.text(a_run(both_arms({"a": "pp", "b": "pp"}, {"a": "ff", "b": "pp"})))
    assert text.startswith("### ✅ haiku: CANNOT TELL whether it is better or worse (gate: pass)\n")
    assert "- 50.0 % → 100.0 % of attempts, +50 points\n" in text.partition("<details>")[0]
    assert "\n- **next:** " in text.partition("<details>")[0]
    folded = folds(text)
    assert "- 1 won: nothing was said (<code>a</code> 0/2 → 2/2)" in folded["Why it lost and won"]
    assert "likely to miss" in folded["Could this suite have answered?"]
    assert "| Tasks passed (any of 2) | 50.0 % | 100.0 % | +50 points |" in folded["All numbers"]
    assert "| <code>b</code> | 2 of 2 | 2 of 2 | +0 points |" in folded["All 2 tasks"]


def test_tasks_that_lost_and_won_are_grouped_by_what_the_judge_said_of_the_failed_attempt():
    """The candidate's first attempt of each passes, so what is said of that one would explain nothing."""

    def arm(name, picture, said):
        return [
            a_record(
                task,
                name,
                number,
                outcome={"p": "passed", "f": "failed", "t": "timeout"}[letter],
                details="all conditions met" if letter == "p" else said,
                model=model,
            )
            for task in picture
            for model in ("m", "n")
            for number, letter in enumerate(picture[task], start=1)
        ]

    lost = arm("candidate", {"a": "pff", "b": "pfp", "c": "ptt"}, "missing: '## Impact'")
    before = arm("baseline", {"a": "ppp", "b": "ppp", "c": "ppp"}, "")
    won = [*arm("candidate", {"d": "ppp"}, ""), *arm("baseline", {"d": "pff"}, "no date")]
    text = folds(markdown.text(a_run([*lost, *before, *won])))["Why it lost and won"]
    assert [html.unescape(line.replace("&#8288;", "")) for line in text.split("\n") if line] == [
        "Tasks lost, by what the judge said of the candidate, with passes before → after:",
        "- 2 lost: missing: '## Impact' (<code>a (m)</code> 3/3 → 1/3)",
        "- 1 lost: timed out (<code>c (m)</code> 3/3 → 1/3)",
        "Tasks won, by what the judge said of the baseline, with passes before → after:",
        "- 1 won: no date (<code>d (m)</code> 1/3 → 3/3)",
    ]


def test_markdown_tells_how_steady_repeated_attempts_are():
    text = markdown.text(a_run(both_arms({"a": "pf", "b": "pp"}, {"a": "ff", "b": "pp"})))
    # Scores 100 and 0 have a standard deviation of 50, and task b has none: 100 - 3 * 25.
    assert "| consistency | score of 100 | mean range | met every time | flaky tasks |" in text
    assert "| <code>candidate</code> | 25 | 50 points | – | <code>a</code> (100 points) |" in text
    assert "| <code>baseline</code> | 100 | 0 points | – | none |" in text
    assert "consistency" not in markdown.text(a_run(both_arms({"a": "p"}, {"a": "f"})))


def test_a_level_is_never_rounded_up_to_certainty():
    text = markdown.text(a_run(both_arms({"a": "p"}, {"a": "f"}), baseline_reuse_count=2000))
    assert "| 99.9975 % interval, tasks like these |" in text


def test_markdown_of_a_closed_gate_is_marked_as_failed_whatever_the_verdict():
    records = both_arms({"a": "pp", "b": "pp"}, {"a": "ff", "b": "pp"})
    marks = {gate: markdown.text(a_run(records, gate=gate)).split()[1] for gate in ("verdict", "decision")}
    assert marks == {"verdict": "✅", "decision": "❌"}


def test_markdown_from_hostile_texts_holds_no_tag_link_mention_or_cell_that_is_not_ours():
    text = markdown.text(hostile_material())
    tags = set(re.findall(r"<[^>]*>", text))
    assert tags == {f"<{end}{name}>" for name in ("details", "summary", "code") for end in ("", "/")}
    assert text.count("<details>") == text.count("</details>")
    for live in ("](", "://", "javascript:", "![", "```", "@everyone", "<!--", " #1"):
        assert live not in text
    prose = re.sub(r"<code>.*?</code>", "", text)
    assert "&#64;" not in prose.replace("&#64;&#8288;", "")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {5, 6, 8}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff]", text)


def test_markdown_of_a_huge_run_stays_small_enough_for_a_comment():
    tasks = {f"a-task-with-a-name-of-some-length-{number:04}": "p" for number in range(1000)}
    text = markdown.text(a_run(both_arms(tasks, dict.fromkeys(tasks, "f"))))
    assert len(text) < 65_536
    assert "… and 700 more" in text


def test_junit_has_one_case_per_task_and_arm_with_failures_and_errors_told_apart():
    records = both_arms({"a": "pf", "b": "ff", "c": "ee"}, {"a": "p", "b": "p", "c": "p"})
    root = ElementTree.fromstring(junit.text(a_run(records)))
    assert {name: root.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "7",
        "failures": "1",
        "errors": "2",
    }
    [answer] = root.find("testsuite[@name='answer']")
    assert answer.find("error").get("message") == "NO RESULT: 2 of 9 attempts ended in error"
    candidate = root.find("testsuite[@name='candidate']")
    kinds = {case.get("name"): [child.tag for child in case] for case in candidate}
    assert kinds == {"a": ["system-out"], "b": ["failure"], "c": ["error"]}


def test_in_junit_what_the_baseline_fails_is_no_failure_and_the_answer_follows_the_gate():
    better = both_arms(many("p", 8, 2), many("p", 8, 2) | {f"task-0{n}": "ff" for n in range(4)})
    for gate, records, failures in (("pass", better, 0), ("fail", both_arms({"a": "f"}, {"a": "p"}), 2)):
        root = ElementTree.fromstring(junit.text(a_run(records)))
        assert int(root.get("failures")) == failures
        [answer] = root.find("testsuite[@name='answer']")
        said = answer.findtext("system-out") or answer.find("failure").text
        assert ("gate pass" in said, "gate fail" in said) == (gate == "pass", gate == "fail")


def test_junit_names_the_model_where_there_are_several():
    records = [a_record("a", arm, model=model) for arm in ("baseline", "candidate") for model in ("m", "n")]
    root = ElementTree.fromstring(junit.text(a_run(records)))
    assert {case.get("name") for case in root.iter("testcase")} == {"a [m]", "a [n]", "candidate"}


def test_junit_from_hostile_texts_is_well_formed_and_says_what_they_said(tmp_path):
    path = junit.write(hostile_material(), tmp_path / "junit.xml")
    root = ElementTree.fromstring(path.read_bytes())
    cases = [case for suite in root if suite.get("name") != "answer" for case in suite]
    assert len(cases) == 2 * len(PAYLOADS)
    names = {case.get("name").rpartition(" [")[0] for case in cases}
    assert {payload for payload in PAYLOADS if payload.isascii() and payload.isprintable()} <= names
    if shutil.which("xmllint"):
        subprocess.run(["xmllint", "--noout", "--nonet", str(path)], check=True)


def test_csv_tables_of_a_hostile_run_are_rectangular_and_start_no_formula(tmp_path):
    folder = csv_tables.write(hostile_material(), tmp_path / "tables")
    assert strictly(folder / "summary.json")["run_id"] == "hostile"
    for name in ("attempts", "judgments", "criteria", "tasks"):
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file, strict=True)
        assert rows
        assert {len(row) for row in rows} == {len(head)}
        cells = [cell for row in rows for cell in row]
        formulas = [cell for cell in cells if cell.lstrip(" ")[:1] in ("=", "+", "@", "\t", "\r", "\n")]
        assert not formulas


def test_a_workspace_has_skill_creators_folders_and_fields(tmp_path):
    fields = {
        "completion": {"text": "hi", "input_tokens": 30, "output_tokens": 12},
        "model_ms": 1500.0,
        "judge_ms": 500.0,
        "judgments": [{"judge": "contains", "passed": True, "matched": ["hi"], "missed": ["ho"]}],
    }
    task = TaskText(id="greets", prompt="Greet.")
    material = a_run(both_arms({"greets": "pp"}, {"greets": "pf"}, **fields), [task])
    folder = skill_creator.write(material, tmp_path / "benchmark")
    runs = folder / "eval-1-greets"
    assert {str(path.relative_to(runs)) for path in runs.glob("*/run-*")} == {
        f"{name}/run-{number}" for name in ("with_skill", "without_skill") for number in (1, 2)
    }
    grading = strictly(runs / "with_skill" / "run-1" / "grading.json")
    assert "timing" not in grading
    assert [(one["text"], one["passed"]) for one in grading["expectations"]] == [
        ("contains 'hi'", True),
        ("contains 'ho'", False),
        ("passes its judge", True),
    ]
    assert grading["summary"] == {"passed": 2, "failed": 1, "total": 3, "pass_rate": pytest.approx(2 / 3)}
    timing = strictly(runs / "with_skill" / "run-1" / "timing.json")
    assert (timing["total_tokens"], timing["duration_ms"], timing["total_duration_seconds"]) == (42, 2000, 2)
    assert (runs / "with_skill" / "run-1" / "outputs" / "output.md").read_text() == "hi"
    expected = {"eval_id": 1, "eval_name": "greets", "prompt": "Greet.", "assertions": []}
    for place in (runs, runs / "with_skill", runs / "without_skill"):
        assert strictly(place / "eval_metadata.json") == expected


def test_a_workspaces_benchmark_json_sums_up_its_runs(tmp_path):
    material = a_run(both_arms({"a": "pp"}, {"a": "pf"}))
    benchmark = strictly(skill_creator.write(material, tmp_path / "w") / "benchmark.json")
    assert benchmark["metadata"]["runs_per_configuration"] == 2
    assert {run["configuration"] for run in benchmark["runs"]} == {"with_skill", "without_skill"}
    without = benchmark["run_summary"]["without_skill"]["pass_rate"]
    # One run of 1 and one of 0: their sample deviation is sqrt(1/2).
    assert without == {"mean": 0.5, "stddev": 0.7071, "min": 0.0, "max": 1.0}
    assert benchmark["run_summary"]["delta"] == {"pass_rate": "+0.50", "time_seconds": "+0.0", "tokens": "+0"}


def test_an_error_is_no_failed_run_in_a_workspace(tmp_path):
    folder = skill_creator.write(a_run(both_arms({"a": "pe"}, {"a": "pp"})), tmp_path / "w")
    assert not (folder / "eval-1-a" / "with_skill" / "run-2" / "grading.json").exists()
    benchmark = strictly(folder / "benchmark.json")
    assert benchmark["run_summary"]["with_skill"]["pass_rate"]["mean"] == 1.0
    assert "1 attempts with_skill ended in error and are left out" in benchmark["notes"]


def test_a_workspace_of_a_hostile_run_is_strict_json_inside_its_folder(tmp_path):
    folder = skill_creator.write(hostile_material(), tmp_path / "w")
    files = list(folder.rglob("*.json"))
    assert len(files) > 4 * len(PAYLOADS)
    for file in files:
        strictly(file)
    names = [path.name for path in folder.iterdir()]
    assert len(names) == len(PAYLOADS) + 1
    assert all(re.fullmatch(r"eval-\d+(-[A-Za-z0-9._-]+)?|benchmark\.json", name) for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_a_workspace_replaces_an_older_one_and_nothing_else(tmp_path):
    material = a_run(both_arms({"a": "p"}, {"a": "f"}))
    folder = skill_creator.write(a_run(both_arms({"z": "p"}, {"z": "f"})), tmp_path / "w")
    skill_creator.write(material, folder)
    assert {path.name for path in folder.iterdir()} == {"eval-1-a", "benchmark.json"}
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not part of a workspace"):
        skill_creator.write(material, folder)
    assert (folder / "thesis.txt").read_text() == "mine"

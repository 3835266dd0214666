"""The HTML page as a file: one file, its own script and style only, nothing from outside read as markup."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from builders import a_record, both_arms
from hostile_texts import LONG_LINE, PAYLOADS, hostile_material

from aggregate.artifact import build
from aggregate.records.run_info import CandidateInfo, RunInfo
from aggregate.report import html
from aggregate.report import html as text_blocks
from aggregate.report.result_tables import Material, TaskText, units


def a_run(records, tasks=(), **info):
    made = RunInfo.from_records(records).model_copy(update={"skill_id": "haiku", **info})
    return Material(build.build(made, records)[0], lambda: records, {task.id: task for task in tasks})


def the_page(material, folder, **options):
    return html.write(material, folder / "report.html", **options).read_text("utf-8")


class Seen(HTMLParser):
    """Every start tag with its attributes, and the text of scripts by id."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self._script = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._script = dict(attributes).get("id", tag)
            self.scripts[self._script] = ""

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] += data


def policy(seen):
    return next(a["content"] for tag, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")


def entries(seen):
    """All texts of a page, as its script would unpack them."""
    blocks = [text for name, text in seen.scripts.items() if name.startswith("block-")]
    return [entry for block in blocks for entry in json.loads(gzip.decompress(base64.b64decode(block)))]


def test_the_page_allows_its_own_script_and_style_by_their_hashes_and_nothing_else(tmp_path):
    seen = Seen(the_page(a_run(both_arms({"a": "pp"}, {"a": "pf"})), tmp_path))
    rules = dict(rule.split(" ", 1) for rule in policy(seen).split("; "))
    assert rules["default-src"] == "'none'"
    for directive, name in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(seen.scripts[name].encode()).digest()).decode()
        assert rules[directive] == f"'sha256-{digest}'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy(seen)
    assert "frame-src" not in rules


def test_the_page_has_no_address_that_could_be_loaded(tmp_path):
    seen = Seen(the_page(a_run(both_arms({"a": "pp"}, {"a": "pf"})), tmp_path))
    loading = [a[name] for _, a in seen.tags for name in ("src", "href", "action", "srcset") if name in a]
    assert {address for address in loading if not address.startswith("#")} == {"data:,"}
    assert not [a for _, a in seen.tags if any(name.startswith("on") or name == "style" for name in a)]


def test_the_script_builds_elements_from_text_and_never_parses_markup(tmp_path):
    script = Seen(the_page(a_run(both_arms({"a": "p"}, {"a": "f"})), tmp_path)).scripts["script"]
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
        "Function(",
    ):
        assert sink not in script


def test_hostile_texts_add_no_element_and_no_attribute(tmp_path):
    calm = both_arms({"a": "pp"}, {"a": "pf"}, tier="T1", completion={"cost_usd": 0.1})
    calm = Seen(the_page(a_run(calm, warnings=("mind this",)), tmp_path))
    hostile = Seen(the_page(hostile_material(), tmp_path))
    known = {(tag, name) for tag, attributes in calm.tags for name in attributes}
    strange = {(tag, name) for tag, attributes in hostile.tags for name in attributes} - known
    assert not strange
    assert not {tag for tag, _ in hostile.tags} & {"img", "iframe", "object", "embed", "form", "base"}
    assert [tag for tag, a in hostile.tags if tag == "script" and "type" not in a] == ["script"]


def test_the_index_is_json_without_a_character_that_could_end_its_element(tmp_path):
    text = the_page(hostile_material(), tmp_path)
    index = re.search(r'<script type="application/json" id="index">(.*?)</script>', text, re.DOTALL)[1]
    assert not set(index) & set("<>&\u2028\u2029")
    tasks = {row["task"] for row in json.loads(index)["rows"]}
    assert tasks == set(PAYLOADS)


def test_every_output_prompt_and_reason_can_be_found_in_the_blocks_unchanged(tmp_path):
    seen = Seen(the_page(hostile_material(), tmp_path))
    found = entries(seen)
    index = json.loads(seen.scripts["index"])
    assert index["starts"][0] == 0
    for row in index["rows"]:
        assert found[row["prompt"]]["prompt"] == row["task"]
        for arm, side in zip(("baseline", "candidate"), row["arms"], strict=True):
            first, second = (found[number] for number in side["entries"])
            assert first["details"] == row["task"]
            assert second["error"] == row["task"]
            if row["task"] != PAYLOADS[0]:
                assert first["completion"]["text"] == f"{arm} {row['task']}"


def test_a_text_of_four_mebibytes_is_cut_and_says_by_how_much(tmp_path):
    found = entries(Seen(the_page(hostile_material(), tmp_path)))
    longest = max((entry.get("completion", {}).get("text", "") for entry in found), key=len)
    left_out = len(LONG_LINE) - text_blocks.TEXT_CHARACTERS
    assert longest.startswith("<b><b>")
    assert longest.endswith(f"cut here: {left_out:,} more characters")
    assert len(longest) < text_blocks.TEXT_CHARACTERS + 100


def test_texts_beyond_the_stated_size_go_to_a_folder_of_small_pages_beside_it(tmp_path):
    records = [
        a_record(f"task-{number}", arm, completion={"text": f"{number}-{arm} " * 5000})
        for number in range(30)
        for arm in ("baseline", "candidate")
    ]
    page = html.write(a_run(records), tmp_path / "report.html", inline_bytes=1000)
    seen = Seen(page.read_text())
    assert not [name for name in seen.scripts if name.startswith("block-")]
    assert "frame-src 'self' file:" in policy(seen)
    index = json.loads(seen.scripts["index"])
    files = [tmp_path / index["folder"] / f"{number}.html" for number in range(len(index["starts"]))]
    assert len(files) > 1
    assert sorted((tmp_path / index["folder"]).iterdir()) == sorted(files)
    texts = []
    for file in files:
        block = Seen(file.read_text())
        assert policy(block).startswith("default-src 'none'; script-src 'sha256-")
        texts += json.loads(gzip.decompress(base64.b64decode(block.scripts["block"])))
    assert [entry["completion"]["text"].split()[0] for entry in texts] == [
        f"{record.task.removeprefix('task-')}-{record.arm}" for record in records
    ]


def test_a_smaller_page_in_the_same_place_leaves_no_folder_of_the_larger_one(tmp_path):
    records = both_arms({"a": "p"}, {"a": "f"}, completion={"text": "long " * 500})
    html.write(a_run(records), tmp_path / "report.html", inline_bytes=10)
    assert (tmp_path / "report-texts").is_dir()
    html.write(a_run(records), tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_finished_leaves_the_older_one_and_nothing_else(tmp_path):
    records = both_arms({"a": "p"}, {"a": "f"}, completion={"text": "long " * 500})
    good = a_run(records)
    before = the_page(good, tmp_path)

    def breaks():
        yield records[0]
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        html.write(Material(good.artifact, breaks), tmp_path / "report.html", inline_bytes=1)
    assert (tmp_path / "report.html").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    assert the_page(hostile_material(), tmp_path) == the_page(hostile_material(), tmp_path)


def test_the_first_screen_says_verdict_decision_rates_cost_and_what_cannot_be_shown(tmp_path):
    tasks = {f"t{number}": "pp" for number in range(8)}
    worse = {f"t{number}": "ff" if number < 6 else "pp" for number in range(8)}
    text = the_page(a_run(both_arms(tasks, worse, completion={"cost_usd": 0.5})), tmp_path)
    words = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    for said in (
        "pass",
        "BETTER on tasks like these",
        "100.0 %",
        "25.0 %",
        "+75 points",
        "$1.00",
        "tasks passed in any of 2 attempts rose by 6 of 8",
    ):
        assert said in words


def test_a_run_without_a_baseline_shows_rates_and_claims_no_difference(tmp_path):
    records = [a_record("a"), a_record("b", outcome="failed")]
    text = the_page(a_run(records), tmp_path)
    assert "RAN ALONE: 50.0 % of attempts passed" in text
    assert 'class="chart delta"' not in text
    assert json.loads(Seen(text).scripts["index"])["baseline"] is False


def test_a_run_that_was_skipped_says_so_and_lists_nothing(tmp_path):
    info = RunInfo(run_id="r", candidates=(CandidateInfo(score=2.0, candidate_id="c"),))
    made = build.build(info, [])[0]
    text = the_page(Material(made, list), tmp_path)
    assert "SKIPPED: nothing was run" in text
    assert 'id="tasks"' not in text


def test_a_run_that_ended_in_error_says_no_verdict_first(tmp_path):
    text = the_page(a_run(both_arms({"a": "pe"}, {"a": "ee"}, error=None)), tmp_path)
    assert ">NO RESULT: 3 of 4 attempts ended in error</h1>" in text


@pytest.mark.parametrize(
    ("candidate", "baseline", "flags"),
    [
        ("pp", "pp", set()),
        ("ff", "pp", {"failed", "changed"}),
        ("pf", "pf", {"flaky"}),
        ("pf", "ff", {"flaky", "changed"}),
        ("pe", "pp", {"errors"}),
        ("ee", "pp", {"errors"}),
    ],
)
def test_filters_follow_what_happened(tmp_path, candidate, baseline, flags):
    text = the_page(a_run(both_arms({"a": candidate}, {"a": baseline})), tmp_path)
    [row] = json.loads(Seen(text).scripts["index"])["rows"]
    assert set(row["flags"]) == flags
    assert [side["outcomes"] for side in row["arms"]] == [baseline, candidate]


def test_units_pair_tasks_by_model_and_keep_what_only_one_arm_has():
    records = [a_record("a", "candidate", model="m"), a_record("b", "baseline", model="n")]
    first, second = units(a_run(records).artifact)
    assert (first.task, first.model, first.baseline) == ("a", "m", None)
    assert (second.task, second.model, second.candidate) == ("b", "n", None)
    assert first.difference is None


def test_only_this_candidates_attempts_are_in_its_page(tmp_path):
    records = [a_record("a", arm) for arm in ("baseline", "candidate:x", "candidate:y")]
    info = RunInfo.from_records(records)
    for made in build.build(info, records):
        seen = Seen(the_page(Material(made, lambda: records), tmp_path))
        assert len(entries(seen)) == 2


def test_a_prompt_that_was_kept_is_in_the_page_with_the_judges_settings(tmp_path):
    task = TaskText(id="a", prompt="Say hi.", judge={"type": "contains", "expected": ["hi"], "forbidden": []})
    found = entries(Seen(the_page(a_run(both_arms({"a": "p"}, {"a": "f"}), [task]), tmp_path)))
    assert {
        "prompt": "Say hi.",
        "description": "",
        "judge": {"type": "contains", "expected": ["hi"]},
    } in found


def test_arms_that_share_no_task_have_a_page_without_a_difference(tmp_path):
    records = [a_record("a"), a_record("b", "baseline", outcome="failed"), a_record("c", "baseline")]
    text = the_page(a_run(records), tmp_path)
    assert "no task was judged in both arms" in text
    assert "NaN" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)

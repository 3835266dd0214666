"""Rankings: which candidates there are, what text each one means, and every way in which it can go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from producer.skills import ranking, skill
from producer.skills.ranking import ExecutionPlan, InvalidRanking, NobodyCanApply, PlanFailed
from producer.skills.skill import InvalidSkill, Skill
from workers.store.bundles import pack_files

HEAD = "---\nname: notes\ndescription: Writes notes.\n---\n"
TARGET = f"{HEAD}\n# Notes\n\nIntro.\n\n## Steps\n\nOne.\n\n### Detail\n\nFine.\n\n## Tone\n\nWarm.\n"


def a_candidate(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "score": 7.5, **(fields or {"content": f"{HEAD}Other.\n"})}


def a_ranking_file(folder: Path, *candidates: dict[str, Any], text: str = TARGET, **fields: Any) -> Path:
    (folder / "skill").mkdir(exist_ok=True)
    (folder / "skill/SKILL.md").write_text(text, newline="")
    (folder / "skill/tone.md").write_text("Warm.\n")
    content = {
        "run_id": "r1",
        "target": {"path": "skill"},
        "scored_candidates": list(candidates) or [a_candidate()],
        **fields,
    }
    path = folder / "ranking.json"
    path.write_text(json.dumps(content))
    return path


def only_skill(path: Path) -> Skill:
    """What the one candidate of a ranking becomes."""
    loaded = ranking.load(path)
    (entry,) = ranking.select(loaded, ["all"])
    ranking.score(loaded, entry)
    return ranking.skill(loaded, entry, ranking.baseline(loaded))


def the_skill(folder: Path, **fields: Any) -> Skill:
    """What a candidate with these fields becomes."""
    return only_skill(a_ranking_file(folder, a_candidate(**fields)))


def complaint_about(path: Path) -> str:
    with pytest.raises(InvalidRanking) as raised:
        ranking.load(path)
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(str(path))


def a_plan(action: str, heading: str | None = None, *lines: str) -> ExecutionPlan:
    return ExecutionPlan.model_validate(
        {"action": action, "section_heading": heading, "content_lines": list(lines) or ["New."]}
    )


def applied(action: str, heading: str | None, *lines: str, to: str = TARGET) -> str:
    return ranking.apply(a_plan(action, heading, *lines), to)


def test_a_ranking_holds_a_run_a_target_and_candidates_whatever_else_it_says(tmp_path: Path) -> None:
    path = a_ranking_file(
        tmp_path, a_candidate(), {"id": "c2", "score": 3, "why": "x"}, generator="other tool"
    )

    loaded = ranking.load(path)

    assert (loaded.run_id, loaded.lane, loaded.target) == ("r1", "generic-skill", "skill")
    chosen = ranking.select(loaded, ["all"])
    assert [(each.id, ranking.score(loaded, each)) for each in chosen] == [("c1", 7.5), ("c2", 3.0)]
    assert ranking.baseline(loaded).text == TARGET


def test_candidates_are_chosen_by_id_once_each_in_the_order_asked_for_or_all(tmp_path: Path) -> None:
    loaded = ranking.load(a_ranking_file(tmp_path, *({"id": f"idea-{n}", "score": n} for n in range(3))))

    assert [each.id for each in ranking.select(loaded, ["idea-2", "idea-0", "idea-2"])] == [
        "idea-2",
        "idea-0",
    ]
    assert [each.id for each in ranking.select(loaded, ["all"])] == ["idea-0", "idea-1", "idea-2"]
    with pytest.raises(InvalidRanking) as raised:
        ranking.select(loaded, ["idea-1", "idea_2"])
    assert str(raised.value).endswith(
        ": no candidate 'idea_2'; there are 'idea-0', 'idea-1', 'idea-2' (did you mean idea-2?)"
    )


@pytest.mark.parametrize("field", ["skill_content", "content", "body"])
def test_given_text_becomes_the_skill_and_the_rest_of_the_targets_folder_stays(
    tmp_path: Path, field: str
) -> None:
    text = f"{HEAD}\nBe brief.\n"

    made = the_skill(tmp_path, **{field: text})

    assert made.text == text
    assert skill.bundle(made) == pack_files(
        {f"{made.name}/SKILL.md": text.encode(), f"{made.name}/tone.md": b"Warm.\n"}
    )


def test_given_text_without_front_matter_gets_the_targets(tmp_path: Path) -> None:
    assert the_skill(tmp_path, body="# Better\n").text == f"{HEAD}# Better\n"


def test_the_first_form_that_is_not_blank_counts(tmp_path: Path) -> None:
    made = the_skill(
        tmp_path, skill_content=" \n", content=f"{HEAD}A\n", body=f"{HEAD}B\n", skill_path="nowhere"
    )

    assert made.text == f"{HEAD}A\n"


def test_a_skill_path_is_looked_up_beside_the_ranking_and_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (elsewhere / "better.md").write_text(f"{HEAD}In the working folder.\n")
    monkeypatch.chdir(elsewhere)

    assert the_skill(here, skill_path="better.md").text == f"{HEAD}In the working folder.\n"
    (here / "better.md").write_text(f"{HEAD}Beside the ranking.\n")
    assert the_skill(here, skill_path="better.md").text == f"{HEAD}Beside the ranking.\n"
    assert the_skill(here, skill_path=str(elsewhere / "better.md")).text == f"{HEAD}In the working folder.\n"


def test_a_skill_path_that_is_a_folder_gives_its_text_only_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "better").mkdir()
    (tmp_path / "better/SKILL.md").write_text(f"{HEAD}Better.\n")
    assert the_skill(tmp_path, skill_path="better").warnings == ()
    (tmp_path / "better/script.py").write_text("")

    made = the_skill(tmp_path, skill_path="better")

    assert made.folder == tmp_path / "skill"
    assert "only the SKILL.md of" in made.warnings[0]


def test_a_plan_is_carried_out_on_the_targets_text(tmp_path: Path) -> None:
    plan = {"action": "append_markdown_section", "section_heading": "Limits", "content_lines": ["Be brief."]}

    assert the_skill(tmp_path, execution_plan=plan).text == f"{TARGET}\n## Limits\n\nBe brief.\n"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"note": "x"},
            "candidate 'c1' has no text; give one of skill_content, content, body, skill_path or",
        ),
        ({"body": " \n"}, "candidate 'c1' has no text"),
        ({"content": TARGET}, "candidate 'c1' has the baseline's very text"),
        ({"body": TARGET.removeprefix(HEAD)}, "candidate 'c1' has the baseline's very text"),
        ({"skill_path": "skill"}, "candidate 'c1' has the baseline's very text"),
        ({"skill_path": "nowhere"}, "candidate 'c1': skill_path: skill not found: nowhere"),
        ({"skill_path": "a\0b"}, "candidate 'c1': skill_path: skill not found"),
        (
            {"execution_plan": {"action": "insert_before_section", "content_lines": ["x"]}},
            "candidate 'c1': execution_plan: insert_before_section needs a section_heading",
        ),
        (
            {
                "execution_plan": {
                    "action": "replace_markdown_section",
                    "section_heading": "Tone",
                    "content_lines": ["Warm."],
                }
            },
            "candidate 'c1' has the baseline's very text",
        ),
    ],
)
def test_a_candidate_without_a_text_of_its_own_is_an_error_and_never_a_silent_comparison(
    tmp_path: Path, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidRanking) as raised:
        the_skill(tmp_path, **fields)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("---\nname: n\n---\n", "candidate 'c1':1:1: the front matter has no description"),
        (f"{HEAD}\ud800", r"candidate 'c1':5: control character '\ud800'"),
        (f"{HEAD}{'x' * 2_000_000}", "candidate 'c1': more than 1048576 bytes"),
    ],
    ids=lambda text: text[:40],
)
def test_a_text_that_is_not_a_skill_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidSkill) as raised:
        the_skill(tmp_path, content=text)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"), [("", "is empty"), ("---\nname: x\n", "the front matter is not closed")]
)
def test_a_baseline_that_is_empty_or_no_skill_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    loaded = ranking.load(a_ranking_file(tmp_path, text=text))

    with pytest.raises(InvalidSkill, match=complaint):
        ranking.baseline(loaded)


def test_neither_a_baseline_nor_a_candidate_needs_a_front_matter(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# By path\n")
    texts = {"content": "# By content\n", "skill_path": "other.md"}
    path = a_ranking_file(
        tmp_path, *({"id": field, "score": 7, field: text} for field, text in texts.items()), text="# Notes\n"
    )
    loaded = ranking.load(path)
    target = ranking.baseline(loaded)

    made = [ranking.skill(loaded, entry, target) for entry in ranking.select(loaded, ["all"])]

    assert [one.text for one in made] == ["# By content\n", "# By path\n"]
    assert {one.name for one in (target, *made)} == {"skill"}
    assert all("no front matter" in one.warnings[0] for one in (target, *made))
    assert skill.bundle(target) == pack_files({"skill/SKILL.md": b"# Notes\n", "skill/tone.md": b"Warm.\n"})


def a_plan_for(target_path: str | Path, *lines: str) -> dict[str, Any]:
    plan = {"action": "append_markdown_section", "section_heading": "More", "content_lines": list(lines)}
    return {"target_path": str(target_path), "execution_plan": plan}


@pytest.mark.parametrize("how", ["relative", "absolute", "beside the ranking"])
def test_a_plan_edits_the_file_that_target_path_names_and_no_other(tmp_path: Path, how: str) -> None:
    names = {
        "relative": "tone.md",
        "absolute": tmp_path / "skill/tone.md",
        "beside the ranking": "skill/tone.md",
    }

    made = the_skill(tmp_path, **a_plan_for(names[how], "Cool."))

    assert made.text == TARGET
    assert skill.bundle(made) == pack_files(
        {"notes/SKILL.md": TARGET.encode(), "notes/tone.md": b"Warm.\n\n## More\n\nCool.\n"}
    )


@pytest.mark.parametrize("name", ["SKILL.md", "skill/SKILL.md", "skill", "", None])
def test_a_target_path_that_is_the_skill_itself_is_its_skill_md(tmp_path: Path, name: str | None) -> None:
    fields = a_plan_for("", "Cool.") | {"target_path": name}

    assert the_skill(tmp_path, **fields).text == f"{TARGET}\n## More\n\nCool.\n"


def test_an_edit_shows_under_every_name_that_the_file_has(tmp_path: Path) -> None:
    a_ranking_file(tmp_path)
    (tmp_path / "skill/link.md").symlink_to("tone.md")

    made = skill.bundle(the_skill(tmp_path, **a_plan_for("link.md", "Cool.")))

    edited = b"Warm.\n\n## More\n\nCool.\n"
    assert made == pack_files(
        {"notes/SKILL.md": TARGET.encode(), "notes/tone.md": edited, "notes/link.md": edited}
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("../ranking.json", "is no part of the skill skill"),
        ("/etc/passwd", "is no part of the skill skill"),
        ("out.md", "is no part of the skill skill"),
        ("none.md", "target_path: no such file: 'none.md'"),
        ("a\0b", "target_path: no such file"),
        ("x" * 5000, "target_path: no such file"),
        ("notes", "target_path: no such file"),
    ],
    ids=lambda name: name[:12],
)
def test_a_target_path_outside_of_the_skill_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    a_ranking_file(tmp_path)
    (tmp_path / "skill/notes").mkdir()
    (tmp_path / "skill/out.md").symlink_to("../ranking.json")

    with pytest.raises(InvalidRanking, match=complaint):
        the_skill(tmp_path, **a_plan_for(name, "x"))


def test_an_edit_of_what_no_model_is_given_is_refused(tmp_path: Path) -> None:
    a_ranking_file(tmp_path)
    (tmp_path / "skill/evals").mkdir()
    (tmp_path / "skill/evals/suite.yaml").write_text("tasks: []\n")
    (tmp_path / "skill/secret.md").write_text("what the suite expects\n")

    made = the_skill(tmp_path, **a_plan_for("evals/suite.yaml", "x"))
    with pytest.raises(InvalidSkill, match="is not handed to a model"):
        skill.bundle(made)

    hidden = the_skill(tmp_path, **a_plan_for("secret.md", "x"))
    assert skill.bundle(hidden) != skill.bundle(ranking.baseline(ranking.load(tmp_path / "ranking.json")))
    with pytest.raises(InvalidSkill, match="is not handed to a model"):
        skill.bundle(hidden, without=[tmp_path / "skill/secret.md"])


def test_a_whole_text_for_another_file_than_the_skill_md_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRanking, match=r"gives a whole SKILL.md, but its target_path is 'tone.md'"):
        the_skill(tmp_path, content=f"{HEAD}Other.\n", target_path="tone.md")


def test_an_edit_that_is_no_text_or_too_long_is_refused(tmp_path: Path) -> None:
    a_ranking_file(tmp_path)
    (tmp_path / "skill/picture.png").write_bytes(b"\xff\xfe")

    for fields in (
        a_plan_for("picture.png", "x"),
        a_plan_for("tone.md", "\x1b"),
        a_plan_for("tone.md", "x" * 2**20),
    ):
        with pytest.raises(InvalidSkill):
            the_skill(tmp_path, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"execution_plan": {"action": "unsupported_manual_refactor", "notes": "later"}},
            "unsupported_manual_refactor",
        ),
        (
            {"execution_plan": {"action": "unsupported_manual_test_addition"}},
            "unsupported_manual_test_addition",
        ),
        ({**a_plan_for("none.md", "x"), "executor_support": False}, "executor_support is false"),
        ({"executor_support": False, "score": 9}, "executor_support is false"),
    ],
)
def test_a_candidate_that_says_so_itself_is_nothing_that_anybody_can_apply(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(NobodyCanApply, match=said):
        the_skill(tmp_path, **fields)


def test_a_text_needs_nobody_who_applies_it(tmp_path: Path) -> None:
    assert the_skill(tmp_path, body=f"{HEAD}Other.\n", executor_support=False).text == f"{HEAD}Other.\n"


def test_what_nobody_asked_for_may_be_anything(tmp_path: Path) -> None:
    others = [
        7,
        None,
        {},
        {"id": 7},
        {"id": "x", "score": "high"},
        {"id": "x"},
        {"id": "y", "execution_plan": []},
    ]
    loaded = ranking.load(a_ranking_file(tmp_path, *others, a_candidate()))

    (entry,) = ranking.select(loaded, ["c1"])

    assert ranking.skill(loaded, entry, ranking.baseline(loaded)).text == f"{HEAD}Other.\n"
    with pytest.raises(InvalidRanking, match=r"scored_candidates\[0\]: "):
        ranking.select(loaded, ["all"])


def test_a_baseline_that_is_missing_is_an_error(tmp_path: Path) -> None:
    loaded = ranking.load(a_ranking_file(tmp_path, target={"path": "no-such-skill"}))

    with pytest.raises(InvalidSkill, match="skill not found: no-such-skill"):
        ranking.baseline(loaded)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"run_id": 7}, ": run_id: is 7; must be text"),
        ({"target": "skill"}, ": target: "),
        ({"target": {}}, ": target.path: is missing"),
        ({"scored_candidates": []}, ": scored_candidates: must hold at least one entry"),
        ({"lane": 7}, ": lane: is 7; must be text"),
        ({"lane": ""}, ": lane: "),
    ],
)
def test_a_wrong_shape_is_named_by_its_json_path(
    tmp_path: Path, fields: dict[str, Any], complaint: str
) -> None:
    assert complaint_about(a_ranking_file(tmp_path, **fields)).startswith(complaint)


@pytest.mark.parametrize(
    ("candidate", "complaint"),
    [
        ({"id": "c1"}, "[0].score: is missing"),
        ({"id": "c1", "score": "7"}, "[0].score: is '7'; must be a number"),
        ({"id": "c1", "score": True}, "[0].score: "),
        ({"id": "c1", "score": None}, "[0].score: "),
        ({"id": "c1", "score": 10**400}, "[0].score: "),
        ({"id": "", "score": 1}, "[0].id: "),
        ({"id": "a\x1b[2J", "score": 1}, "[0].id: is 'a\\x1b[2J'; must be printable"),
        (a_candidate(content=7), "[0].content: "),
        (a_candidate(target_path=["a"]), "[0].target_path: "),
        (
            a_candidate(execution_plan={"action": "delete", "content_lines": ["x"]}),
            "[0].execution_plan.action: is 'delete'; must be 'append_markdown_section'",
        ),
        (a_candidate(execution_plan=[]), "[0].execution_plan: "),
    ],
)
def test_a_wrong_candidate_is_named_by_its_json_path_once_it_is_asked_for(
    tmp_path: Path, candidate: dict[str, Any], complaint: str
) -> None:
    path = a_ranking_file(tmp_path, candidate)

    with pytest.raises(InvalidRanking) as raised:
        only_skill(path)
    assert str(raised.value).removeprefix(f"{path}: scored_candidates").startswith(complaint)


@pytest.mark.parametrize("wanted", ["c", "all"])
def test_an_id_that_occurs_twice_cannot_be_asked_for(tmp_path: Path, wanted: str) -> None:
    loaded = ranking.load(a_ranking_file(tmp_path, {"id": "c", "score": 1}, {"id": "c", "score": 2}))

    with pytest.raises(InvalidRanking, match=r"scored_candidates\[1\].id: 'c' occurs twice; ids are unique"):
        ranking.select(loaded, [wanted])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{\n "run_id": x}', ": not JSON: Expecting value at line 2, column 12"),
        (b"", ": not JSON: Expecting value at line 1, column 1"),
        (b"[]", ": the top level: must be a mapping"),
        (b"null", ": the top level: must be a mapping"),
        (b'{"run_id": "\xff"}', ": not UTF-8 text (byte 12)"),
        (b'{"score": NaN}', ": not JSON: NaN is not a JSON number"),
        (b'{"id": 1, "id": 2}', ": not usable as JSON: key 'id' occurs twice"),
        (b"[" * 200_000, ": not usable as JSON: nested too deeply"),
        (b'{"score": ' + b"9" * 5000 + b"}", ": not usable as JSON: "),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_is_not_a_ranking_is_refused_in_one_line(
    tmp_path: Path, data: bytes, complaint: str
) -> None:
    path = tmp_path / "ranking.json"
    path.write_bytes(data)

    assert complaint_about(path).startswith(complaint)


def test_a_ranking_that_is_missing_a_folder_or_huge_is_refused_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)

    assert "ranking not found" in complaint_about(tmp_path / "none.json")
    assert "cannot be read: it is a folder" in complaint_about(tmp_path)
    assert "it holds 1,099,511,627,776 bytes; at most 16 MiB are allowed" in complaint_about(
        tmp_path / "huge.json"
    )


def test_append_puts_a_section_at_the_end_with_one_blank_line_before_it() -> None:
    assert applied("append_markdown_section", "Limits", "Few.") == f"{TARGET}\n## Limits\n\nFew.\n"
    assert applied("append_markdown_section", "# Limits", "Few.") == f"{TARGET}\n# Limits\n\nFew.\n"
    assert applied("append_markdown_section", None, "## Own", "", "Few.") == f"{TARGET}\n## Own\n\nFew.\n"
    assert applied("append_markdown_section", "Own", "## Own", "Few.") == f"{TARGET}\n## Own\nFew.\n"
    assert applied("append_markdown_section", "A", "b", to="x") == "x\n\n## A\n\nb\n"
    assert applied("append_markdown_section", "A", "b", to="x\n\n") == "x\n\n## A\n\nb\n"


def test_replace_keeps_the_heading_and_goes_on_to_the_next_one_of_its_level_or_above() -> None:
    assert applied("replace_markdown_section", "Steps", "Two.") == (
        f"{HEAD}\n# Notes\n\nIntro.\n\n## Steps\n\nTwo.\n\n## Tone\n\nWarm.\n"
    )
    assert applied("replace_markdown_section", "### Detail", "", "Rough.", "") == TARGET.replace(
        "Fine", "Rough"
    )
    assert applied("replace_markdown_section", "Tone", "Cool.") == TARGET.replace("Warm", "Cool")
    assert applied("replace_markdown_section", "Notes", "All new.") == f"{HEAD}\n# Notes\n\nAll new.\n"


def test_replace_takes_a_heading_of_the_same_level_that_the_lines_bring() -> None:
    assert applied("replace_markdown_section", "tone", "## Voice", "", "Cool.") == TARGET.replace(
        "## Tone\n\nWarm.", "## Voice\n\nCool."
    )
    assert applied("replace_markdown_section", "Tone", "### Sub", "", "Cool.") == TARGET.replace(
        "Warm.", "### Sub\n\nCool."
    )


def test_insert_goes_in_front_of_the_heading() -> None:
    assert applied("insert_before_section", "Tone", "## Checks", "", "Two.") == TARGET.replace(
        "## Tone", "## Checks\n\nTwo.\n\n## Tone"
    )
    assert applied("insert_before_section", "B", "x", to="a\n# B\n") == "a\n\nx\n\n# B\n"
    assert applied("insert_before_section", "B", "x", to="# B\n") == "x\n\n# B\n"


def test_front_matter_is_updated_and_the_body_stays() -> None:
    assert applied("update_yaml_frontmatter", None, "description: Better.") == TARGET.replace(
        "Writes notes.", "Better."
    )
    with pytest.raises(PlanFailed, match="not a list of keys"):
        applied("update_yaml_frontmatter", None, "words")


def update(updates: dict[str, Any], **fields: Any) -> str:
    plan = {"action": "update_yaml_frontmatter", "frontmatter_updates": updates, **fields}
    return ranking.apply(ExecutionPlan.model_validate(plan), TARGET)


def test_front_matter_updates_may_be_a_mapping() -> None:
    made = update({"description": "Writes: ümlauts\nand 任务.", "metadata": {"a": ["x", 1]}, "license": None})

    head, body = made[4:].split("\n---\n", 1)
    assert yaml.safe_load(head) == {
        "name": "notes",
        "description": "Writes: ümlauts\nand 任务.",
        "metadata": {"a": ["x", 1]},
        "license": None,
    }
    assert body == TARGET.removeprefix(HEAD)


def test_front_matter_updates_that_are_empty_doubled_or_too_deep_are_refused() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(PlanFailed, match="at most 32 are allowed"):
        update({"metadata": deep})
    with pytest.raises(PlanFailed, match="both given"):
        update({"license": "MIT"}, content_lines=["license: MIT"])
    with pytest.raises(PlanFailed, match="frontmatter_updates is empty"):
        update({})


@pytest.mark.parametrize(
    "action", ["append_markdown_section", "replace_markdown_section", "insert_before_section"]
)
def test_a_text_with_crlf_stays_one(action: str) -> None:
    made = applied(action, "Tone", "A.\nB.", "C.\r\n", to=TARGET.replace("\n", "\r\n"))

    assert "A.\r\nB.\r\nC.\r\n" in made
    assert made.replace("\r\n", "").count("\n") == 0
    assert made.replace("\r\n", "\n") == applied(action, "Tone", "A.", "B.", "C.")


@pytest.mark.parametrize(
    "decoy",
    [
        "```\n## Tone\n```",
        "~~~~ md\n~~~\n## Tone\n~~~~",
        "````\n```\n## Tone\n````",
        "    ## Tone",
        "<!--\n## Tone\n-->",
        "<!-- ## Tone -->",
        "##Tone",
        "####### Tone",
        "- Tone\n---",
        "| Tone\n---",
    ],
)
def test_what_only_looks_like_a_heading_is_none(decoy: str) -> None:
    text = f"# Notes\n\n{decoy}\n\n## Tone\n\nWarm.\n"

    assert applied("replace_markdown_section", "Tone", "Cool.", to=text) == text.replace("Warm", "Cool")


def test_headings_are_found_in_every_form_but_not_in_the_front_matter() -> None:
    matter = "---\nname: n\n# Comment\ndescription: d\n---\n"
    text = matter + "One\n===\nTwo  two\n---\n  ### Three ###\n#\n# C#\n---\n"

    found = [(heading.level, heading.text) for heading in ranking.headings(text)]

    assert found == [(1, "One"), (2, "Two two"), (3, "Three"), (1, ""), (1, "C#")]


def test_an_underlined_section_is_replaced_with_its_underline_kept() -> None:
    text = "One\n===\n\nA.\n\nTwo\n---\n\nB.\n\nThree\n=====\n\nC.\n"

    assert applied("replace_markdown_section", "Two", "New.", to=text) == text.replace("B.", "New.")


def test_a_section_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(PlanFailed) as raised:
        applied("replace_markdown_section", "Tones")

    assert str(raised.value) == (
        "no section 'Tones'; headings here: '# Notes', '## Steps', '### Detail', '## Tone' "
        "(did you mean Tone?)"
    )
    with pytest.raises(PlanFailed, match="no section '# Tone'"):
        applied("replace_markdown_section", "# Tone")
    with pytest.raises(PlanFailed, match="headings here: none"):
        applied("insert_before_section", "Tone", to="Nothing.\n")


def test_a_section_that_is_there_twice_is_an_error_unless_the_level_tells_them_apart() -> None:
    text = "# A\n\n## A\n\nx\n\n# B\n\n# B\n"

    assert applied("replace_markdown_section", "## A", "y", to=text) == text.replace("x", "y")
    with pytest.raises(PlanFailed, match=r"section 'B' occurs 2 times \(lines 7, 9\); rename all but one"):
        applied("replace_markdown_section", "B", to=text)


@pytest.mark.parametrize("action", ["replace_markdown_section", "insert_before_section"])
@pytest.mark.parametrize("heading", [None, "", " ## "])
def test_an_edit_of_a_section_needs_its_heading(action: str, heading: str | None) -> None:
    with pytest.raises(PlanFailed, match=f"{action} needs a section_heading"):
        applied(action, heading)


def test_blank_lines_are_no_content() -> None:
    with pytest.raises(PlanFailed, match="nothing but blank lines"):
        applied("append_markdown_section", "A", "", " \n ")


@given(
    st.text(alphabet="#=-`~<!> aT\n\r\t"),
    st.sampled_from(["replace_markdown_section", "insert_before_section"]),
)
def test_an_edit_never_touches_what_stands_before_its_section(text: str, action: str) -> None:
    whole = text + "\n\n```\n```\n-->\n\n# Zz\n\nold\n"
    before = [heading.text for heading in ranking.headings(whole)]
    if before.count("Zz") != 1:
        return  # an open fence or comment swallowed the section

    made = applied(action, "Zz", "new", to=whole)

    assert made.replace("\r\n", "\n").startswith(whole[: whole.index("# Zz")].replace("\r\n", "\n"))
    assert "Zz" in [heading.text for heading in ranking.headings(made)]

"""Skills: what is accepted, what is warned about, what is refused in one line, what travels to workers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import a_suite, standalone, the_artifact, uplift

from producer import plan
from producer.settings.run_settings import RunSettings
from producer.skills import skill
from producer.skills import skill as skills
from producer.skills.skill import InvalidFrontMatter, InvalidSkill, Skill
from workers.store.bundles import pack_files, unpack

GOOD = "---\nname: release-notes\ndescription: Writes release notes.\n---\n\n# Release notes\n\nBe brief.\n"


def a_skill_folder(place: Path, text: str = GOOD, **others: str) -> Path:
    for name, content in {"SKILL.md": text, **others}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode())
    return place


def a_skill(place: Path, text: str = GOOD) -> Skill:
    return skills.load(a_skill_folder(place, text))


def complaint_about(place: Path, text: str | bytes) -> str:
    """The one-line error for this SKILL.md, without the folder's name."""
    file = place / "SKILL.md"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidSkill) as raised:
        skills.load(file)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(str(place))
    return message.removeprefix(f"{place}/")


def test_a_folder_and_a_single_file_are_skills(tmp_path: Path) -> None:
    folder = a_skill_folder(tmp_path / "notes")

    whole, single = skills.load(folder), skills.load(folder / "SKILL.md")

    assert whole == Skill(
        path=folder / "SKILL.md",
        name="release-notes",
        description="Writes release notes.",
        text=GOOD,
        folder=folder,
    )
    assert single.folder is None
    assert single.text == GOOD


def test_text_is_kept_byte_for_byte_with_bom_and_crlf(tmp_path: Path) -> None:
    text = "\ufeff" + GOOD.replace("\n", "\r\n")

    skill = a_skill(tmp_path, text)

    assert skill.text == text
    assert skill.name == "release-notes"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("---\nname: x\n", "SKILL.md:1:1: the front matter is not closed; end it with a line '---'"),
        ("---\n- name\n---\n", "SKILL.md:2:1: not a list of keys; write lines such as 'name: …'"),
        ("---\n---\n", "SKILL.md:2:1: not a list of keys; write lines such as 'name: …'"),
        ("---\ndescription: d\n---\n", "SKILL.md:1:1: the front matter has no name; add a line 'name: …'"),
        (
            "---\nname: n\n---\n",
            "SKILL.md:1:1: the front matter has no description; add a line 'description: …'",
        ),
        ("---\nname: 7\ndescription: d\n---\n", "SKILL.md:2:1: name is not text; put its value in quotes"),
        (
            "---\nname: n\ndescription: [a]\n---\n",
            "SKILL.md:3:1: description is not text; put its value in quotes",
        ),
        (
            "---\nname: n\ndescription: ' '\n---\n",
            "SKILL.md:3:1: description ' ' is not readable; write some text",
        ),
        (
            "---\nname: n\nname: m\n---\n",
            "SKILL.md:3:1: duplicate key 'name', first on line 2; keep one of them",
        ),
        (
            "---\nname: a: b\n---\n",
            "SKILL.md:2:8: invalid YAML: a ':' is not expected here; mend the indentation, or quote text that "
            "holds ': '",
        ),
        (" \n\n", "SKILL.md: the SKILL.md is empty; write the skill, or leave it out"),
        (GOOD + "\x00", "SKILL.md:9: control character '\\x00'; remove it"),
        (b"---\nname: \xff\n---\n", "SKILL.md:2: not UTF-8 text; save it as UTF-8"),
    ],
)
def test_a_skill_that_cannot_be_used_says_where_and_what_to_do(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    assert complaint_about(tmp_path, text) == complaint


@pytest.mark.parametrize(
    "yaml",
    [
        "a: " + "[" * 5000,
        "a:\n" + "".join(" " * level + "b:\n" for level in range(1, 200)),
        "a: &x [1]\nb: *x",
        "a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]",
        "a: *nobody",
        "a: !!python/object/apply:os.system ['true']\nname: &n x",
        'a: "\\UFFFFFFFF"',
        "%YAML 1." + "9" * 5000,
        "a: '",
        "\t- x",
        "? [a, b]\n: c",
        "x" * (skill.MAX_CHARACTERS + 1),
    ],
    ids=lambda yaml: yaml[:20],
)
def test_hostile_front_matter_is_a_one_line_error(tmp_path: Path, yaml: str) -> None:
    assert len(complaint_about(tmp_path, f"---\n{yaml}\n---\nbody\n")) < 300


@pytest.mark.parametrize(
    "yaml", ["n: " + "9" * 5000, "when: 2026-99-99", "a: !!bool maybe", "b: !!binary '*'", "c: .nan"]
)
def test_values_that_nobody_needs_are_not_even_constructed(tmp_path: Path, yaml: str) -> None:
    assert a_skill(tmp_path, f"---\nname: n\ndescription: d\n{yaml}\n---\n").name == "n"


@given(st.text(alphabet="-:#[]{}&*!|>'\"%@`\n\t ab,?\\0\r"))
def test_any_front_matter_is_read_or_refused(yaml: str) -> None:
    with suppress(InvalidFrontMatter):
        matter = skill.read(f"---\n{yaml}\n---\n")
        end = len(matter.document.text)
        assert all(0 <= node.key_start <= end <= matter.body for node in matter.keys.values())
        spans = skill._spans(matter.document, matter.keys)
        assert all(0 <= start <= stop <= end for start, stop in spans.values())


def test_a_skill_that_is_too_long_is_refused_and_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "SKILL.md").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(InvalidSkill, match="at most 1 MiB are allowed; move parts into files beside it"):
        skills.load(tmp_path)


def test_a_path_without_a_skill_says_what_a_skill_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidSkill, match=r"skill not found: .*nowhere; give a folder with a SKILL\.md"):
        skills.load(tmp_path / "nowhere")
    with pytest.raises(InvalidSkill, match=r"no SKILL\.md in .*; a skill is a folder with that file in it"):
        skills.load(tmp_path)
    (tmp_path / "skill.md").write_text(GOOD)
    if not (tmp_path / "SKILL.md").exists():
        with pytest.raises(InvalidSkill, match=r"no SKILL\.md in .*; rename skill\.md to SKILL\.md"):
            skills.load(tmp_path)
    with pytest.raises(InvalidSkill, match="cannot be read: File name too long"):
        skills.load(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda file: file.symlink_to("/dev/zero"), lambda file: file.symlink_to("x")],
)
def test_a_skill_md_that_is_no_file_is_not_told_to_take_the_name_it_has(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "SKILL.md")
    with pytest.raises(
        InvalidSkill, match=r"SKILL\.md is not a regular file; a skill is a folder with that file"
    ):
        skills.load(tmp_path)


def test_unknown_keys_and_long_or_odd_values_are_warnings(tmp_path: Path) -> None:
    text = (
        f"---\nname: Release_Notes\ndescription: {'d' * 1025}\ncompatibility: {'c' * 501}\n"
        "alowed-tools: Read\nmood: good\nseed: .nan\n---\n"
    )

    skill = a_skill(tmp_path, text)

    assert [warning.removeprefix(f"{tmp_path}/SKILL.md") for warning in skill.warnings] == [
        ":7: seed: .nan is not a finite number; write a finite one (or quote it to mean text)",
        ":2: name 'Release_Notes' should be at most 64 lower-case letters, digits and single hyphens",
        ":3: description has 1025 characters; agents read at most 1024",
        ":4: compatibility has 501 characters; agents read at most 500",
        ":5: unknown key 'alowed-tools' in the front matter (did you mean allowed-tools?)",
        ":6: unknown key 'mood' in the front matter (did you mean model?)",
        ":7: unknown key 'seed' in the front matter",
    ]


def test_the_documented_keys_and_values_at_the_limit_give_no_warning(tmp_path: Path) -> None:
    text = (
        f"---\nname: {'n' * 64}\ndescription: {'d' * 1024}\nlicense: MIT\ncompatibility: any\n"
        "metadata: {author: me}\nallowed-tools: Read Grep\nuser-invocable: false\ncontext: fork\n"
        "hooks: {}\npaths: ['*.md']\nwhen_to_use: now\n---\n"
    )

    assert a_skill(tmp_path, text).warnings == ()


def test_a_folder_travels_whole_and_a_single_file_alone(tmp_path: Path) -> None:
    folder = a_skill_folder(tmp_path / "notes", **{"references/tone.md": "Warm."})

    assert skills.bundle(skills.load(folder)) == pack_files(
        {"release-notes/SKILL.md": GOOD.encode(), "release-notes/references/tone.md": b"Warm."}
    )
    alone = skills.bundle(skills.load(folder / "SKILL.md"))
    assert alone == pack_files({"release-notes/SKILL.md": GOOD.encode()})


def test_what_a_skill_is_judged_by_stays_behind_wherever_it_lies_in_its_folder(tmp_path: Path) -> None:
    """An agent that finds the expected answers beside its skill is better for a bad reason."""
    kept = {
        "references/tone.md": "Warm.",
        "references/suite.yaml": "An example.",
        "fixtures.md": "About them.",
    }
    hidden = ("sub/fixtures/answers.txt", "evals/suite.yaml", ".env", "uplift.toml", "state/runs/x.json")
    folder = a_skill_folder(tmp_path / "notes", **kept, **dict.fromkeys(hidden, "secret"))
    task = {"id": "t", "prompt": "p", "judge": {"type": "contains", "expected": ["x"]}}
    (folder / "sub/suite.yaml").write_text(json.dumps({"skill_id": "s", "version": "1.0", "tasks": [task]}))
    (folder / "link.txt").symlink_to(folder / "sub/fixtures/answers.txt")
    (folder / "linked").symlink_to(folder / "sub")
    for baseline in (None, folder):
        options = RunSettings(
            task_suite=folder / "sub/suite.yaml",
            state_root=folder / "state",
            standalone=True,
            skill_path=folder if baseline is None else a_skill_folder(tmp_path / "other"),
            baseline_path=baseline,
        )
        arms = {arm.name: arm for arm in plan.make(options).arms}
        mounted = arms["candidate" if baseline is None else "baseline"].bundle
        assert mounted == pack_files(
            {
                "release-notes/SKILL.md": GOOD.encode(),
                **{f"release-notes/{name}": text.encode() for name, text in kept.items()},
            }
        )


def test_a_skill_inside_of_what_stays_behind_travels_whole(tmp_path: Path) -> None:
    """Somebody keeps the skill among the fixtures, or has the state root where the skill is."""
    folder = a_skill_folder(tmp_path / "fixtures/notes", **{"references/tone.md": "Warm."})
    skill = skills.load(folder)
    for around in (folder, tmp_path, folder.parent):
        assert skills.bundle(skill, without=[around]) == skills.bundle(skill)


def test_another_text_goes_into_the_same_folder_and_the_folder_on_disk_stays(tmp_path: Path) -> None:
    folder = a_skill_folder(tmp_path / "notes", **{"references/tone.md": "Warm."})
    changed = GOOD.replace("brief", "very brief").replace("release-notes", "notes")

    skill = skills.with_text(skills.load(folder), changed)

    unpack(skills.bundle(skill).data, tmp_path / "there")
    assert (tmp_path / "there/notes/SKILL.md").read_text() == changed
    assert (tmp_path / "there/notes/references/tone.md").read_text() == "Warm."
    assert skill.name == "notes"
    assert (folder / "SKILL.md").read_text() == GOOD


def test_a_skill_without_front_matter_has_its_folders_name_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_skill_folder(tmp_path / "my notes", "# Notes\n")
    monkeypatch.chdir(folder)

    for path in (folder, folder / "SKILL.md", Path("SKILL.md"), Path()):
        skill = skills.load(path)
        assert (skill.name, skill.text) == ("my notes", "# Notes\n")
        assert skill.warnings == (
            f"{skill.path}:1: no front matter, so agents know the skill by its folder's name, my notes",
        )
        assert "/" not in skills.folder_name(skill)


def test_another_text_is_checked_like_any_skill(tmp_path: Path) -> None:
    skill = a_skill(tmp_path)

    with pytest.raises(InvalidSkill, match="candidate c1:1:1: the front matter is not closed"):
        skills.with_text(skill, "---\n# Notes", place="candidate c1")
    with pytest.raises(InvalidSkill, match="control character"):
        skills.with_text(skill, GOOD + "\ud800")
    with pytest.raises(InvalidSkill, match="more than 1048576 bytes"):
        skills.with_text(skill, GOOD + "x" * 2_000_000)


def test_a_folder_that_cannot_be_packed_is_an_error_of_the_skill(tmp_path: Path) -> None:
    os.mkfifo(a_skill_folder(tmp_path / "notes") / "pipe")

    with pytest.raises(InvalidSkill, match=r"cannot be packed: .*pipe: neither a file nor a folder"):
        skills.bundle(skills.load(tmp_path / "notes"))


def test_an_update_replaces_a_key_in_its_place_and_keeps_the_rest_byte_for_byte() -> None:
    text = (
        "---\n# who\nname:   notes\ndescription: |\n  old\n  # not a comment\n\n# which\nmetadata: {a:  1}\n"
        "license: MIT\n--- \n\n# Body  \n---\n"
    )

    updated = skill.update(text, ["description: new", "model: haiku"])

    assert updated == (
        "---\n# who\nname:   notes\ndescription: new\n\n# which\nmetadata: {a:  1}\n"
        "license: MIT\nmodel: haiku\n--- \n\n# Body  \n---\n"
    )


def test_an_update_may_span_lines_be_wrapped_in_rules_and_meets_crlf() -> None:
    text = "---\r\nname: n\r\ndescription: d\r\n---\r\nBody\r\n"

    updated = skill.update(text, ["---", "description: >", "  one", "  two", "---"])

    assert updated == "---\r\nname: n\r\ndescription: >\r\n  one\r\n  two\r\n---\r\nBody\r\n"


@pytest.mark.parametrize(
    ("text", "lines", "complaint"),
    [
        (GOOD, ["just words"], "not a list of keys"),
        (GOOD, [], "not a list of keys"),
        (GOOD, ["a: ["], "invalid YAML"),
        (GOOD, ["{a: 1, b: 2}"], "cannot edit 'a'"),
        ("---\n{name: n, description: d}\n---\n", ["name: m"], "cannot edit 'name'"),
        ("no front matter", ["name: m"], "no front matter"),
        (GOOD, ["a: " + "x" * 70_000], "at most 65536"),
    ],
)
def test_an_update_that_cannot_be_made_is_an_error(text: str, lines: list[str], complaint: str) -> None:
    with pytest.raises(InvalidFrontMatter, match=complaint):
        skill.update(text, lines)


NEVER_SEEN = (
    "never sees a.md, b.md, references/deep.md and 2 more of skill haiku: "
    "in prepend mode a skill is its SKILL.md alone"
)


def a_suite_with_files(folder: Path) -> Path:
    suite = a_suite(folder, 1)
    names = ("a.md", "b.md", "references/deep.md", "scripts/run.py", "z.md", "evals/not-the-skill.md")
    for name in names:
        (folder / "skill" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "skill" / name).write_text("more")
    return suite


@pytest.mark.parametrize(
    ("flags", "unseen"),
    [
        (("--model", "openai:m"), True),
        (("--model", "claude-code:m", "--skill-mode", "prepend"), True),
        (("--model", "claude-code:m"), False),
        (("--model", "sim"), False),
    ],
)
def test_a_dry_run_says_which_files_the_model_never_sees(
    tmp_path: Path, flags: tuple[str, ...], unseen: bool
) -> None:
    words = standalone(a_suite_with_files(tmp_path), "--dry-run", *flags)
    told = uplift(*words, cwd=tmp_path)
    assert told.code == 0, told.err
    assert (f"uplift: {flags[1]} {NEVER_SEEN}" in told.err) is unseen
    in_json = uplift(*words, "--json", cwd=tmp_path).line["warnings"]
    assert in_json == ([f"{flags[1]} {NEVER_SEEN}"] if unseen else [])


def test_a_result_says_which_files_the_model_never_saw(tmp_path: Path) -> None:
    program = {"argv": ["/bin/echo", "word0"], "agent": False}
    words = standalone(a_suite_with_files(tmp_path), "--model", "command:echo", "--sandbox", "off")
    ended = uplift(*words, cwd=tmp_path, env={"UPLIFT_COMMANDS": json.dumps({"echo": program})})
    warning = f"command:echo {NEVER_SEEN}"
    artifact = the_artifact(tmp_path)
    assert warning in artifact["warnings"]
    assert f"warning: {warning}"[:150] in " ".join(ended.err.split())
    report = ("report", artifact["run_id"], "--state-root", tmp_path / "state")
    for kind, place in (("--md", "report.md"), ("--html", "report.html")):
        done = uplift(*report, kind, "--output", place, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "and 2 more of skill haiku" in (tmp_path / place).read_text(), kind


def test_a_prompt_that_holds_a_dozen_words_of_the_skill_quotes_it():
    rule = "Start every note with the platform in bold, then what users notice, and end with its number."
    skill, old = (an_unchecked_skill(text) for text in (f"# Notes\n{rule}\n", "# Notes\nBe brief.\n"))
    prompts = {
        "quotes": "Do this: start every note with the PLATFORM in *bold*, then what users notice. Go!",
        "names": "Start every note with the platform in bold, please.",
        "other": "Write a note.",
    }
    assert skills.quoting(skill, prompts, old) == ("quotes",)
    assert skills.quoting(skill, prompts) == ("quotes",)
    assert skills.quoting(skill, prompts, an_unchecked_skill(f"Old. {rule}")) == ()
    assert skills.quoting(old, prompts) == ()


def an_unchecked_skill(text):
    return skills.Skill(path=Path("SKILL.md"), name="n", description="d", text=text)

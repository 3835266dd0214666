"""Baselines from git: which skill a ref gives in 20 situations, and that nothing hostile runs or gets out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from running import a_suite, standalone, uplift

from producer.baselines import git
from producer.baselines.git import NotInGit
from producer.runs.evaluate import planned
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.skills import skill as skills
from workers.store.bundles import Bundle

SKILL = "---\nname: haiku\ndescription: {}\n---\nWrite three lines.\n"


@pytest.fixture(autouse=True)
def nobodys_git(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of whoever runs the tests, and a name to commit under."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "n")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "n@example.org")
    for name in git.TARGETS:
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, *words: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *words], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(top: Path, message: str = "one") -> str:
    run(top, "add", "-A")
    run(top, "commit", "-qm", message)
    return run(top, "rev-parse", "HEAD")


def a_skill(folder: Path, description: str = "first", **others: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(SKILL.format(description))
    for name, text in others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def a_repository(top: Path, place: str = "skills/haiku", **others: str) -> Path:
    """A repository with a skill at a place, committed once; returns the skill's folder."""
    top.mkdir(exist_ok=True)
    run(top, "init", "-q", "-b", "main")
    skill = a_skill(top / place, **others)
    commit(top)
    return skill


def bundle_at(wanted: str, skill: Path) -> Bundle:
    found = git.arm(wanted, skill)
    assert found.bundle is not None
    return found.bundle


def refused(wanted: str, skill: Path) -> str:
    with pytest.raises(NotInGit) as raised:
        git.arm(wanted, skill)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Given a skill as it lies in a folder, the commit that has it gives the very same bundle.


@pytest.mark.parametrize("place", [".", "skills/haiku", "a b/ünï:(top) *[x]", ":/odd"])
def test_a_commit_gives_the_skill_as_it_was_byte_for_byte(tmp_path: Path, place: str) -> None:
    skill = a_repository(tmp_path / "top", place, **{"references/tone.md": "Warm.", "run.sh": "true"})
    (skill / "run.sh").chmod(0o755)
    (skill / "evals").mkdir()
    (skill / "evals/suite.yaml").write_text("not the skill")
    (skill / "short.md").symlink_to("references/tone.md")
    (skill / "all").symlink_to("references")
    commit(tmp_path / "top")
    before = skills.bundle(skills.load(skill))
    (skill / "SKILL.md").write_text(SKILL.format("edited"))
    (skill / "references/tone.md").unlink()
    state = run(tmp_path / "top", "status", "--porcelain")
    assert bundle_at("git:HEAD", skill) == before
    assert run(tmp_path / "top", "status", "--porcelain") == state, "the work tree was touched"


def test_a_skill_that_is_one_file_is_read_alone(tmp_path: Path) -> None:
    skill = a_repository(tmp_path / "top", **{"other.md": "text"})
    before = skills.bundle(skills.load(skill / "SKILL.md"))
    assert bundle_at("git:HEAD", skill / "SKILL.md") == before


@pytest.mark.parametrize(
    "ref", ["HEAD~1", "v1", "skills/haiku/v1.0", "other-branch", "main@{1}", "SHORT", "FULL"]
)
def test_whatever_names_a_commit_is_a_ref(tmp_path: Path, ref: str) -> None:
    skill = a_repository(tmp_path / "top")
    top = tmp_path / "top"
    first = run(top, "rev-parse", "HEAD")
    run(top, "tag", "-a", "v1", "-m", "annotated")
    run(top, "tag", "skills/haiku/v1.0")  # as where one repository has many skills
    run(top, "branch", "other-branch")
    before = skills.bundle(skills.load(skill))
    a_skill(skill, "second")
    commit(top, "two")
    ref = {"SHORT": first[:9], "FULL": first}.get(ref, ref)
    assert bundle_at(f"git:{ref}", skill) == before
    assert bundle_at("git:HEAD", skill) != before


def test_a_ref_with_a_space_is_a_ref(tmp_path: Path) -> None:
    skill = a_repository(tmp_path / "top")
    assert bundle_at("git:HEAD@{0 days ago}", skill) == skills.bundle(skills.load(skill))


@pytest.mark.parametrize("staged", [False, True])
def test_a_renamed_skill_is_found_where_it_was(tmp_path: Path, staged: bool) -> None:
    top = tmp_path / "top"
    skill = a_repository(top, "old-name", **{"references/a.md": "text"})
    before = skills.bundle(skills.load(skill))
    run(top, "mv", "old-name", "skills-new")
    ref = "git:HEAD"
    if not staged:
        commit(top, "rename")
        ref = "git:HEAD~1"
    (top / "skills-new/SKILL.md").write_text(SKILL.format("first, edited"))
    assert bundle_at(ref, top / "skills-new") == before


def test_a_new_skill_has_no_baseline_in_git(tmp_path: Path) -> None:
    a_repository(tmp_path / "top")
    assert "is new; compare with the bare model: --baseline bare" in refused(
        "git:HEAD", a_skill(tmp_path / "top/newcomer")
    )


def test_a_detached_head_a_worktree_and_a_subfolder_are_no_obstacles(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    before = skills.bundle(skills.load(skill))
    a_skill(skill, "second")
    commit(top, "two")
    run(top, "checkout", "-q", "--detach")
    assert bundle_at("git:HEAD~1", skill) == before
    assert set(git.facts(skill)) == {"git_commit"}
    run(top, "worktree", "add", "-q", str(tmp_path / "tree"), "main")
    assert bundle_at("git:HEAD~1", tmp_path / "tree/skills/haiku") == before
    assert git.facts(tmp_path / "tree/skills") == {
        "git_commit": run(top, "rev-parse", "main"),
        "git_branch": "main",
    }
    (tmp_path / "link").symlink_to(skill)
    assert bundle_at("git:HEAD~1", tmp_path / "link") == before


def test_the_merge_base_is_where_the_branch_left_the_main_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    before = skills.bundle(skills.load(skill))
    run(top, "checkout", "-qb", "feature")
    a_skill(skill, "of the branch")
    commit(top, "two")
    run(top, "checkout", "-q", "main")
    a_skill(skill, "main went on")
    gone_on = commit(top, "three")
    run(top, "checkout", "-q", "feature")
    assert bundle_at("git:merge-base", skill) == before
    # CI says for which branch the change is
    run(top, "update-ref", "refs/remotes/origin/release", "HEAD")
    monkeypatch.setenv("GITHUB_BASE_REF", "release")
    assert bundle_at("git:merge-base", skill) == skills.bundle(skills.load(skill))
    monkeypatch.setenv("GITHUB_BASE_REF", "--upload-pack=x")
    run(top, "update-ref", "refs/remotes/origin/main", gone_on)
    assert bundle_at("git:merge-base", skill) == before


def test_the_last_tag_is_the_nearest_behind(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    assert "no tag leads to this commit" in refused("git:last-tag", skill)
    run(top, "tag", "v1")
    before = skills.bundle(skills.load(skill))
    a_skill(skill, "second")
    commit(top, "two")
    assert bundle_at("git:last-tag", skill) == before


def test_a_shallow_clone_without_the_merge_base_says_what_to_fetch(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    for branch in ("main", "feature"):
        run(top, "checkout", "-qB", branch)
        for number in range(2):
            a_skill(skill, f"{branch} {number}")
            commit(top, branch)
    was = skills.bundle(skills.load(skill))
    run(top, "checkout", "-q", "main")
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "-q", "--depth", "1", "--branch", "feature", f"file://{top}", str(clone))
    said = refused("git:merge-base", clone / "skills/haiku")
    assert "type: git fetch --unshallow" in said
    assert "type: git fetch --unshallow" in refused("git:HEAD~1", clone / "skills/haiku")
    assert "type: git fetch --unshallow" in refused("git:last-tag", clone / "skills/haiku")
    assert bundle_at("git:HEAD", clone / "skills/haiku") == was


def test_branches_without_a_common_commit_are_told_apart(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    run(top, "checkout", "-q", "--orphan", "lonely")
    commit(top, "alone")
    assert "they share no history" in refused("git:merge-base", skill)


def test_no_repository_no_commit_and_unknown_refs_say_what_to_type(tmp_path: Path) -> None:
    lonely = a_skill(tmp_path / "lonely")
    said = refused("git:HEAD", lonely)
    assert said.startswith("--baseline git:HEAD: not a git repository (or any")
    assert said.endswith("type: git init && git add . && git commit -m first")
    assert git.facts(lonely) == {}
    run(lonely, "init", "-q")
    assert "type: git add . && git commit" in refused("git:HEAD", lonely)
    assert git.facts(lonely) == {}
    skill = a_repository(tmp_path / "top")
    run(tmp_path / "top", "tag", "release-1")
    assert "git knows no commit 'release-2' here (did you mean release-1?)" in refused("git:release-2", skill)
    assert "(did you mean merge-base?)" in refused("git:merge_base", skill)


def test_a_work_tree_of_a_bare_repository_is_no_obstacle(tmp_path: Path) -> None:
    before = skills.bundle(skills.load(a_repository(tmp_path / "top")))
    run(tmp_path, "clone", "-q", "--bare", str(tmp_path / "top"), "bare.git")
    run(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "tree"), "main")
    skill = a_skill(tmp_path / "tree/skills/haiku", "edited")
    assert bundle_at("git:HEAD", skill) == before
    assert "has no SKILL.md; name a folder" in refused("git:HEAD", a_skill(tmp_path / "bare.git/hooks"))


def test_somebody_elses_repository_is_refused_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = a_repository(tmp_path / "top")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for that
    said = refused("git:HEAD", skill)
    assert "dubious ownership" in said
    assert "type: git config --global --add safe.directory FOLDER" in said
    assert git.facts(skill) == {}


def test_a_sparse_checkout_has_the_files_that_it_left_out(tmp_path: Path) -> None:
    skill = a_repository(tmp_path / "top", **{"references/tone.md": "Warm."})
    before = skills.bundle(skills.load(skill))
    run(tmp_path / "top", "sparse-checkout", "set", "--no-cone", "/*", "!references")
    assert not (skill / "references").exists()
    assert bundle_at("git:HEAD", skill) == before
    run(tmp_path / "top", "sparse-checkout", "set", "--no-cone", "/elsewhere")
    assert bundle_at("git:HEAD", a_skill(skill, "edited")) == before


def test_a_skill_in_a_submodule_or_a_nested_repository_is_that_ones(tmp_path: Path) -> None:
    a_repository(tmp_path / "inner", ".")
    outer = tmp_path / "outer"
    a_repository(outer, "other")
    run(
        outer,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(tmp_path / "inner"),
        "sub",
    )
    commit(outer, "with a submodule")
    before = skills.bundle(skills.load(outer / "sub"))
    a_skill(outer / "sub", "edited")
    assert bundle_at("git:HEAD", outer / "sub") == before
    nested = a_repository(outer / "other" / "nested", ".")
    assert bundle_at("git:HEAD", nested) == skills.bundle(skills.load(nested))
    assert git.facts(nested)["git_commit"] != git.facts(outer)["git_commit"]


def test_a_conflict_and_a_deleted_skill_are_no_obstacles(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    run(top, "checkout", "-qb", "feature")
    a_skill(skill, "of the branch")
    commit(top, "two")
    run(top, "checkout", "-q", "main")
    a_skill(skill, "of main")
    commit(top, "three")
    before = skills.bundle(skills.load(skill))
    with pytest.raises(subprocess.CalledProcessError):
        run(top, "merge", "feature")
    assert "<<<<<<<" in (skill / "SKILL.md").read_text()
    assert bundle_at("git:HEAD", skill) == before
    run(top, "reset", "-q", "--hard")
    run(top, "rm", "-q", "-r", "skills")
    assert bundle_at("git:HEAD", a_skill(skill, "written anew, and not tracked")) == before


def test_without_git_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = a_skill(tmp_path / "a")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in refused("git:HEAD", skill)
    assert git.facts(skill) == {}


# Nothing of what follows may run anything, leave the skill or be taken for the skill.


@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=touch pwned",
        "-h",
        "HEAD\nHEAD",
        "",
        "HEAD:skills",
        "$(touch pwned)",
        pytest.param("é" * 5000, id="long"),
        "\ud800",
    ],
)
def test_a_hostile_ref_is_only_an_unknown_one(
    tmp_path: Path, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = a_repository(tmp_path / "top")
    monkeypatch.chdir(tmp_path)
    assert "git knows no commit" in refused(f"git:{ref}", skill)
    assert not list(tmp_path.rglob("pwned"))


def test_hooks_filters_textconv_monitors_and_pagers_do_not_run(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top, **{".gitattributes": "* filter=evil diff=evil text eol=crlf\n"})
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\ncat\n")
    evil.chmod(0o755)
    for key in (
        *(
            "filter.evil.smudge",
            "filter.evil.clean",
            "filter.evil.process",
            "diff.evil.textconv",
            "diff.external",
        ),
        *(
            "diff.evil.command",
            "core.fsmonitor",
            "core.pager",
            "core.sshCommand",
            "core.editor",
            "alias.ls-tree",
        ),
    ):
        run(top, "config", key, str(evil))
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        (top / ".git/hooks" / hook).symlink_to(evil)
    assert bundle_at("git:HEAD", skill) == skills.bundle(skills.load(skill))
    refused("git:HEAD", a_skill(top / "newcomer"))  # looks for renames, too
    git.facts(skill)
    assert not (tmp_path / "pwned").exists()


def test_a_promised_object_is_not_fetched(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top)
    a_skill(skill, "second")
    commit(top, "two")
    run(top, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{top}", str(clone))
    run(clone, "config", "remote.origin.uploadpack", f"touch {tmp_path}/pwned; git-upload-pack")
    assert "lacks some files of that commit; type: git fetch --refetch" in refused(
        "git:HEAD~1", clone / "skills/haiku"
    )
    assert not (tmp_path / "pwned").exists()


def a_hostile_commit(top: Path, *lines: str) -> None:
    """A commit on top whose skill has entries that git itself would not write: mode, type, content and name."""
    entries = []
    for line in lines:
        mode, content, name = line.split("|")
        kind = "commit" if mode == "160000" else "blob"
        digest = "1" * 40 if kind == "commit" else run(top, "hash-object", "-w", "--stdin", given=content)
        entries.append(f"{mode} {kind} {digest}\t{name}")
    text = SKILL.format("hostile")
    entries.append(f"100644 blob {run(top, 'hash-object', '-w', '--stdin', given=text)}\tSKILL.md")
    tree = run(top, "mktree", "--missing", given="\n".join(entries) + "\n")
    tree = run(top, "mktree", given=f"040000 tree {tree}\thaiku\n")
    tree = run(top, "mktree", given=f"040000 tree {tree}\tskills\n")
    run(top, "update-ref", "refs/heads/hostile", run(top, "commit-tree", tree, "-m", "h"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("160000||sub", "'sub' is a submodule"),
        ("100644|version https://git-lfs.github.com/spec/v1|big.bin", "'big.bin' is a pointer of Git LFS"),
        ("120000|/etc/passwd|link", "the link 'link' leads to no file of the skill"),
        ("120000|../../outside|link", "the link 'link' leads to no file of the skill"),
        ("120000|link|link", "the link 'link' leads to no file of the skill"),
        ("120000|.|link", "the link 'link' leads to no file of the skill"),
        ("100644|x|..", "'haiku/..': not a path inside the folder"),
    ],
)
def test_what_is_no_file_of_the_skill_is_refused_in_a_sentence(tmp_path: Path, line: str, says: str) -> None:
    skill = a_repository(tmp_path / "top")
    a_hostile_commit(tmp_path / "top", line)
    assert says in refused("git:hostile", skill)


def test_a_tree_of_endless_files_and_links_that_multiply_are_refused(tmp_path: Path) -> None:
    skill, top = a_repository(tmp_path / "top"), tmp_path / "top"
    tree = run(top, "rev-parse", "HEAD:skills")
    for _ in range(12):  # each holds ten of the one before: a million million files
        tree = run(top, "mktree", given="".join(f"040000 tree {tree}\t{one}\n" for one in "abcdefghij"))
    for name in ("haiku", "skills"):
        tree = run(top, "mktree", given=f"040000 tree {tree}\t{name}\n")
    assert "git ls-tree has no end" in refused(f"git:{run(top, 'commit-tree', tree, '-m', 'h')}", skill)
    folder = a_skill(top / "many", **{f"all/{number}": "" for number in range(100)})
    for number in range(60):
        (folder / f"link-{number}").symlink_to("all")
    commit(top)
    assert "its links make it more than 5000 files" in refused("git:HEAD", folder)


def test_a_huge_tree_is_refused_before_its_files_are_read(tmp_path: Path) -> None:
    skill = a_repository(tmp_path / "top")
    empty = run(tmp_path / "top", "hash-object", "-w", "--stdin", given="")
    text = run(tmp_path / "top", "hash-object", "-w", "--stdin", given=SKILL.format("x"))
    lines = [f"100644 blob {empty}\t{number}" for number in range(5001)]
    tree = run(tmp_path / "top", "mktree", given="\n".join([*lines, f"100644 blob {text}\tSKILL.md"]) + "\n")
    for name in ("haiku", "skills"):
        tree = run(tmp_path / "top", "mktree", given=f"040000 tree {tree}\t{name}\n")
    huge = run(tmp_path / "top", "commit-tree", tree, "-m", "h")
    assert "5002 files are too many or too large" in refused(f"git:{huge}", skill)


# With a suite, as a plan


def options(suite: Path, skill: Path, **others: object) -> RunSettings:
    values = {"task_suite": suite, "skill_path": skill, "models": ("mock",), **others}
    return RunSettings.checked(values)


def test_an_untracked_suite_judges_both_and_stays_out_of_both(tmp_path: Path) -> None:
    top = tmp_path / "top"
    skill = a_repository(top, **{"mine.yaml": "old suite"})
    a_suite(
        skill, 1, name="mine.yaml"
    )  # in the skill's folder, under a name that keeps nobody from reading it
    for name in ("skill/SKILL.md", "skill"):
        (skill / name).unlink() if name.endswith("md") else (skill / name).rmdir()
    with pytest.raises(InvalidOption, match=r"--baseline git:HEAD and the skill .* are the same"):
        planned(options(skill / "mine.yaml", skill, baseline="git:HEAD"))
    a_skill(skill, "edited")
    plan = planned(options(skill / "mine.yaml", skill, baseline="git:HEAD"))
    head = run(top, "rev-parse", "HEAD")
    assert plan.remarks[0] == f"the baseline is the skill at git:HEAD, commit {head}"
    assert plan.remarks[1:] == plan.warnings  # it is no warning
    facts = {"git_commit": head, "git_branch": "main", "baseline_commit": head}
    assert plan.info().environment == facts
    assert [arm.skill.description for arm in plan.arms if arm.skill] == ["first", "edited"]


def test_a_broken_old_skill_is_told_with_commit_and_place(tmp_path: Path) -> None:
    skill = a_repository(tmp_path / "top")
    (skill / "SKILL.md").write_text("---\nname: [\n---\n")
    commit(tmp_path / "top")
    a_skill(skill)
    with pytest.raises(skills.InvalidSkill, match=r"^git:HEAD:skills/haiku/SKILL\.md:\d+:\d+: "):
        git.arm("git:HEAD", skill)


def test_a_path_is_a_skill_or_a_blessed_file_and_the_old_flags_mean_the_same(tmp_path: Path) -> None:
    suite = a_suite(tmp_path)
    old = a_skill(tmp_path / "old", "old")
    same = [
        planned(options(suite, tmp_path / "skill", **given)).arms[0].bundle
        for given in ({"baseline": str(old)}, {"baseline_path": old}, {"baseline": str(old / "SKILL.md")})
    ]
    assert same == [skills.bundle(skills.load(old))] * 3
    assert planned(options(suite, tmp_path / "skill", baseline="none")).baseline is None
    bare = planned(options(suite, tmp_path / "skill", baseline="bare")).baseline
    assert bare is not None
    assert bare.skill is None
    (tmp_path / "blessed.json").write_text("{}")
    with pytest.raises(git.UpliftError, match=r"blessed\.json: "):
        planned(options(suite, tmp_path / "skill", baseline=str(tmp_path / "blessed.json")))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"baseline": "main"}, "there is no such file or folder; .* or a commit as git:main"),
        ({"baseline": "bare", "no_baseline": True}, "--baseline says it all"),
        ({"baseline": "git:HEAD", "baseline_path": Path("x")}, "--baseline says it all"),
        ({"baseline": "none", "stop_early": True, "pass_k": 2}, "--stop-early needs a baseline"),
    ],
)
def test_contradictions_are_told_before_anything_is_read(
    tmp_path: Path, given: dict[str, object], says: str
) -> None:
    suite = a_suite(tmp_path)
    with pytest.raises(InvalidOption, match=says):
        planned(options(suite, tmp_path / "skill", **given))


@pytest.mark.slow
def test_the_command_compares_an_edit_with_the_last_commit(tmp_path: Path) -> None:
    suite = a_suite(tmp_path, 1)
    run(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    words = standalone(suite, "--mock", "--baseline", "git:HEAD", "--json")
    same = uplift(*words, cwd=tmp_path)
    assert (same.code, "are the same; edit the skill" in same.err) == (2, True)
    (tmp_path / "skill/SKILL.md").write_text(SKILL.format("edited"))
    done = uplift(*words, cwd=tmp_path, env={"GIT_DIR": os.devnull})
    assert done.code == 0, done.err
    assert done.line["environment"]["git_branch"] == "main"
    assert done.line["environment"]["git_commit"] == run(tmp_path, "rev-parse", "HEAD")

"""Read a skill as it was at a commit, with plain `git`, from its objects alone: the work tree stays as it is.

No command used here looks at hooks, filters, attributes' programs or the pager, and none may fetch. What a person
typed as a ref goes in by standard input, where it cannot be taken for an option.
"""

from __future__ import annotations

import os
import posixpath
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import NamedTuple

from aggregate.text.files import is_folder
from aggregate.text.formats import plain
from judges.errors import UpliftError, did_you_mean
from judges.safe_text import shown
from producer.plan import PlannedArm
from producer.skills import skill as skills
from producer.skills.skill import NOT_THE_SKILL, Skill
from workers.store import bundles
from workers.store.bundles import MAX_FILES, MAX_TOTAL_BYTES, SKIPPED, Bundle, BundleError

PREFIX = "git:"
_SECONDS = 60
_MAX_LISTING = 32 * 1024 * 1024
_LFS = b"version https://git-lfs.github.com/spec/"
# Whose repository it is says the folder, not a hook that we were started by; and nothing is asked, fetched or replaced.
_NOT_OURS = {f"GIT_{name}" for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "OBJECT_DIRECTORY")}
_ONLY_READ = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
_ONLY_READ |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
# Where CI says which branch a change is for; then what people call the branch that others start from.
TARGETS = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
_NAME_A_FOLDER = "name a folder: --baseline PATH"
# What helps where git's own first line says no more than what is wrong.
_REMEDIES = {
    "not a git repository": "git init && git add . && git commit -m first",
    "dubious ownership": "git config --global --add safe.directory FOLDER",
}


class NotInGit(UpliftError):
    """A baseline that git cannot give; one line that says what to type."""


class _Entry(NamedTuple):
    """A file, link or submodule of a commit."""

    mode: str
    digest: str
    size: int


_Files = dict[str, tuple[bytes, bool]]


def facts(folder: Path) -> dict[str, str]:
    """The commit and, unless HEAD is detached, the branch that a folder is at; nothing where there is none."""
    try:
        commit, branch, *_ = _text(folder, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").split("\n")
    except NotInGit:
        return {}
    return {"git_commit": commit, **({"git_branch": branch} if branch != "HEAD" else {})}


def arm(wanted: str, path: Path, hidden: Collection[Path] = ()) -> PlannedArm:
    """The baseline arm with the skill of a path as it was at `git:REF`; raises NotInGit.

    `hidden` are files and folders that stay behind, as they do where the skill lies today.
    """
    folder, named = path if is_folder(path) else path.parent, plain(wanted, 80)
    try:
        place = _text(folder, "rev-parse", "--show-prefix")
        commit = _commit(folder, wanted.removeprefix(PREFIX))
        place += "" if folder == path else path.name
        entries = _listed(folder, commit, place)
        if not entries and (earlier := _renamed(folder, commit, place)) is not None:
            place, entries = earlier, _listed(folder, commit, earlier)
        if not entries:
            new = f"{plain(place) or folder} is not in {commit[:12]}, so it is new"
            raise NotInGit(f"{new}; compare with the bare model: --baseline bare")
        real = [(one.resolve(), folder.resolve()) for one in hidden]
        away = [one.relative_to(root).as_posix() for one, root in real if root in one.parents]
        files = dict(_files(folder, entries, [*NOT_THE_SKILL, *away]))
        if folder != path:  # a skill that is one file, whatever that is called
            files = {skills.FILE_NAME: next(iter(files.values()))}
        if skills.FILE_NAME not in files:
            raise NotInGit(f"{commit[:12]} has no {place}{skills.FILE_NAME}; {_NAME_A_FOLDER}")
        skill, bundle = _packed(path, files, f"{named}:{place}{'' if folder != path else skills.FILE_NAME}")
    except NotInGit as why:
        raise NotInGit(f"--baseline {named}: {why}") from None
    return PlannedArm("baseline", skill, bundle, commit=commit)


def _packed(path: Path, files: _Files, place: str) -> tuple[Skill, Bundle]:
    try:
        text = files[skills.FILE_NAME][0].decode()
        skill = skills.with_text(Skill(path, "", "", ""), text, place=place)
        under = skills.folder_name(skill)
        content = {f"{under}/{name}": data for name, (data, _) in files.items()}
        runnable = [f"{under}/{name}" for name, (_, is_runnable) in files.items() if is_runnable]
        return skill, bundles.pack_files(content, executable=runnable)
    except UnicodeDecodeError:
        raise NotInGit(f"{place} is not UTF-8 text; name another commit") from None
    except BundleError as problem:
        raise NotInGit(f"the skill cannot be packed: {problem}") from None


def _commit(folder: Path, ref: str) -> str:
    """The commit that is meant; raises NotInGit."""
    if (head := _resolved(folder, "HEAD")) is None:
        raise NotInGit("the repository has no commit yet; type: git add . && git commit")
    shallow = _text(folder, "rev-parse", "--is-shallow-repository") == "true"
    deeper = "; this clone is shallow, so type: git fetch --unshallow --tags" if shallow else ""
    if ref == "last-tag":
        try:
            tag = _text(folder, "describe", "--tags", "--abbrev=0", head)
        except NotInGit:
            hint = deeper or "; name a commit, such as git:HEAD~1"
            raise NotInGit(f"no tag leads to this commit{hint}") from None
        return _resolved(folder, f"refs/tags/{tag}") or head
    if ref == "merge-base":
        names = [*(f"origin/{os.environ[name]}" for name in TARGETS if os.environ.get(name)), *_MAIN]
        others = {name: found for name in names if (found := _resolved(folder, name))}
        if not others:
            hint = deeper or "; name a commit, such as git:BRANCH"
            raise NotInGit(f"none of {plain(', '.join(names), 200)} is known here{hint}")
        name, other = next(iter(others.items()))
        try:
            return _text(folder, "merge-base", head, other).split()[0]
        except NotInGit:
            hint = deeper or f"; they share no history, so name a commit, such as git:{name}"
            raise NotInGit(f"no commit is in both HEAD and {name}{hint}") from None
    if (found := _resolved(folder, ref)) is None:
        names = _text(folder, "for-each-ref", "--count=500", "--format=%(refname:short)").split()
        hint = did_you_mean(ref, ["merge-base", "last-tag", "HEAD", *names])
        hint = hint or "; `git branch -a` and `git tag` list what there is"
        raise NotInGit(f"git knows no commit {shown(ref)} here{deeper or hint}")
    return found


def _resolved(folder: Path, ref: str) -> str | None:
    """The commit that a ref names; None where there is none."""
    if not ref or not ref.isprintable():
        return None
    said = _git(folder, "cat-file", "--batch-check", given=os.fsencode(f"{ref}^{{commit}}\n")).split()
    return said[0].decode() if said[1:2] == [b"commit"] else None


def _listed(folder: Path, commit: str, place: str) -> dict[str, _Entry]:
    """All files of a commit at a place, by their path from there; none where the place is not there."""
    at = ["--", place.rstrip("/")] if place else []
    start = place if place.endswith("/") else place[: place.rfind("/") + 1]
    entries = {}
    for line in _git(folder, "ls-tree", "-r", "-z", "-l", "--full-tree", commit, *at).split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        mode, _, digest, size = head.decode().split()
        entry = _Entry(mode, digest, int(size) if size.isdecimal() else 0)
        entries[os.fsdecode(name).removeprefix(start)] = entry
    return entries


def _renamed(folder: Path, commit: str, place: str) -> str | None:
    """Where the skill was before it was moved, by what git's index makes of its SKILL.md; None where it was nowhere."""
    file = place if place and not place.endswith("/") else f"{place}{skills.FILE_NAME}"
    words = ("--cached", "-M", "-z", "--diff-filter=R", "--name-status", "--no-ext-diff", "--no-textconv")
    parts = _text(folder, "diff-index", *words, commit).split("\0")
    for before, after in zip(parts[1::3], parts[2::3], strict=False):
        if after == file:
            return before if file == place else before[: before.rfind("/") + 1]
    return None


def _files(
    folder: Path, entries: Mapping[str, _Entry], away: list[str]
) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    """Content and executable bit of each file, by its path in the skill; links inside become what they lead to."""
    kept = {
        name: entry
        for name, entry in entries.items()
        if SKIPPED.isdisjoint(name.split("/")) and not any(f"{name}/".startswith(f"{one}/") for one in away)
    }
    if module := next((name for name, entry in kept.items() if entry.mode == "160000"), None):
        raise NotInGit(f"{shown(module)} is a submodule, so its files are elsewhere; {_NAME_A_FOLDER}")
    if len(kept) > MAX_FILES or sum(entry.size for entry in kept.values()) > MAX_TOTAL_BYTES:
        raise NotInGit(f"{len(kept)} files are too many or too large; a skill is smaller")
    content, count = _read(folder, {entry.digest for entry in kept.values()}), 0
    for name, entry in kept.items():
        found = {name: entry}
        if entry.mode == "120000":
            to = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), os.fsdecode(content[entry.digest]))
            )
            inside = [path for path in kept if path == to or path.startswith(f"{to}/")]
            found = {f"{name}{path[len(to) :]}": kept[path] for path in inside}
            if not found or any(real.mode == "120000" for real in found.values()):
                raise NotInGit(f"the link {shown(name)} leads to no file of the skill; {_NAME_A_FOLDER}")
        if (count := count + len(found)) > MAX_FILES:
            raise NotInGit(f"its links make it more than {MAX_FILES} files; a skill is smaller")
        for path, real in found.items():
            if content[real.digest].startswith(_LFS):
                raise NotInGit(
                    f"{shown(path)} is a pointer of Git LFS, its content elsewhere; {_NAME_A_FOLDER}"
                )
            yield path, (content[real.digest], real.mode == "100755")


def _read(folder: Path, digests: Collection[str]) -> dict[str, bytes]:
    """The content of files by digest."""
    asked = "".join(f"{digest}\n" for digest in digests).encode()
    said = _git(folder, "cat-file", "--batch", given=asked, most=2 * MAX_TOTAL_BYTES)
    content, start = {}, 0
    while start < len(said):
        end = said.index(b"\n", start)
        digest, kind, *size = said[start:end].decode().split()
        if kind != "blob":
            raise NotInGit("the repository is damaged; type: git fsck")
        start = end + 2 + int(size[0])
        content[digest] = said[end + 1 : start - 1]
    return content


def _text(folder: Path, *words: str) -> str:
    return os.fsdecode(_git(folder, *words)).removesuffix("\n")


def _git(folder: Path, *words: str, given: bytes = b"", most: int = _MAX_LISTING) -> bytes:
    """What git prints about a folder; raises NotInGit with its own words where it fails, or prints without end."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS} | _ONLY_READ
    argv = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    with TemporaryFile() as asked, TemporaryFile() as errors:
        asked.write(given)
        asked.seek(0)
        try:
            child = subprocess.Popen(
                argv, stdin=asked, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        except FileNotFoundError:
            raise NotInGit("git is not installed") from None
        too_long = Timer(_SECONDS, child.kill)
        too_long.start()
        with child:
            assert child.stdout is not None
            said = child.stdout.read(most + 1)
            if len(said) > most:
                child.kill()
        too_long.cancel()
        errors.seek(0)
        complaint = errors.read(4096).decode("utf-8", "replace").strip()
    if len(said) > most or child.returncode < 0:
        raise NotInGit(
            f"git {words[0]} has no end after {_SECONDS} s or {most >> 20} MiB; a skill is smaller"
        )
    if "promisor" in complaint or "lazy fetch" in complaint:
        raise NotInGit("this clone lacks some files of that commit; type: git fetch --refetch --no-filter")
    if child.returncode:
        wrong = plain(complaint.partition("\n")[0].removeprefix("fatal: ") or f"git {words[0]} failed", 300)
        remedy = next((f"; type: {typed}" for part, typed in _REMEDIES.items() if part in wrong), "")
        raise NotInGit(wrong + remedy)
    return said

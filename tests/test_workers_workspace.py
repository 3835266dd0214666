"""What an agent leaves in its workspace is hostile: plain files are taken, and nothing else has a say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from judges.judgment import LEFT_OUT
from judges.spec import Contains, Files
from workers.attempts.workspace import AttemptFolder, _names
from workers.models import model
from workers.store import bundles
from workers.store.messages import Task

TASK = Task(id="t", prompt="Write a file.", judge=Contains(type="contains", expected=["x"]))


@pytest.fixture
def workspace() -> Iterator[AttemptFolder]:
    made = AttemptFolder(TASK, None)
    yield made
    made.close()


def kept(workspace: AttemptFolder, into: Path) -> dict[str, bytes]:
    """What is left, by path; the copy for judges and the bundle that is stored must hold the same."""
    copy, bundle = workspace.left()
    bundles.unpack(bundle.data, into, digest=bundle.digest)
    found, stored = (
        {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (copy, into)
    )
    assert found == stored
    return found


def test_pipes_links_devices_and_sparse_giants_stay_behind(workspace: AttemptFolder, tmp_path: Path) -> None:
    folder = workspace.folder
    (tmp_path / "outside").write_text("not yours")
    (folder / "answer.txt").write_text("42")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "up").symlink_to(tmp_path)
    with (folder / "giant").open("wb") as file:
        file.truncate(1 << 40)

    assert kept(workspace, tmp_path / "unpacked") == {"answer.txt": b"42"}


def test_a_judge_of_files_is_told_the_names_of_what_is_not_kept(tmp_path: Path) -> None:
    """Whatever an agent does to hide a file, it is not taken to be absent; and no agent writes that list itself."""
    judge = Files(type="files", absent=["secret"])
    workspace = AttemptFolder(TASK.model_copy(update={"judge": judge}), None)
    folder = workspace.folder
    for number in range(600):
        (folder / f"a{number:03}").write_text("")
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    (folder / "empty").mkdir()
    (folder / "zeros").write_bytes(b"0" * (9 << 20))
    (folder / LEFT_OUT).write_text("nothing")
    found = kept(workspace, tmp_path / "unpacked")
    listed = found.pop(LEFT_OUT).decode().splitlines()
    assert set(listed) == {"link", "pipe", "empty", "zeros", LEFT_OUT, *(f"a{n}" for n in range(500, 600))}
    assert len(found) == 500
    for number in range(10_000):
        (folder / f"b{number}").mkdir()
    assert _names(folder)[-1] == "…"
    workspace.close()


def test_what_is_locked_or_named_at_great_length_stays_behind(
    workspace: AttemptFolder, tmp_path: Path
) -> None:
    folder = workspace.folder
    (folder / "answer.txt").write_text("42")
    long = folder / ("a" * 200) / ("b" * 200)
    long.mkdir(parents=True)
    (long / "c").write_text("too long a path")
    (folder / "locked").mkdir()
    (folder / "locked" / "d").write_text("d")
    (folder / "secret").write_text("e")
    (folder / "locked").chmod(0)
    (folder / "secret").chmod(0)
    readable = {"locked/d": b"d", "secret": b"e"} if os.geteuid() == 0 else {}  # root reads everything

    assert kept(workspace, tmp_path / "unpacked") == {"answer.txt": b"42", **readable}


def test_many_folders_do_not_keep_files_from_being_kept(workspace: AttemptFolder, tmp_path: Path) -> None:
    for number in range(400):
        deep = workspace.folder.joinpath(f"f{number}", *"abcdefghijklmn")
        deep.mkdir(parents=True)
        (deep / "x").write_text("x")

    assert len(kept(workspace, tmp_path / "unpacked")) == 400


def test_names_of_files_are_kept_without_secrets(
    workspace: AttemptFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-canary/0123")
    monkeypatch.setenv("OTHER_API_KEY", "sk-canary-4567")
    model._secrets_among.cache_clear()  # another test of this process may have had as many variables
    folder = workspace.folder
    (folder / "sk-canary").mkdir()
    (folder / "sk-canary" / "0123").write_text("the key, as a folder and a file")
    (folder / "sk-canary-4567").mkdir()
    (folder / "sk-canary-4567" / "x").write_text("where the first file is already")
    (folder / "of-sk-canary-4567").write_text("sk-canary-4567")

    assert kept(workspace, tmp_path / "unpacked") == {
        "[redacted]": b"the key, as a folder and a file",
        "of-[redacted]": b"[redacted]",
    }


def test_folders_that_are_nested_beyond_any_path_are_left_out_and_deleted(
    workspace: AttemptFolder, tmp_path: Path
) -> None:
    folder = workspace.folder
    (folder / "answer.txt").write_text("42")
    for name in "ab":  # each half is short enough to be moved
        folder.joinpath("deep", *["a"] * 700).mkdir(parents=True)
        (folder / "deep").rename(folder / name)
    inmost = folder / "b"
    while inner := next(inmost.iterdir(), None):
        inmost = inner
    (folder / "a").rename(inmost / "a")

    assert kept(workspace, tmp_path / "unpacked") == {"answer.txt": b"42"}
    workspace.close()
    assert not folder.exists()

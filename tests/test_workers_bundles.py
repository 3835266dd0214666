"""Bundles: the same folder has the same digest everywhere, and unpacking hostile data harms nobody."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.attempts.prompts import prepend
from workers.store import bundles
from workers.store.bundles import (
    BundleError,
    BundleInvalid,
    BundleTooLarge,
    Folders,
    pack,
    pack_files,
    unpack,
)

REPOSITORY = Path(__file__).parent.parent
ABSENT = "0" * 64


def a_folder(place: Path, **content: str) -> Path:
    place.mkdir(parents=True)
    for name, text in (content or {"SKILL.md": "Be kind.\n"}).items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def a_tar(*members: tarfile.TarInfo, size: int = 0) -> bytes:
    """Compressed tar data with just these members, each followed by `size` zero bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            member.size = size if member.isreg() else 0
            tar.addfile(member, io.BytesIO(bytes(size)))
    return zlib.compress(plain.getvalue())


def a_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = link
    return member


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_packed_folder_unpacks_to_the_same_files(tmp_path: Path) -> None:
    folder = a_folder(
        tmp_path / "skill", **{"SKILL.md": "Be kind.\n", "references/tone.md": "Warm, short.\n"}
    )

    unpack(pack(folder).data, tmp_path / "there")

    assert content_of(tmp_path / "there") == {
        "SKILL.md": b"Be kind.\n",
        "references/tone.md": b"Warm, short.\n",
    }


def test_digest_and_bytes_do_not_depend_on_times_or_the_order_in_which_files_were_made(
    tmp_path: Path,
) -> None:
    one = a_folder(tmp_path / "one", **{"a.md": "A", "b.md": "B"})
    other = a_folder(tmp_path / "other", **{"b.md": "B", "a.md": "A"})
    os.utime(other / "a.md", (1, 1))
    (other / "b.md").chmod(0o600)

    assert pack(one) == pack(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "SKILL.md").write_text("Be kinder.\n"),
        lambda folder: (folder / "SKILL.md").rename(folder / "skill.md"),
        lambda folder: (folder / "SKILL.md").chmod(0o755),
        lambda folder: (folder / "more.md").write_text(""),
    ],
    ids=["content", "name", "executable bit", "another file"],
)
def test_any_change_that_matters_changes_the_digest(tmp_path: Path, change) -> None:
    folder = a_folder(tmp_path / "skill")
    before = pack(folder).digest

    change(folder)

    assert pack(folder).digest != before


def test_the_executable_bit_travels(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill", **{"run.sh": "#!/bin/sh\n", "notes.md": ""})
    (folder / "run.sh").chmod(0o755)

    unpack(pack(folder).data, tmp_path / "there")

    assert (tmp_path / "there/run.sh").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "there/notes.md").stat().st_mode & stat.S_IXUSR


def test_version_control_caches_and_installed_packages_stay_behind(tmp_path: Path) -> None:
    names = [".git/config", "a/__pycache__/x.pyc", ".venv/lib.py", "node_modules/x.js", "a/kept.py"]
    folder = a_folder(tmp_path / "skill", **dict.fromkeys(names, "x"))

    assert list(bundles.files(folder)) == ["a/kept.py"]


def test_files_can_be_replaced_and_put_under_another_folder(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill", **{"SKILL.md": "old", "tone.md": "warm"})

    bundle = pack(folder, under="here", replace={"SKILL.md": b"new"})

    assert bundle == pack_files({"here/SKILL.md": b"new", "here/tone.md": b"warm"})


def test_a_link_that_stays_inside_is_stored_as_the_file_it_leads_to(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill", **{"SKILL.md": "Be kind.\n", "references/tone.md": "Warm.\n"})
    (folder / "tone.md").symlink_to("references/tone.md")
    (folder / "more").symlink_to("references")

    unpack(pack(folder).data, tmp_path / "there")

    assert (tmp_path / "there/tone.md").read_text() == "Warm.\n"
    assert (tmp_path / "there/more/tone.md").read_text() == "Warm.\n"
    assert not any(path.is_symlink() for path in (tmp_path / "there").rglob("*"))


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("../secret.txt", "leads out of"),
        ("/etc", "leads out of"),
        ("nowhere", "leads nowhere"),
        (".", "back"),
    ],
)
def test_a_link_that_leaves_dangles_or_loops_is_an_error(tmp_path: Path, target: str, complaint: str) -> None:
    (tmp_path / "secret.txt").write_text("s3cret")
    folder = a_folder(tmp_path / "skill")
    (folder / "link").symlink_to(target)

    with pytest.raises(BundleInvalid, match=complaint):
        pack(folder)


def test_links_that_spell_out_countless_paths_are_stopped(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill")
    for level in range(20):
        step = folder / f"step{level}"
        step.mkdir()
        for name in ("left", "right"):
            (step / name).symlink_to(f"../step{level + 1}")
    (folder / "step20").mkdir()

    with pytest.raises(BundleTooLarge, match="5000 files and folders"):
        pack(folder)


def test_a_named_pipe_is_an_error_and_is_not_opened(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill")
    os.mkfifo(folder / "pipe")

    with pytest.raises(BundleInvalid, match="neither a file nor a folder"):
        pack(folder)


def test_a_name_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "skill")
    try:
        (folder / os.fsdecode(b"\xff")).touch()
    except OSError:
        pytest.skip("this file system allows UTF-8 names only")

    with pytest.raises(BundleInvalid, match="not UTF-8"):
        pack(folder)


def test_packing_stops_at_each_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_folder(tmp_path / "skill", **{"a.md": "12345", "b.md": "12345"})
    monkeypatch.setattr(bundles, "MAX_TOTAL_BYTES", 10)
    monkeypatch.setattr(bundles, "MAX_FILES", 2)
    pack(folder)

    (folder / "c.md").write_text("")
    with pytest.raises(BundleTooLarge, match="more than 2 files"):
        pack(folder)
    (folder / "c.md").unlink()
    (folder / "b.md").write_text("123456")
    with pytest.raises(BundleTooLarge, match=r"b\.md: more than 10 bytes"):
        pack(folder)
    with pytest.raises(BundleTooLarge, match="a path of 241 bytes"):
        pack_files({"x" * 241: b""})


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "", "a/", "a\nb", "a\x1b"]
)
def test_a_path_that_is_not_inside_is_refused_by_both_sides(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleInvalid):
        pack_files({name: b"x"})
    if not name.endswith("/") and name:
        with pytest.raises(BundleInvalid):
            unpack(a_tar(a_member(name)), tmp_path / "there")
        assert list(tmp_path.rglob("x")) == []


@pytest.mark.parametrize(
    "member",
    [
        a_member("link", tarfile.SYMTYPE, "/etc/passwd"),
        a_member("link", tarfile.LNKTYPE, "SKILL.md"),
        a_member("device", tarfile.CHRTYPE),
        a_member("pipe", tarfile.FIFOTYPE),
        a_member("folder", tarfile.DIRTYPE),
    ],
    ids=["symlink", "hard link", "device", "pipe", "folder"],
)
def test_only_regular_files_are_unpacked(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(BundleInvalid, match="not a regular file"):
        unpack(a_tar(member), tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_two_files_of_one_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="cannot unpack"):
        unpack(a_tar(a_member("a"), a_member("a")), tmp_path / "there")
    with pytest.raises(BundleInvalid, match="cannot unpack"):
        unpack(a_tar(a_member("b"), a_member("b/c")), tmp_path / "there")


def test_a_bomb_is_stopped_while_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = a_tar(a_member("zeros"), size=8 * 1024 * 1024)
    monkeypatch.setattr(bundles, "MAX_TOTAL_BYTES", 1024 * 1024)
    monkeypatch.setattr(bundles, "_TAR_OVERHEAD", 0)

    with pytest.raises(BundleTooLarge, match="more than 1048576 bytes"):
        unpack(bomb, tmp_path / "there")

    assert not (tmp_path / "there/zeros").exists()


def test_a_bomb_behind_the_end_of_the_tar_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = zlib.decompress(pack_files({"a": b"x"}).data)
    monkeypatch.setattr(bundles, "MAX_TOTAL_BYTES", 1024 * 1024)
    monkeypatch.setattr(bundles, "_TAR_OVERHEAD", 0)

    with pytest.raises(BundleTooLarge):
        unpack(zlib.compress(plain + bytes(8 * 1024 * 1024)), tmp_path / "there")


def test_too_many_files_are_stopped_while_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack_files({str(number): b"" for number in range(50)}).data
    monkeypatch.setattr(bundles, "MAX_FILES", 10)

    with pytest.raises(BundleTooLarge, match="more than 10 files"):
        unpack(data, tmp_path / "there")

    assert len(list((tmp_path / "there").iterdir())) == 10


@given(st.binary(max_size=200) | st.binary(max_size=2000).map(zlib.compress))
def test_broken_data_is_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    with pytest.raises(BundleError):
        unpack(data, tmp_path_factory.mktemp("there"), digest=ABSENT)


def test_data_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    data = pack_files({"a": os.urandom(5000)}).data

    with pytest.raises(BundleInvalid, match="too early"):
        unpack(data[:-100], tmp_path / "there")


def test_content_of_another_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="not that of digest"):
        unpack(pack_files({"a": b"x"}).data, tmp_path / "there", digest=pack_files({"a": b"y"}).digest)


@given(st.dictionaries(st.from_regex(r"[a-zé][a-zé ]{0,8}(/[a-z]{1,8}\.md)?", fullmatch=True), st.binary()))
def test_whatever_is_packed_comes_out_again(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, bytes]
) -> None:
    files = {
        name: data for name, data in content.items() if not any(o.startswith(name + "/") for o in content)
    }
    bundle = pack_files(files)
    there = tmp_path_factory.mktemp("there")

    unpack(bundle.data, there, digest=bundle.digest)

    assert content_of(there) == files


def test_a_large_bundle_of_incompressible_bytes_comes_out_again(tmp_path: Path) -> None:
    data = os.urandom(3 * 1024 * 1024)

    unpack(pack_files({"a": data}).data, tmp_path / "there")

    assert (tmp_path / "there/a").read_bytes() == data


def test_a_bundle_is_unpacked_once_by_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = pack_files({"SKILL.md": b"Be kind.\n"})
    folders = Folders(tmp_path)
    unpacked: list[Path] = []
    found: list[Path] = []
    together = threading.Barrier(8)

    def unpack_slowly(data: bytes, into: Path, *, digest: str, most_bytes: int) -> None:
        unpacked.append(into)
        time.sleep(0.05)
        unpack(data, into, digest=digest, most_bytes=most_bytes)

    def work() -> None:
        together.wait()
        found.append(folders.open(bundle.digest, bundle.data))

    monkeypatch.setattr(bundles, "unpack", unpack_slowly)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [into.name for into in unpacked] == [bundle.digest]
    assert set(found) == {folders.get(bundle.digest)}
    assert (found[0] / "SKILL.md").read_bytes() == b"Be kind.\n"
    folders.close()


def test_an_opened_folder_has_no_write_bits_and_is_gone_after_close(tmp_path: Path) -> None:
    bundle = pack_files({"a/SKILL.md": b"x", "run.sh": b""}, executable={"run.sh"})
    folders = Folders(tmp_path)

    folder = folders.open(bundle.digest, bundle.data)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes == {bundle.digest: 0o555, "a": 0o555, "SKILL.md": 0o444, "run.sh": 0o555}
    folders.close()
    assert list(tmp_path.iterdir()) == []
    assert folders.get(bundle.digest) is None


def test_a_broken_bundle_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    bundle = pack_files({"a": b"x"})
    folders = Folders(tmp_path)

    with pytest.raises(BundleInvalid):
        folders.open(bundle.digest, bundle.data[:20])
    with pytest.raises(BundleInvalid, match="not a digest"):
        folders.open("../../x", bundle.data)

    assert folders.open(bundle.digest, bundle.data).name == bundle.digest
    folders.close()


def test_folders_are_removed_when_the_process_ends_but_not_by_a_forked_child(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from workers.store.bundles import Folders, pack_files
bundle = pack_files({"a/b": b"x"})
folder = Folders(Path(sys.argv[1])).open(bundle.digest, bundle.data)
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
sys.stdout.write(str((folder / "a/b").exists()))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == "True"
    assert list(tmp_path.iterdir()) == []


def test_the_prompt_follows_the_fenced_skill_unchanged() -> None:
    asked = prepend("# Kindness\n\nBe kind.\n", "Greet me.\n\n```\nx\n```")

    assert "\n````markdown\n# Kindness\n\nBe kind.\n````\n\n" in asked
    assert asked.endswith("\n````\n\nGreet me.\n\n```\nx\n```")


def test_a_skill_is_looked_through_once_and_not_for_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    look = SimpleNamespace(findall=lambda _, text: looks.append(text) or [])
    monkeypatch.setattr("workers.attempts.prompts.re", look)
    for number in range(3):
        prepend("# A skill that no other test has\n", f"Task {number}.")
    assert len(looks) == 1


@given(st.text(alphabet="`~ab\n\r\u2028 "), st.text(alphabet="`x\n"))
def test_no_skill_can_end_its_fence_early(skill: str, prompt: str) -> None:
    asked = prepend(skill, prompt)

    fence = asked.split("\n")[2].removesuffix("markdown")
    assert set(fence) == {"`"}
    assert fence not in skill
    assert prepend(skill, prompt) == asked
    assert skill in asked
    assert asked.endswith(prompt)

"""Folders are removed with all that is in them, by ordinary users too and whatever a program has left there."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from judges.inside.drop_rights import NOBODY
from judges.inside.remove_folder import remove
from producer import server as servers
from producer.display import run_list
from producer.server import Local
from producer.state_root import Places

DEEPER_THAN_RECURSION = 1200


def as_an_ordinary_user(act: Callable[[], object]) -> None:
    """Call something in a fork that is not root: root may delete anything, and hides what others may not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def folder(short_tmp: Path) -> Path:
    """A folder that ordinary users can get to, and in which they may write."""
    short_tmp.chmod(0o777)
    return short_tmp


def leave_read_only_folders(place: Path) -> None:
    (place / "bundle" / "inner").mkdir(parents=True)
    (place / "bundle" / "inner" / "file").write_text("")
    (place / "bundle" / "inner").chmod(0)
    (place / "bundle").chmod(0o500)
    place.chmod(0o500)


def leave_a_deep_tree(place: Path) -> None:
    place.mkdir()
    os.chdir(place)
    for _ in range(DEEPER_THAN_RECURSION):
        os.mkdir("d")  # noqa: PTH102 - the path soon is too long to be named
        os.chdir("d")
    os.chdir(place.parent)  # whoever is not root may not get back to a checkout in root's home


@pytest.mark.parametrize("leave", [leave_read_only_folders, leave_a_deep_tree])
def test_whatever_a_program_leaves_is_removed(folder: Path, leave: Callable[[Path], None]) -> None:
    def act() -> None:
        leave(folder / "left")
        remove(folder / "left")
        assert list(folder.iterdir()) == []

    as_an_ordinary_user(act)


def test_what_links_point_to_stays_as_it_is(folder: Path) -> None:
    (folder / "kept").mkdir(mode=0o500)
    (folder / "left").mkdir()
    (folder / "left" / "link").symlink_to(folder / "kept")
    (folder / "left" / "nowhere").symlink_to(folder / "gone")
    remove(folder / "left")
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").stat().st_mode & 0o777 == 0o500


def test_a_folder_that_is_not_there_is_no_problem(folder: Path) -> None:
    remove(folder / "never-made")


@pytest.mark.parametrize("leave", [leave_read_only_folders, leave_a_deep_tree])
def test_a_private_worker_starts_over_what_a_killed_one_left(
    folder: Path, leave: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(servers, "_start", lambda *_, env, **__: started.append(env["TMPDIR"]))

    def act() -> None:
        leave(folder / "tmp")
        Local("unix:///nowhere", folder, None).start_worker({})  # type: ignore[arg-type] # no server is needed
        assert started == [str(folder / "tmp")]
        assert list((folder / "tmp").iterdir()) == []

    as_an_ordinary_user(act)


@pytest.mark.parametrize("leave", [leave_read_only_folders, leave_a_deep_tree])
def test_a_run_is_deleted_with_what_its_killed_worker_left(
    folder: Path, leave: Callable[[Path], None]
) -> None:
    def act() -> None:
        places = Places(folder / "state")
        places.embedded("run").mkdir(parents=True)
        leave(places.embedded("run") / "tmp")
        run_list.delete(places, None, "run")
        assert not places.embedded("run").exists()

    as_an_ordinary_user(act)


def test_a_run_that_cannot_be_deleted_is_not_said_to_be(folder: Path) -> None:
    def act() -> None:
        places = Places(folder / "state")
        places.embedded("run").mkdir(parents=True)
        places.embedded("run").parent.chmod(0o500)
        with pytest.raises(PermissionError, match="embedded/run"):
            run_list.delete(places, None, "run")
        places.embedded("run").parent.chmod(0o700)

    as_an_ordinary_user(act)


def test_of_a_link_only_the_link_is_removed(folder: Path) -> None:
    precious = folder / "precious"
    precious.mkdir(0o755)
    (precious / "file").write_text("mine")
    (folder / "link").symlink_to(precious)
    remove(folder / "link")
    assert not (folder / "link").is_symlink()
    assert (precious / "file").read_text() == "mine"
    assert precious.stat().st_mode & 0o777 == 0o755

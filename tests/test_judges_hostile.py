"""Tests and outputs that mean harm: each ends as a fail, never as a pass or a broken judge, and leaves nothing behind.

Each runs in a fork of a warm sandbox, in a fresh one, and without bubblewrap. What the last cannot hold is said here,
in the tests whose names end in "unless there is no sandbox", and tested as such.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_judging import WAYS, Way, a_suite, children, judged, needs, processes_naming

from judges.judgment import Judgment
from judges.sandbox import warm_pool

ROOT = os.geteuid() == 0


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    needs(request.param)
    chosen: Way = request.param
    return chosen


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards no process of the judgment lives, and the only folder it had on this machine is gone."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children()
    yield
    warm_pool.close()
    assert children() <= before
    assert processes_naming(str(tmp_path)) == []
    assert list(temporary.iterdir()) == []


def assert_failed(judgment: Judgment, *says: str) -> None:
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None), judgment.details
    for words in says:
        assert words in judgment.details


def passes(judgment: Judgment) -> bool:
    assert judgment.error is None, judgment.error
    return judgment.passed is True


# What a report must not be fooled by


async def test_leaving_at_once_with_exit_code_zero_is_no_pass(tmp_path: Path, way: Way) -> None:
    suite = a_suite(tmp_path, "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)")

    assert_failed(await judged(suite, way), "ended before pytest did (exit code 0)")


@pytest.mark.parametrize(
    "code",
    [
        "import pytest\npytestmark = pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass",
        "import pytest\npytestmark = pytest.mark.xfail\ndef test_a(): assert 0",
        "import pytest\npytest.skip(allow_module_level=True)",
        "",
    ],
    ids=["all skipped", "xfail only", "module skipped", "nothing to collect"],
)
async def test_tests_that_do_not_test_are_no_pass(tmp_path: Path, way: Way, code: str) -> None:
    assert_failed(await judged(a_suite(tmp_path, code), way))


async def test_writing_to_the_report_without_the_nonce_changes_nothing(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os

        def test_it():
            os.write(3, b'{"event": "test", "test": "x", "outcome": "passed", "line": ""}\\n{"event": "end"}\\n')
            os._exit(0)
        """,
    )

    assert_failed(await judged(suite, way), "ended before pytest did")


async def test_closing_every_descriptor_is_no_pass(tmp_path: Path, way: Way) -> None:
    suite = a_suite(tmp_path, "import os\ndef test_it(): os.closerange(0, 256)")

    assert_failed(await judged(suite, way))


@pytest.mark.parametrize("way", ["cold", "plain"])
async def test_files_that_an_agent_planted_for_pytest_are_not_read(tmp_path: Path, way: Way) -> None:
    left = tmp_path / "left"
    left.mkdir()
    (left / "conftest.py").write_text("raise SystemExit('conftest was read')")
    (left / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (left / "pytest.py").write_text("raise SystemExit('pytest was shadowed')")
    (left / "sitecustomize.py").write_text("raise SystemExit('sitecustomize was read')")
    suite = a_suite(
        tmp_path, "import os\ndef test_it(): assert 'conftest.py' in os.listdir(os.environ['AI_WORKSPACE'])"
    )

    assert passes(await judged(suite, way, left=left))


async def test_an_output_named_like_a_test_or_holding_one_is_not_collected(tmp_path: Path, way: Way) -> None:
    judgment = await judged(a_suite(tmp_path), way, text="def test_extra(): raise SystemExit")

    assert judgment.tests is not None
    assert judgment.tests.passed == 1


# What must end: bombs fill the process limit of their user, so that what starts processes as the same user cannot run
# beside them (xdist_group)


@pytest.mark.xdist_group("process-limit")
async def test_sleeping_past_the_time_with_a_daemonised_child_ends_both(tmp_path: Path, way: Way) -> None:
    seconds = f"{random.uniform(5000, 6000):.9f}"
    suite = a_suite(
        tmp_path,
        f"""
        import os, time

        def test_it():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execv("/bin/sleep", ["sleep", "{seconds}"])
                os._exit(0)
            time.sleep(600)
        """,
    )

    judgment = await judged(suite, way, seconds=1)

    assert_failed(judgment, "timed out after 1 s")
    assert processes_naming(seconds) == []


@pytest.mark.xdist_group("process-limit")
async def test_a_daemon_left_behind_by_a_passing_test_is_ended_too(tmp_path: Path, way: Way) -> None:
    seconds = f"{random.uniform(5000, 6000):.9f}"
    suite = a_suite(
        tmp_path,
        f"""
        import subprocess

        def test_it():
            subprocess.Popen(["/bin/sleep", "{seconds}"], start_new_session=True)
        """,
    )

    assert passes(await judged(suite, way))
    assert processes_naming(seconds) == []


async def test_ignoring_every_signal_does_not_help(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import signal, time

        def test_it():
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        """,
    )

    assert_failed(await judged(suite, way, seconds=1), "timed out")


@pytest.mark.xdist_group("process-limit")
async def test_a_fork_bomb_stays_small_and_ends(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os, time

        def test_it():
            while True:
                try:
                    os.fork()
                except OSError:
                    time.sleep(0.2)
        """,
    )

    judgment = await judged(suite, way, seconds=1)

    assert_failed(judgment)
    assert "timed out" in judgment.details or "memory" in judgment.details


@pytest.mark.xdist_group("process-limit")
async def test_no_more_processes_than_allowed_can_be_started(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os

        def test_it():
            started = 0
            try:
                while started < 600:
                    if os.fork() == 0:
                        os.execv("/bin/sleep", ["sleep", "60"])
                    started += 1
            except OSError:
                pass
            assert 10 < started < 350
        """,
    )

    assert passes(await judged(suite, way))


@pytest.mark.skipif(
    ROOT, reason="root's judgments have a user of their own, whose processes nobody else adds to"
)
@pytest.mark.xdist_group("process-limit")
async def test_what_the_user_starts_meanwhile_does_not_use_up_the_processes_of_a_judgment(
    tmp_path: Path,
) -> None:
    begun, busy, over = tmp_path / "begun", tmp_path / "busy", threading.Event()
    suite = a_suite(
        tmp_path,
        f"""
        import pathlib, subprocess, time

        def test_it():
            pathlib.Path({str(begun)!r}).touch()
            while not pathlib.Path({str(busy)!r}).exists():
                time.sleep(0.01)
            subprocess.run(["/bin/true"], check=True)
        """,
    )
    judging = asyncio.create_task(judged(suite, "plain"))
    while not begun.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    threads = [threading.Thread(target=over.wait) for _ in range(150)]
    for thread in threads:
        thread.start()
    busy.touch()
    judgment = await judging
    over.set()
    for thread in threads:
        thread.join()

    assert passes(judgment), judgment.details


async def test_printing_a_gigabyte_ends_it(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import sys

        def test_it():
            for _ in range(1024):
                sys.stdout.write("x" * 1024 * 1024)
        """,
    )

    assert_failed(await judged(suite, way), "printed or reported more than is allowed")


async def test_a_memory_hog_gets_no_more_than_its_bound(tmp_path: Path, way: Way) -> None:
    suite = a_suite(tmp_path, "def test_it():\n    hog = bytearray(64 * 1024**3)")

    assert_failed(await judged(suite, way), "MemoryError")


async def test_a_file_grows_no_further_than_its_bound(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        def test_it():
            with open("big", "wb") as big:
                for _ in range(1024):
                    big.write(b"x" * 1024 * 1024)
        """,
    )

    assert_failed(await judged(suite, way), "OSError")


async def test_a_test_that_stops_its_supervisor_is_ended_too(tmp_path: Path) -> None:
    """Without a sandbox, and as an ordinary user, it can: as root it has another user."""
    suite = a_suite(
        tmp_path,
        """
        import os, signal, time

        def test_it():
            try:
                os.kill(os.getppid(), signal.SIGSTOP)
            except PermissionError:
                pass
            time.sleep(600)
        """,
    )

    assert_failed(await judged(suite, "plain", seconds=1), "timed out after 1 s")


async def test_folders_nested_without_end_are_no_error_and_leave_nothing(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os

        def test_it():
            for _ in range(3000):
                os.mkdir("a")
                os.mkdir("b")
                os.chdir("a")
            assert False, "done"
        """,
    )

    assert_failed(await judged(suite, way), "done")


# What must not be seen or touched


async def test_the_workers_environment_is_not_passed_on(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-canary")
    suite = a_suite(tmp_path, "import os\ndef test_it(): assert 'a-canary' not in str(os.environ)")

    assert passes(await judged(suite, way))


async def test_other_processes_environments_cannot_be_read_unless_there_is_no_sandbox(
    tmp_path: Path, way: Way
) -> None:
    canary = f"canary-{random.random()}"
    suite = a_suite(
        tmp_path,
        f"""
        import glob

        def test_it():
            seen = b""
            for path in glob.glob("/proc/[0-9]*/environ"):
                try:
                    seen += open(path, "rb").read()
                except OSError:
                    pass
            assert {canary[:9]!r} + {canary[9:]!r} not in seen.decode(errors="replace")
        """,
    )
    neighbour = await asyncio.create_subprocess_exec("/bin/sleep", "600", env={"SOME_API_KEY": canary})
    try:
        held = passes(await judged(suite, way))
    finally:
        neighbour.kill()
        await neighbour.wait()

    # Without a sandbox, only root can hand the tests to a user who may not look.
    assert held is (way != "plain" or ROOT)


@pytest.mark.parametrize("whose", ["the home folder", "another judgment"])
async def test_files_of_others_cannot_be_read_unless_there_is_no_sandbox(
    tmp_path: Path, way: Way, whose: str
) -> None:
    folder = Path(pwd.getpwuid(os.geteuid()).pw_dir) if whose == "the home folder" else tmp_path / "other"
    if whose == "another judgment":
        folder.mkdir()
    if not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} cannot be written to")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="uplift-canary-") as secret:
        suite = a_suite(
            tmp_path,
            f"""
            import os, pytest

            def test_it():
                with pytest.raises(OSError):
                    open({secret.name!r})
                assert {Path(secret.name).name!r} not in str(list(os.walk(os.path.expanduser("~"))))
            """,
        )
        held = passes(await judged(suite, way))

    assert held is (way != "plain")


async def test_nothing_can_be_written_outside_unless_there_is_no_sandbox(tmp_path: Path, way: Way) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tests_own = tmp_path / "suite" / "fixtures" / "test_it.py"
    suite = a_suite(
        tmp_path,
        f"""
        import os, pathlib, sys

        def test_it():
            for folder in ("/", "/etc", "/usr", os.path.dirname(sys.executable), {str(outside)!r}):
                try:
                    pathlib.Path(folder, "planted-by-a-test").write_text("x")
                except OSError:
                    continue
                assert folder == {str(outside)!r}, folder
            try:
                pathlib.Path(__file__).write_text("def test_it(): pass")
            except OSError:
                pass
        """
        if ROOT or way != "plain"  # a user's own tests could really write to that user's own environment
        else f"import pathlib\ndef test_it(): pathlib.Path({str(outside)!r}, 'planted-by-a-test').write_text('x')",
    )
    code = tests_own.read_text()

    judgment = await judged(suite, way)

    assert passes(judgment), judgment.details
    assert tests_own.read_text() == code
    assert list(outside.iterdir()) == [] or (way == "plain" and not ROOT)


async def test_there_is_no_network_unless_there_is_no_sandbox(tmp_path: Path, way: Way) -> None:
    name = f"uplift-{random.random()}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        suite = a_suite(
            tmp_path,
            f"""
            import pytest, socket

            def test_it():
                with pytest.raises(OSError):
                    socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), timeout=5)
                with pytest.raises(OSError):
                    socket.socket(socket.AF_UNIX).connect("\\0{name}")
            """,
        )
        held = passes(await judged(suite, way))

    assert held is (way != "plain")


async def test_no_right_can_be_had_back(tmp_path: Path, way: Way) -> None:
    if way == "plain" and not ROOT:
        pytest.skip("without a sandbox the tests keep the rights of the user")
    suite = a_suite(
        tmp_path,
        f"""
        import ctypes, os, pathlib, pytest

        def test_it():
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            rights = int(status["CapPrm"], 16) | int(status["CapBnd"], 16)
            assert rights == {0 if way != "plain" else 1 << 2}
            assert status["NoNewPrivs"].strip() == "1"
            assert os.getuid() != 0 and os.geteuid() != 0
            with pytest.raises(OSError):
                os.setuid(0)
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"") == -1
            if {way != "plain"}:
                assert libc.unshare(0x10000000) == -1
        """,
    )

    judgment = await judged(suite, way)

    assert passes(judgment), judgment.details


@pytest.mark.parametrize("way", ["warm", "cold"])
async def test_killing_everything_in_sight_kills_only_the_judgment_itself(tmp_path: Path, way: Way) -> None:
    needs(way)
    suite = a_suite(
        tmp_path,
        """
        import os, signal

        def test_it():
            assert os.getpid() < 10 and os.getuid() != 0, "not alone in here, so better not"
            for target in (1, -1, os.getpid()):
                try:
                    os.kill(target, signal.SIGKILL)
                except OSError:
                    pass
        """,
    )

    assert_failed(await judged(suite, way), "ended before pytest did (exit code 137)")
    assert passes(await judged(a_suite(tmp_path), way))


async def test_without_a_sandbox_root_gives_tests_a_user_who_cannot_signal_the_supervisor(
    tmp_path: Path,
) -> None:
    if not ROOT:
        pytest.skip("only root can give the tests another user")
    suite = a_suite(
        tmp_path,
        """
        import os, pytest, signal

        def test_it():
            with pytest.raises(PermissionError):
                os.kill(os.getppid(), signal.SIGTERM)
        """,
    )

    assert passes(await judged(suite, "plain"))


async def test_what_one_judgment_leaves_in_its_folders_the_next_does_not_find(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os, pathlib, sys, tempfile

        def test_it():
            places = [pathlib.Path.cwd(), pathlib.Path(tempfile.gettempdir())]
            if places[0].is_relative_to("/sandbox"):
                places.append(pathlib.Path("/dev/shm"))
            for place in places:
                assert list(place.iterdir()) == []
                (place / "left-behind").mkdir()
                (place / "left-behind" / "file").write_text("x")
                (place / "left-behind").chmod(0)
            assert not hasattr(sys, "left_behind") and "LEFT_BEHIND" not in os.environ
            sys.left_behind = os.environ["LEFT_BEHIND"] = "x"
        """,
    )

    for _ in range(2):
        judgment = await judged(suite, way)
        assert passes(judgment), judgment.details


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_judgments_at_the_same_time_do_not_see_each_other(tmp_path: Path, way: Way) -> None:
    if way == "plain":
        pytest.skip("without a sandbox processes can see that others exist")
    suite = a_suite(
        tmp_path,
        """
        import os

        def test_it():
            assert len([name for name in os.listdir("/proc") if name.isdigit()]) == 2
        """,
    )

    assert passes(await judged(suite, way))

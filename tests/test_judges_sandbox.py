"""Running commands that nobody vouches for, with bubblewrap and without: results, bounds, and what remains."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pytest_judging import a_suite, children, processes_naming, until

from judges.inside import remove_folder, supervisor
from judges.judgment import Sandbox
from judges.sandbox import bubblewrap, command
from judges.sandbox import limits as cgroup
from judges.sandbox.command import Input, SandboxCommand, SandboxResult
from judges.sandbox.limits import SandboxLimits

MIB = 1024 * 1024
PYTHON = (sys.executable, "-I", "-c")


@pytest.fixture(params=["required", "off"])
def setting(request: pytest.FixtureRequest) -> Sandbox:
    chosen: Sandbox = request.param
    if chosen == "required" and not command.probe().bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {command.probe().why_not}")
    return chosen


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children()
    yield
    assert children() <= before
    assert list(temporary.iterdir()) == []


async def python(code: str, setting: Sandbox, seconds: float = 60, **limits: int) -> SandboxResult:
    return await command.run(
        SandboxCommand([*PYTHON, code], seconds, limits=SandboxLimits(**limits)), setting
    )


async def test_a_command_gets_its_inputs_and_hands_back_output_report_and_exit_code(
    tmp_path: Path, setting: Sandbox
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (folder / "inside.txt").write_text("from a folder")
    (folder / "inside.txt").chmod(0o600)
    code = (
        "import os, sys\n"
        "print(open(sys.argv[1]).read(), open(os.environ['OTHER']).read(), flush=True)\n"
        "os.write(3, b'a report')\n"
        "sys.exit(7)"
    )

    wanted = SandboxCommand(
        [*PYTHON, code, Input("folder/inside.txt")],
        inputs={"folder": folder, "deep/text": b"from memory"},
        environment={"OTHER": Input("deep/text")},
        timeout_seconds=60,
    )
    result = await command.run(wanted, setting)

    assert (result.ending, result.exit_code, result.error) == ("exited", 7, None)
    assert result.output == b"from a folder from memory\n"
    assert result.report == b"a report"
    assert result.sandboxed is (setting == "required")


async def test_the_folder_of_a_command_is_empty_and_the_environment_clean(
    setting: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/x")

    result = await python("import os; print(os.listdir('.'), sorted(os.environ))", setting)

    assert result.output.startswith(b"[] ")
    assert b"SECRET" not in result.output
    assert b"PYTHONPATH" not in result.output


async def test_death_by_signal_is_told_as_128_plus_its_number(setting: Sandbox) -> None:
    result = await python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", setting)

    assert (result.ending, result.exit_code) == ("exited", 128 + 11)


async def test_a_command_that_cannot_be_started_is_an_error_that_names_it(setting: Sandbox) -> None:
    result = await command.run(SandboxCommand(["/bin/no-such-program"], 60), setting)

    assert result.error is not None
    assert "could not start /bin/no-such-program" in result.error


async def test_nothing_inside_is_the_machines_root(setting: Sandbox) -> None:
    command.probe()
    before = children()
    task = asyncio.create_task(python("print('begun', flush=True); import time; time.sleep(600)", setting))

    def users() -> list[set[str]]:
        found = []
        for process in children() - before:
            with suppress(OSError):
                lines = Path(f"/proc/{process}/status").read_text().splitlines()
                facts = dict(line.split(":\t", 1) for line in lines)
                if facts["Name"] != "bwrap" and facts["Seccomp"] == "2":
                    found.append(set(facts["Uid"].split()))
        return found

    try:
        # Without bubblewrap the supervisor, which must kill the command, keeps its rights.
        await until(lambda: len(users()) == (2 if setting == "required" else 1))
        told = users()
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert {"0"} not in told


async def test_time_is_up_when_it_is_up(setting: Sandbox) -> None:
    result = await python("import time; print('begun', flush=True); time.sleep(600)", setting, seconds=4)

    assert (result.ending, result.exit_code, result.error) == ("timeout", None, None)
    assert result.output == b"begun\n"


@pytest.mark.parametrize("descriptor", [1, 2, 3])
async def test_output_and_report_are_cut_at_their_bounds_and_end_the_command(
    setting: Sandbox, descriptor: int
) -> None:
    code = f"import os\nwhile True: os.write({descriptor}, b'x' * 65536)"

    result = await python(code, setting, output_bytes=100_000, report_bytes=100_000)

    assert result.ending == "output"
    assert max(len(result.output), len(result.report)) == 100_000


@pytest.mark.xdist_group("process-limit")  # see test_judges_benchmark.py
async def test_memory_of_all_processes_together_is_bounded(setting: Sandbox) -> None:
    code = (
        "import os, time\n"
        "for _ in range(6): os.fork() or (bytearray(b'x' * 40_000_000), time.sleep(600))\n"
        "time.sleep(600)"
    )
    hold = code.replace("(bytearray(b'x' * 40_000_000), time.sleep(600))", "hold()")
    code = "def hold():\n    kept = bytearray(b'x' * 40_000_000)\n    time.sleep(600)\n" + hold

    result = await python(code, setting, memory_bytes=200 * MIB)

    assert result.ending == "memory"


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that everybody may write to: a root worker's command is another user."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(cgroup.delegated() is None, reason="no cgroup with memory and pids is delegated here")
async def test_memory_that_no_process_maps_is_bounded_by_a_cgroup(setting: Sandbox) -> None:
    if setting == "off":
        pytest.skip("cgroups are for sandboxes")
    code = (
        "import os\nfor n in range(40):\n"
        "    held = os.memfd_create(str(n))\n    os.write(held, b'x' * 20_000_000)\nprint('held')"
    )
    result = await python(code, setting, memory_bytes=300 * MIB)
    assert b"held" not in result.output


def test_a_cgroup_is_made_where_one_is_delegated_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Plain folders stand for the kernel's, which a real rmdir removes with its files in it.
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "uplift-4194305-dead").mkdir()  # no process can have this number
    (tmp_path / f"uplift-{os.getpid()}-ours").mkdir()
    monkeypatch.setattr(cgroup, "delegated", lambda: tmp_path if cgroup._takes_others(tmp_path) else None)
    monkeypatch.setattr(cgroup, "_is_delegated", lambda place: True)
    made = cgroup.made(SandboxLimits(memory_bytes=1000, processes=10), share=2)
    assert made is not None
    made.take(12345)
    told = {path.name: path.read_text() for path in made.path.iterdir()}
    assert (told["memory.max"], told["pids.max"], told["cgroup.procs"]) == ("2000", "28", "12345")
    assert told["cpu.max"] == f"{max(1, len(os.sched_getaffinity(0)) - 1)}00000 100000"
    assert not (tmp_path / "uplift-4194305-dead").exists()
    assert (tmp_path / f"uplift-{os.getpid()}-ours").exists()
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids")
    assert cgroup.made(SandboxLimits(), share=1) is None


def test_root_makes_cgroups_only_in_what_was_given_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a cgroup that root may write to, as to all: that of all services, say, above the limits of the worker's own
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    (tmp_path / "cgroup.procs").write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not cgroup._takes_others(tmp_path)
    # Then it is used where systemd has marked it as delegated, or where it is a container's topmost one
    with monkeypatch.context() as marked:
        marked.setattr(os, "getxattr", lambda path, name: b"1")
        assert cgroup._takes_others(tmp_path)
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    assert not cgroup._takes_others(tmp_path)
    (tmp_path / "cgroup.type").write_text("domain\n")
    assert cgroup._takes_others(tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        "open(str(n), 'wb').write(b'x' * 2**20)",
        "os.posix_fallocate(os.open(str(n), os.O_CREAT | os.O_RDWR), 0, 2**20)",
        "open(str(n), 'w')",
        "open(os.environ['ELSEWHERE'] + str(n), 'wb').write(b'x' * 2**20); os.unlink(os.environ['ELSEWHERE'] + str(n))",
    ],
    ids=["files", "allocated files", "empty files", "files elsewhere"],
)
async def test_what_is_written_to_disk_without_bubblewrap_is_bounded(elsewhere: Path, block: str) -> None:
    code = f"import os, itertools\nfor n in itertools.count(): {block}"
    wanted = SandboxCommand(
        [*PYTHON, code],
        60,
        environment={"ELSEWHERE": f"{elsewhere}/file"},
        limits=SandboxLimits(disk_bytes=20 * MIB, open_files=100_000),
    )
    result = await command.run(wanted, "off")
    assert result.ending == "disk", result


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no shared memory")
def test_files_in_shared_memory_without_bubblewrap_are_bounded_and_go_where_the_user_does() -> None:
    name = f"uplift-test-{random.random()}"
    code = f"""
import os, time
os.mkdir("/dev/shm/{name}")
for n in range(40):
    open(f"/dev/shm/{name}/{{n}}", "wb").write(bytes({MIB}))
open("/dev/shm/{name}-file", "wb").write(b"x")
os.symlink("/etc", "/dev/shm/{name}-link")
time.sleep(float(os.environ["WAIT"]))
"""
    for wait, ending, most in ((60, "disk", 20), (0, "exited", 512)):
        limits = SandboxLimits(disk_bytes=most * MIB)
        fills = SandboxCommand([*PYTHON, code], 60, environment={"WAIT": str(wait)}, limits=limits)
        result = asyncio.run(command.run(fills, "off"))
        left = list(Path("/dev/shm").glob(f"{name}*"))
        for path in left:
            remove_folder.remove(path)
        assert result.ending == ending, result
        assert bool(left) is (os.geteuid() != 0)


async def test_processor_time_is_bounded_for_processes_that_outlive_their_parent_too(
    setting: Sandbox,
) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0] <= 20 * (os.cpu_count()) + 1)"

    result = await python("import os\n" + code, setting, seconds=20)

    assert result.output == b"True\n"


async def test_cancelling_ends_the_command_before_the_caller_goes_on(setting: Sandbox) -> None:
    command.probe()
    before = children()
    task = asyncio.create_task(python("import time; time.sleep(600)", setting))
    await until(lambda: len(children() - before) >= 2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert children() <= before


async def test_a_command_that_waits_for_its_turn_can_be_cancelled(setting: Sandbox) -> None:
    cores = os.cpu_count() or 1
    tasks = [asyncio.create_task(python("import time; time.sleep(600)", setting)) for _ in range(cores + 2)]
    await asyncio.sleep(0)

    for task in tasks:
        task.cancel()

    assert all(
        isinstance(end, asyncio.CancelledError)
        for end in await asyncio.gather(*tasks, return_exceptions=True)
    )


async def test_no_more_commands_run_at_once_than_there_are_cores(setting: Sandbox, tmp_path: Path) -> None:
    command.probe()
    cores = os.cpu_count() or 1
    marker = f"turn-{os.getpid()}-{setting}"
    tasks = [
        asyncio.create_task(python(f"import time; time.sleep(1) # {marker}", setting))
        for _ in range(cores + 2)
    ]
    most = 0
    while not all(task.done() for task in tasks):
        running = [
            line
            for line in processes_naming(marker)
            if line.startswith(f"{sys.executable} -I -c import time")
        ]
        most = max(most, len(running))
        await asyncio.wait(tasks, timeout=0.02)

    assert 1 <= most <= cores


async def test_a_required_sandbox_that_is_not_there_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        command, "probe", lambda: command.Confinement(bubblewrap=False, why_not="not installed")
    )

    with pytest.raises(command.SandboxUnavailable, match="not installed"):
        await python("pass", "required")


def test_the_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "executable", lambda: None)
    command.probe.cache_clear()
    try:
        found = command.probe()
    finally:
        command.probe.cache_clear()

    assert (found.bubblewrap, found.why_not) == (False, "bwrap is not installed")


def test_the_probe_tells_what_a_bubblewrap_that_fails_had_to_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "executable", lambda: str(broken))
    command.probe.cache_clear()
    try:
        found = command.probe()
    finally:
        command.probe.cache_clear()

    assert not found.bubblewrap
    assert "No permissions to create a new namespace" in found.why_not


def test_a_killed_worker_takes_its_commands_and_their_folder_with_it(
    setting: Sandbox, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    script = f"""
import asyncio, sys, tempfile
from judges.sandbox import command
tempfile.tempdir = {str(tmp_path / "temporary")!r}
command.probe()
print("ready", flush=True)
asyncio.run(command.run(command.SandboxCommand(["/bin/sleep", "600"], 600), {setting!r}))
"""
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=root,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        eventually(lambda: len(supervisor.descendants(worker.pid)) >= 2)
        below = supervisor.descendants(worker.pid)
        worker.kill()
    eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in below))
    eventually(lambda: not list((tmp_path / "temporary").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap needs Linux")
def test_a_worker_killed_while_bubblewrap_starts_leaves_no_half_of_it_behind(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    if not command.probe().bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {command.probe().why_not}")
    # This bubblewrap comes late: it begins when the worker that waits for its word is dead.
    real, marker = bubblewrap.executable(), f"half-{os.getpid()}-{tmp_path.name}"
    late = tmp_path / "bwrap"
    late.write_text(
        f'#!/bin/sh\ntouch {tmp_path}/begun\nwhile kill -0 $PPID 2>&-; do sleep 0.05; done\nexec {real} "$@"\n'
    )
    late.chmod(0o755)
    script = f"""
import threading
from judges.sandbox import bubblewrap, command
confinement = command.probe()
bubblewrap.executable = lambda: {str(late)!r}
command.run_blocking(command.SandboxCommand(["/bin/echo", {marker!r}], 600), confinement, threading.Event())
"""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, env=environment) as worker:
        eventually(lambda: (tmp_path / "begun").exists())
        worker.kill()

    eventually(lambda: not processes_naming(marker))


def test_an_interpreter_that_was_started_by_a_relative_path_is_found_inside(tmp_path: Path) -> None:
    if not command.probe().bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {command.probe().why_not}")
    suite = a_suite(tmp_path)
    script = f"""
import asyncio, pathlib, sys
from judges.checks import pytest_file
from judges.sandbox import command
from judges.judgment import Completion, Workspace
from judges.spec import Pytest
assert ".." in sys.executable
print(command.probe())
spec = Pytest(type="pytest", test_file="fixtures/test_it.py")
for left in (None, pathlib.Path({str(tmp_path)!r}, "left")):
    workspace = Workspace(suite=pathlib.Path({str(suite)!r}), left=left, sandbox="required")
    print(asyncio.run(pytest_file.judge(spec, Completion(text=""), workspace)))
"""
    (tmp_path / "left").mkdir()
    (tmp_path / "here").mkdir()
    python = Path("..", os.path.relpath(sys.executable, tmp_path))
    said = subprocess.run(
        [python, "-c", script],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "bubblewrap=True" in said.stdout, said
    assert said.stdout.count("passed=True") == 2, said

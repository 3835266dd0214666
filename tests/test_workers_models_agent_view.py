"""What a confined agent is and may do, under a root worker too, and which programs can be started there."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pytest_judging import children, processes_naming, until
from test_judges_syscall_filter import SCRIPT, calls, expected

from judges.inside.drop_rights import NOBODY
from judges.sandbox import bubblewrap
from workers.models import agent_view
from workers.models.choose import model_for
from workers.models.model import ModelFailed, Request
from workers.store.messages import CommandSpec, ModelSettings

pytestmark = pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work here")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has this to lose")
needs_shadow = pytest.mark.skipif(not Path("/etc/shadow").exists(), reason="no /etc/shadow")


async def said_by(argv: tuple[str, ...], request: Request | None = None, **rest: Any) -> str:
    """What a program says when it is run as a model, confined."""
    spec = CommandSpec(argv=argv, **rest)
    model = model_for("command:it", ModelSettings(commands={"it": spec}))
    return (await model.complete(request or Request("", sandbox="required"))).text


async def said_by_shell(script: str, request: Request | None = None, **rest: Any) -> str:
    return await said_by(("/bin/sh", "-c", script), request, **rest)


def a_program(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
    return place


async def test_a_confined_program_has_no_capability_and_can_get_none() -> None:
    seen = await said_by_shell("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    facts = dict(line.split() for line in seen.splitlines())
    for kind in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:"):
        assert int(facts[kind], 16) == 0, kind
    assert facts["NoNewPrivs:"] == "1"


SPACES = ("user", "mnt", "pid", "ipc", "uts")


def confined_children() -> list[tuple[dict[str, str], list[Path]]]:
    """Of every process of ours that has given up its rights: what the machine says of it, and its namespaces."""
    found = []
    for process in children():
        with suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            facts = dict(line.split(":\t", 1) for line in lines)
            if facts["Seccomp"] == "2":
                found.append((facts, namespaces(str(process))))
    return found


def namespaces(process: str) -> list[Path]:
    return [Path(f"/proc/{process}/ns/{space}").readlink() for space in SPACES]


async def test_nothing_inside_is_the_machines_root_or_shares_a_namespace_with_it() -> None:
    ours = namespaces("self")
    task = asyncio.create_task(said_by(("/bin/sleep", "700"), Request("", sandbox="required")))
    try:
        await until(lambda: len(confined_children()) == 2)  # the first process inside, and the program
        found = confined_children()
    finally:
        task.cancel()
        await asyncio.wait([task])
    for facts, theirs in found:
        assert set(facts["Uid"].split()) == {str(NOBODY if os.geteuid() == 0 else os.geteuid())}
        assert (int(facts["CapEff"], 16), int(facts["CapPrm"], 16)) == (0, 0)
        assert facts["NoNewPrivs"] == "1"
        assert all(their != our for their, our in zip(theirs, ours, strict=True))


async def test_an_agent_cannot_make_the_calls_that_kernels_are_attacked_by() -> None:
    script = f"CALLS = {calls()!r}\n{SCRIPT}\nprint(json.dumps(results()))"
    told = json.loads(await said_by((sys.executable, "-I", "-c", script)))
    assert told == {name: expected(name) for name in calls()}


# What prints a line succeeded.
ATTACKS = {
    "write to the system": "touch /usr/x /etc/x /opt/x /x /dev/x",
    "write to a library": "for one in /usr/lib/*; do echo >> $one; done",
    "read another process's environment": "cat /proc/1/environ",
    "read another process's memory": "dd if=/proc/1/mem count=1",
    "reach another process's files": "readlink /proc/1/fd/*; cat /proc/1/fd/*; ls /proc/1/cwd/ /proc/1/root/",
    "kill the first process": "kill -9 1; sleep 0.2; test ! -e /proc/1",
    "change the kernel": "echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger",
    "be allowed user namespaces again": "echo 100 > /proc/sys/user/max_user_namespaces",
    "open a disk": "cat /dev/sda /dev/vda /dev/mem /dev/kmsg",
    "make a device": "mknod here b 8 0",
    "become root": "su root -c id || sudo -n id || setpriv --reuid=0 id",
    "raise a limit": "ulimit -H -c 1000 || ulimit -H -u 100000 || ulimit -H -n 1000000",
    "change the time": "date -s 2001-01-01 >&2",
    "rename the machine": "hostname evil",
    "change the root": "chroot / id",
    "enter a namespace": "nsenter --target 1 --mount id",
    "read the worker's key": "cat /proc/*/environ | tr '\\0' '\\n' | grep A_WORKERS_KEY",
    "read the suite and what lies beside it": "cat {suite}/suite.yaml {suite}/../notes; ls {suite} {suite}/..",
    "fill a file system in memory": "head -c 300M /dev/zero > /tmp/big && echo filled",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_agent_does_not_get_through_with(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/suite.yaml").write_text("the answer")
    (tmp_path / "notes").write_text("somebody's")
    monkeypatch.setenv("A_WORKERS_KEY", "canary")
    script = ATTACKS[attack].replace("{suite}", str(tmp_path / "suite"))
    said = await said_by_shell(f"exec 2>/dev/null; ( {script} ) && echo worked; echo tried")
    assert said == "tried\n"


async def test_what_a_confined_program_may_use_is_bounded() -> None:
    script = (
        "import json, os, resource as r; print(json.dumps([r.getrlimit(kind)[1] for kind in "
        "(r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE, r.RLIMIT_CORE, r.RLIMIT_CPU)] + "
        "[os.statvfs(place).f_blocks * os.statvfs(place).f_bsize for place in ('/tmp', '/dev/shm')]))"
    )
    request = Request("", sandbox="required", timeout_seconds=100)
    told = json.loads(await said_by((sys.executable, "-I", "-c", script), request))
    cores = os.cpu_count() or 1
    for found, most in zip(told, (2048, 2**31, 8192, 0, 100 * cores + 2, 2**28, 2**28), strict=True):
        assert 0 <= found <= most


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a home that it does not own")
async def test_a_root_workers_suite_may_lie_in_a_closed_home_of_somebody_else(tmp_path: Path) -> None:
    skill = tmp_path / "home" / "skill"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("be brief")
    for path in (tmp_path / "home", skill, skill / "SKILL.md"):
        os.chown(path, 12345, 12345)
    (tmp_path / "home").chmod(0o700)
    request = Request("", skill=skill, sandbox="required")
    said = await said_by(("/bin/sh", "-c", 'cat "$0"/SKILL.md'), request, skill_argv=("{skill}",))
    assert said == "be brief"


@as_root
async def test_a_root_workers_program_is_not_root_for_the_kernel_either(tmp_path: Path) -> None:
    # The owner of a file, seen from outside, is the kernel's word for who wrote it.
    await said_by_shell("touch made", Request("", workspace=tmp_path, sandbox="required"))
    assert (tmp_path / "made").stat().st_uid == NOBODY


@needs_shadow
async def test_a_confined_program_cannot_undo_the_mounts_around_it() -> None:
    tries = ["mount -o remount,rw,bind /etc", "umount /etc/shadow", "mount -t tmpfs none /etc"]
    alone = "unshare --user --map-root-user --mount sh -c"
    script = "; ".join(
        f"{{ {one}; }} 2>&- && echo undone" for one in [*tries, *(f"{alone} '{one}'" for one in tries[:2])]
    )
    assert await said_by_shell(script + "; echo tried") == "tried\n"


@needs_shadow
@pytest.mark.parametrize("name", ["shadow", "shadow-", "gshadow", "gshadow-"])
async def test_a_confined_program_reads_no_password_and_no_backup_of_one(name: str) -> None:
    assert await said_by_shell(f"cat /etc/{name} 2>&-; echo tried") == "tried\n"


async def test_a_confined_program_may_change_what_is_in_its_workspace_and_home(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/notes.txt").write_text("old")
    script = "echo new > below/notes.txt && touch made $HOME/made $TMPDIR/made /tmp/made /dev/shm/made"
    await said_by_shell(script, Request("", workspace=tmp_path, sandbox="required"))
    assert (tmp_path / "below/notes.txt").read_text() == "new\n"
    assert (tmp_path / "made").exists()


async def test_a_confined_program_may_open_its_output_by_name() -> None:
    assert await said_by_shell("echo said > /dev/stdout; echo noted > /dev/stderr") == "said\n"


async def test_a_skill_that_only_the_worker_may_read_can_be_read_and_run_by_the_agent(tmp_path: Path) -> None:
    skill = tmp_path / "skill"
    a_program(skill / "scripts/run.sh", "#!/bin/sh\necho ran\n").chmod(0o700)
    (skill / "scripts").chmod(0o700)
    skill.chmod(0o700)
    request = Request("", skill=skill, sandbox="required")
    said = await said_by(("/bin/sh", "-c", '"$0"/scripts/run.sh'), request, skill_argv=("{skill}",))
    assert said == "ran\n"
    assert stat.S_IMODE(skill.stat().st_mode) == 0o700


@as_root
@pytest.mark.parametrize("closed", ["bin", "bin/agent"])
async def test_a_program_that_only_root_may_read_is_named_in_the_error(tmp_path: Path, closed: str) -> None:
    program = a_program(tmp_path / "bin/agent", "#!/bin/sh\necho ran\n")
    readable = (str(tmp_path / "bin"),)
    assert await said_by((str(program),), readable=readable) == "ran\n"
    (tmp_path / closed).chmod(0o700)
    with pytest.raises(ModelFailed, match=f"{tmp_path / closed} .*nobody") as caught:
        await said_by((str(program),), readable=readable)
    assert caught.value.hopeless


# A program of an environment of its own says which Python runs it, and whether it finds its own packages.
TOOL = "import sys, site_of_tool, json\nprint(json.dumps([sys.prefix, site_of_tool.NAME]))\n"


def an_environment(folder: Path, python: str = sys.executable) -> Path:
    """A virtual environment with one package and one program, as installers lay them out."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "site_of_tool.py").write_text("NAME = 'tool'\n")
    a_program(folder / "bin/tool", f"#!{folder}/bin/python\n{TOOL}")
    return folder


async def test_a_program_of_a_virtual_environment_finds_its_python_and_its_packages(tmp_path: Path) -> None:
    environment = an_environment(tmp_path / "venv")
    for argv in [(str(environment / "bin/tool"),), (str(environment / "bin/python"), "-c", TOOL)]:
        assert json.loads(await said_by(argv)) == [str(environment), "tool"]


async def test_a_link_to_a_program_of_an_environment_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pipx and uv put the environment elsewhere and a link to its program on PATH; uv's Python is behind a link
    # to a folder, too.
    (tmp_path / "pythons").mkdir()
    (tmp_path / "pythons/3").symlink_to(sys.base_prefix)
    environment = an_environment(tmp_path / "venvs/tool", str(tmp_path / "pythons/3/bin/python3"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to("../venvs/tool/bin/tool")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert json.loads(await said_by(("tool",))) == [str(environment), "tool"]


@pytest.mark.parametrize("line", ["#!/usr/bin/env python-of-mine", "#!/usr/bin/env -S python-of-mine -B"])
async def test_a_program_finds_the_python_that_env_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    environment = an_environment(tmp_path / "venv")
    (environment / "bin/python-of-mine").symlink_to("python")
    monkeypatch.setenv("PATH", str(environment / "bin"), prepend=os.pathsep)
    program = a_program(tmp_path / "elsewhere/tool", f"{line}\n{TOOL}")
    assert json.loads(await said_by((str(program),))) == [str(environment), "tool"]


async def test_a_long_path_to_python_is_no_hindrance(tmp_path: Path) -> None:
    environment = an_environment(tmp_path / "v env")
    # What pip writes where the kernel could not read the first line.
    text = f"#!/bin/sh\n'''exec' \"{environment}/bin/python\" \"$0\" \"$@\"\n' '''\n{TOOL}"
    program = a_program(environment / "bin/tool", text)
    assert json.loads(await said_by((str(program),))) == [str(environment), "tool"]


async def test_what_else_lies_beside_an_environment_stays_unseen(tmp_path: Path) -> None:
    environment = an_environment(tmp_path / "project")
    (environment / "tests").mkdir()
    seen = await said_by(
        (str(environment / "bin/python"), "-c", f"import os; print(os.listdir({str(environment)!r}))")
    )
    assert "tests" not in seen
    assert "lib" in seen


async def test_a_program_is_found_from_where_the_worker_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = an_environment(tmp_path / "venv")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert json.loads(await said_by(("../venv/bin/tool",))) == [str(environment), "tool"]


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program"])
async def test_a_program_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ModelFailed, match=f"{name} cannot be started: not found") as caught:
        await said_by((name,))
    assert caught.value.hopeless


@pytest.mark.parametrize(
    "script",
    [
        "import not_there",
        "import os; os.execv('/no/program', ['x'])",
        "import sys; sys.exit('x: error while loading shared libraries: libx.so: cannot open')",
    ],
)
async def test_an_error_of_a_program_that_misses_a_file_tells_of_readable(script: str) -> None:
    with pytest.raises(ModelFailed, match="readable"):
        await said_by((sys.executable, "-c", script))


async def test_other_errors_of_a_program_do_not_tell_of_readable() -> None:
    with pytest.raises(ModelFailed) as caught:
        await said_by_shell("echo wrong key >&2; exit 3")
    assert "readable" not in str(caught.value)


WORKER = """
import asyncio, pathlib, sys
from judges.sandbox import bubblewrap, command
from workers.models.agent_view import confined
from workers.models.model import Request
from workers.models.program import AgentFolders, run
folder = pathlib.Path(sys.argv[1])
request = Request(prompt="", sandbox="required")
argv, view = confined(["/bin/sleep", sys.argv[2]], request, AgentFolders(folder, folder))
if len(sys.argv) > 3:
    bubblewrap.executable = lambda: sys.argv[3]
asyncio.run(run(argv, stdin=b"", cwd=folder, environment={}, description=view, seconds=600))
"""


def a_worker(*arguments: object) -> subprocess.Popen[bytes]:
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", WORKER, *map(str, arguments)], cwd=root, env=environment)


def test_a_killed_worker_takes_its_agents_with_it(tmp_path: Path, eventually: Callable[..., None]) -> None:
    marker = f"600.{os.getpid()}"
    with a_worker(tmp_path, marker) as worker:
        eventually(lambda: [line for line in processes_naming(marker) if line.startswith("/bin/sleep")])
        worker.kill()
    eventually(lambda: not processes_naming(marker))


def test_a_worker_killed_while_bubblewrap_starts_leaves_no_half_of_it_behind(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    # This bubblewrap comes late: it begins when the worker that waits for its word is dead.
    real, marker, late = bubblewrap.executable(), f"601.{os.getpid()}", tmp_path / "bwrap"
    a_program(
        late,
        f'#!/bin/sh\ntouch {tmp_path}/begun\nwhile kill -0 $PPID 2>&-; do sleep 0.05; done\nexec {real} "$@"\n',
    )
    with a_worker(tmp_path, marker, late) as worker:
        eventually(lambda: (tmp_path / "begun").exists())
        worker.kill()
    eventually(lambda: not processes_naming(marker), 20)


@pytest.mark.parametrize("name", ["shims/agent", "bin/python-agent"])
def test_a_program_in_somebodys_home_shows_nothing_else_of_that_home(tmp_path: Path, name: str) -> None:
    program = tmp_path / "home" / name
    program.parent.mkdir(parents=True)
    (tmp_path / "home" / "lib").mkdir()
    program.write_bytes(b"")
    program.chmod(0o755)
    assert agent_view._needed(program) == [program]

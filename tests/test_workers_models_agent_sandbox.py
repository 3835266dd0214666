"""What a confined agent is and may do, under a root worker too, and which programs can be started there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_judging import processes_naming

from judges.inside.drop_rights import NOBODY
from workers.models import agent_sandbox
from workers.models.choose import model_for
from workers.models.model import ModelFailed, Request
from workers.store.messages import CommandSpec, ModelSettings

pytestmark = pytest.mark.skipif(not agent_sandbox.works(), reason="bubblewrap does not work here")
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


needs_unshare = pytest.mark.skipif(
    not agent_sandbox._starter(), reason="unshare may not make namespaces here"
)
WORKER = """
import asyncio, os, pathlib, sys
from workers.models.agent_sandbox import confined
from workers.models.model import Request
from workers.models.program import AgentFolders, run
folder = pathlib.Path(sys.argv[1])
request = Request(prompt="", sandbox="required")
argv = confined(["/bin/sleep", "600"], request, AgentFolders(folder, folder))
environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
asyncio.run(run(argv, stdin=b"", cwd=folder, environment=environment))
"""


@needs_unshare
def test_a_worker_killed_while_bubblewrap_starts_leaves_no_half_of_it_behind(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    # This bubblewrap stays where the real one is for an instant: its inner half does not know yet that it is
    # to end with the outer one.
    marker = f"600.{os.getpid()}"
    a_program(tmp_path / "bwrap", f"#!/bin/sh\nsetsid /bin/sleep {marker} &\nwait\n")
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", WORKER, tmp_path], cwd=root, env=environment) as worker:
        eventually(lambda: processes_naming(marker))
        worker.kill()
    eventually(lambda: not processes_naming(marker), 20)


@pytest.mark.parametrize("name", ["shims/agent", "bin/python-agent"])
def test_a_program_in_somebodys_home_shows_nothing_else_of_that_home(tmp_path: Path, name: str) -> None:
    program = tmp_path / "home" / name
    program.parent.mkdir(parents=True)
    (tmp_path / "home" / "lib").mkdir()
    program.write_bytes(b"")
    program.chmod(0o755)
    assert agent_sandbox._needed(program) == [program]

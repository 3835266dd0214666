"""Say what a confined agent's program may read and write: see docs/isolation.md.

It sees the system's programs and libraries, itself with what interprets it, its own workspace and home, and its skill;
it does not see anyone's home, the suite, other attempts, or other processes. `judges.sandbox` confines it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from judges.inside.drop_rights import NOBODY
from judges.judgment import Sandbox
from judges.sandbox import bubblewrap, command
from judges.sandbox.bubblewrap import SandboxDescription
from workers.models.model import ModelFailed, Request
from workers.models.program import AgentFolders

_SYSTEM = ("/etc", "/opt", "/var/lib/ca-certificates")  # besides what every confined process sees
_SEEN_BY_ALL = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
_SECRET = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d"),
    *("/etc/ssh", "/etc/ssl/private", "/etc/krb5.keytab"),
)
_SMALL_FILESYSTEM_BYTES = 256 * 1024 * 1024
_LIBRARIES = ("lib", "lib64", "ssl")  # of an interpreter's prefix, which may be somebody's home otherwise
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_MAX_LINKS = 40
_MAX_FIRST_LINE = 4096
_MISSED = (
    *("execvp", "failed to execute", "No such file", "error while loading shared libraries"),
    *("ModuleNotFoundError", "Cannot find module"),
)

log = logging.getLogger(__name__)


def confined(
    argv: Sequence[str], request: Request, places: AgentFolders, readable: Sequence[Path] = ()
) -> tuple[list[str], SandboxDescription | None]:
    """The command line of a program, and what it may see; None where confinement is off or does not work.

    Blocks for a moment when it is called first in a process. Under a root worker, workspace and home are given
    to the user nobody. Raises ModelFailed where confinement is required in vain, and for a program that
    nobody may not read.
    """
    if not is_confined(request.sandbox):
        if request.sandbox == "required":
            raise ModelFailed(f"sandbox required, but {_lack()}", hopeless=True)
        if request.sandbox == "auto":
            _warn()
        return list(argv), None
    installed = _found(argv[0])
    # An agent may also come with the task's files.
    if not installed and not ("/" in argv[0] and (places.workspace / argv[0]).exists()):
        raise ModelFailed(f"{argv[0]} cannot be started: not found", hopeless=True)
    program = str(installed[0]) if installed else argv[0]
    shown = [*(_needed(installed[0]) if installed else ()), *(path.resolve() for path in readable)]
    system = [Path(place) for place in _SYSTEM]
    reads = {str(path): path for path in (*system, *shown) if path.exists() and not path.is_symlink()}
    if request.skill is not None:
        skill = request.skill.resolve()
        reads[str(skill)] = _open_to_nobody(skill, places.home)
    workspace, home = places.workspace.resolve(), places.home.resolve()
    if command.probe(for_agents=True).user is not None:
        for path in (Path(program), *shown):
            _check_open(path, shown)
        _give_to_nobody(workspace, home)
    return [program, *argv[1:]], SandboxDescription(
        # By a link an interpreter finds out where its libraries are.
        links={str(path): str(path.readlink()) for path in shown if path.is_symlink()},
        reads=bubblewrap.python_folders(bare=True) | reads,
        writes={str(path): path for path in (workspace, home)},
        # A worker's user may be in a group that can read these; an agent has no use for them.
        hidden=tuple(place for place in _SECRET if Path(place).exists()),
        empty_bytes=_SMALL_FILESYSTEM_BYTES,
    )


def hint(errors: str, sandbox: Sandbox) -> str:
    """A remedy to put behind an error where the program's messages say that a file was missing; else empty."""
    if not is_confined(sandbox) or not any(words in errors for words in _MISSED):
        return ""
    return " (it runs confined: name the folders that it needs under `readable`)"


def is_confined(sandbox: Sandbox) -> bool:
    """Whether a program is confined under this setting; tried once per process."""
    return sandbox != "off" and command.probe(for_agents=True).bubblewrap


def _needed(program: Path) -> list[Path]:
    """What a program needs beside the system: itself and its packages, and the same of what interprets it."""
    needed: dict[Path, None] = {}
    waiting = [program]
    while waiting:
        for one in _hops(waiting.pop()):
            if one in needed:
                continue
            needed[one] = None
            waiting += _interpreters(one)
            # Of pyenv and its like: a script that looks for the real program.
            if one.parent.name == "shims" and (one.parent.parent / "versions").is_dir():
                needed[one.parent.parent] = None
            if "node_modules" in one.parts:
                needed[Path(*one.parts[: one.parts.index("node_modules") + 1])] = None
                waiting += _found("node")
            prefix = one.parent.parent
            if (prefix / "pyvenv.cfg").exists():
                needed |= dict.fromkeys([prefix / "pyvenv.cfg", prefix / "bin"])
                waiting.append(prefix / "bin/python")
            if (prefix / "pyvenv.cfg").exists() or _PYTHON.fullmatch(one.name):
                needed |= dict.fromkeys(prefix / name for name in _LIBRARIES)
    whole = {*map(Path, (*_SEEN_BY_ALL, *_SYSTEM)), *needed}
    return [path for path in needed if path.exists() and not whole.intersection(path.parents)]


def _hops(program: Path) -> Iterator[Path]:
    """Yield a path, each path on the way that its symbolic links lead, and the real path."""
    for _ in range(_MAX_LINKS):
        yield program
        if not program.is_symlink():
            break
        program = Path(os.path.normpath(program.parent / program.readlink()))
    yield program.resolve()


def _interpreters(program: Path) -> list[Path]:
    """The program that a script names in its first line, and what `env` would find there."""
    try:
        with program.open("rb") as file:
            first = file.readline(_MAX_FIRST_LINE).decode("utf-8", "replace")
    except OSError:
        return []
    if not first.startswith("#!"):
        return []
    words = first.removeprefix("#!").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _found(words[0]) if words else []


def _found(program: str) -> list[Path]:
    """The absolute path of a program, if there is one."""
    found = shutil.which(program)
    return [Path(os.path.abspath(found))] if found else []  # noqa: PTH100 # resolving would skip a link on the way


def _open_to_nobody(skill: Path, home: Path) -> Path:
    """The skill's folder, or for a root worker a copy beside the home if nobody could not read all of it."""
    if command.probe(for_agents=True).user is None or command.open_to_all(skill):
        return skill
    return command.open_copy(skill, home.parent / "skill")


def _give_to_nobody(*folders: Path) -> None:
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _check_open(path: Path, shown: Iterable[Path]) -> None:
    """Raise ModelFailed that names the folder or file that keeps the user nobody from reading `path`."""
    inside = {*shown, *map(Path, (*_SEEN_BY_ALL, *_SYSTEM))}
    line = [path, *path.parents]
    tops = [number for number, one in enumerate(line) if one in inside]
    for one in line[: tops[-1] + 1 if tops else 0]:
        try:
            mode = one.stat().st_mode
        except OSError:
            continue
        wanted = stat.S_IXOTH if one != path else stat.S_IROTH | (stat.S_IXOTH if one.is_dir() else 0)
        if mode & wanted != wanted:
            raise ModelFailed(
                f"{one} may not be read by the user nobody, as whom agents of a root worker run; "
                f"open it (chmod o+rX {one}) or run the worker as an ordinary user",
                hopeless=True,
            )


def _lack() -> str:
    return f"bubblewrap does not work here: {command.probe(for_agents=True).why_not}"


@lru_cache(maxsize=1)
def _warn() -> None:
    log.warning(
        "%s: agents run unconfined, can read what this worker can read, and have its network", _lack()
    )

"""Keep an agent's program away from the machine it runs on, by bubblewrap where that works.

Inside it sees the system's programs and libraries, its own workspace and home, its skill, and the network; it
does not see anyone's home, the suite, other attempts, or other processes. It has no capability, and under a root
worker it is the user nobody, for the kernel too. See docs/isolation.md.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from judges.inside.drop_rights import NOBODY
from judges.judgment import Sandbox
from judges.sandbox import command
from workers.models.model import ModelFailed, Request
from workers.models.program import AgentFolders

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store")
_NAMES = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/var/lib/ca-certificates")
_SECRET = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d"),
    *("/etc/ssh", "/etc/ssl/private", "/etc/krb5.keytab"),
)
# Root of a user namespace would still be root for the kernel: only another user is not. To become nobody, in
# the workspace that is nobody's, takes these rights; setpriv gives all of them up before it starts the program.
_RIGHTS = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
_AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all", "--"),
)
_LIBRARIES = ("lib", "lib64", "ssl")  # of an interpreter's prefix, which may be somebody's home otherwise
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_MAX_LINKS = 40
_MAX_FIRST_LINE = 4096
_MISSED = (
    *("execvp", "failed to execute", "No such file", "error while loading shared libraries"),
    *("ModuleNotFoundError", "Cannot find module"),
)
_PROBE_SECONDS = 10

log = logging.getLogger(__name__)


def confined(
    argv: Sequence[str], request: Request, places: AgentFolders, readable: Sequence[Path] = ()
) -> list[str]:
    """The command line that runs `argv` confined, or `argv` itself where confinement is off or does not work.

    Blocks for a moment when it is called first in a process. Under a root worker, workspace and home are given
    to the user nobody. Raises ModelFailed where confinement is required in vain, and for a program that
    nobody may not read.
    """
    if request.sandbox == "off":
        return list(argv)
    if not works():
        if request.sandbox == "required":
            raise ModelFailed(f"sandbox required, but {_lack()}", hopeless=True)
        _warn()
        return list(argv)
    installed = _found(argv[0])
    # An agent may also come with the task's files.
    if not installed and not ("/" in argv[0] and (places.workspace / argv[0]).exists()):
        raise ModelFailed(f"{argv[0]} cannot be started: not found", hopeless=True)
    program = str(installed[0]) if installed else argv[0]
    shown = [*(_needed(installed[0]) if installed else ()), *(path.resolve() for path in readable)]
    prefix = [*(_starter() or ()), *_base()]
    for path in shown:
        # A link stays one: by it an interpreter finds out where its libraries are.
        kind, source = ("--symlink", path.readlink()) if path.is_symlink() else ("--ro-bind-try", path)
        prefix += [*_parents(path), kind, str(source), str(path)]
    if request.skill is not None:
        skill = request.skill.resolve()
        prefix += [*_parents(skill), "--ro-bind", str(_open_to_nobody(skill, places.home)), str(skill)]
    workspace, home = places.workspace.resolve(), places.home.resolve()
    for path in (workspace, home):
        prefix += [*_parents(path), "--bind", str(path), str(path)]
    if _is_root():
        for path in (Path(program), *shown):
            _check_open(path, shown)
        _give_to_nobody(workspace, home)
    return [*prefix, "--chdir", str(workspace), "--", *_as_user(), program, *argv[1:]]


def hint(errors: str, sandbox: Sandbox) -> str:
    """A remedy to put behind an error where the program's messages say that a file was missing; else empty."""
    if sandbox == "off" or not works() or not any(words in errors for words in _MISSED):
        return ""
    return " (it runs confined: name the folders that it needs under `readable`)"


def works() -> bool:
    """Whether bubblewrap can do here what we ask of it; tried once per process."""
    return _starter() is not None


@lru_cache(maxsize=1)
def _starter() -> tuple[str, ...] | None:
    """How to start bubblewrap here; None where it does not work.

    bubblewrap is two processes, and the inner one can outlive an outer one that is killed while they start. In
    a process namespace whose first process is the outer one, nothing outlives it. A system that lets
    bubblewrap have user namespaces, and unshare not, goes without.
    """
    own_user = () if _is_root() else ("--user", "--map-current-user")
    keeper = ("unshare", *own_user, "--pid", "--fork", "--kill-child=KILL", "--")
    for starter in (keeper, ()):
        try:
            tried = subprocess.run(
                [*starter, *_base(), "--", *_as_user(), "/usr/bin/env", "true"],
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if tried.returncode == 0:
            return starter
    return None


def _base() -> list[str]:
    flags = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
    if _is_root():
        for right in _RIGHTS:
            flags += ["--cap-add", right]
    else:
        flags += ["--unshare-user-try"]
    flags += ["--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev"]
    for place in ("/dev/shm", "/tmp"):
        flags += ["--perms", "1777", "--tmpfs", place]
    for path in (*_SYSTEM, *_NAMES):
        flags += ["--ro-bind-try", path, path]
    # A worker's user may be in a group that can read these; an agent has no use for them.
    for secret in map(Path, _SECRET):
        if secret.exists():
            flags += ["--tmpfs", str(secret)] if secret.is_dir() else ["--ro-bind", "/dev/null", str(secret)]
    return flags


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
    whole = {*map(Path, _SYSTEM), *needed}
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


def _is_root() -> bool:
    return os.geteuid() == 0


def _as_user() -> Sequence[str]:
    return _AS_NOBODY if _is_root() else ()


def _parents(path: Path) -> list[str]:
    """Arguments that make the folders above a path, open to all: those that bubblewrap makes itself are closed."""
    return [part for parent in reversed(path.parents[:-1]) for part in ("--dir", str(parent))]


def _open_to_nobody(skill: Path, home: Path) -> Path:
    """The skill's folder, or for a root worker a copy beside the home if nobody could not read all of it."""
    if not _is_root() or command.open_to_all(skill):
        return skill
    return command.open_copy(skill, home.parent / "skill")


def _give_to_nobody(*folders: Path) -> None:
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _check_open(path: Path, shown: Iterable[Path]) -> None:
    """Raise ModelFailed that names the folder or file that keeps the user nobody from reading `path`."""
    inside = {*shown, *map(Path, _SYSTEM)}
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
    remark = " (for a root worker it needs setpriv, too)" if _is_root() else ""
    return f"bubblewrap does not work here{remark}"


@lru_cache(maxsize=1)
def _warn() -> None:
    log.warning("%s: agents run unconfined and can read what this worker can read", _lack())

"""Start a command under bubblewrap: what it sees of this machine, and as whom it runs there.

It sees the system's programs and libraries, this Python with its packages, a few files of /etc, and what it
is given under INPUTS: all of it read-only. WORK (its folder), TMP, /tmp and /dev/shm are empty, its own,
and small. There is no network and no home folder. Under a root worker the command is not root: see `drop_rights`.
"""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from judges.inside.drop_rights import NOBODY

# Folders of ours get a parent that no interpreter lives under: mounting one would hide it.
INPUTS = "/sandbox/inputs"
CODE = "/sandbox/code"
WORK = "/sandbox/work"
TMP = "/sandbox/tmp"  # besides /tmp, which an interpreter may live under
EMPTY = (WORK, TMP, "/tmp", "/dev/shm")
SMALL_FILESYSTEM_BYTES = 128 * 1024 * 1024
# Without --as-pid-1, bubblewrap ends before its first process inside, which then is nobody's to wait for. It is also
# not told to die with its parent: killed while it starts, it would leave a child that waits for ever.
_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0"),
    *("--as-pid-1", "--new-session", "--cap-drop", "ALL"),
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "ssl", "mime.types")
_PASSWD = f"nobody:x:{NOBODY}:{NOBODY}:nobody:{WORK}:/bin/sh\n".encode()
_GROUP = f"nogroup:x:{NOBODY}:\n".encode()


@dataclass(frozen=True)
class SandboxView:
    """Files and folders that a sandbox sees besides the system, read-only, by path; `folders` are empty ones."""

    binds: Mapping[str, Path]
    contents: Mapping[str, bytes]
    folders: tuple[str, ...] = ()


class Sandboxed:
    """A started bubblewrap. `init` is a descriptor of the first process inside: its death ends all others."""

    def __init__(self, process: subprocess.Popen[bytes], init: int | None) -> None:
        self.process = process
        self._init = init

    def kill(self) -> None:
        """End every process inside; bubblewrap itself ends, and can be waited for, once all are gone."""
        if self._init is None:
            self.process.kill()
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end (which must be under way) and let go of the descriptor."""
        self.process.wait()
        if self._init is not None:
            os.close(self._init)


def executable() -> str | None:
    """Path of bubblewrap, if it is installed."""
    return shutil.which("bwrap", path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/local/bin")


def start(
    argv: Sequence[str],
    view: SandboxView,
    *,
    environment: Mapping[str, str],
    user: int | None,
    output: int,
    capabilities: Iterable[str] = (),
    keep: Iterable[int] = (),
) -> Sandboxed:
    """Start `argv` inside, as the first process there; it must itself end when this process ends.

    `user` is a second user id that exists inside, for a root worker's command to become; `keep` are
    descriptors that the command inherits; `output` gets stdout and stderr.
    """
    with ExitStack() as opened:
        info, told = _pipe(opened)
        block, unblock = _pipe(opened)
        arguments, memory_files = _view_arguments(view, opened)
        command = [executable() or "bwrap", *_NAMESPACES, "--info-fd", str(told)]
        for capability in capabilities:
            command += ["--cap-add", capability]
        if user is not None:
            command += ["--userns-block-fd", str(block)]
        process = subprocess.Popen(
            [*command, *arguments, "--chdir", WORK, "--", *argv],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # bubblewrap is two processes, and the inner one waits for a word of the outer one that does not end
            # when that dies. So nothing may kill the outer one: it holds the read end of what it tells, or
            # telling would be its death (SIGPIPE) when this process is gone; and no terminal's signal gets to it.
            pass_fds=[info, told, block, *memory_files, *keep],
            start_new_session=True,
        )
        init = _first_process(info, process)
        if init is None:
            return Sandboxed(process, None)
        started = Sandboxed(process, os.pidfd_open(init))
        if user is not None:
            try:
                _map_users(init, user)
            except OSError:
                started.kill()
                started.close()
                raise
            os.write(unblock, b"go")
        return started


@functools.cache
def python() -> str:
    """Path of this interpreter, valid inside too: an interpreter started as `../venv/…` has its `..` resolved."""
    named = Path(sys.executable)
    return str(named.parent.resolve() / named.name) if ".." in named.parts else sys.executable


def package_folders() -> list[str]:
    """Where this interpreter finds installed packages; `python -I` leaves some of them out inside."""
    return [
        entry
        for entry in sys.path
        if Path(entry).name in ("site-packages", "dist-packages") and Path(entry).is_dir()
    ]


@functools.cache
def python_folders() -> list[str]:
    """Folders of this interpreter and its packages, under the names it knows them by and their real ones."""
    named = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix, *package_folders()]
    real = [os.path.realpath(folder) for folder in named]
    # Parents first: mounting them later would hide what was mounted below them.
    return sorted({folder for folder in named + real if folder not in ("/", "/usr")})


def _view_arguments(view: SandboxView, opened: ExitStack) -> tuple[list[str], list[int]]:
    """Arguments for the file system, in the order of mounting, and the descriptors that they name."""
    arguments = ["--dir", "/etc"]
    for place in _SYSTEM:
        if Path(place).is_symlink():
            arguments += ["--symlink", str(Path(place).readlink()), place]
        elif Path(place).is_dir():
            arguments += ["--ro-bind", place, place]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev", *_small("/dev/shm"), "--remount-ro", "/dev"]
    arguments += [*_small("/tmp"), *_small(TMP), *_small(WORK), "--dir", INPUTS]
    for place in view.folders:
        arguments += ["--dir", place]
    # After /tmp, which is where an environment made for a test may live.
    for folder in python_folders():
        # Parents that bubblewrap makes unasked are closed to all but their owner.
        for parent in reversed(Path(folder).parents):
            arguments += ["--dir", str(parent)]
        arguments += ["--ro-bind", folder, folder]
    for place, source in view.binds.items():
        arguments += ["--ro-bind", str(source), place]
    descriptors = []
    for place, content in {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, **view.contents}.items():
        descriptor = memory_file(content, opened)
        descriptors.append(descriptor)
        arguments += ["--perms", "0444", "--ro-bind-data", str(descriptor), place]
    return [*arguments, "--remount-ro", "/"], descriptors


def _small(place: str) -> list[str]:
    size = ["--size", str(SMALL_FILESYSTEM_BYTES)] if _can_size() else []
    return ["--perms", "1777", *size, "--tmpfs", place]


@functools.cache
def _can_size() -> bool:
    """Whether this bubblewrap (0.7 or later) can bound a file system in memory."""
    told = subprocess.run([executable() or "bwrap", "--help"], capture_output=True, text=True, check=False)
    return "--size" in told.stdout + told.stderr


def memory_file(content: bytes, opened: ExitStack) -> int:
    """A descriptor of a file in memory that holds the content, until `opened` is closed."""
    descriptor = os.memfd_create("content")
    opened.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _pipe(opened: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _first_process(info: int, process: subprocess.Popen[bytes]) -> int | None:
    """Process id of the first process inside; None when bubblewrap ended without making one."""
    told = b""
    while not told.rstrip().endswith(b"}"):
        ready, _, _ = select.select([info], [], [], 0.05)
        if ready:
            told += os.read(info, 4096)
        elif process.poll() is not None:
            return None
    return int(json.loads(told)["child-pid"])


def _map_users(process: int, user: int) -> None:
    """Let root, and one user who is not, exist in the namespace of `process`."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{process}/{kind}_map").write_text(f"0 0 1\n{user} {user} 1\n")

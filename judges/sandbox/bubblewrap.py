"""Start a process under bubblewrap: the only place that knows how judges' commands and agents are confined.

A `SandboxDescription` says what a process may read and write. Besides that it sees the system's programs and
libraries and a few files of /etc, all of it read-only; some folders are empty, its own, and small. It has no home
folder, and a network of its own in which nobody else is. Under a root worker it is not root: see `drop_rights`, the
first program inside.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uplift_judge
from judges.inside import drop_rights, supervisor
from judges.inside.drop_rights import NOBODY
from judges.sandbox import limits as resource_limits
from judges.sandbox.limits import SandboxLimits

# Folders of ours get a parent that no interpreter lives under: mounting one would hide it.
INPUTS = "/sandbox/inputs"
CODE = "/sandbox/code"
WORK = "/sandbox/work"
TMP = "/sandbox/tmp"  # besides /tmp, which an interpreter may live under
EMPTY = ("/tmp", TMP, WORK, "/dev/shm")
SMALL_FILESYSTEM_BYTES = 128 * 1024 * 1024
# The program that everything starts as, found in a folder that holds nothing but `judges.inside`.
BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from judges.inside import {0}; {0}.main()"
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
class SandboxDescription:
    """What a confined process may read and write besides the system; paths inside lead to this machine's.

    `links` are links inside and where they lead, `contents` files that are made for it, `folders` are empty and stay
    so, `hidden` is what it finds empty of what it may read.
    """

    links: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, Path] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    writes: Mapping[str, Path] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    empty_bytes: int = SMALL_FILESYSTEM_BYTES


class FirstProcess:
    """The first process inside a bubblewrap, by a descriptor: its death ends all others there."""

    def __init__(self, process: int, limits: SandboxLimits, share: int) -> None:
        self.process = process
        self._descriptor = os.pidfd_open(process)
        self._cgroup = resource_limits.made(limits, share)
        if self._cgroup is not None:
            with suppress(OSError):
                self._cgroup.take(process)

    def kill(self) -> None:
        """End every process inside; bubblewrap itself ends, and can be waited for, once all are gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._cgroup is not None:
            self._cgroup.remove()


class Launch:
    """A bubblewrap that is to be started: its command line, and the descriptors that it inherits.

    Whoever starts it calls `follow` then, which says what the first process inside is, and `close`. bubblewrap is two
    processes, and the inner one waits for a word of the outer one that does not end when that dies. So nothing may
    kill the outer one: it holds the read end of what it tells, or telling would be its death (SIGPIPE) when this
    process is gone; and it must get a session of its own, where no terminal's signal comes.

    The first process inside is `argv`, which must itself end when this process ends. `user` is a second user id that
    exists inside, for a root worker's command to become; `keep` are descriptors that the command inherits. Up to
    `share` commands with these limits run in it at once.
    """

    def __init__(
        self,
        argv: Sequence[str],
        description: SandboxDescription,
        user: int | None,
        keep: Iterable[int],
        limits: SandboxLimits,
        share: int = 1,
        capabilities: Iterable[str] | None = None,
    ) -> None:
        with ExitStack() as opened:
            self._info, told = _pipe(opened)
            block, self._unblock = _pipe(opened)
            arguments, memory_files = _view_arguments(description, opened)
            self.argv = [executable() or "bwrap", *_NAMESPACES, "--info-fd", str(told)]
            if capabilities is None:
                # To become that user; or to map root, which the command is until `drop_rights` gives it a
                # namespace of its own.
                capabilities = ("CAP_SETFCAP",) if user is None else ("CAP_SETUID", "CAP_SETGID")
            for capability in capabilities:
                self.argv += ["--cap-add", capability]
            self.argv += ["--block-fd" if user is None else "--userns-block-fd", str(block)]
            self.argv += [*arguments, "--chdir", WORK, "--", *argv]
            self.descriptors = [self._info, told, block, *memory_files, *keep]
            self._user, self._bounds = user, (limits, share)
            self._opened = opened.pop_all()

    def follow(self, has_ended: Callable[[], object]) -> FirstProcess | None:
        """Let the started bubblewrap go on; returns None when it ended without making a process."""
        told = b""
        while not told.rstrip().endswith(b"}"):
            ready, _, _ = select.select([self._info], [], [], 0.05)
            if ready:
                told += os.read(self._info, 4096)
            elif has_ended():
                return None
        process = int(json.loads(told)["child-pid"])
        first = FirstProcess(process, *self._bounds)
        try:
            if self._user is not None:
                _map_users(process)
            os.write(self._unblock, b"go")
        except OSError:
            first.kill()
            first.close()
            raise
        return first

    def close(self) -> None:
        self._opened.close()


class Sandboxed:
    """A bubblewrap that was started for a thread which waits for it."""

    def __init__(self, process: subprocess.Popen[bytes], first: FirstProcess | None) -> None:
        self.process = process
        self._first = first

    def disk_bytes(self) -> int:
        """Nothing: all that it may write to is small and in memory."""
        return 0

    def inside(self) -> list[int]:
        """The command's processes: all inside but the first, which must stay awake to end with this process."""
        return supervisor.descendants(self._first.process) if self._first else []

    def kill(self) -> None:
        """End every process inside."""
        if self._first is None:
            self.process.kill()
        else:
            self._first.kill()

    def close(self) -> None:
        """Wait for the end (which must be under way) and let go of the descriptor."""
        self.process.wait()
        if self._first is not None:
            self._first.close()


def start(
    launch: Launch,
    environment: Mapping[str, str],
    output: int,
    errors: int = subprocess.STDOUT,
    stdin: int = subprocess.DEVNULL,
) -> Sandboxed:
    """Start a bubblewrap whose stdout is `output`, and stderr too unless `errors` says otherwise."""
    try:
        process = subprocess.Popen(
            launch.argv,
            env=dict(environment),
            cwd="/",
            stdin=stdin,
            stdout=output,
            stderr=errors,
            pass_fds=launch.descriptors,
            start_new_session=True,
        )
        try:
            return Sandboxed(process, launch.follow(process.poll))
        except OSError:
            process.wait()
            raise
    finally:
        launch.close()


def boot(program: str, *arguments: str, bare: bool = True, code: str = CODE) -> list[str]:
    """The command line of a module of `judges.inside`, which lies in `code`; a `bare` interpreter has no packages."""
    interpreter = [os.path.realpath(sys.executable), "-S"] if bare else [python()]
    return [*interpreter, "-I", "-c", BOOT.format(program), code, *arguments]


@functools.cache
def inside_code() -> dict[str, bytes]:
    """The source of our modules that run inside, by path: `uplift_judge`, and a `judges` that holds only `inside`."""
    modules = Path(drop_rights.__file__).parent.glob("*.py")
    return {
        "uplift_judge.py": Path(uplift_judge.__file__).read_bytes(),
        "judges/__init__.py": b"",
        **{f"judges/inside/{path.name}": path.read_bytes() for path in modules},
    }


def executable() -> str | None:
    """Path of bubblewrap, if it is installed."""
    return shutil.which("bwrap", path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/local/bin")


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


def python_folders(*, bare: bool = False) -> dict[str, Path]:
    """Folders of this interpreter (a `bare` one has no packages), by the names it knows them by and their real ones."""
    more = [] if bare else [sys.prefix, sys.exec_prefix, *package_folders()]
    named = [sys.base_prefix, sys.base_exec_prefix, *more]
    real = [os.path.realpath(folder) for folder in named]
    # Parents first: mounting them later would hide what was mounted below them.
    return {folder: Path(folder) for folder in sorted({*named, *real} - {"/", "/usr"})}


def _view_arguments(shown: SandboxDescription, opened: ExitStack) -> tuple[list[str], list[int]]:
    """Arguments for the file system, in the order of mounting, and the descriptors that they name."""
    arguments = ["--dir", "/etc"]
    for place in _SYSTEM:
        if Path(place).is_symlink():
            arguments += ["--symlink", str(Path(place).readlink()), place]
        elif Path(place).is_dir():
            arguments += ["--ro-bind", place, place]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for place in reversed(EMPTY):
        arguments += _small(place, shown.empty_bytes)
    arguments += ["--remount-ro", "/dev", "--dir", INPUTS]
    for place in shown.folders:
        arguments += ["--dir", place]
    # After /tmp, which is where an environment made for a test may live.
    for kind, places in (("--symlink", shown.links), ("--ro-bind", shown.reads), ("--bind", shown.writes)):
        for place, source in places.items():
            arguments += [*_parents(place), kind, str(source), place]
    for place in shown.hidden:
        arguments += ["--tmpfs", place] if Path(place).is_dir() else ["--ro-bind", "/dev/null", place]
    descriptors = []
    made = {} if "/etc" in shown.reads else {"/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    made |= {f"{CODE}/{place}": content for place, content in inside_code().items()}
    for place, content in {**made, **shown.contents}.items():
        descriptor = memory_file(content, opened)
        descriptors.append(descriptor)
        arguments += ["--perms", "0444", "--ro-bind-data", str(descriptor), place]
    return [*arguments, "--remount-ro", "/"], descriptors


def _parents(place: str) -> list[str]:
    """Arguments that make the folders above a place: those that bubblewrap makes unasked are closed to others."""
    return [part for parent in reversed(Path(place).parents[:-1]) for part in ("--dir", str(parent))]


def _small(place: str, size_bytes: int) -> list[str]:
    size = ["--size", str(size_bytes)] if _can_size() else []
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


def _map_users(process: int) -> None:
    """Let all users of this machine exist under their own ids in the namespace of `process`.

    So who sets up the sandbox may look up folders that belong to any of them. A process that has dropped its rights
    lives in a namespace below that knows one user alone.
    """
    for kind in ("uid", "gid"):
        known = [line.split() for line in Path(f"/proc/self/{kind}_map").read_text().splitlines()]
        lines = [f"{first} {first} {count}\n" for first, _, count in known]
        Path(f"/proc/{process}/{kind}_map").write_text("".join(lines))

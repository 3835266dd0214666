"""Give up every right but reading and computing: the last trusted code to run in a process before hostile code does.

Runs as a program (`main`: give up rights, then become the command); the fork server calls it after a fork.

With bubblewrap, the process ends as an unprivileged user of a user namespace of its own: no capability, none
to be had again, no further user namespace, and a process limit that counts this command alone. Without it,
and as root, it ends as a user id that nobody else has, which may read what root may and write nothing. Either way
it can make only the system calls that `syscall_filter` leaves.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from judges.inside import syscall_filter

REPORT_FD, ASK_FD = 3, 4
_REAP_SECONDS = 0.5
# Whom a root worker's commands become, and what they have started apart from them.
NOBODY, EXAMINEE = 65534, 65533
# Without bubblewrap a root worker's command gets this plus its process id: no other user has it, and none can
# signal it.
FIRST_PRIVATE_UID = 1_800_000_000

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True)
class RightsSettings:
    """Limits, descriptors and user of a process that confines itself. With `user` None it keeps its user.

    With 0 `memory_bytes` its address space has no bound; with no `status_fd` what fails is told on stderr. `work` is
    the folder to start in, which may be closed to all but its user. On the `ports` somebody else answers, who gets
    their sockets by `sockets_fd`.
    """

    memory_bytes: int
    processes: int
    file_bytes: int
    open_files: int
    cpu_seconds: int
    report_fd: int = -1
    ask_fd: int = -1
    status_fd: int = -1
    lifeline_fd: int = -1
    sockets_fd: int = -1
    ports: tuple[int, ...] = ()
    user: int | None = None
    namespace: bool = False
    folder: str | None = None
    work: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """With bubblewrap: confine this process, which stays the first one, in a child that becomes the command."""
    confine(_stay_first_process)


def confine(in_child: Callable[[RightsSettings], RightsSettings]) -> None:
    """Confine a child as argv[1] says, let it say "started" on the status descriptor, and become argv[2:]."""
    settings = RightsSettings(**json.loads(sys.argv[1]))
    try:
        become(sys.argv[2:], in_child(settings))
    except OSError as failed:
        fail(settings.status_fd, failed)


def fail(status_fd: int, failed: OSError) -> NoReturn:
    """End this process, and tell the worker that it could not be confined."""
    os.write(2 if status_fd < 0 else status_fd, f"could not confine the process: {failed}".encode())
    os._exit(1)


def serve_as_first(child: int, lifeline: int | None = None) -> NoReturn:
    """Be process 1 of a namespace: reap what becomes an orphan in it, and end, with all in it, as `child`
    ends.

    Also ends when the other end of the lifeline is closed: whoever started this is gone.
    """
    exited = os.pidfd_open(child)
    watched = [exited] if lifeline is None else [exited, lifeline]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    while True:
        ready, _, _ = select.select(watched, [], [], _REAP_SECONDS)
        while True:
            reaped, status = os.waitpid(-1, os.WNOHANG)
            if reaped == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
            if not reaped:
                break
        if lifeline in ready:
            os._exit(1)


def become(argv: list[str], settings: RightsSettings) -> None:
    """Confine this process, write "started", and execute `argv`; report and ask descriptors become numbers 3 and 4."""
    if settings.namespace:
        enter_own_user_namespace(settings.user)
    limit_resources(settings)
    if settings.namespace:
        drop_all_capabilities()
    elif settings.user is not None:
        become_private_user(settings.user)
    restrict_for_good()
    status = fcntl.fcntl(2 if settings.status_fd < 0 else settings.status_fd, fcntl.F_DUPFD_CLOEXEC, 10)
    handed = {REPORT_FD: settings.report_fd, ASK_FD: settings.ask_fd}
    moved = {place: fcntl.fcntl(given, fcntl.F_DUPFD, 10) for place, given in handed.items() if given >= 0}
    os.closerange(REPORT_FD, 10)
    for place, given in moved.items():
        os.dup2(given, place)
    if settings.status_fd >= 0:
        os.write(status, b"started")
    # Python ignores these two; what it starts should not.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        if settings.work:
            os.chdir(settings.work)
        os.closerange(10, status)
        # A worker with much to do hands over descriptors with high numbers.
        os.closerange(status + 1, 1 << 20)
        os.execvp(argv[0], argv)
    except OSError as failed:
        os.write(status, f": could not start {argv[0]}: {failed.strerror}".encode())
        os._exit(127)


def _stay_first_process(settings: RightsSettings) -> RightsSettings:
    """Return in a child: the kernel keeps a process's own signals from ending it where it is the first."""
    if settings.ports:
        _hand_over_ports(settings)
    child = os.fork()
    if child != 0:
        for descriptor in (settings.report_fd, settings.ask_fd, settings.status_fd):
            if descriptor >= 0:
                os.close(descriptor)
        become_harmless(settings.user)
        serve_as_first(child, settings.lifeline_fd)
    os.close(settings.lifeline_fd)
    return settings


def _hand_over_ports(settings: RightsSettings) -> None:
    """Listen in this network for a process outside of it: a socket belongs to the network that it was made in."""
    with ExitStack() as opened:
        channel = opened.enter_context(socket.socket(fileno=settings.sockets_fd))
        servers = [opened.enter_context(socket.create_server(("127.0.0.1", port))) for port in settings.ports]
        socket.send_fds(channel, [b"-"], [server.fileno() for server in servers])


def enter_own_user_namespace(user: int | None) -> None:
    """Become `nobody` of a new user namespace in which no further one can be made.

    `user` is who to be in the surrounding namespace: root would be exempt from the process limit.
    """
    if user is not None:
        _change_user(user)
    # A change of user hides /proc/self from the process itself, which could then not write its own id maps.
    _prctl(_PR_SET_DUMPABLE, 1)
    outer_user, outer_group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {outer_user} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {outer_group} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def limit_resources(settings: RightsSettings) -> None:
    """Set the limits that the kernel enforces on each process, on the hard side too."""
    cpu = settings.cpu_seconds
    _limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    _limit(resource.RLIMIT_FSIZE, settings.file_bytes)
    _limit(resource.RLIMIT_NOFILE, settings.open_files)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":  # elsewhere the first is not enforced and the second counts the whole desktop
        if settings.memory_bytes:
            _limit(resource.RLIMIT_AS, settings.memory_bytes)
        _limit(resource.RLIMIT_NPROC, settings.processes)


def drop_all_capabilities() -> None:
    """Empty every capability set, the bounding set included, so that no program can bring one back."""
    _bound_capabilities()
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _set_capabilities(0)


def become_harmless(user: int | None) -> None:
    """Give up all rights of a first process, which needs none to wait for others."""
    if user is not None:
        _change_user(user)
    drop_all_capabilities()
    restrict_for_good()
    hide_from_others()


def hide_from_others() -> None:
    """Keep other processes of this user out of this one's memory and descriptors (Linux); exec undoes it."""
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 0)


def become_private_user(user: int) -> None:
    """Become a user who reads everything, as an interpreter may live in root's home, and writes nothing."""
    _bound_capabilities(_CAP_DAC_READ_SEARCH)
    _prctl(_PR_SET_KEEPCAPS, 1)
    _change_user(user)
    _set_capabilities(1 << _CAP_DAC_READ_SEARCH)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH)


def restrict_for_good() -> None:
    """Let set-user-id programs run without their owner's rights, and forbid dangerous system calls."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        syscall_filter.install()


def die_with_parent() -> None:
    """Be killed when the thread that forked this process ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def unshare(flags: int) -> None:
    """Move this process (its children, for process ids) into new namespaces."""
    _check(_libc().unshare(flags))


def come_back(namespace: int) -> None:
    """Let children be born into a namespace of process ids again that this process was in, by its descriptor."""
    _check(_libc().setns(namespace, CLONE_NEWPID))


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does; raises OSError naming the target."""
    encoded = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    _check(_libc().mount(*encoded), target)


def _change_user(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _bound_capabilities(kept: int | None = None) -> None:
    """Take every capability but one out of the bounding set."""
    for capability in range(64):
        if capability != kept:
            _libc().prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails past the last one, which is the end


def _set_capabilities(mask: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Two blocks of (effective, permitted, inheritable); every capability we keep is in the first.
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(_libc().capset(header, data))


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit; one that is already lower stays."""
    most = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    ceiling = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(kind, (min(soft, ceiling), ceiling))


def _prctl(option: int, first: int = 0, second: int = 0) -> None:
    arguments = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    _check(_libc().prctl(option, *arguments))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(outcome: int, target: str | None = None) -> None:
    if outcome != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)

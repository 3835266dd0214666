"""Run a program as a model, with a temporary home and a workspace, and kill all its processes at the end.

Covered: output is cut while it is read, the program and its process group are killed however the run ends, the program
also when this process dies, no environment but what is allowed. All processes of a confined one die, and it has bounds
(see judges/sandbox). Not covered without bubblewrap: a child that starts its own session and lives on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from judges.inside.drop_rights import NOBODY
from judges.inside.remove_folder import remove
from judges.sandbox import bubblewrap, command
from judges.sandbox.bubblewrap import Launch, SandboxDescription
from judges.sandbox.limits import MIB, SandboxLimits
from judges.sandbox.pipes import Lifeline
from workers.models.agent_network import AgentNetwork, AgentProxy
from workers.models.model import MAX_OUTPUT_BYTES, ModelFailed, Request, kill_group, running

# A reader of lines keeps at most one; longer ones are dropped.
MAX_LINE_BYTES = 4 * MAX_OUTPUT_BYTES
_STDERR_TAIL = 4096
_LAST_WORDS_SECONDS = 2.0
_PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)
# Returns True when nothing more needs to be read: the program is then killed.
OnLine = Callable[[bytes], bool]

# Agents build software and run browsers. Their memory is bounded where there is a cgroup for it.
_LIMITS = SandboxLimits(memory_bytes=16384 * MIB, processes=2048, file_bytes=2048 * MIB, open_files=8192)
_Started = tuple[asyncio.SubprocessTransport, Callable[[], None], AsyncExitStack]

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True)
class EndedProgram:
    """How a program ended: exit code (negative: killed by that signal), output, and the end of its errors."""

    exit_code: int
    output: bytes
    cut: bool
    errors: str


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    cwd: Path,
    environment: Mapping[str, str],
    description: SandboxDescription | None = None,
    network: AgentNetwork | None = None,
    seconds: float = 0.0,
    on_line: OnLine | None = None,
) -> EndedProgram:
    """Run a program to its end, or to its 4 MiB of output, where it is killed; confined where it is described.

    A confined one may use the processors for so many seconds, and reach what its network lets it. With `on_line` every
    line of output is handed over as it comes and none is kept; there is then no limit to their number. Raises
    ModelFailed if it cannot be started.
    """
    watched = _Watched(on_line)
    network = network or AgentNetwork()
    starting = asyncio.create_task(_start(watched, argv, cwd, environment, description, network, seconds))
    try:
        # A start that is cancelled halfway waits for every child that holds the pipes, which may be for ever.
        transport, kill, _ = await asyncio.shield(starting)
        running.add(kill)
        writer = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        writer.write(stdin)
        writer.close()
        await watched.over.wait()
        kill()
        # Its children may hold the pipes, but what was written before is to be read.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await watched.silent.wait()
    except OSError as problem:
        raise ModelFailed(f"{argv[0]} cannot be started: {problem.strerror}", hopeless=True) from None
    finally:
        starting.add_done_callback(_end)
        await asyncio.wait([starting])
        if starting.exception() is None:
            await watched.exited.wait()
            await starting.result()[2].aclose()
    watched.last_line()
    code = transport.get_returncode()
    errors = bytes(watched.errors).decode("utf-8", "replace")
    return EndedProgram(
        code if code is not None else -signal.SIGKILL, bytes(watched.output), watched.cut, errors
    )


async def _start(
    watched: _Watched,
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    description: SandboxDescription | None,
    network: AgentNetwork,
    seconds: float,
) -> _Started:
    """Start a program; returns it, what kills it, and what is held until it has ended."""
    loop = asyncio.get_running_loop()
    inside = dict(environment) | (network.environment if description else {})
    start = partial(loop.subprocess_exec, lambda: watched, env=inside, start_new_session=True)
    async with AsyncExitStack() as held:
        if description is None:
            transport, _ = await start(*argv, cwd=cwd, preexec_fn=_die_with_worker)
            return transport, partial(kill_group, transport.get_pid()), held.pop_all()
        lifeline, user = held.enter_context(Lifeline()), command.probe(for_agents=True).user
        ours, theirs = (held.enter_context(end) for end in socket.socketpair())
        ends = {
            "lifeline_fd": lifeline.read_end,
            "sockets_fd": theirs.fileno(),
            "ports": tuple(network.ports),
        }
        rights = command.settings(_LIMITS, seconds, user=user, namespace=True, work=str(cwd), **ends)
        # JavaScript reserves more addresses than any machine has memory.
        boot = bubblewrap.boot("drop_rights", replace(rights, memory_bytes=0).to_json())
        keep = [lifeline.read_end, theirs.fileno()]
        launch = Launch([*boot, *argv], description, user, keep, _LIMITS)
        try:
            transport, _ = await start(
                *launch.argv, cwd="/", pass_fds=launch.descriptors, preexec_fn=_give_pipes_to_nobody
            )
            first = await asyncio.to_thread(launch.follow, lambda: transport.get_returncode() is not None)
        finally:
            launch.close()
        lifeline.handed_over()
        theirs.close()
        if first is None:
            return transport, partial(kill_group, transport.get_pid()), held.pop_all()
        held.callback(first.close)
        _, sockets, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1, len(network.ports))
        if sockets:  # none come where it could not be confined, which it has said
            proxy = AgentProxy(network, [socket.socket(fileno=one) for one in sockets])
            held.push_async_callback(proxy.stop)
        return transport, first.kill, held.pop_all()


def clean_environment(home: Path, allowed: Sequence[str] = ()) -> dict[str, str]:
    """A program's environment: paths, language, proxies, a home of its own, and what is allowed by name."""
    environment = {name: os.environ[name] for name in (*_PASSED_ON, *allowed) if name in os.environ}
    return {**environment, "HOME": str(home), "TMPDIR": str(home / "tmp")}


class _Watched(asyncio.SubprocessProtocol):
    """Collects what a program writes. `over` is set when it has exited or has said too much."""

    def __init__(self, on_line: OnLine | None) -> None:
        self.on_line = on_line
        self.over, self.exited, self.silent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.output, self.errors = bytearray(), bytearray()
        self.cut = False
        self._open = {1, 2}
        self._skipping = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors += data
            del self.errors[:-_STDERR_TAIL]
        elif self.on_line is not None:
            self._lines(data, self.on_line)
        elif not self.cut:
            self.output += data
            if len(self.output) > MAX_OUTPUT_BYTES:
                self.cut = True
                self.over.set()

    def _lines(self, data: bytes, on_line: OnLine) -> None:
        first, *rest = data.split(b"\n")
        self.output += first
        for piece in rest:
            if not self._skipping and on_line(bytes(self.output)):
                self.over.set()
            self._skipping = False
            self.output = bytearray(piece)
        if len(self.output) > MAX_LINE_BYTES:
            self.output.clear()
            self._skipping = self.cut = True

    def last_line(self) -> None:
        """Hand over what came after the last line end."""
        if self.on_line is not None:
            if self.output and not self._skipping:
                self.on_line(bytes(self.output))
            self.output.clear()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.over.set()


def _end(starting: asyncio.Task[_Started]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        transport, kill, _ = starting.result()
        with suppress(ProcessLookupError):
            kill()
        running.discard(kill)
        transport.close()


def _die_with_worker() -> None:
    """Runs in the child before an unconfined program: be killed with the worker."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_pipes_to_nobody() -> None:
    """A root worker's confined program becomes nobody, who could not open /dev/stderr by that name otherwise."""
    if os.geteuid() == 0:
        for pipe in (0, 1, 2):
            with suppress(OSError):
                os.fchown(pipe, NOBODY, NOBODY)


@dataclass(frozen=True)
class AgentFolders:
    """Where a program lives for one attempt; `home` is new and empty but for `tmp`."""

    home: Path
    workspace: Path


@asynccontextmanager
async def folders(request: Request) -> AsyncIterator[AgentFolders]:
    """A new home, and the request's workspace or a new one; what is new is deleted at the end."""
    root = Path(tempfile.mkdtemp(prefix="uplift-agent-"))
    try:
        yield _made(root, request.workspace)
    finally:
        # Agents can leave many files; the loop must not wait for them.
        await asyncio.to_thread(remove, root)


def _made(root: Path, workspace: Path | None) -> AgentFolders:
    home = root.resolve() / "home"
    (home / "tmp").mkdir(parents=True)
    place = workspace or root / "workspace"
    place.mkdir(exist_ok=True)
    return AgentFolders(home, place.resolve())


def mount(skill: Path, into: Path, places: AgentFolders) -> None:
    """Copy a skill's folder to where a program looks for skills, under the skill's own name.

    An earlier try of the program may have left a copy there, which is replaced, or a link to somewhere else: this
    process may write where the program may not, so it follows none.
    """
    for own in (places.workspace, places.home):
        for part in (into, *into.parents) if into.is_relative_to(own) else ():
            if part != own and part.is_relative_to(own) and part.is_symlink():
                raise ModelFailed(f"{part.relative_to(own)} is a link, where the skill was to be put")
    remove(into / skill.name)
    shutil.copytree(skill, into / skill.name, symlinks=True)


def own_deadline(request: Request) -> float:
    """Seconds the program may run: a little less than the attempt's time-out, so that its cost is still recorded."""
    return request.timeout_seconds - min(1.0, request.timeout_seconds / 20)

"""Keep an agent's program away from the machine it runs on, by bubblewrap where that works.

Inside it sees the system's programs and libraries, its own workspace and home, its skill, and the network; it
does not see anyone's home, the suite, other attempts, or other processes. See docs/isolation.md.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from judges.judgment import Sandbox
from workers.models import ModelFailed

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store")
_NAMES = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/var/lib/ca-certificates")
_SECRET = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private")
_PROBE_SECONDS = 10

log = logging.getLogger(__name__)


def confined(
    argv: Sequence[str], *, sandbox: Sandbox, workspace: Path, home: Path, readable: Sequence[Path] = ()
) -> list[str]:
    """The command line that runs `argv` confined, or `argv` itself where confinement is off or does not work.

    Blocks for a moment when it is called first in a process. Raises ModelFailed where it is required in vain.
    """
    if sandbox == "off":
        return list(argv)
    if not works():
        if sandbox == "required":
            raise ModelFailed("sandbox required, but bubblewrap does not work here", hopeless=True)
        _warn()
        return list(argv)
    program = shutil.which(argv[0]) or argv[0]
    prefix = [*_base()]
    for path in (*_needed(Path(program)), *(one.resolve() for one in readable)):
        prefix += ["--ro-bind-try", str(path), str(path)]
    for path in (workspace.resolve(), home.resolve()):
        prefix += ["--bind", str(path), str(path)]
    return [*prefix, "--chdir", str(workspace.resolve()), "--", program, *argv[1:]]


@lru_cache(maxsize=1)
def works() -> bool:
    """Whether bubblewrap can do here what we ask of it; tried once per process."""
    if shutil.which("bwrap") is None:
        return False
    try:
        tried = subprocess.run(
            [*_base(), "--", "/usr/bin/env", "true"], capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def _base() -> list[str]:
    flags = ["bwrap", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    flags += ["--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in (*_SYSTEM, *_NAMES):
        flags += ["--ro-bind-try", path, path]
    # A worker that runs as root could read these; an agent has no use for them.
    for secret in map(Path, _SECRET):
        if secret.exists():
            flags += ["--tmpfs", str(secret)] if secret.is_dir() else ["--ro-bind", "/dev/null", str(secret)]
    return flags


def _needed(program: Path) -> list[Path]:
    """What a program needs beside the system: itself, its packages, and node if that runs it."""
    resolved = program.resolve()
    needed = [program, resolved]
    if "node_modules" in resolved.parts:
        at = resolved.parts.index("node_modules")
        needed.append(Path(*resolved.parts[: at + 1]))
        if node := shutil.which("node"):
            needed += [Path(node), Path(node).resolve()]
    return [
        path
        for path in dict.fromkeys(needed)
        if not str(path).startswith(tuple(f"{one}/" for one in _SYSTEM))
    ]


@lru_cache(maxsize=1)
def _warn() -> None:
    log.warning("bubblewrap does not work here: agents run unconfined and can read what this worker can read")

"""How much a command in the sandbox may take, and the cgroup (v2) that bounds all its processes together.

A cgroup is there only where this process may make one. It also counts memory that no process maps, such as files in
memory, and file systems in memory.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
_ROOT = Path("/sys/fs/cgroup")
_NEEDED = {"memory", "pids"}
_PREFIX = "uplift-"
_REMOVE_SECONDS = 1.0
_PERIOD = 100_000  # microseconds, over which the kernel adds up processor time


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds on a command. Memory holds for each process (address space) and for all together (resident).

    `disk_bytes` holds without bubblewrap, where not everything that can be written to is small and in memory.
    """

    memory_bytes: int = 4096 * MIB
    processes: int = 64
    file_bytes: int = 64 * MIB
    disk_bytes: int = 512 * MIB
    open_files: int = 256
    output_bytes: int = 1 * MIB
    report_bytes: int = 4 * MIB


class Cgroup:
    """A cgroup with limits, of which memory and processes count `share` times; it leaves a processor to others."""

    def __init__(self, parent: Path, limits: SandboxLimits, share: int) -> None:
        _remove_those_of_dead_workers(parent)
        self.path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self.path.mkdir()
        self._set("memory.max", limits.memory_bytes * share)
        self._set("pids.max", limits.processes * share + 8)  # and ours
        quota = f"{max(1, len(os.sched_getaffinity(0)) - 1) * _PERIOD} {_PERIOD}"
        # Not every machine has these.
        for name, value in (("memory.swap.max", 0), ("cpu.weight", 50), ("cpu.max", quota)):
            with suppress(OSError):
                self._set(name, value)

    def take(self, process: int) -> None:
        """Move a process here, with all that it will start."""
        self._set("cgroup.procs", process)

    def remove(self) -> None:
        """Remove it, as its last processes go; one that stays is removed with those of dead workers."""
        latest = time.monotonic() + _REMOVE_SECONDS
        while time.monotonic() < latest:
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.01)

    def _set(self, name: str, value: int | str) -> None:
        (self.path / name).write_text(str(value))


def made(limits: SandboxLimits, share: int) -> Cgroup | None:
    """A new cgroup, where this process may make one."""
    parent = delegated()
    with suppress(OSError):
        return Cgroup(parent, limits, share) if parent else None
    return None


@functools.cache
def delegated() -> Path | None:
    """The nearest cgroup, from our own upwards, in which we may make others with limits; None on most machines."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = _ROOT / line.removeprefix("0::/")
                return next((place for place in (own, *own.parents) if _takes_others(place)), None)
    return None


def _takes_others(place: Path) -> bool:
    with suppress(OSError):
        given = set((place / "cgroup.subtree_control").read_text().split())
        writable = os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK)
        return given >= _NEEDED and writable and (os.geteuid() != 0 or _is_delegated(place))
    return False


def _is_delegated(place: Path) -> bool:
    """Whether a cgroup was given away: root may write to any, also to those above the limits of its own service."""
    if place == _ROOT:  # the machine's own has no type; a container's has
        return (place / "cgroup.type").exists()
    for mark in ("trusted.delegate", "user.delegate"):  # systemd's
        with suppress(OSError):
            return os.getxattr(place, mark) == b"1"
    return False


def _remove_those_of_dead_workers(parent: Path) -> None:
    for left in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with suppress(OSError):
                left.rmdir()

"""How much a command in the sandbox may take."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds on a command. Memory holds for each process (address space) and for all together (resident)."""

    memory_bytes: int = 4096 * MIB
    processes: int = 64
    file_bytes: int = 64 * MIB
    open_files: int = 256
    output_bytes: int = 1 * MIB
    report_bytes: int = 4 * MIB

"""Write files whole or not at all: no reader, and no full disk, ever leaves half of one behind."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its place, durably, when the block ends well; else what was there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def write_bytes(data: bytes, path: Path) -> Path:
    """Put a whole file in place."""
    with writing(path) as file:
        file.write(data)
    return path


def write_text(text: str, path: Path) -> Path:
    """Put a whole text file in place, as UTF-8."""
    return write_bytes(text.encode("utf-8"), path)


def _sync_folder(folder: Path) -> None:
    # The rename itself is only durable once the folder is; some filesystems cannot do that.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

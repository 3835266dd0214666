"""The files that agents left, kept beside a run's records, so that judges can look at them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from aggregate.files import write_bytes
from aggregate.records import AttemptRecord
from workers.bundles import is_digest
from workers.store import Store, UnknownRun

MAX_BYTES = 256 * 1024 * 1024


class Workspaces:
    """Bundles in a folder by digest; equal workspaces are kept once, and all together have a limit."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._attempts: dict[str, int] = {}

    def noting(self, records: Iterable[AttemptRecord]) -> Iterator[AttemptRecord]:
        """The same records; the workspaces that they name are what `save` will keep."""
        for record in records:
            if record.workspace is not None and is_digest(record.workspace):
                self._attempts[record.workspace] = self._attempts.get(record.workspace, 0) + 1
            yield record

    def save(self, store: Store) -> str | None:
        """Bring the noted workspaces home; says how many attempts lose theirs, to the limit or to time."""
        room, lost = self.max_bytes, 0
        for digest in sorted(self._attempts):
            path = self.folder / digest
            try:
                data = path.read_bytes() if path.is_file() else store.bundle(digest)
            except UnknownRun:
                data = b""
            if not data or len(data) > room:
                lost += self._attempts[digest]
                continue
            room -= len(data)
            if not path.is_file():
                write_bytes(data, path)
        if not lost:
            return None
        return (
            f"the files that agents left in {lost} attempts are not kept (limit {self.max_bytes >> 20} MiB a run); "
            "pytest judges cannot be repeated on them"
        )

    def read(self, digest: str) -> bytes | None:
        """A kept bundle, compressed as it travels; None where it was not kept."""
        try:
            return (self.folder / digest).read_bytes() if is_digest(digest) else None
        except OSError:
            return None

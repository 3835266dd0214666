"""Folders that travel: packed into one content-addressed, compressed value, and unpacked safely elsewhere.

A bundle is a compressed tar of regular files. Its digest covers their paths, contents and executable bits and
nothing else, so that a folder has the same digest on every machine. Empty folders are not kept.
Covered when unpacking: bombs, links, devices, paths that leave the folder. Not covered: what the files do.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import re
import shutil
import stat
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aggregate.text.files import TooLarge, opened
from judges.errors import UpliftError
from judges.inside.remove_folder import remove

MAX_TOTAL_BYTES = 64 * 1024 * 1024
MAX_FILES = 5_000
MAX_PATH_BYTES = 240
SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules"})

# A member costs a header and padding, and perhaps a header of its own for a long path.
_TAR_OVERHEAD = MAX_FILES * 4 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleError(UpliftError):
    """A folder cannot be packed, or a bundle cannot be unpacked."""


class BundleTooLarge(BundleError):
    """Too many files, too many bytes, or too long a path."""


class BundleInvalid(BundleError):
    """Broken data, data that belongs to another digest, or something a bundle must not hold."""


class BundleMissing(BundleError):
    """Nobody has a bundle of that digest."""


@dataclass(frozen=True)
class Bundle:
    """A packed folder: `digest` (SHA-256, hex) names its content, `data` holds it compressed."""

    digest: str
    data: bytes


def pack(
    folder: Path,
    *,
    under: str = "",
    replace: Mapping[str, bytes] | None = None,
    leave_out: Collection[Path] = (),
) -> Bundle:
    """Pack a folder's files; `under` puts them into a subfolder, `replace` gives files another content.

    `leave_out` names files and folders that stay behind where they are inside.
    """
    start = f"{under}/" if under else ""
    content = {}
    executable = set()
    room = MAX_TOTAL_BYTES
    for name, path in files(folder, leave_out=leave_out).items():
        data, runnable = _read(path, room)
        content[start + name] = data
        room -= len(data)
        if runnable:
            executable.add(start + name)
    content.update({start + name: data for name, data in (replace or {}).items()})
    return pack_files(content, executable=executable)


def pack_files(content: Mapping[str, bytes], *, executable: Collection[str] = ()) -> Bundle:
    """Pack files given as path → bytes; paths are relative and use `/`."""
    _check_count(len(content))
    if (total := sum(map(len, content.values()))) > MAX_TOTAL_BYTES:
        raise BundleTooLarge(f"{total} bytes in all; at most {MAX_TOTAL_BYTES} are allowed")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(content):
            _check_path(name)
            member = tarfile.TarInfo(name)
            member.size = len(content[name])
            member.mode = 0o755 if name in executable else 0o644
            tar.addfile(member, io.BytesIO(content[name]))
    # The digest is taken before compressing: another zlib may choose other bytes for the same content.
    return Bundle(hashlib.sha256(plain.getbuffer()).hexdigest(), zlib.compress(plain.getbuffer(), 6))


def is_digest(text: str) -> bool:
    """Whether a text can be a bundle's digest, and so a safe file name."""
    return _DIGEST.fullmatch(text) is not None


def files(folder: Path, *, leave_out: Collection[Path] = ()) -> dict[str, Path]:
    """A folder's files by relative path, sorted, without version control, caches and installed packages.

    Symlinks that stay inside are followed; one that leaves, dangles or loops is an error, and so is a device.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise BundleInvalid(f"{folder}: not a folder")
    try:
        resolved = (path.resolve() for path in leave_out)
        hidden = frozenset(path for path in resolved if not root.is_relative_to(path))
        return dict(sorted((path.relative_to(root).as_posix(), path) for path in _walk(root, hidden)))
    except OSError as error:
        raise BundleInvalid(f"{folder}: cannot be read: {error}") from error


def unpack(data: bytes, into: Path, *, digest: str | None = None, most_bytes: int = MAX_TOTAL_BYTES) -> None:
    """Write a bundle's files below `into`, which is made if need be; stop at the first thing out of bounds.

    With a `digest`, data of another content is refused. After an error `into` may hold some of the files.
    """
    try:
        plain = inflated(data, min(most_bytes, MAX_TOTAL_BYTES) + _TAR_OVERHEAD)
        if digest is not None and hashlib.sha256(plain).hexdigest() != digest:
            raise BundleInvalid(f"the bundle's content is not that of digest {digest}")
        into.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            for count, member in enumerate(tar, start=1):
                _check_count(count)
                most_bytes -= member.size
                if most_bytes < 0:
                    raise BundleTooLarge("unpacks to more than is allowed")
                _write(tar, member, into)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise BundleInvalid(f"not a bundle: {error}") from error
    except OSError as error:
        raise BundleInvalid(f"cannot unpack a bundle into {into}: {error.strerror or error}") from error


def inflated(data: bytes, most: int) -> bytes:
    """The plain bytes of compressed data, refusing to grow past the limit."""
    inflating = zlib.decompressobj()
    plain = inflating.decompress(data, most + 1)
    if len(plain) > most:
        raise BundleTooLarge(f"unpacks to more than {most} bytes")
    if not inflating.eof:
        raise EOFError("it ends too early")
    return plain


class Folders:
    """Bundles as read-only local folders, each unpacked once per process and removed when the process ends.

    Safe to use from several threads. `open` writes to disk: a coroutine calls it in a thread.
    """

    def __init__(self, parent: Path | None = None, most_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._parent = parent
        self._most_bytes = most_bytes
        self._root: Path | None = None
        self._ready: dict[str, Path] = {}
        self._lock = threading.Lock()

    def get(self, digest: str) -> Path | None:
        """The bundle's folder if it is unpacked already; never waits."""
        return self._ready.get(digest)

    def open(self, digest: str, data: bytes) -> Path:
        """The bundle's folder, unpacked from `data` unless it is there already."""
        if not is_digest(digest):
            raise BundleInvalid(f"{digest!r} is not a digest")
        with self._lock:
            if digest not in self._ready:
                self._ready[digest] = self._unpack(digest, data)
            return self._ready[digest]

    def close(self) -> None:
        """Remove every folder; happens by itself when the process ends."""
        with self._lock:
            root, self._root = self._root, None
            self._ready.clear()
        if root is not None:
            remove(root)

    def _unpack(self, digest: str, data: bytes) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="uplift-bundles-", dir=self._parent))
            atexit.register(_remove_in, os.getpid(), self._root)
        folder = self._root / digest
        try:
            unpack(data, folder, digest=digest, most_bytes=self._most_bytes)
        except BundleError:
            remove(folder)
            raise
        for path in [*folder.rglob("*"), folder]:
            path.chmod(path.stat().st_mode & ~0o222)
        return folder


def _walk(root: Path, hidden: frozenset[Path]) -> Iterator[Path]:
    entries = 0
    pending = [(root, frozenset({root}))]
    while pending:
        folder, above = pending.pop()
        for path in folder.iterdir():
            if path.name in SKIPPED:
                continue
            # Folders count too: links between a few of them can spell out millions of paths.
            entries += 1
            _check_count(entries)
            _check_path(path.relative_to(root).as_posix())
            real = _inside(path, root) if path.is_symlink() else path
            if hidden and not hidden.isdisjoint((real.resolve(), *real.resolve().parents)):
                continue
            mode = real.stat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise BundleInvalid(f"{path}: neither a file nor a folder; remove it")
            elif real in above:
                raise BundleInvalid(f"{path}: the link leads back to a folder that holds it; remove it")
            else:
                pending.append((path, above | {real}))


def _inside(link: Path, root: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BundleInvalid(f"{link}: the link leads nowhere; remove it") from error
    if not real.is_relative_to(root):
        raise BundleInvalid(f"{link}: the link leads out of {root}; copy what it points to")
    return real


def _read(path: Path, room: int) -> tuple[bytes, bool]:
    try:
        with opened(path, room) as file:
            data = file.read()
            runnable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
    except TooLarge as error:
        raise BundleTooLarge(f"{path}: more than {MAX_TOTAL_BYTES} bytes with the files before it") from error
    except OSError as error:
        raise BundleInvalid(f"{path}: cannot be read: {error.strerror}") from error
    return data, runnable


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise BundleInvalid(f"{member.name!r} is not a regular file")
    _check_path(member.name)
    source = tar.extractfile(member)
    assert source is not None  # as it is for everything but regular files
    place = into / member.name
    place.parent.mkdir(parents=True, exist_ok=True)
    # "x" refuses a second file of the same path, and would refuse to write through a link.
    with place.open("xb") as file:
        shutil.copyfileobj(source, file)
    place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _check_count(count: int) -> None:
    if count > MAX_FILES:
        raise BundleTooLarge(f"more than {MAX_FILES} files and folders")


def _check_path(name: str) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise BundleInvalid(f"{name!r}: the path is not UTF-8; rename it") from error
    if length > MAX_PATH_BYTES:
        raise BundleTooLarge(
            f"{name[:60]!r}…: a path of {length} bytes; at most {MAX_PATH_BYTES} are allowed"
        )
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise BundleInvalid(f"{name!r}: not a path inside the folder")
    if not name.isprintable():
        raise BundleInvalid(f"{name!r}: a path must not hold control characters; rename it")


def _remove_in(process: int, root: Path) -> None:
    # A forked child runs the parent's exit handlers too, and must leave the parent's folders alone.
    if os.getpid() == process:
        remove(root)

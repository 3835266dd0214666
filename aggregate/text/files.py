"""Read files that anyone may have put there, with a bound, and write files whole or not at all.

Every file that a user names, or a stranger leaves, is read by `read` or `lines`. A device is refused, a file or a
compressed file of too many bytes ends in an error, and a pipe that nobody writes to is not waited for.
What is made in a folder that was named with `keep_private` is for its own user alone; elsewhere the umask decides.

`exists`, `is_file` and `is_folder` raise OSError for what may not be looked at. `Path.exists()` and its like call that
missing from Python 3.14 on, and whoever lacks a permission would search for a file that is there.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import gzip
import io
import os
import secrets
import select
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_LINES = 20_000_000
MAX_LINES_BYTES = 16 * 1024**3
# How long a pipe is waited for: until somebody opens its other end, and until somebody who has writes to it.
NO_WRITER_SECONDS = 5.0
SILENT_SECONDS = 60.0
_CHUNK = 256 * 1024
_GZIP = b"\x1f\x8b"
_private: set[Path] = set()


class Unreadable(OSError):
    """A file that is not read to its end: `strerror` says what is wrong with it and what is allowed.

    `words` says it without a subject, for messages that begin with the file's name.
    """

    def __init__(self, path: Path, words: str) -> None:
        super().__init__(errno.EINVAL, f"it {words}", str(path))
        self.words = words


class TooLarge(Unreadable):
    """A file, or what it unpacks to, has more bytes than are allowed."""


def read(path: Path, most: int, *, pipes: bool = False, links: bool = True) -> bytes:
    """The bytes of a regular file, at most `most` of them; raises OSError, whose `strerror` says what is wrong.

    With `pipes` also what comes through a pipe; without `links` no symbolic link is followed at the path's end.
    """
    with opened(path, most, pipes=pipes, links=links) as file:
        return file.read()


def lines(path: Path, *, most: int = MAX_LINES_BYTES, pipes: bool = False) -> Iterator[bytes]:
    """The lines of a regular file or, with `pipes`, of a pipe, one by one, plain or compressed by gzip.

    Raises OSError, whose `strerror` says what is wrong: also for a line of over 64 MiB, and for over `most` bytes
    in all, counted after unpacking.
    """
    with opened(path, most, pipes=pipes) as source:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=source)) if source.peek(2).startswith(_GZIP) else source
        room, room_for_lines = most, MAX_LINES
        try:
            while line := file.readline(MAX_LINE_BYTES + 1):
                room, room_for_lines = room - len(line), room_for_lines - 1
                if len(line) > MAX_LINE_BYTES:
                    raise TooLarge(
                        path, f"has a line of more than {_size(MAX_LINE_BYTES)}; no more are allowed"
                    )
                if room < 0 or room_for_lines < 0:
                    allowed = _size(most) if room < 0 else f"{MAX_LINES:,} lines"
                    raise TooLarge(path, f"holds more than {allowed}; no more are allowed")
                yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as broken:
            raise Unreadable(path, f"is no whole gzip file: {broken}") from None


@contextlib.contextmanager
def no_cycle_search() -> Iterator[None]:
    """Keep the collector from what is being read: values have no cycles, and walking 100,000 of them takes seconds."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def opened(path: Path, most: int, *, pipes: bool = False, links: bool = True) -> Iterator[io.BufferedReader]:
    """A regular file, or with `pipes` a pipe, to read from: more than `most` bytes raise TooLarge."""
    # Before opening, because to open a device can do something; and again after, because the path may have changed.
    _check(path, path.stat(follow_symlinks=links), most, pipes=pipes)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        _check(path, status, most, pipes=pipes)
        yield io.BufferedReader(_Bounded(path, file, most, is_pipe=stat.S_ISFIFO(status.st_mode)), _CHUNK)


class _Bounded(io.RawIOBase):
    """The bytes of an open file: no more than `most`, and from a pipe only while somebody writes to it."""

    def __init__(self, path: Path, file: io.FileIO, most: int, *, is_pipe: bool) -> None:
        self._path, self._file, self._most, self._room = path, file, most, most
        self._had_writer = not is_pipe

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io wants a type that has no name
        # None: nothing to read yet. 0: the end, or a pipe that nobody has opened to write.
        while not (size := self._file.readinto(buffer)):
            if size == 0 and self._had_writer:
                return 0
            self._wait(NO_WRITER_SECONDS if size == 0 else SILENT_SECONDS)
            self._had_writer = True
        self._had_writer = True
        self._room -= size
        if self._room < 0:
            raise TooLarge(self._path, f"holds more than {_size(self._most)}; no more are allowed")
        return size

    def _wait(self, seconds: float) -> None:
        waiting = select.poll()
        waiting.register(self._file, select.POLLIN)
        if not waiting.poll(1000 * seconds):
            raise Unreadable(self._path, f"is a pipe that nobody wrote to for {seconds:g} s; give a file")


def _check(path: Path, status: os.stat_result, most: int, *, pipes: bool) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise Unreadable(path, "is a folder")
    if stat.S_ISREG(mode):
        if status.st_size > most:
            raise TooLarge(path, f"holds {status.st_size:,} bytes; at most {_size(most)} are allowed")
    elif stat.S_ISFIFO(mode):
        if not pipes:
            raise Unreadable(path, "is a pipe and not a regular file")
    elif not _is_null(status):
        raise Unreadable(path, "is not a regular file")


def _is_null(status: os.stat_result) -> bool:
    # /dev/null is how people say "no file", for example to pass over the config that would be found.
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev


def _size(count: int) -> str:
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"


def keep_private(root: Path) -> None:
    """Make folders in `root`, and `root` itself, with mode 0700 and files with 0600; what is there stays as it is."""
    _private.add(_absolute(root))


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    mode = 0o700 if _is_private(folder) else 0o777
    try:
        folder.mkdir(mode, exist_ok=True)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(mode, exist_ok=True)


def open_to_write(path: Path, mode: str) -> IO[Any]:
    """Open a file; where that makes it, with the rights that belong there from the start."""
    rights = 0o600 if _is_private(path) else 0o666
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, rights))


def _is_private(path: Path) -> bool:
    # A copy: another thread may name a folder meanwhile, for a run of its own.
    return any(_absolute(path).is_relative_to(root) for root in tuple(_private))


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its place, durably, when the block ends well; else what was there stays."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open_to_write(temporary, "xb") as file:
            yield cast("BinaryIO", file)
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


def exists(path: Path) -> bool:
    return _mode(path) != 0


def is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """What is there, links followed; 0 where nothing is, or could be."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return 0

"""Read what a child process writes, up to a bound, without trusting it to stop."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

_CHUNK_BYTES = 65536


class Pipe:
    """A pipe from a child. `taken` holds at most `bound` bytes; `over` says that there was more."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.taken = b""
        self.over = False
        self._read_end: int | None
        self._write_end: int | None
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    @property
    def write_end(self) -> int:
        """The descriptor to give to the child."""
        if self._write_end is None:
            raise ValueError("the write end has been handed over")
        return self._write_end

    @property
    def read_end(self) -> int | None:
        """The descriptor to wait for; None after the last writer has gone."""
        return self._read_end

    def handed_over(self) -> None:
        """Close our copy of the write end: the child has its own."""
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def take(self) -> None:
        """Read what is there now, and note the end of the stream."""
        while self._read_end is not None and not self.over:
            try:
                chunk = os.read(self._read_end, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._close_read_end()
                return
            room = self.bound - len(self.taken)
            self.over = len(chunk) > room
            self.taken += chunk[:room]

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.handed_over()
        self._close_read_end()

    def _close_read_end(self) -> None:
        if self._read_end is not None:
            os.close(self._read_end)
            self._read_end = None


class Lifeline:
    """A pipe to a child that says two things: a byte tells it to end its work, the end of the stream that we
    are gone.
    """

    def __init__(self) -> None:
        self._read_end: int | None
        self._write_end: int | None
        self._read_end, self._write_end = os.pipe()

    @property
    def read_end(self) -> int:
        """The descriptor to give to the child."""
        if self._read_end is None:
            raise ValueError("the read end has been handed over")
        return self._read_end

    def handed_over(self) -> None:
        """Close our copy of the read end: the child has its own."""
        if self._read_end is not None:
            os.close(self._read_end)
            self._read_end = None

    def tell_to_end(self) -> None:
        """Say it, if the child is still there to hear it."""
        if self._write_end is not None:
            with suppress(BrokenPipeError):
                os.write(self._write_end, b"x")

    def let_go(self) -> None:
        """Close our end, now rather than when the block ends."""
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.handed_over()
        self.let_go()


def wait(pipes: Iterable[Pipe], others: Iterable[int], seconds: float) -> None:
    """Wait until a pipe can be read, one of the other descriptors is ready, or time is up; take what is
    there.
    """
    pipes = list(pipes)
    poll = select.poll()
    for descriptor in [*(pipe.read_end for pipe in pipes if not pipe.over), *others]:
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    poll.poll(max(0.0, seconds) * 1000)
    for pipe in pipes:
        pipe.take()

"""Read what a child process writes, up to a bound, without trusting it to stop."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Literal, Self

_CHUNK_BYTES = 65536
_STATUS_BYTES = 4096
_End = Literal["read", "write"]


class _Ends:
    """The descriptors of a pipe's ends that are still open here; the block's end closes them."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self._open: dict[_End, int] = {"read": read_end, "write": write_end}

    def _close(self, end: _End) -> None:
        if end in self._open:
            os.close(self._open.pop(end))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close("write")
        self._close("read")


class Pipe(_Ends):
    """A pipe from a child. `taken` holds at most `bound` bytes; `over` says that there was more."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self.bound = bound
        self.taken = b""
        self.over = False
        os.set_blocking(self._open["read"], False)

    @property
    def write_end(self) -> int:
        """The descriptor to give to the child, until it has been handed over."""
        return self._open["write"]

    @property
    def read_end(self) -> int | None:
        """The descriptor to wait for; None after the last writer has gone."""
        return self._open.get("read")

    def handed_over(self) -> None:
        """Close our copy of the write end: the child has its own."""
        self._close("write")

    def take(self) -> None:
        """Read what is there now, and note the end of the stream."""
        while self.read_end is not None and not self.over:
            try:
                chunk = os.read(self.read_end, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._close("read")
                return
            room = self.bound - len(self.taken)
            self.over = len(chunk) > room
            self.taken += chunk[:room]


class Lifeline(_Ends):
    """A pipe to a child: a byte tells it to end its work, the end of the stream tells it that we are gone."""

    @property
    def read_end(self) -> int:
        """The descriptor to give to the child, until it has been handed over."""
        return self._open["read"]

    def handed_over(self) -> None:
        """Close our copy of the read end: the child has its own."""
        self._close("read")

    def tell_to_end(self) -> None:
        """Tell the child to end its work, if it still runs."""
        if "write" in self._open:
            with suppress(BrokenPipeError):
                os.write(self._open["write"], b"x")

    def let_go(self) -> None:
        """Close our end, now rather than when the block ends."""
        self._close("write")


class Taps:
    """The bounded pipes that a command in a sandbox writes to, and its lifeline."""

    def __init__(self, output_bytes: int, report_bytes: int, held: ExitStack) -> None:
        self.output = held.enter_context(Pipe(output_bytes))
        self.report = held.enter_context(Pipe(report_bytes))
        self.status = held.enter_context(Pipe(_STATUS_BYTES))
        self.lifeline = held.enter_context(Lifeline())
        self.pipes = (self.output, self.report, self.status)

    @property
    def over(self) -> bool:
        """Whether more was printed or reported than is allowed."""
        return self.output.over or self.report.over

    def handed_over(self) -> None:
        """Close our copies of the command's ends."""
        for end in (*self.pipes, self.lifeline):
            end.handed_over()

    def take(self) -> None:
        """Read what is there now."""
        for pipe in self.pipes:
            pipe.take()

    def wait(self, others: Iterable[int], seconds: float) -> None:
        """Wait until a pipe can be read, one of the other descriptors is ready, or time is up; then read."""
        poll = select.poll()
        for descriptor in [*(pipe.read_end for pipe in self.pipes if not pipe.over), *others]:
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        self.take()


def events(report: bytes, nonce: str) -> Iterator[dict[str, Any]]:
    """The lines of a report that carry the nonce, empty where one makes no sense; one that was cut is left out."""
    for line in report.split(b"\n")[:-1]:
        # Looked for first: millions of other lines would take long to parse.
        if nonce.encode() in line:
            event = None
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
            yield event if isinstance(event, dict) and event.get("nonce") == nonce else {}

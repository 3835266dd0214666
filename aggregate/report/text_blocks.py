"""Prompts, outputs and judgments in compressed blocks that a page unpacks when they are looked at.

Blocks are part of the page up to INLINE_BYTES; a larger run keeps them in a folder beside it, one small page a
block, because a file opened from disk may show other files in a frame but may not read them.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggregate.records import AttemptRecord
from aggregate.report.material import TaskText

INLINE_BYTES = 8 * 2**20  # of base64 text in the page
TEXT_CHARACTERS = 100_000  # of one prompt, output or reason
_LIST_ENTRIES = 500
_BLOCK_CHARACTERS = 400_000
_KEYS = {"run_id", "task", "tier", "tags", "arm", "model"}  # the page's index has them


class TextBlocks:
    """Takes entries one by one and gives each a number; holds one block open and the others compressed."""

    def __init__(self, folder: Path, inline_bytes: int = INLINE_BYTES) -> None:
        self.starts: list[int] = []  # the number of each block's first entry
        self.inline: list[str] = []
        self.is_outside = False
        self._folder = folder
        self._growing = folder.with_name(f".{folder.name}.part")
        self._inline_bytes = inline_bytes
        self._size = 0
        self._next = 0
        self._open: list[str] = []
        self._open_characters = 0

    def add(self, entry: str) -> int:
        """Store an entry, written as JSON, and return its number."""
        text = _short(entry)
        if self._open and self._open_characters + len(text) > _BLOCK_CHARACTERS:
            self._close()
        if not self._open:
            self.starts.append(self._next)
        self._open.append(text)
        self._open_characters += len(text)
        self._next += 1
        return self._next - 1

    def finish(self) -> None:
        """Close the last block, and put a folder of blocks in the place of an older one."""
        if self._open:
            self._close()
        if self._folder.is_dir():
            shutil.rmtree(self._folder)
        if self.is_outside:
            self._growing.rename(self._folder)

    def discard(self) -> None:
        """Leave nothing behind after a failure."""
        shutil.rmtree(self._growing, ignore_errors=True)

    def _close(self) -> None:
        data = f"[{','.join(self._open)}]".encode("utf-8", "replace")
        packed = base64.b64encode(gzip.compress(data, compresslevel=4, mtime=0)).decode("ascii")
        self._open, self._open_characters = [], 0
        self.inline.append(packed)
        self._size += len(packed)
        if self._size > self._inline_bytes:
            self._move_outside()

    def _move_outside(self) -> None:
        from aggregate.report import pages

        if not self.is_outside:
            self.discard()
            self._growing.mkdir(parents=True)
            self.is_outside = True
        first = len(self.starts) - len(self.inline)
        for number, packed in enumerate(self.inline, start=first):
            (self._growing / f"{number}.html").write_text(pages.block(number, packed), "ascii")
        self.inline = []


def attempt_entry(record: AttemptRecord) -> str:
    """All of an attempt that the page's index does not say, as JSON."""
    return record.model_dump_json(exclude_defaults=True, exclude=_KEYS)


def task_entry(task: TaskText) -> str:
    """As JSON, what a task asked, and its judge's settings: each a text, or a list of texts."""
    settings = {
        name: [_as_text(one) for one in value] if isinstance(value, list) else _as_text(value)
        for name, value in task.judge.items()
        if value not in (None, [], {}, "")
    }
    return _dumps({"prompt": task.prompt, "description": task.description, "judge": settings})


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _short(entry: str) -> str:
    # Most entries are short as a whole, and taking them apart is what makes 100,000 of them slow.
    return entry if len(entry) <= TEXT_CHARACTERS else _dumps(_cut(json.loads(entry)))


def _cut(value: Any) -> Any:
    """The entry with every long text and list cut, saying by how much."""
    if isinstance(value, str):
        if len(value) <= TEXT_CHARACTERS:
            return value
        return f"{value[:TEXT_CHARACTERS]}\n… cut here: {len(value) - TEXT_CHARACTERS:,} more characters"
    if isinstance(value, Mapping):
        return {name: _cut(entry) for name, entry in value.items()}
    if isinstance(value, list):
        cut = [_cut(entry) for entry in value[:_LIST_ENTRIES]]
        more = len(value) - _LIST_ENTRIES
        return [*cut, f"… and {more:,} more"] if more > 0 and isinstance(value[0], str) else cut
    return value

"""Read records that anyone wrote as JSON lines, and name every line that is not one."""

from __future__ import annotations

import difflib
import gzip
import json
import zlib
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, cast

from pydantic import TypeAdapter, ValidationError

from aggregate.bounded import BoundedRecord
from aggregate.plain_text import plain
from aggregate.records import AttemptRecord
from aggregate.run_info import BASELINE, CANDIDATE, ORACLE, UNKNOWN_MODEL, is_known_arm

MAX_PROBLEMS = 50
_SHOWN = 80
_KEY = itemgetter("run_id", "task", "arm", "attempt", "model")
_validated = TypeAdapter(BoundedRecord).validator.validate_json  # a tenth faster than the model's own method


class RecordsError(Exception):
    """A file does not hold records; `problems` says where and why, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_jsonl(path: Path) -> Iterator[AttemptRecord]:
    """Records of a .jsonl or .jsonl.gz file, one by one; blank lines and a BOM are allowed.

    Raises RecordsError with up to 50 problems as `file:line: path: message`, once the file has been read;
    nothing more is yielded after the first problem.
    """
    problems: list[str] = []
    seen: dict[tuple[Any, ...], int] = {}
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not line.strip():
                    continue
                try:
                    record = _read(line)
                except ValidationError as invalid:
                    wrong = _invalid(invalid)
                else:
                    key = _KEY(vars(record))
                    if not record.model:
                        key = (*key[:-1], UNKNOWN_MODEL)
                    first = seen.setdefault(key, number)
                    if first == number and is_known_arm(record.arm):
                        if not problems:
                            yield record
                        continue
                    wrong = _misplaced(record, number, first)
                problems += [f"{path}:{number}: {problem}" for problem in wrong]
                if len(problems) > MAX_PROBLEMS:
                    problems[MAX_PROBLEMS:] = [
                        f"{path}: more problems follow; the first {MAX_PROBLEMS} are shown"
                    ]
                    break
    except FileNotFoundError:
        raise RecordsError([f"{path}: records not found"]) from None
    except (OSError, EOFError, zlib.error) as broken:
        problems.append(f"{path}: cannot be read: {plain(str(broken), _SHOWN) or type(broken).__name__}")
    if problems:
        raise RecordsError(problems)


def _read(line: bytes) -> AttemptRecord:
    """Strict, because a score of true or a count of "3" was not measured as a number; null is what is missing."""
    try:
        record: AttemptRecord = _validated(line, strict=True)
    except ValidationError:
        given = _without_nulls(line) if b"null" in line else None
        if given is None:
            raise
        record = _validated(given, strict=True)
    return record


def _without_nulls(line: bytes) -> bytes | None:
    try:
        return json.dumps(_known(json.loads(line)), allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(part) for name, part in value.items() if part is not None}
    return [_known(part) for part in value] if isinstance(value, list) else value


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _invalid(invalid: ValidationError) -> list[str]:
    return [
        f"{_place(error['loc'])}: {plain(error['msg'], 200)}"
        for error in invalid.errors(include_url=False, include_context=False, include_input=False)
    ]


def _misplaced(record: AttemptRecord, number: int, first: int) -> list[str]:
    """What is wrong with a record of an arm that no run has, or of an attempt that is on an earlier line."""
    wrong = []
    if not is_known_arm(record.arm):
        wrong.append(f"arm: {_unknown_arm(record.arm)}")
    if first != number:
        name = (
            f"attempt {record.attempt} of task {plain(record.task, _SHOWN)}, arm {plain(record.arm, _SHOWN)}"
        )
        wrong.append(f"record: {name} is already on line {first}; every attempt has one record")
    return wrong


def _place(location: tuple[int | str, ...]) -> str:
    """A pydantic location as a path: judgments[0].score; the whole line is `record`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return plain(path.removeprefix("."), _SHOWN) or "record"


def _unknown_arm(arm: str) -> str:
    known = (BASELINE, CANDIDATE, ORACLE)
    near = difflib.get_close_matches(arm, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown arm '{plain(arm, _SHOWN)}'; allowed: baseline, candidate, candidate:<id>, oracle{hint}"

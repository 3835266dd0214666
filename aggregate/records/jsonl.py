"""Read records that anyone wrote as JSON lines, and name every line that is not one.

Such records are held to the ranges of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import reduce
from operator import itemgetter, or_
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, CANDIDATE, ORACLE, UNKNOWN_MODEL, is_known_arm
from aggregate.text import files
from aggregate.text.formats import plain, schema_of
from judges.errors import UpliftError, did_you_mean
from judges.judgment import ranges
from judges.safe_text import broken_fields

Model = TypeVar("Model", bound=BaseModel)


def _bounded(model: type[Model]) -> type[Model]:
    """The same type with its numbers held to the ranges at its fields, and its parts to theirs."""
    kinds: dict[str, Any] = {name: _held(field.annotation) for name, field in model.model_fields.items()}
    for name, valid in ranges(model).items():
        kinds[name] = Annotated[kinds[name], Field(ge=valid.low, le=valid.high)]
    own = {name: field for name, field in model.model_fields.items() if kinds[name] != field.annotation}
    fields: dict[str, Any] = {name: (kinds[name], field.default) for name, field in own.items()}
    return create_model(model.__name__, __base__=model, **fields)


def _held(kind: Any) -> Any:
    """A field's type with every model in it bounded."""
    parts = get_args(kind)
    if not parts:
        return _bounded(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else kind
    held = tuple(map(_held, parts))
    if held == parts:
        return kind
    return tuple[held] if get_origin(kind) is tuple else reduce(or_, held)  # type: ignore[valid-type]  # made here


# Built here and not beside the record, because that takes a tenth of a second.
BoundedRecord = _bounded(AttemptRecord)
MAX_PROBLEMS = 50
_SHOWN = 80
_KEY = itemgetter("run_id", "task", "arm", "attempt", "model")
# A tenth faster than the model's own method.
_validated: Callable[..., AttemptRecord] = TypeAdapter(BoundedRecord).validator.validate_json


def schema() -> dict[str, Any]:
    """The JSON Schema of a record; what is missing may be null. It cannot say that every attempt has one record."""
    made = schema_of(BoundedRecord, "Uplift record, version 1.0")
    for part in (made, *made["$defs"].values()):
        for name, value in part["properties"].items():
            if "default" in value:  # where that is null, the type allows it already
                default = {"default": value.pop("default")}
                part["properties"][name] = {"anyOf": [value, {"type": "null"}], **default}
    return made


class RecordsError(UpliftError):
    """A file does not hold records; `problems` says where and why, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_jsonl(path: Path, *, pipes: bool = False) -> Iterator[AttemptRecord]:
    """Records of a .jsonl or .jsonl.gz file, or with `pipes` of a pipe, one by one; blank lines and a BOM are allowed.

    Raises RecordsError with up to 50 problems as `file:line: path: message`, once the file has been read;
    nothing more is yielded after the first problem.
    """
    problems: list[str] = []
    seen: dict[tuple[Any, ...], int] = {}
    try:
        for number, line in enumerate(files.lines(path, pipes=pipes), start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            try:
                record = _read(line)
            except ValidationError as invalid:
                if line.strip() in (b"{", b"["):
                    what = "one JSON document over many lines, an artifact perhaps"
                    remedy = "give a run's id, or records, a JSON object a line"
                    raise RecordsError([f"{path}: {what}; {remedy}"]) from None
                wrong = broken_fields(invalid, whole="record")
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
                problems = problems[:MAX_PROBLEMS]
                problems.append(f"{path}: more problems follow; the first {MAX_PROBLEMS} are shown")
                break
    except FileNotFoundError:
        raise RecordsError([f"{path}: records not found"]) from None
    except OSError as broken:
        problems.append(f"{path}: cannot be read: {plain(broken.strerror or str(broken), _SHOWN)}")
    if problems:
        raise RecordsError(problems)


def _read(line: bytes) -> AttemptRecord:
    """Strict, because a score of true or a count of "3" was not measured as a number; null is what is missing."""
    try:
        return _validated(line, strict=True)
    except ValidationError:
        given = _without_nulls(line) if b"null" in line else None
        if given is None:
            raise
        return _validated(given, strict=True)


def _without_nulls(line: bytes) -> bytes | None:
    try:
        return json.dumps(json.loads(line, object_hook=_known), allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _misplaced(record: AttemptRecord, number: int, first: int) -> list[str]:
    """What is wrong with a record of an arm that no run has, or of an attempt that is on an earlier line."""
    wrong = []
    if not is_known_arm(record.arm):
        hint = did_you_mean(record.arm, (BASELINE, CANDIDATE, ORACLE))
        allowed = f"baseline, candidate, candidate:<id>, oracle{hint}"
        wrong.append(f"arm: unknown arm '{plain(record.arm, _SHOWN)}'; allowed: {allowed}")
    if first != number:
        task, arm = plain(record.task, _SHOWN), plain(record.arm, _SHOWN)
        name = f"attempt {record.attempt} of task {task}, arm {arm}"
        wrong.append(f"record: {name} is already on line {first}; every attempt has one record")
    return wrong

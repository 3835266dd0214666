"""Turn other tools' results into records: logs of Inspect, results of tau-bench, runs of ProjectScylla.

All are attempts of a candidate alone. What a tool does not say stays missing; an attempt whose outcome nobody can read
is an `error`, never a pass or a fail.
"""

from __future__ import annotations

import csv
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from aggregate.records.record import AttemptRecord
from aggregate.text import files
from judges.judgment import COUNT, SCORE, USD, Completion, Range
from judges.safe_text import shown, storable_text
from producer.importers.imported import unimportable

MAX_BYTES = 1 << 30
RUNS = "runs.csv"
# Correct, partial, incorrect and no answer, as Inspect counts them.
_WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_SURE = 1 - 1e-6  # the least that is a whole reward, as tau-bench counts
_COLUMNS = ("experiment", "tier", "subtest", "run_number", "passed")
_MOST_SHOWN = 50
# What files that are damaged, or of another kind, end in.
_UNREADABLE = (
    *(OSError, ValueError, RecursionError, NotImplementedError, RuntimeError, EOFError),
    *(csv.Error, zipfile.BadZipFile, zlib.error),
)

# A record, or what is wrong with a result.
Read = Iterator[AttemptRecord | str]


def write(source: Path, output: Path) -> Counter[str]:
    """Write a source's records to a new file, one JSON line each; returns how many there are of each outcome.

    Raises Unimportable with everything that is wrong; then nothing is written.
    """
    if files.exists(output):
        raise unimportable(output, f"{output} exists already and is left as it is; choose another --output")
    path = source / RUNS if files.is_folder(source) else source
    records: dict[tuple[str, int], AttemptRecord] = {}
    wrong = []
    try:
        for number, result in enumerate(_read(path), start=1):
            if not isinstance(result, AttemptRecord):
                wrong.append(f"result {number}: {result}")
            elif records.setdefault((result.task, result.attempt), result) is not result:
                wrong.append(f"result {number} is attempt {result.attempt} of {shown(result.task)} once more")
    except FileNotFoundError:
        raise unimportable(path, f"nothing to import at {path}") from None
    except _UNREADABLE as broken:
        wrong = [f"cannot be read: {getattr(broken, 'strerror', None) or broken}"]
    if wrong or not records:
        more = [f"{len(wrong) - _MOST_SHOWN} more"] if len(wrong) > _MOST_SHOWN else []
        told = "\n".join(f"{path}: {each}" for each in (*wrong[:_MOST_SHOWN], *more))
        raise unimportable(path, told or f"{path}: no results in it")
    lines = [f"{record.model_dump_json(exclude_none=True)}\n" for record in records.values()]
    files.write_text("".join(lines), output)
    return Counter(record.outcome for record in records.values())


def _read(path: Path) -> Read:
    data = files.read(path, MAX_BYTES)
    if data.startswith(b"PK"):
        return _of_inspect(*_unpacked(data))
    if path.suffix == ".csv":
        return _of_scylla(data.decode("utf-8-sig"))
    whole = _values(data)
    if isinstance(whole, list):
        return _of_tau_bench(whole)
    if isinstance(whole, dict) and "eval" in whole:
        return _of_inspect(whole, _list(whole.get("samples")))
    raise ValueError(f"it is no log of Inspect, no results of tau-bench and no {RUNS} of ProjectScylla")


def _of_tau_bench(results: list[Any]) -> Read:
    """A task's trials; whoever got the whole reward has passed. What it cost is not said."""
    for result in map(_mapping, results):
        error, reward = _mapping(result.get("info")).get("error"), _number(result.get("reward"), SCORE)
        said = [step for step in map(_mapping, _list(result.get("traj"))) if step.get("role") == "assistant"]
        trial = _number(result.get("trial"))
        yield _record(
            task=result.get("task_id"),
            attempt=None if trial is None else trial + 1,
            passed=None if error or reward is None else reward >= _SURE,
            score=reward,
            error=error or "no reward between 0 and 1",
            completion={"text": _text(said[-1].get("content")) if said else "", "turns": len(said)},
        )


def _of_scylla(text: str) -> Read:
    """The runs of a table; a subtest of a tier is a task, and the tiers stay apart as tiers."""
    rows = csv.DictReader(StringIO(text, newline=""), strict=True)
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        yield f"the table has no column {', '.join(missing)}"
        return
    for cells in rows:
        row = {key: value for key, value in cells.items() if isinstance(key, str) and isinstance(value, str)}
        names = [row.get(key, "") for key in ("experiment", "tier", "subtest")]
        numbers = {key: _number(value) for key, value in row.items()}
        tokens = [numbers.get(f"{kind}_tokens") for kind in ("input", "cache_creation", "cache_read")]
        known = [count for count in tokens if count is not None]
        yield _record(
            task="/".join(names) if all(names) else "",
            tier=row.get("tier"),
            model=row.get("agent_model"),
            attempt=numbers.get("run_number"),
            passed={"True": True, "False": False}.get(row.get("passed", "")),
            score=_number(row.get("score"), SCORE),
            error=f"passed is {shown(row.get('passed', ''))}, neither True nor False",
            model_ms=_milliseconds(row.get("agent_duration_seconds")),
            completion={
                "input_tokens": sum(known) if len(known) == len(tokens) else None,
                "output_tokens": numbers.get("output_tokens"),
                "cache_read_tokens": tokens[2],
                "cache_write_tokens": tokens[1],
                "cost_usd": numbers.get("cost_usd"),
                "cost_source": "provider",
            },
        )


def _of_inspect(log: dict[str, Any], samples: Iterable[Any]) -> Read:
    """A log's samples; the first scorer decides, and only its whole score has passed."""
    model = _text(_mapping(log.get("eval")).get("model"))
    for sample in map(_mapping, samples):
        scores = _mapping(sample.get("scores"))
        first = next(iter(scores), "")
        value = _mapping(scores.get(first)).get("value")
        value = str(value).lower() if isinstance(value, bool) else value
        score = _number(_WORDS.get(value, value) if isinstance(value, str) else value, SCORE)
        failed = _mapping(sample.get("error")).get("message")
        used = _mapping(_mapping(sample.get("model_usage")).get(model))
        total, output = _number(used.get("total_tokens")), _number(used.get("output_tokens"))
        yield _record(
            task=sample.get("id"),
            model=model,
            attempt=sample.get("epoch"),
            passed=None if failed or score is None else score == 1,
            score=score,
            details=_text(_mapping(scores.get(first)).get("explanation")) or None,
            error=failed or f"no score between 0 and 1 of {first or 'any scorer'}",
            model_ms=_milliseconds(sample.get("working_time", sample.get("total_time"))),
            completion={
                "text": _text(_mapping(sample.get("output")).get("completion")),
                "input_tokens": None if total is None or output is None else total - output,
                "output_tokens": output,
                "cost_usd": _number(used.get("total_cost")),
            },
        )


def _unpacked(data: bytes) -> tuple[dict[str, Any], Iterator[Any]]:
    """The head of a packed log, and its samples, one in memory at a time; raises what zipfile raises."""
    archive = zipfile.ZipFile(BytesIO(data))
    entries = [entry for entry in archive.infolist() if entry.filename.endswith(".json")]
    if sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")

    def value(entry: zipfile.ZipInfo) -> Any:
        with archive.open(entry) as file:  # never more than the entry says
            return _values(file.read(entry.file_size))

    heads = {entry.filename: entry for entry in entries}
    head = next((heads[name] for name in ("header.json", "_journal/start.json") if name in heads), None)
    if head is None:
        raise ValueError("it has no header.json, so it is no log of Inspect")
    return _mapping(value(head)), (value(each) for each in entries if each.filename.startswith("samples/"))


def _values(data: bytes) -> Any:
    return json.loads(data.decode("utf-8-sig"), parse_constant=lambda word: None)


def _record(
    task: Any,
    attempt: Any,
    passed: bool | None,
    score: float | None,
    error: Any,
    completion: dict[str, Any],
    **more: Any,
) -> AttemptRecord | str:
    """A record, or what is wrong; the error counts where nobody can say what passed."""
    name, number = _text(task), _number(attempt)
    if not name or not number or number != int(number):
        return f"task {shown(task)} and attempt {shown(attempt)} do not tell it from others"
    known = {key: _number(value) for key, value in completion.items() if key.endswith("_tokens")}
    counts = {key: None if value is None else int(value) for key, value in known.items()}
    cost = _number(completion.get("cost_usd"), USD)
    return AttemptRecord(
        task=name,
        arm="candidate",
        attempt=int(number),
        outcome="error" if passed is None else "passed" if passed else "failed",
        score=None if passed is None else score,
        error=(_text(error) or "it ended in an error") if passed is None else None,
        completion=Completion(**{**completion, **counts, "cost_usd": cost}),
        **more,
    )


def _number(value: Any, valid: Range = COUNT) -> float | None:
    """A number in its range, also one that is written as text; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number in valid else None


def _milliseconds(seconds: Any) -> float | None:
    number = _number(seconds)
    return None if number is None else _number(number * 1000)


def _text(value: Any) -> str:
    return storable_text(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

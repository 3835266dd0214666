"""A run for other tools: summary.json, and its attempts, judgments, criteria and tasks as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aggregate.artifact import comparison
from aggregate.artifact.file import write_json
from aggregate.records.frames import Frames, collect
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from aggregate.report.source import Material
from aggregate.text.files import write_text
from aggregate.text.formats import clean
from judges.safe_text import storable

_END = "\r\n"
# A spreadsheet takes a cell that starts so for a formula, also after a quote was stripped.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def summary(info: RunInfo, records: Iterable[AttemptRecord] | Frames) -> dict[str, Any]:
    """`overall_stats`, `by_model`, `by_tier`, `by_judge`: every metric under a flat key, each arm apart."""
    made = _frames(info, records)
    arms = sorted(made.attempts.arm.unique())
    overall = comparison.overall(made.attempts, made.tasks, arms, info.pass_k)
    left_out = comparison.too_many(made.tasks).values()
    found: dict[str, Any] = clean(
        {
            "run_id": info.run_id,
            "created_at": info.created_at,
            "skill_id": info.skill_id,
            "pass_k": info.pass_k,
            "models": list(info.models),
            "status": info.status,
            "overall_stats": overall,
            **comparison.by_group(made.attempts, made.tasks, arms, info.pass_k, overall),
            "warnings": [*info.warnings, *made.warnings, *left_out],
        }
    )
    return found


def write_exports(info: RunInfo, records: Iterable[AttemptRecord] | Frames, folder: Path) -> list[Path]:
    """Write summary.json, attempts.csv, judgments.csv, criteria.csv and tasks.csv."""
    made = _frames(info, records)
    tables = {
        "attempts": made.attempts.assign(matched=made.attempts.matched.map(";".join)),
        "judgments": made.judgments,
        "criteria": made.criteria,
        "tasks": made.tasks,
    }
    written = [write_json(summary(info, made), folder / "summary.json")]
    return written + [write_text(csv_text(table), folder / f"{name}.csv") for name, table in tables.items()]


def csv_text(frame: pd.DataFrame) -> str:
    """The frame as CSV: missing is an empty cell, numbers stay numbers, no text can start a formula."""
    rows = zip(*(_cells(frame[name]) for name in frame.columns), strict=True)
    text = _END.join((",".join(frame.columns), *map(",".join, rows), ""))
    # A lone surrogate cannot be written as UTF-8, whoever put it into a record.
    return storable(text)


def safe_cell(text: str) -> str:
    """The text, behind an apostrophe where a spreadsheet would run it; NUL bytes are dropped."""
    text = text.replace("\0", "")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _cells(column: pd.Series[Any]) -> list[str]:
    """A column as cells, quoted where need be; equal values are written once, for most columns hold few."""
    codes, unique = pd.factorize(column)
    cells = np.array([*_quoted(map(_cell, unique)), ""], dtype=object)
    return list(cells[codes])  # the code of a missing value is -1, which is the empty cell at the end


def _quoted(texts: Iterable[str]) -> Iterable[str]:
    """Each text as it stands between commas."""
    lines = _Lines()
    csv.writer(lines, lineterminator=_END).writerows((text,) for text in texts)
    # An empty cell is quoted where it is the only one of its line, and here it is not.
    return ("" if line == f'""{_END}' else line.removesuffix(_END) for line in lines)


class _Lines(list[str]):
    """A file whose lines are kept apart."""

    def write(self, line: str) -> None:
        self.append(line)


def _cell(value: Any) -> str:
    match value:
        case str():
            return safe_cell(value)
        case bool() | np.bool_():
            return "true" if value else "false"
        case float():
            return _number(value)
        case _:
            return str(value)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


def _frames(info: RunInfo, records: Iterable[AttemptRecord] | Frames) -> Frames:
    return records if isinstance(records, Frames) else collect(records, info.tasks)


def write(material: Material, folder: Path) -> Path:
    """Write the tables of one candidate and its baseline into a folder."""
    artifact = material.artifact
    info = RunInfo.from_records(material.own_records()).model_copy(
        update={
            **artifact.model_dump(include={"run_id", "created_at", "skill_id", "pass_k", "status"}),
            "models": tuple(artifact.models),
        }
    )
    write_exports(info, material.own_records(), folder)
    return folder

"""A run for other tools: summary.json, and its attempts, judgments, criteria and tasks as CSV files."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aggregate.artifact import comparison
from aggregate.artifact.file import write_json
from aggregate.records.frames import Frames, collect
from aggregate.records.run_info import RunInfo
from aggregate.report.result_tables import Material
from aggregate.text.files import write_text
from aggregate.text.formats import clean
from judges.safe_text import storable

_OF_RUN = ("run_id", "created_at", "skill_id", "pass_k")
# A spreadsheet takes a cell that starts so for a formula, also after a quote was stripped.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def summary(info: RunInfo, frames: Frames) -> dict[str, Any]:
    """`overall_stats`, `by_model`, `by_tier`, `by_judge`: every metric under a flat key, each arm apart."""
    attempts, tasks = frames.attempts, frames.tasks
    arms = sorted(attempts.arm.unique())
    overall = comparison.overall(attempts, tasks, arms, info.pass_k)
    told: dict[str, Any] = {
        **{name: getattr(info, name) for name in (*_OF_RUN, "models", "status")},
        "overall_stats": overall,
        **comparison.by_group(attempts, tasks, arms, info.pass_k, overall),
        "warnings": [*info.warnings, *frames.warnings, *comparison.too_many(tasks).values()],
    }
    return {name: clean(value) for name, value in told.items()}


def write_exports(info: RunInfo, frames: Frames, folder: Path) -> list[Path]:
    """Write summary.json, attempts.csv, judgments.csv, criteria.csv, tasks.csv and, where there are any, checks.csv."""
    joined = {name: frames.attempts[name].map(";".join) for name in ("matched", "missed")}
    tables = {
        "attempts": frames.attempts.assign(**joined),
        "judgments": frames.judgments,
        "criteria": frames.criteria,
        "tasks": frames.tasks,
        **({"checks": frames.checks} if len(frames.checks) else {}),
    }
    written = [write_json(summary(info, frames), folder / "summary.json")]
    return written + [write_text(csv_text(table), folder / f"{name}.csv") for name, table in tables.items()]


def csv_text(frame: pd.DataFrame) -> str:
    """The frame as CSV: missing is an empty cell, numbers stay numbers, no text can start a formula."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(frame.columns)
    table.writerows(zip(*(_cells(frame[name]) for name in frame.columns), strict=True))
    # A lone surrogate cannot be written as UTF-8, whoever put it into a record.
    return storable(text.getvalue())


def safe_cell(text: str) -> str:
    """The text, behind an apostrophe where a spreadsheet would run it; NUL bytes are dropped."""
    text = text.replace("\0", "")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _cells(column: pd.Series[Any]) -> list[str]:
    """A column as text; equal values are written once, for most columns hold few."""
    codes, unique = pd.factorize(column)
    cells = np.array([*map(_cell, unique), ""], dtype=object)
    return list(cells[codes])  # the code of a missing value is -1, which is the empty cell at the end


def _cell(value: Any) -> str:
    match value:
        case str():
            return safe_cell(value)
        case bool() | np.bool_():
            return "true" if value else "false"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))
        case _:
            return str(value)


def write(material: Material, folder: Path) -> Path:
    """Write the tables of one candidate and its baseline into a folder."""
    artifact = material.artifact
    told = {name: getattr(artifact, name) for name in (*_OF_RUN, "status")}
    told["models"] = tuple(artifact.models)
    info = RunInfo.from_records(material.own_records()).model_copy(update=told)
    write_exports(info, collect(material.own_records(), info.tasks), folder)
    return folder

"""Write docs/record.schema.json and the columns in docs/reading-a-result.md, from the types of records and columns.

Run it from the repository after a change to either: python docs/make_record_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

from aggregate.records import frames, jsonl, rows

SCHEMA = Path(__file__).with_name("record.schema.json")
PAGE = Path(__file__).with_name("reading-a-result.md")
MARKS = ("<!-- columns: made by docs/make_record_reference.py -->", "<!-- end of columns -->")
INTRODUCTION = """\
`uplift aggregate` and `uplift report --csv` write four CSV files from a run's [records](records.md). What is missing is
an empty cell. `from` is the field of the record that a column copies; in `tasks.csv`, the column of the attempts that
it sums up, and how. A column without it is computed.
"""
TABLES = {
    "attempts.csv": ("One row per attempt.", rows.ATTEMPTS),
    "judgments.csv": ("One row per judge and attempt.", rows.JUDGMENTS),
    "criteria.csv": ("One row per criterion, judge and attempt.", rows.CRITERIA),
    "checks.csv": ("One row per check and attempt, of tasks with several checks.", rows.CHECKS),
    "tasks.csv": ("One row per task, model and arm; attempts that were skipped do not count.", frames.TASKS),
}


def schema() -> str:
    """The schema as the text of a file."""
    return json.dumps(jsonl.schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The whole page, with every column between its marks."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{_columns()}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def _columns() -> str:
    parts = [INTRODUCTION]
    told: dict[str, str] = {}
    for name, (text, columns) in TABLES.items():
        lines = ["| column | type | from | what it is |", "|---|---|---|---|"]
        same = []
        for column, one in columns.items():
            row = f"| {one.kind.replace('object', 'str')} | {one.source and f'`{one.source}`'} | {one.text} |"
            if told.get(column) == row:  # word for word as in an earlier table
                same.append(f"`{column}`")
            else:
                told[column] = row
                lines.append(f"| `{column}` {row}")
        again = f" {', '.join(same)}: as above." if same else ""
        parts.append(f"### `{name}`\n\n{text}{again}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

"""Write docs/record.schema.json and docs/tables.md from the types of records and the tables of columns.

Run it from the repository after a change to either: python docs/make_record_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

from aggregate.records import frames, jsonl, rows

SCHEMA = Path(__file__).with_name("record.schema.json")
PAGE = Path(__file__).with_name("tables.md")
INTRODUCTION = """\
# The tables, column by column

<!-- Made by docs/make_record_reference.py; tests/test_docs.py fails when it is out of date. Do not edit. -->

`uplift aggregate` and `uplift report --csv` write four CSV files from a run's [records](records.md). What is missing is
an empty cell. `from` names the field of the record that a column copies, or in `tasks.csv` what it sums up of the
attempts and how; a column without it is computed. What the numbers mean is on [another page](metrics.md).
"""
TABLES = {
    "attempts.csv": ("One row per attempt.", rows.ATTEMPTS),
    "judgments.csv": ("One row per judge and attempt.", rows.JUDGMENTS),
    "criteria.csv": ("One row per criterion, judge and attempt.", rows.CRITERIA),
    "tasks.csv": ("One row per task, model and arm; attempts that were skipped do not count.", frames.TASKS),
}


def schema() -> str:
    """The schema as the text of a file."""
    return json.dumps(jsonl.schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, (text, columns) in TABLES.items():
        lines = ["| column | type | from | what it is |", "|---|---|---|---|"]
        lines += [
            f"| `{column}` | {one.kind.replace('object', 'str')} | {one.source and f'`{one.source}`'} | {one.text} |"
            for column, one in columns.items()
        ]
        parts.append(f"## `{name}`\n\n{text}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

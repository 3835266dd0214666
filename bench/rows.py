"""A line of the bench table: what was measured, its bar, and whether the bar holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`measured` and `bar` are in `unit`; `better` says which side of the bar is good. Without a bar it is a fact."""

    what: str
    measured: float
    unit: str
    bar: float | None = None
    better: str = "lower"
    note: str = ""

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return self.measured <= self.bar if self.better == "lower" else self.measured >= self.bar


def show(rows: list[Row]) -> None:
    """Print rows as a table that fits a terminal and a Markdown page alike."""
    print("| what | measured | bar | holds | note |")
    print("|---|---|---|---|---|")
    for row in rows:
        sign = {"lower": "≤", "higher": "≥"}[row.better]
        bar = f"{sign} {row.bar:g} {row.unit}" if row.bar is not None else "–"
        holds = {None: "–", True: "yes", False: "NO"}[row.holds]
        print(f"| {row.what} | {row.measured:.3g} {row.unit} | {bar} | {holds} | {row.note} |", flush=True)

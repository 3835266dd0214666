"""`uplift aggregate`: turn records from anywhere into artifact, summary and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import DEFAULT_STATE_ROOT, Quiet, StateRoot


def aggregate(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="Records as JSONL, plain or .gz.")],
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    output: Annotated[Path | None, typer.Option("--output", help="The artifact's path.")] = None,
    gate: Annotated[
        str, typer.Option("--gate", help="What the exit code follows: verdict or decision.")
    ] = "verdict",
    margin: Annotated[
        float, typer.Option("--margin", help="How much worse still counts as no worse.")
    ] = 0.05,
    quiet: Quiet = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole artifact on standard output, not only the summary line."
        ),
    ] = False,
) -> None:
    """Aggregate attempt records, of one run or several, from Uplift or from other tools.

    A record needs task, arm (baseline or candidate), attempt and outcome. Writes the artifact, summary.json and
    CSV files under the state root; prints and exits as `evaluate` does.

    Example: uplift aggregate records.jsonl --state-root results
    """
    from producer.aggregation import aggregate_file
    from producer.options import one_of
    from producer.places import Places
    from producer.results import report_and_exit

    places = Places(state_root)
    made = aggregate_file(records, places, output=output, margin=margin)
    report_and_exit(
        made, places, gate=one_of("--gate", gate, ("verdict", "decision")), quiet=quiet, as_json=as_json
    )

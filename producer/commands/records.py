"""`uplift aggregate` and `compare`: what records say, from any source and from any two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import DEFAULT_STATE_ROOT, ConfigFile, Json, Quiet, StateRoot


def aggregate(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="Records as JSONL, plain or .gz.")],
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    config: ConfigFile = None,
    output: Annotated[Path | None, typer.Option("--output", help="The artifact's path.")] = None,
    gate: Annotated[
        str, typer.Option("--gate", metavar="WHAT", help="What the exit code follows: verdict or decision.")
    ] = "verdict",
    margin: Annotated[
        float, typer.Option("--margin", metavar="SHARE", help="How much worse still counts as no worse.")
    ] = 0.05,
    weak_baseline: Annotated[
        str,
        typer.Option(
            "--weak-baseline", metavar="WHAT", help="error or warn, when the baseline passes less than 20 %."
        ),
    ] = "error",
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
    chosen = one_of("--gate", gate, ("verdict", "decision"))
    weak = one_of("--weak-baseline", weak_baseline, ("error", "warn"))
    made = aggregate_file(records, places, output=output, margin=margin, gate=chosen, weak_baseline=weak)
    report_and_exit(made, places, gate=chosen, quiet=quiet, as_json=as_json)


def compare(
    first: Annotated[
        str, typer.Argument(metavar="RUN", help="The earlier run: an id, or a file of records.")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The later run: an id, or a file of records.")],
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    config: ConfigFile = None,
    margin: Annotated[
        float, typer.Option("--margin", metavar="SHARE", help="How much worse still counts as no worse.")
    ] = 0.05,
    as_json: Json = False,
) -> None:
    """Compare the candidates of two runs of one suite, paired by task and model.

    Says whether the second run's candidate is better than the first's. Exits 0 when the comparison could be made.

    Example: uplift compare 20260101-120000-abc123 20260108-120000-def456
    """
    from rich.console import Console

    from aggregate.standard_json import dumps
    from aggregate.tables import compare_table
    from producer.aggregation import compare_runs
    from producer.places import Places
    from producer.results import printing

    result = compare_runs(first, second, Places(state_root), margin=margin)
    with printing():
        if as_json:
            typer.echo(dumps(result))
        else:
            Console(highlight=False).print(compare_table(result))

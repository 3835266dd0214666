"""`uplift bless`: make a run's candidate the baseline of later runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from producer.commands.flags import DEFAULT_STATE_ROOT, BrokerOfRun, ConfigFile, Insecure, RunId, StateRoot


def bless(
    run_id: RunId,
    candidate_id: Annotated[
        str | None,
        typer.Option("--candidate-id", metavar="ID", help="Which candidate, where the run has several."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The file to write. [default: <state-root>/runs/RUN/baseline.json]"),
    ] = None,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
) -> None:
    """Write a run's candidate as a baseline file, for `evaluate --baseline-artifact FILE`, and print its path.

    The file holds the candidate's records and digests of the tasks, files, judges and settings that they rest on.
    Keep it in the repository: later runs compare with it without running or paying for the baseline.

    Example: uplift bless 20260101-120000-abc123 --output baseline.json
    """
    from aggregate.files import write_text
    from producer import blessing, reports
    from producer.names import check_run_id
    from producer.places import Places
    from producer.session import broker_url

    places = Places(state_root)
    made = reports.find(places, check_run_id(run_id), broker_url(broker, insecure=insecure))
    artifact = blessing.choose(made, candidate_id)
    blessed, warnings = blessing.bless(artifact, places)
    for text in warnings:
        typer.echo(f"uplift: {text}", err=True)
    if artifact["verdict"] == "fail":
        typer.echo(f"uplift: run {run_id} has verdict fail; blessed all the same", err=True)
    path = write_text(blessing.dumps(blessed), output or places.run(run_id) / "baseline.json")
    tasks = len(blessed.grounds.tasks)
    typer.echo(
        f"uplift: {tasks} tasks, {len(blessed.records)} attempts of run {run_id} are a baseline", err=True
    )
    typer.echo(path)

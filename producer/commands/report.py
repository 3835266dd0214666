"""`uplift report`: a finished run as a page, for pull requests, for CI, for spreadsheets, for skill-creator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from producer.commands.flags import (
    DEFAULT_STATE_ROOT,
    BrokerOfRun,
    ConfigFile,
    Insecure,
    RunId,
    StateRoot,
)

if TYPE_CHECKING:
    from producer.reports import Format


def report(
    run_id: RunId,
    html: Annotated[
        bool, typer.Option("--html", help="One HTML page that needs no network. This is the default.")
    ] = False,
    md: Annotated[bool, typer.Option("--md", help="Markdown for pull requests and step summaries.")] = False,
    junit: Annotated[
        bool, typer.Option("--junit", help="JUnit XML, one test case per task and arm.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV tables and summary.json, in a folder.")] = False,
    benchmark_json: Annotated[
        bool, typer.Option("--benchmark-json", help="A workspace folder for Anthropic's skill-creator.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            help="File or folder to write; `-` prints Markdown or JUnit XML. With several formats or "
            "candidates, a folder. [default: <state-root>/runs/RUN]",
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option("--records", help="The run's records as JSONL, where they are not in the state root."),
    ] = None,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    config: ConfigFile = None,
    broker: BrokerOfRun = None,
    insecure: Insecure = False,
) -> None:
    """Write reports of a finished run and print their paths.

    A run that ended on a broker is brought home first.

    Examples:

      uplift report 20260101-120000-abc123

    \b
      uplift report 20260101-120000-abc123 --md --output - \\
        >> "$GITHUB_STEP_SUMMARY"
    """
    from producer import reports
    from producer.names import check_run_id
    from producer.places import Places
    from producer.session import broker_url

    places = Places(state_root)
    flags = {"html": html, "md": md, "junit": junit, "csv": csv, "benchmark-json": benchmark_json}
    formats: list[Format] = [form for form in reports.NAMES if flags[form]] or ["html"]
    made = reports.find(places, check_run_id(run_id), broker_url(broker, insecure=insecure))
    for form in formats:
        if output is not None and str(output) == "-":
            for artifact in made:
                typer.echo(reports.text(artifact, places, form, records), nl=False)
            continue
        place = output / reports.NAMES[form] if output and len(formats) > 1 and len(made) == 1 else output
        for path in reports.write(made, places, form, records=records, output=place):
            typer.echo(path)

"""`uplift report`, `aggregate`, `compare`, `rejudge` and `bless`: what is made of runs that are over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from producer.commands.evaluate import printing, report_and_exit, run_context
from producer.commands.flags import (
    Details,
    Json,
    Quiet,
    RunId,
    WholeArtifact,
    options,
    takes_place,
    takes_settings,
)

if TYPE_CHECKING:
    from producer.runs.collect import Format


@takes_place
def report(
    context: typer.Context,
    run_id: RunId = None,
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
    **flags: Any,
) -> None:
    """Write reports of a finished run and print their paths.

    A run that ended on a broker is fetched first.

    Examples:

      uplift report

      uplift report last --md --output - >> "$GITHUB_STEP_SUMMARY"
    """
    from producer.runs import collect
    from producer.runs.evaluate import named

    where = run_context(options(context, flags))
    asked = {"html": html, "md": md, "junit": junit, "csv": csv, "benchmark-json": benchmark_json}
    formats: list[Format] = [form for form in collect.FORMATS if asked[form]] or ["html"]
    artifacts = collect.find(where.places, named(where, run_id), where.broker)
    in_folder = len(formats) > 1 and len(artifacts) == 1
    for form in formats:
        if output is not None and str(output) == "-":
            typer.echo(collect.report_text(artifacts, where.places, form, records), nl=False)
            continue
        place = output / collect.FORMATS[form][0] if output and in_folder else output
        for path in collect.write_report(artifacts, where.places, form, records=records, output=place):
            typer.echo(path)


@takes_settings("gate", "gate_cost", "margin", "weak_baseline", "unloaded", "state_root", "output")
def aggregate(
    context: typer.Context,
    records: Annotated[
        Path, typer.Argument(metavar="RECORDS", help="Records as JSONL, plain or .gz; a pipe will do.")
    ],
    quiet: Quiet = False,
    details: Details = False,
    as_json: WholeArtifact = False,
    **flags: Any,
) -> None:
    """Aggregate attempt records, of one run or several, from Uplift or from other tools.

    A record needs task, arm (baseline or candidate), attempt and outcome. Writes the artifact, summary.json and
    CSV files under the state root, never over an earlier result; prints and exits as `evaluate` does.

    Example: uplift aggregate records.jsonl --state-root results
    """
    from producer.runs.from_records import aggregate_file
    from producer.state_root import Places

    settings = options(context, flags)
    places = Places(settings.state_root)
    artifacts = aggregate_file(records, places, settings)
    report_and_exit(artifacts, places, quiet=quiet, details=details, as_json=as_json)


@takes_settings("margin", "state_root")
def compare(
    context: typer.Context,
    first: Annotated[
        str, typer.Argument(metavar="RUN", help="The earlier run: an id, or a file of records.")
    ],
    second: Annotated[
        str, typer.Argument(metavar="RUN", help="The later run: an id, or a file of records.")
    ] = "last",
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Compare the candidates of two runs of one suite, paired by task and model.

    Says whether the second run's candidate is better than the first's. Exits 0 when the comparison could be made.

    Example: uplift compare last~1 last
    """
    from rich.console import Console

    from aggregate.report.terminal import compare_table
    from aggregate.text.files import exists
    from aggregate.text.formats import dumps
    from producer.runs.evaluate import named
    from producer.runs.from_records import compare_runs

    settings = options(context, flags)
    where = run_context(settings)
    runs = [one if exists(Path(one)) or "/" in one else named(where, one) for one in (first, second)]
    result = compare_runs(runs[0], runs[1], where.places, margin=settings.margin)
    with printing():
        if as_json:
            typer.echo(dumps(result.model_dump(exclude_unset=True)))
        else:
            Console(highlight=False).print(compare_table(result))


_JUDGING = dict.fromkeys(
    ("task_suite", "judge_model", "gate", "gate_cost", "margin", "weak_baseline", "unloaded"), "as in the run"
)


@takes_settings(
    *_JUDGING, "sandbox", "state_root", "broker", "insecure", "in_flight", "output", unset=_JUDGING
)
def rejudge(
    context: typer.Context,
    run_id: RunId = None,
    quiet: Quiet = False,
    details: Details = False,
    as_json: WholeArtifact = False,
    **flags: Any,
) -> None:
    """Judge a finished run's completions again: new judges, a new rubric, another judge's model.

    The model is not asked and not paid again; a model that judges is. Makes a new run whose artifact names the old
    one in `rejudged_from`, and prints and exits as `evaluate` does. Tasks that the run did not have are left out.

    Examples:

      uplift rejudge last --task-suite stricter.yaml

      uplift rejudge --judge-model anthropic:claude-opus-4-5
    """
    from producer.runs import collect
    from producer.runs import rejudge as rejudging
    from producer.runs.evaluate import named

    settings = options(context, flags, without=rejudging.OF_RUN)
    where = run_context(settings, quiet=quiet)
    earlier = collect.find(where.places, named(where, run_id), where.broker)
    artifacts = rejudging.rejudge(rejudging.plan(earlier, where.places, settings), where)
    report_and_exit(artifacts, where.places, quiet=quiet, details=details, as_json=as_json)


@takes_place
def bless(
    context: typer.Context,
    run_id: RunId = None,
    candidate_id: Annotated[
        str | None,
        typer.Option("--candidate-id", metavar="ID", help="Which candidate, where the run has several."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The file to write. [default: <state-root>/runs/RUN/baseline.json]"),
    ] = None,
    **flags: Any,
) -> None:
    """Write a run's candidate as a baseline file, for `evaluate --baseline-artifact FILE`, and print its path.

    The file holds the candidate's records and digests of the tasks, files, judges and settings that they rest on.
    Keep it in the repository: later runs compare with it without running or paying for the baseline.

    Example: uplift bless 20260101-120000-abc123 --output baseline.json
    """
    from aggregate.text.files import write_text
    from producer.baselines import bless as blessing
    from producer.runs import collect
    from producer.runs.evaluate import named

    where = run_context(options(context, flags))
    run_id = named(where, run_id)
    artifacts = collect.find(where.places, run_id, where.broker)
    artifact = blessing.choose(artifacts, candidate_id)
    blessed, warnings = blessing.bless(artifact, where.places)
    for text in warnings:
        typer.echo(f"uplift: {text}", err=True)
    if artifact.verdict == "fail":
        typer.echo(f"uplift: run {run_id} has verdict fail; blessed all the same", err=True)
    path = write_text(blessing.dumps(blessed), output or where.places.run(run_id) / "baseline.json")
    tasks = len(blessed.grounds.tasks)
    typer.echo(
        f"uplift: {tasks} tasks, {len(blessed.records)} attempts of run {run_id} are a baseline", err=True
    )
    typer.echo(path)

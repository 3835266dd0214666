"""`uplift init`, `import` and `validate`: make a suite, take one over from another tool, check suites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggregate.text.formats import counted
from producer.commands.flags import Json, print_json

if TYPE_CHECKING:
    from producer.importers.imported import Found


def init(as_json: Json = False) -> None:
    """Write a commented suite, fixtures and a CI workflow for the skill in the current folder.

    Nothing is asked and nothing is overwritten: the skill's name and purpose come from its SKILL.md (a draft is
    written where there is none), and files that exist stay as they are. An evals/evals.json is used as it is, a
    promptfooconfig.yaml becomes the suite. The workflow goes to the top of the repository.

    Example: cd my-skill && uplift init
    """
    from producer.setup import skill_folder

    started = skill_folder.start(Path())
    if as_json:
        print_json(started)
        return
    for path in started.made:
        typer.echo(f"wrote {path}")
    for path in started.kept:
        typer.echo(f"kept {path}, which was there already")
    for note in started.notes:
        typer.echo(f"note: {note}")
    if started.fill_in is not None:
        typer.echo(
            f"\nNobody knows where a CI job could get this copy of Uplift from: fill in UPLIFT in {started.fill_in}"
        )
    typer.echo(f"\nTry it now, without a model and without a key:\n\n  {started.command}\n")
    typer.echo(f"Then write real tasks into {started.suite}, and leave --mock out to ask Claude Code.")
    typer.echo("Commit it; after an edit, compare with that: uplift evaluate --baseline git:HEAD")


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="An evals.json, a promptfooconfig.yaml or a folder of tasks; with --records, results.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="A new folder for the suite, or file for records. [default: <name>-suite, here]"
        ),
    ] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records",
            help="Make records of results: a log of Inspect, a results file of tau-bench, or a folder with "
            "runs.csv of ProjectScylla. [default output: <name>.jsonl, here]",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a suite from evals.json, a promptfoo configuration or Harbor tasks.

    Every task says where it came from. Every assertion that has no equivalent is listed with its place, here and
    at the top of the suite. The folder is written whole or not at all, and never over an existing one.

    Examples:

      uplift import evals/evals.json --output my-suite

      uplift import --records logs/today.eval --output today.jsonl
    """
    from producer.importers import imported

    if records:
        _import_records(source, output, as_json=as_json)
        return
    found = _convert(source)
    folder = output or Path(f"{imported.slug(found.skill_id) or 'imported'}-suite")
    suite = imported.write(found, folder) if found.tasks or not as_json else None
    if as_json:
        counts = {f"{kind}s": part for kind, part in found.counts.items()}
        value = {"suite": suite, "written": len(found.tasks), **counts, "changed": found.changed}
        print_json({**value, "left_out": found.left_out, "notes": found.notes})
    else:
        _print(found, folder)
    if suite is None:
        raise typer.Exit(2)


def _import_records(source: Path, output: Path | None, *, as_json: bool) -> None:
    from producer.importers import imported
    from producer.importers import records as importer

    file = output or Path(f"{imported.slug(source.resolve().stem) or 'records'}.jsonl")
    counts = importer.write(source, file)
    if as_json:
        print_json({"records": file, "written": counts.total(), "outcomes": counts})
        return
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    typer.echo(f"wrote {file} with {counted(counts.total(), 'record')}: {outcomes}")
    typer.echo(f"\nSee what is in it:\n\n  uplift aggregate {file}")


def _convert(source: Path) -> Found:
    from aggregate.text.files import is_folder
    from producer.importers import evals_json, harbor, promptfoo

    if is_folder(source):
        return harbor.convert(source)
    if source.suffix in (".yaml", ".yml") or promptfoo.is_configuration(source):
        return promptfoo.convert(source)
    return evals_json.convert(source)


def _print(found: Found, folder: Path) -> None:
    for line in found.told():
        typer.echo(line)
    suite = folder / "suite.yaml"
    typer.echo(f"wrote {suite} with {counted(len(found.tasks), 'task')}")
    skill = folder / "candidate" if found.skills else "SKILL"
    baseline = f" --baseline {folder / 'baseline'}" if "baseline" in found.skills else ""
    typer.echo(
        f"\nTry it now, without a model and without a key:\n\n"
        f"  uplift evaluate --standalone --task-suite {suite} --skill-path {skill}{baseline} --mock"
    )


def validate(
    suites: Annotated[
        list[Path] | None, typer.Argument(metavar="SUITE", help="Suite files to check.")
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of suites, for editors, and check nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check suites and print every problem as path:line:column.

    Exits 0 when all suites are valid, 2 otherwise.

    Example: uplift validate suites/*.yaml
    """
    if schema:
        from producer.suites.rules import schema_text

        typer.echo(schema_text(), nl=False)
        return
    if not suites:
        raise typer.BadParameter("give the suites to check, for example uplift validate suite.yaml")
    from producer.importers import evals_json
    from producer.suites import suite

    hints: list[str] = []
    problems = suite.validate(suites, evals_json.load, hints)
    if as_json:
        print_json(problems)
    else:
        for problem in problems:
            typer.echo(str(problem))
        if not problems:
            typer.echo("\n".join([*hints, f"{counted(len(suites), 'suite')} valid"]), err=True)
            if unguarded := suite.unguarded_tests(suites, evals_json.load):
                names = ", ".join(unguarded[:3]) + (", …" if len(unguarded) > 3 else "")
                typer.echo(
                    f"note: {counted(len(unguarded), 'test file')} without uplift_judge ({names}): code of an output "
                    "that they run can forge their verdict; run it by uplift_judge.run_python (docs/judges.md)",
                    err=True,
                )
    if problems:
        raise typer.Exit(2)

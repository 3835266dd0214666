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
    from producer.setup import new_suite as starting

    started = starting.start(Path())
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
    typer.echo("After an edit, compare with the last commit: uplift evaluate --baseline git:HEAD")


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="An evals.json, a promptfooconfig.yaml or a folder of tasks."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="A new folder for the suite. [default: <name>-suite, here]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a suite from evals.json, a promptfoo configuration or Harbor tasks.

    Every task says where it came from. Every assertion that has no equivalent is listed with its place, here and
    at the top of the suite. The folder is written whole or not at all, and never over an existing one.

    Example: uplift import evals/evals.json --output my-suite
    """
    from producer.importers import imported

    found = _convert(source)
    folder = output or Path(f"{imported.slug(found.skill_id) or 'imported'}-suite")
    suite = imported.write(found, folder)
    if as_json:
        _print_json(found, suite)
    else:
        _print(found, suite)


def _convert(source: Path) -> Found:
    from aggregate.text.files import is_folder
    from producer.importers import evals_json, harbor, promptfoo

    if is_folder(source):
        return harbor.convert(source)
    if source.suffix in (".yaml", ".yml") or promptfoo.is_configuration(source):
        return promptfoo.convert(source)
    return evals_json.convert(source)


def _counts(found: Found) -> list[tuple[str, int, int]]:
    return [
        ("task", found.task_count, found.tasks_left_out),
        ("assertion", found.assertion_count, found.assertions_left_out),
    ]


def _print(found: Found, suite: Path) -> None:
    for kind, count, left in _counts(found):
        if count:
            typer.echo(f"{counted(count, kind)} found, {count - left} imported, {left} left out")
    for item in found.left_out:
        typer.echo(f"left out: {item}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote {suite} with {counted(len(found.tasks), 'task')}")
    typer.echo(
        f"\nTry it now, without a model and without a key:\n\n"
        f"  uplift evaluate --standalone --task-suite {suite} --skill-path SKILL --mock"
    )


def _print_json(found: Found, suite: Path) -> None:
    counts = {
        f"{kind}s": {"found": count, "imported": count - left, "left_out": left}
        for kind, count, left in _counts(found)
    }
    value = {"suite": suite, "written": len(found.tasks), **counts, "left_out": found.left_out}
    print_json({**value, "notes": found.notes})


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

    problems = suite.validate(suites, evals_json.load)
    if as_json:
        print_json(problems)
    else:
        for problem in problems:
            typer.echo(str(problem))
        if not problems:
            typer.echo(f"{counted(len(suites), 'suite')} valid", err=True)
            if unguarded := suite.unguarded_tests(suites, evals_json.load):
                names = ", ".join(unguarded[:3]) + (", …" if len(unguarded) > 3 else "")
                typer.echo(
                    f"note: {counted(len(unguarded), 'test file')} without uplift_judge ({names}): code of an output "
                    "that they run can forge their verdict; run it by uplift_judge.run_python (docs/judges.md)",
                    err=True,
                )
    if problems:
        raise typer.Exit(2)

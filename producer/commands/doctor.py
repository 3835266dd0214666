"""`uplift doctor`: what is set, what is there, what is missing, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggregate.text.formats import counted
from producer.commands.flags import Broker, Insecure, Json, option

if TYPE_CHECKING:
    from producer.setup.doctor import Check, Machine, ToldSetting


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings to look at. [default: as for other commands]"
        ),
    ] = None,
    broker: Broker = None,
    state_root: Annotated[Path | None, option("state_root")] = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what is set and where it came from, and check server, workers, versions, sandbox, programs and keys.

    Changes nothing and prints no key. Exits 0, or 3 when there is a problem; warnings are fine.

    Examples:

      uplift doctor

      uplift doctor --broker redis://127.0.0.1:6379/0 --json
    """
    from producer.setup import doctor as doctors

    where, read = _surroundings(config, broker, state_root, insecure)
    settings = doctors.settings(where)
    checks = [*read, *doctors.examine(where)]
    if as_json:
        import dataclasses
        import json

        facts = {
            "settings": [dataclasses.asdict(setting) for setting in settings],
            "checks": [dataclasses.asdict(check) for check in checks],
        }
        typer.echo(json.dumps(facts))
    else:
        _show(settings, checks)
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(3)


def _surroundings(
    config: Path | None, broker: str | None, state_root: Path | None, insecure: bool
) -> tuple[Machine, list[Check]]:
    """What to look at; a config that cannot be read is the first finding, and the rest is still looked at."""
    from producer.settings import config_file as configs
    from producer.setup.doctor import Check, Machine, config_file

    try:
        found = configs.load(config)
        read = [config_file(found)]
    except configs.InvalidConfig as invalid:
        found = configs.Config()
        read = [
            Check("config", "problem", line, "correct it; until then no command runs")
            for line in str(invalid).splitlines()
        ]
    values = found.values
    url = broker or values.broker or None
    root = state_root or values.state_root
    flags = tuple(name for name, given in (("broker", broker), ("state_root", state_root)) if given)
    return Machine(found, url, root, insecure, flags), read


def _show(settings: list[ToldSetting], checks: list[Check]) -> None:
    """Two aligned lists; remedies stand below what they mend."""
    width = max(len(setting.key) for setting in settings)
    typer.echo("settings")
    for setting in settings:
        typer.echo(f"  {setting.key:<{width}}  {setting.value}  [{setting.origin}]")
    width = max(len(check.name) for check in checks)
    typer.echo("checks")
    for check in checks:
        typer.echo(f"  {check.status:<7}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            typer.echo(f"  {'':7}  {'':{width}}  → {check.remedy}")
    problems = sum(check.status == "problem" for check in checks)
    warnings = sum(check.status == "warning" for check in checks)
    typer.echo(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}", err=True)

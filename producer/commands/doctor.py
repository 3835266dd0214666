"""`uplift doctor`: what is set, what is there, what is missing, and how to mend it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggregate.text.formats import counted
from producer.commands.flags import Json, option, print_json

if TYPE_CHECKING:
    from producer.settings.config_file import Config
    from producer.setup.doctor import Check, ToldSetting


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings to look at. [default: as for other commands]"
        ),
    ] = None,
    broker: Annotated[str | None, option("broker")] = None,
    state_root: Annotated[Path | None, option("state_root")] = None,
    insecure: Annotated[bool, option("insecure")] = False,
    as_json: Json = False,
) -> None:
    """Show what is set and where it came from, and check server, workers, versions, sandbox, programs and keys.

    Changes nothing and prints no key. Exits 0, or 3 when there is a problem; warnings are fine.

    Examples:

      uplift doctor

      uplift doctor --broker redis://127.0.0.1:6379/0 --json
    """
    from producer.setup import doctor as doctors

    used, checks = _config(config)
    given = {name: value for name, value in (("broker", broker), ("state_root", state_root)) if value}
    used = replace(
        used,
        values=used.values.model_copy(update={**given, "insecure": insecure or used.values.insecure}),
        origins={**used.origins, **dict.fromkeys(given, "flag")},
    )
    settings = doctors.settings(used)
    checks += doctors.examine(used)
    if as_json:
        print_json({"settings": settings, "checks": checks})
    else:
        _show(settings, checks)
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(3)


def _config(path: Path | None) -> tuple[Config, list[Check]]:
    """The config to look at; one that cannot be read is the first finding, and the rest is still looked at."""
    from producer.settings import config_file
    from producer.setup.doctor import Check

    try:
        config = config_file.load(path)
    except config_file.InvalidConfig as invalid:
        remedy = "correct it; until then no command runs"
        lines = str(invalid).splitlines()
        return config_file.Config(), [Check("config", "problem", line, remedy) for line in lines]
    file = str(config.file) if config.file else "no file; defaults and variables are used"
    return config, [Check("config", "ok", file)]


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

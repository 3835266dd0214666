"""Flags: made from the settings of a run, and those that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from aggregate.records.settings import OLD_STOP_EARLY, Panel
from producer.settings import run_settings
from producer.settings.run_settings import RunSettings

_OLD_WORDS = [f"--stop-early={word}" for word in OLD_STOP_EARLY]
_TYPES: dict[type, Any] = {tuple: list[str], dict: list[str]}
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def option(name: str, default: str | None = None) -> Any:
    """The flag of a setting; a command may do something else without it."""
    setting = run_settings.described()[name]
    unset = run_settings.default_text(name) if default is None else default
    words = f"{setting.help}{f' [default: {unset}]' if unset else ''}"
    return typer.Option(
        setting.flag, metavar=setting.metavar, help=words, show_default=False, rich_help_panel=setting.panel
    )


def flag(name: str, panel: Panel, words: str, metavar: str | None = None) -> Any:
    """A flag of a command that is no setting of a run."""
    return typer.Option(name, metavar=metavar, help=words, rich_help_panel=panel)


def takes_settings(*names: str, unset: Mapping[str, str] = MappingProxyType({})) -> Callable[..., Any]:
    """Give a command --config and the flags of these settings, which it takes as `**flags`.

    `unset` says what holds without a flag, where that is not the setting's default. `options` reads the flags.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        flags = {name: _annotation(name, unset.get(name)) for name in names} | {"config": ConfigFile}
        together = [inspect.Parameter(name, _BY_NAME, default=None, annotation=flags[name]) for name in flags]
        together += [one.replace(kind=_BY_NAME) for one in own.values() if one.kind is not one.VAR_KEYWORD]
        command.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]  # Typer reads it
        command.__annotations__ = {one.name: one.annotation for one in together}
        return command

    return decorate


def typed(context: typer.Context, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings whose flags were typed, by name; what a config says is not among them."""
    sources = {name: context.get_parameter_source(name) for name in flags if name != "config"}
    given = {name: flags[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    if "retry" in given:  # the flag is --no-retry
        given["retry"] = False
    return given


def options(context: typer.Context, flags: Mapping[str, Any], without: Collection[str] = ()) -> RunSettings:
    """The settings that were typed and, but for those `without`, those of the config."""
    settings: RunSettings = context.obj.with_flags(typed(context, flags), without=without)
    return settings


def _annotation(name: str, default: str | None) -> Any:
    kind = str if name == "tools" else run_settings.kind_of(name)
    return Annotated[_TYPES.get(kind, kind) | None, option(name, default)]


def print_json(value: Any) -> None:
    """Print a value on one line of standard output; dataclasses become objects, paths become text."""
    import json

    typer.echo(json.dumps(value, default=lambda part: vars(part) if is_dataclass(part) else str(part)))


class Grouped(TyperCommand):
    """A command whose help has a heading for each group of flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--stop-early=decision` is told the same as `--stop-early decision`: what to write today."""
        words = (word.split("=") if word in _OLD_WORDS else [word] for word in args)
        return super().parse_args(ctx, [*chain.from_iterable(words)])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (record := one.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(one, "rich_help_panel", None) or "Other", []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


takes_place = takes_settings(
    "state_root", "broker", "insecure", unset={"broker": "only runs of this state root are known"}
)
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress and no answer.", rich_help_panel="Output")
]
Details = Annotated[
    bool, typer.Option("--details", help="Show all tables above the answer.", rich_help_panel="Output")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
WholeArtifact = Annotated[
    bool, flag("--json", "Output", "Print the whole artifact on standard output, not only the summary line.")
]
RunId = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="A run id or how it begins, last, or last~1 for the one before it. [default: last]",
    ),
]


def _use_config(context: typer.Context, given: Path | None) -> Path | None:
    """Read the config, which speaks for flags that are not given; the command finds it in `context.obj`."""
    if not context.resilient_parsing:
        from producer.settings import config_file

        context.obj = config_file.load(given)
    return given


# Eager: what is wrong with it is told first. Commands take it and need do nothing with it.
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_use_config,
        help="Settings to use. [default: UPLIFT_CONFIG, or the nearest uplift.toml or pyproject.toml]",
        rich_help_panel="Where it runs",
    ),
]

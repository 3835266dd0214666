"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from producer.names import DEFAULT_STATE_ROOT as DEFAULT_STATE_ROOT

StateRoot = Annotated[
    Path,
    typer.Option(
        "--state-root",
        envvar="UPLIFT_STATE_ROOT",
        help="Folder for artifacts, traces, records and private servers.",
        show_default=True,
    ),
]


def _broker(without: str) -> Any:
    """The flag for a shared server; commands differ in what they do without one."""
    words = f"Redis that workers share: redis://, rediss:// or unix://. Also UPLIFT_BROKER. {without}"
    return typer.Option("--broker", metavar="URL", help=words)


Broker = Annotated[str | None, _broker("Without one, a private server is started.")]
BrokerOfRun = Annotated[str | None, _broker("Without one, only runs of this state root are known.")]
NeededBroker = Annotated[str | None, _broker("Needed: this command starts none.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a broker on another machine without password and TLS.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no table.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run id, as `uplift runs` lists them.")]
InFlight = Annotated[
    int | None,
    typer.Option("--in-flight", min=1, help="Model calls at once in one worker process. [default: 100]"),
]


def _use_config(context: typer.Context, given: Path | None) -> Path | None:
    """Let the config speak for flags that are not given; the command finds all of it in `context.obj`."""
    if not context.resilient_parsing:
        from producer import config

        context.obj = config.load(given)
        context.default_map = context.obj.flag_defaults()
    return given


# Eager: it must be read before the flags whose defaults it sets. Commands take it and need do nothing with it.
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_use_config,
        help="Settings to use. [default: UPLIFT_CONFIG, or the nearest uplift.toml or pyproject.toml]",
    ),
]

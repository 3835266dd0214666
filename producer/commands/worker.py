"""`uplift worker`: take work from a broker until told to stop."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from producer.commands.flags import Broker, ConfigFile, InFlight, Insecure


def worker(
    broker: Broker = None,
    in_flight: InFlight = None,
    agents: Annotated[
        int | None, typer.Option("--agents", min=1, help="Agent programs at once. [default: number of cores]")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
    insecure: Insecure = False,
    config: ConfigFile = None,
) -> None:
    """Run a worker for a shared broker; start as many as you like, on as many machines.

    API keys are read from this process's environment and never leave it. SIGTERM finishes or hands back what is
    under way within 8 seconds. `celery -A workers worker` does the same, for those who run Celery already.

    Example: uplift worker --broker redis://:password@queue.internal:6379/0
    """
    from producer.session import broker_url
    from producer.submit import open_server
    from workers.server import check
    from workers.settings import redacted

    url = broker_url(broker, insecure=insecure)
    if url is None:
        raise typer.BadParameter(
            "give the broker's address, for example --broker redis://127.0.0.1:6379/0, or set UPLIFT_BROKER"
        )
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(f"--log-level is {log_level!r}; give debug, info, warning or error")
    os.environ["UPLIFT_BROKER"] = url
    if in_flight is not None:
        os.environ["UPLIFT_IN_FLIGHT"] = str(in_flight)
    if agents is not None:
        os.environ["UPLIFT_AGENT_IN_FLIGHT"] = str(agents)
    for warning in check(open_server(url).store.client):
        typer.echo(f"uplift: {warning}", err=True)
    typer.echo(f"uplift: worker {os.getpid()} takes work from {redacted(url)}; Ctrl-C stops it", err=True)
    from workers.__main__ import main

    main(log_level=log_level)

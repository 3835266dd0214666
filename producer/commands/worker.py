"""`uplift worker`: take work from a broker until told to stop."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from producer.commands.flags import ConfigFile, InFlight, Insecure, NeededBroker


def worker(
    broker: NeededBroker = None,
    in_flight: InFlight = None,
    agents: Annotated[
        int | None, typer.Option("--agents", min=1, help="Agent programs at once. [default: number of cores]")
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = "warning",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            envvar="UPLIFT_METRICS_PORT",
            min=0,
            max=65535,
            help="Serve /metrics for Prometheus on this port; 0 takes a free one. [default: off]",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(
            "--metrics-address",
            envvar="UPLIFT_METRICS_ADDRESS",
            help="Address to serve them on; others than loopback need a bearer token in UPLIFT_METRICS_TOKEN.",
        ),
    ] = "127.0.0.1",
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
    _ask_for_metrics(metrics_port, metrics_address)
    for warning in check(open_server(url).store.client):
        typer.echo(f"uplift: {warning}", err=True)
    typer.echo(f"uplift: worker {os.getpid()} takes work from {redacted(url)}; Ctrl-C stops it", err=True)
    from workers.__main__ import main

    main(log_level=log_level)


def _ask_for_metrics(port: int | None, address: str) -> None:
    """Tell the worker through its environment; what cannot be is said before it starts."""
    if port is None:
        return
    from importlib.util import find_spec

    from workers.metrics import ADDRESS, PORT, InvalidMetrics, endpoint

    if find_spec("prometheus_client") is None:
        raise typer.BadParameter("--metrics-port needs the `monitor` extra: pip install '.[monitor]'")
    os.environ[PORT], os.environ[ADDRESS] = str(port), address
    try:
        endpoint()
    except InvalidMetrics as problem:
        raise typer.BadParameter(str(problem)) from None

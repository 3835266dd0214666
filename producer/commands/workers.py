"""`uplift worker` and `uplift monitor`: take work from a broker, and watch workers and batches in a browser."""

from __future__ import annotations

import os
import secrets
from typing import Annotated, Any

import typer

from producer.commands.flags import options, takes_settings

_NO_SERVER = {"broker": "none: this command starts no server"}


@takes_settings("broker", "in_flight", "agents", "insecure", unset=_NO_SERVER)
def worker(
    context: typer.Context,
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
    **flags: Any,
) -> None:
    """Run a worker for a shared broker; start as many as you like, on as many machines.

    API keys are read from this process's environment and never leave it. SIGTERM finishes or hands back what is
    under way within 8 seconds. `celery -A workers worker` does the same, for those who run Celery already.

    Example: uplift worker --broker redis://:password@queue.internal:6379/0
    """
    from producer.server.connect import broker_url, open_server
    from workers.store.keys import redacted
    from workers.store.redis_client import check

    settings = options(context, flags)
    url = broker_url(settings.broker, insecure=settings.insecure)
    if url is None:
        raise typer.BadParameter(
            "give the broker's address, for example --broker redis://127.0.0.1:6379/0, or set UPLIFT_BROKER"
        )
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(f"--log-level is {log_level!r}; give debug, info, warning or error")
    os.environ["UPLIFT_BROKER"] = url
    os.environ.update(settings.private_worker)
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

    from workers.models.choose import how_to_install

    if find_spec("prometheus_client") is None:
        raise typer.BadParameter(
            f"--metrics-port needs packages that are missing: {how_to_install('monitor')}"
        )
    from workers.process.metrics import ADDRESS, PORT, InvalidMetrics, endpoint

    os.environ[PORT], os.environ[ADDRESS] = str(port), address
    try:
        endpoint()
    except InvalidMetrics as problem:
        raise typer.BadParameter(str(problem)) from None


@takes_settings("broker", "insecure", unset=_NO_SERVER)
def monitor(
    context: typer.Context,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 5555,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Name to log in with.")] = "uplift",
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            metavar="WORD",
            envvar="UPLIFT_MONITOR_PASSWORD",
            help="Password to log in with; made up and printed when not given. Other users of this machine see "
            "what is on the command line, so prefer the variable.",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            "--address", help="Address to listen on; leave it at loopback unless a proxy guards it."
        ),
    ] = "127.0.0.1",
    **flags: Any,
) -> None:
    """Start Flower for a broker, on loopback, read-only and behind a password.

    It shows workers, batches and rates. Batches are named by run and tasks; no prompt, skill or output is shown,
    because none travels in messages. Prometheus can read /metrics with the same name and password.

    Example: uplift monitor --broker redis://127.0.0.1:6379/0
    """
    from importlib.util import find_spec

    from producer.server.connect import broker_url, open_server
    from workers.models.choose import how_to_install

    settings = options(context, flags)
    url = broker_url(settings.broker, insecure=settings.insecure)
    if url is None:
        raise typer.BadParameter("give the broker to look at, with --broker URL or UPLIFT_BROKER")
    if find_spec("flower") is None:
        raise typer.BadParameter(f"Flower is not installed; install it: {how_to_install('monitor')}")
    from producer.setup.flower import InvalidLogin, Login, Monitor
    from workers.store.keys import is_loopback

    made_up = secrets.token_urlsafe(12) if password is None else None
    try:
        login = Login(user, made_up or password or "")
        serving = Monitor(open_server(url).app, login, address=address, port=port)
    except InvalidLogin as problem:
        raise typer.BadParameter(str(problem)) from None
    if made_up is not None:
        typer.echo(f"uplift: log in as {user} with password {made_up}", err=True)
    if not is_loopback(address):
        typer.echo("uplift: passwords cross the network readably; put a proxy with TLS in front", err=True)
    typer.echo(f"uplift: Flower listens on http://{address}:{port}; Ctrl-C stops it", err=True)
    serving.run()

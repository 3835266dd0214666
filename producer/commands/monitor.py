"""`uplift monitor`: watch workers and batches in a browser, with Flower."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from producer.commands.flags import ConfigFile, Insecure, NeededBroker


def monitor(
    broker: NeededBroker = None,
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
    insecure: Insecure = False,
    config: ConfigFile = None,
) -> None:
    """Start Flower for a broker, on loopback, read-only and behind a password.

    It shows workers, batches and rates. Batches are named by run and tasks; no prompt, skill or output is shown,
    because none travels in messages. Prometheus can read /metrics with the same name and password.

    Example: uplift monitor --broker redis://127.0.0.1:6379/0
    """
    from importlib.util import find_spec

    from producer.session import broker_url
    from producer.submit import open_server

    url = broker_url(broker, insecure=insecure)
    if url is None:
        raise typer.BadParameter("give the broker to look at, with --broker URL or UPLIFT_BROKER")
    if find_spec("flower") is None:
        raise typer.BadParameter(
            "Flower is not installed; install the `monitor` extra: pip install '.[monitor]'"
        )
    from producer.monitoring import CannotListen, InvalidLogin, Login, Monitor
    from workers.settings import is_loopback

    made_up = secrets.token_urlsafe(12) if password is None else None
    try:
        login = Login(user, made_up or password or "")
        serving = Monitor(open_server(url).app, login, address=address, port=port)
    except InvalidLogin as problem:
        raise typer.BadParameter(str(problem)) from None
    except CannotListen as problem:
        typer.echo(f"uplift: {problem}", err=True)
        raise typer.Exit(3) from None
    if made_up is not None:
        typer.echo(f"uplift: log in as {user} with password {made_up}", err=True)
    if not is_loopback(address):
        typer.echo("uplift: passwords cross the network readably; put a proxy with TLS in front", err=True)
    typer.echo(f"uplift: Flower listens on http://{address}:{port}; Ctrl-C stops it", err=True)
    serving.run()

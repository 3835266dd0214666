"""`uplift monitor`: watch workers and batches in a browser, with Flower."""

from __future__ import annotations

import os
import secrets
from typing import Annotated

import typer

from producer.commands.flags import Broker, Insecure


def monitor(
    broker: Broker = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 5555,
    user: Annotated[str, typer.Option("--user", help="Name to log in with.")] = "uplift",
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            envvar="UPLIFT_MONITOR_PASSWORD",
            help="Password to log in with; made up and printed when not given.",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            "--address", help="Address to listen on; leave it at loopback unless a proxy guards it."
        ),
    ] = "127.0.0.1",
    insecure: Insecure = False,
) -> None:
    """Start Flower for a broker, on loopback and behind a password.

    It shows workers, batches and rates. Batches are named by run and tasks; no prompt, skill or output is shown,
    because none travels in messages.

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
    if password is None:
        password = secrets.token_urlsafe(12)
        typer.echo(f"uplift: log in as {user} with password {password}", err=True)
    open_server(url)
    os.environ["UPLIFT_BROKER"] = url
    # Flower reads its password from the environment, so that it does not show in the list of processes.
    os.environ["FLOWER_BASIC_AUTH"] = f"{user}:{password}"
    typer.echo(f"uplift: Flower listens on http://{address}:{port}; Ctrl-C stops it", err=True)
    from workers.app import worker_app

    worker_app().start(["--quiet", "flower", f"--address={address}", f"--port={port}"])

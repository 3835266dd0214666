"""`uplift worker`, `queue` and `monitor`: take work from a broker, count it, and watch it in a browser."""

from __future__ import annotations

import json
import os
import secrets
from typing import Annotated, Any

import typer

from producer.commands.flags import Json, options, takes_settings
from producer.settings.run_settings import RunSettings
from workers.store.messages import ServeSettings

_NO_SERVER = {"broker": "none: this command starts no server"}


@takes_settings("broker", "in_flight", "agents", "insecure", *ServeSettings.model_fields, unset=_NO_SERVER)
def worker(
    context: typer.Context,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = "warning",
    log_format: Annotated[
        str, typer.Option("--log-format", metavar="FORMAT", help="text, or json: an object a line.")
    ] = "text",
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
    from producer.server import open_server
    from workers.store.keys import redacted
    from workers.store.process_settings import POLICY
    from workers.store.redis_client import check

    settings = options(context, flags)
    url = _given_broker(settings)
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(f"--log-level is {log_level!r}; give debug, info, warning or error")
    if log_format not in ("text", "json"):
        raise typer.BadParameter(f"--log-format is {log_format!r}; give text or json")
    os.environ["UPLIFT_BROKER"] = url
    os.environ.update(settings.private_worker)
    os.environ[POLICY] = settings.policy.model_dump_json(exclude_defaults=True)
    _ask_for_metrics(metrics_port, metrics_address)
    from workers.__main__ import main
    from workers.process.logs import tell, write_json

    if log_format == "json":
        write_json(log_level)
    for warning in check(open_server(url).store.client):
        tell(warning)
    tell(f"worker {os.getpid()} takes work from {redacted(url)}; Ctrl-C stops it")
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
def queue(context: typer.Context, as_json: Json = False, **flags: Any) -> None:
    """Count attempts that wait and are under way on a broker, also with no worker alive.

    `total` is the number to scale workers on; runs of which only the end is missing count as one each.

    Example: uplift queue --broker redis://127.0.0.1:6379/0 --json
    """
    from aggregate.text.formats import counted
    from producer.server import open_server
    from workers.store.backlog import backlog

    now = backlog(open_server(_given_broker(options(context, flags))).store.client)
    what = f"{counted(now['waiting'], 'attempt')} waiting, {now['under_way']} under way"
    ends = f"{counted(now['finishing'], 'run')} to finish; {counted(now['workers'], 'worker')}"
    typer.echo(json.dumps(now) if as_json else f"{now['total']} to do: {what}, {ends}")


def _given_broker(settings: RunSettings) -> str:
    from producer.server import broker_url

    if url := broker_url(settings.broker, insecure=settings.insecure):
        return url
    example = "--broker redis://127.0.0.1:6379/0"
    raise typer.BadParameter(f"give the broker's address, for example {example}, or set UPLIFT_BROKER")


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
    because none travels in messages. Prometheus can read /metrics with the same name and password, and autoscalers
    /queue, which is what `uplift queue --json` prints.

    Example: uplift monitor --broker redis://127.0.0.1:6379/0
    """
    from importlib.util import find_spec

    from producer.server import open_server
    from workers.models.choose import how_to_install

    url = _given_broker(options(context, flags))
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

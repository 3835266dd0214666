"""Flower, a browser's view of workers and batches, made safe to leave running: a password for everything, read-only.

Flower by itself leaves /metrics and its files open when a password is set, lets whoever is logged in start, revoke
and shut down, and runs a `flowerconfig.py` that it finds in the current folder. Here nothing is answered without
the password except /healthcheck (the word OK), nothing can be changed, and no file and no FLOWER_ variable is read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
import tornado.web
from flower.app import Flower  # type: ignore[import-untyped]  # Flower has no hints
from flower.options import options  # type: ignore[import-untyped]  # Flower has no hints
from flower.urls import settings  # type: ignore[import-untyped]  # Flower has no hints
from tornado.httputil import HTTPServerRequest

from judges.errors import InfrastructureError
from workers.process.celery_app import App
from workers.store.backlog import backlog
from workers.store.redis_client import connect

OPEN_PATH, QUEUE_PATH = "/healthcheck", "/queue"
PATIENCE_SECONDS = 5
# Workers of a scaled-down deployment leave the list after this long.
GONE_SECONDS = 600
COLUMNS = "name,args,state,received,started,runtime,worker"


class InvalidLogin(ValueError):
    """A user name or password that HTTP's basic authentication cannot carry, for the reason given."""


class CannotListen(InfrastructureError):
    """The address or port cannot be used, for the reason given."""


@dataclass(frozen=True)
class Login:
    """Who may look; the password is kept out of the text form."""

    user: str
    password: str

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user or not _is_plain(self.user):
            raise InvalidLogin(
                f"the user name is {self.user!r}; give printable ASCII characters without a colon"
            )
        if not self.password or not _is_plain(self.password):
            raise InvalidLogin("the password is empty or not all printable ASCII characters")

    def __repr__(self) -> str:
        return f"Login({self.user!r})"

    @property
    def credentials(self) -> str:
        return f"{self.user}:{self.password}"

    def admits(self, header: str) -> bool:
        """Whether an Authorization header carries this login."""
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            given = base64.b64decode(token.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(given, self.credentials.encode())


class _Refuse(tornado.web.RequestHandler):
    def check_xsrf_cookie(self) -> None:
        """There is nothing to forge here; the answer is the same to every request."""

    def prepare(self) -> None:
        self.set_status(401)
        self.set_header("WWW-Authenticate", 'Basic realm="uplift", charset="UTF-8"')
        self.finish("log in to see this\n")


class _Queue(tornado.web.RequestHandler):
    """What `uplift queue --json` prints; 503 while the broker does not answer, so that nobody scales on a guess."""

    async def get(self) -> None:
        try:
            self.write(await asyncio.to_thread(backlog, self.settings["uplift_client"]))
        except redis.RedisError as problem:
            self.set_status(503)
            self.finish(f"the broker does not answer: {type(problem).__name__}\n")


class _Guarded(Flower):  # type: ignore[misc]  # Flower has no hints
    """Flower that asks for the password before it looks at a path, so that no page can be left out."""

    def __init__(self, login: Login, **kwargs: Any) -> None:
        self._login = login
        super().__init__(**kwargs)

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        if request.path != OPEN_PATH and not self._login.admits(request.headers.get("Authorization", "")):
            return self.get_handler_delegate(request, _Refuse)
        if request.path == QUEUE_PATH:
            return self.get_handler_delegate(request, _Queue)
        return super().find_handler(request, **kwargs)


class Monitor:
    """Flower, listening once this is made; `run` serves until SIGTERM or Ctrl-C."""

    def __init__(self, app: App, login: Login, *, address: str, port: int) -> None:
        # A global of tornado's, and the only way in: Flower's pages read it directly.
        options.address, options.port = address, port
        options.basic_auth = [login.credentials]
        options.read_only = True
        options.purge_offline_workers = GONE_SECONDS
        options.tasks_columns = COLUMNS
        # A browser is refused once before it asks for the password; that is nothing to report.
        logging.getLogger("tornado.access").disabled = True
        # Flower asks for results without saying of which app, from threads of its own.
        app.set_default()
        client = connect(app.settings.broker, timeout_seconds=PATIENCE_SECONDS, retries=1)
        self._flower = _Guarded(login, capp=app, options=options, uplift_client=client, **settings)
        try:
            self._flower.start_http_server()
        except OSError as problem:
            raise CannotListen(f"cannot listen on {address}, port {port}: {problem.strerror}") from None

    def run(self) -> None:
        """Serve until told to stop; ends this process, because Flower's threads try for ever to reach a lost broker."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            self._flower.start()
        with suppress(KeyboardInterrupt):
            self._flower.stop()
        os._exit(0)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()

"""Find or start the server of a run and connect to it: the named broker, or the private one that belongs to the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis
from kombu.exceptions import OperationalError

from producer.server import private_server
from producer.server.private_server import Local
from producer.state_root import Places
from workers.process.celery_app import App
from workers.store import redis_client
from workers.store.claims import drop_all
from workers.store.keys import WORKERS, checked_broker
from workers.store.process_settings import ProcessSettings, from_environment
from workers.store.redis_client import AWAY, RETRIES
from workers.store.run_store import Store, UnknownRun

# Why a run's private server cannot be looked at right now: somebody else has it, or nobody can start it here.
OUT_OF_REACH = (private_server.Busy, private_server.NoServer, OSError, redis.RedisError)


class ServerNotRunning(Exception):
    """The run's private server is not running: its owner has finished the run, or died."""


class NoTrace(UnknownRun):
    """The run has no private server that could be started again."""

    def __init__(self, places: Places, run_id: str) -> None:
        super().__init__(
            f"no run {run_id!r} under way under {places.root}; `{places.command('runs')}` lists what is there, "
            "and --broker URL looks on a server"
        )


@dataclass(frozen=True)
class Server:
    """A server with runs on it; `local` is set where this process has started it, and must keep it alive.

    `joined` is the folder of a private server that another process may end at any moment.
    """

    settings: ProcessSettings
    store: Store
    app: App
    local: Local | None = None
    joined: Path | None = None

    def check(self) -> None:
        """Raise when a private server or worker has died: NoServer for ours, ServerNotRunning for another's."""
        if self.local is not None:
            self.local.check()
        if self.joined is not None and private_server.settled_address(self.joined) != self.settings.broker:
            raise ServerNotRunning

    def close(self) -> None:
        """Give back every connection; a program that runs many evaluations must not collect them."""
        with suppress(redis.RedisError, OperationalError, OSError):  # a server that is gone has closed them
            self.store.client.close()
            self.app.disconnect()
        self.app.close()


def open_server(
    url: str, *, retries: int = RETRIES, local: Local | None = None, joined: Path | None = None
) -> Server:
    """Connect and look whether a run can be kept there; raises redis errors and UnusableServer."""
    settings = from_environment({**os.environ, "UPLIFT_BROKER": url})
    client = redis_client.connect(url, retries=retries)
    client.ping()
    return Server(settings, Store(client), App(settings), local, joined)


def broker_url(flag: str | None, *, insecure: bool = False) -> str | None:
    """The broker from the flag, else from UPLIFT_BROKER, else None for a private server."""
    url = flag or os.environ.get("UPLIFT_BROKER") or None
    return checked_broker(url, insecure=insecure) if url else None


@contextmanager
def for_new_run(
    places: Places, run_id: str, broker: str | None, worker: Mapping[str, str]
) -> Iterator[Server]:
    """A server for a run that is about to start; a private one gets a worker with these variables."""
    if broker is not None:
        with closing(open_server(broker)) as server:
            yield server
        return
    with private_server.serving(places.embedded(run_id)) as private:
        private.start_worker(worker)
        with closing(open_server(private.url, local=private)) as server:
            yield server


@contextmanager
def joining(places: Places, run_id: str, broker: str | None) -> Iterator[Server]:
    """The server on which a run is right now; ServerNotRunning where a private one is not there, or goes meanwhile."""
    folder = places.embedded(run_id)
    url = broker or private_server.settled_address(folder)
    if url is None:
        raise ServerNotRunning
    try:
        # A private server that is gone does not come back: trying again for long helps nobody.
        retries, joined = (RETRIES, None) if broker else (1, folder)
        with closing(open_server(url, retries=retries, joined=joined)) as server:
            yield server
    except AWAY:
        if broker is None and private_server.settled_address(folder) != url:
            raise ServerNotRunning from None
        raise


@contextmanager
def taking_over(places: Places, run_id: str, *, worker: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A run's private server that nobody serves, started again, with a worker if its variables are given.

    Without one nobody else can join it: they would wait for work that is not done.
    """
    folder = places.embedded(run_id)
    if not private_server.has_data(folder):
        raise NoTrace(places, run_id)
    with (
        private_server.serving(folder, public=worker is not None) as private,
        closing(open_server(private.url, local=private)) as server,
    ):
        if server.store.state(run_id) is None:  # its owner left nothing behind
            for other in server.store.client.scan_iter(f"*:{run_id}:state"):
                prefix = other.decode().split(":")[0]
                raise private_server.NoServer(
                    f"run {run_id} was started with UPLIFT_PREFIX={prefix}:, which is to be set again"
                )
            private.forget = True
            raise NoTrace(places, run_id)
        # Its workers have died with the server's last owner: nobody need wait for them or their leases.
        server.store.client.delete(WORKERS)
        drop_all(server.store.client, run_id)
        if worker is not None:
            private.start_worker(worker)
        yield server

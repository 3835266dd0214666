"""Find or start the server of a run: the broker that was named, or the private one that belongs to the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from producer import local
from producer.local import Local
from producer.places import Places
from producer.submit import Server, open_server
from workers.claims import expire_all
from workers.server import RETRIES, WORKERS
from workers.settings import checked_broker
from workers.store import UnknownRun


class NotServed(Exception):
    """Nobody serves the run's private server at the moment: its owner has finished the run, or died."""


class NoTrace(UnknownRun):
    """The run has no private server that could be started again."""

    def __init__(self, places: Places, run_id: str) -> None:
        super().__init__(
            f"no run {run_id!r} under way under {places.root}; `uplift runs` lists what is there, "
            "and --broker URL looks on a server"
        )


@dataclass(frozen=True)
class Session:
    """An open server; `local` is set where this process has started it, and must keep it alive.

    `joined` is the folder of a private server, here at `url`, that another process may end at any moment.
    """

    server: Server
    local: Local | None = None
    joined: Path | None = None
    url: str | None = None

    def check(self) -> None:
        """Raise when a private server or worker has died: NoServer for ours, NotServed for another's."""
        if self.local is not None:
            self.local.check()
        if self.joined is not None and local.settled_address(self.joined) != self.url:
            raise NotServed


def broker_url(flag: str | None, *, insecure: bool = False) -> str | None:
    """The broker from the flag, else from UPLIFT_BROKER, else None for a private server."""
    url = flag or os.environ.get("UPLIFT_BROKER") or None
    return checked_broker(url, insecure=insecure) if url else None


@contextmanager
def for_new_run(
    places: Places, run_id: str, broker: str | None, *, in_flight: int | None
) -> Iterator[Session]:
    """A server for a run that is about to start, with a worker where the server is private."""
    if broker is not None:
        with closing(open_server(broker)) as server:
            yield Session(server)
        return
    with local.serving(places.embedded(run_id)) as private:
        private.start_worker(in_flight=in_flight)
        with closing(open_server(private.url)) as server:
            yield Session(server, private)


@contextmanager
def joining(places: Places, run_id: str, broker: str | None) -> Iterator[Session]:
    """The server on which a run is right now; NotServed where a private one is not there, or goes meanwhile."""
    folder = places.embedded(run_id)
    url = broker or local.settled_address(folder)
    if url is None:
        raise NotServed
    try:
        # A private server that is gone does not come back: trying again for long helps nobody.
        with closing(open_server(url, retries=RETRIES if broker else 1)) as server:
            yield Session(server, joined=folder if broker is None else None, url=url)
    except (redis.ConnectionError, redis.TimeoutError):
        if broker is None and local.settled_address(folder) != url:
            raise NotServed from None
        raise


@contextmanager
def taking_over(
    places: Places, run_id: str, *, worker: bool = False, in_flight: int | None = None
) -> Iterator[Session]:
    """A run's private server that nobody serves, started again, with a worker if asked.

    Without one nobody else can join it: they would wait for work that is not done.
    """
    folder = places.embedded(run_id)
    if not local.has_data(folder):
        raise NoTrace(places, run_id)
    with local.serving(folder, public=worker) as private, closing(open_server(private.url)) as server:
        if server.store.state(run_id) is None:  # its owner left nothing behind
            private.forget = True
            raise NoTrace(places, run_id)
        # Its workers have died with the server's last owner: nobody need wait for them or their leases.
        server.store.client.delete(WORKERS)
        expire_all(server.store.client, run_id)
        if worker:
            private.start_worker(in_flight=in_flight)
        yield Session(server, private)

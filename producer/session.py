"""Find or start the server of a run: the broker that was named, or the private one that belongs to the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from producer import local
from producer.local import Local
from producer.places import Places
from producer.submit import Server, open_server
from workers.claims import expire_all
from workers.settings import checked_broker
from workers.store import UnknownRun


@dataclass(frozen=True)
class Session:
    """An open server; `local` is set where this process has started it, and must keep it alive."""

    server: Server
    local: Local | None = None

    def check(self) -> None:
        """Raise when a private server or worker of ours has died."""
        if self.local is not None:
            self.local.check()


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
def for_known_run(
    places: Places, run_id: str, broker: str | None, *, worker: bool = False, in_flight: int | None = None
) -> Iterator[Session]:
    """The server on which a run is; a private one that is not running is started, with a worker if asked."""
    if broker is not None:
        with closing(open_server(broker)) as server:
            yield Session(server)
        return
    folder = places.embedded(run_id)
    if not folder.is_dir():
        raise UnknownRun(
            f"no run {run_id!r} under way under {places.root}; `uplift runs` lists what is there, "
            "and --broker URL looks on a server"
        )
    url = local.address(folder)
    if url is not None:
        with closing(open_server(url)) as server:
            yield Session(server)
        return
    with local.serving(folder) as private, closing(open_server(private.url)) as server:
        # The worker that held them has died with the server's last owner: nobody need wait for its leases.
        expire_all(server.store.client, run_id)
        if worker:
            private.start_worker(in_flight=in_flight)
        yield Session(server, private)

"""kombu's Redis transport with one client a channel: kombu makes one for every command, a tenth of a worker's time."""

from __future__ import annotations

from typing import Any

import kombu
from kombu.transport import redis


class Channel(redis.Channel):  # type: ignore[misc]  # kombu has no hints
    """Keeps the client that takes its connections from the pool, for as long as the channel keeps that pool."""

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # these hold a connection of their own, and kombu keeps them itself
            return super()._create_client(asynchronous=True)
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()
        return self._kept


class Transport(redis.Transport):  # type: ignore[misc]  # as above
    Channel = Channel


class Connection(kombu.Connection):  # type: ignore[misc]  # as above
    """A connection to Redis; its URL's scheme would choose kombu's own transport."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport

"""Names that producers and workers agree on: the broker's address, and its keys, lanes, queues and Lua scripts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from judges.errors import UpliftError

if TYPE_CHECKING:
    from kombu import Queue

SCHEMES = ("redis", "rediss", "unix")
# What producers and workers agree on. Whoever changes a message, a key or a script raises it: versions that do not
# understand each other then share a server without meeting, each in lanes of its own.
PROTOCOL: Literal[2] = 2
_OURS = f"uplift.{PROTOCOL}"
LANES = tuple(f"{_OURS}.lane.{number}" for number in range(8))
QUARANTINE = f"{_OURS}.quarantine"
FINISH = f"{_OURS}.finish"
# Where kombu keeps messages that were taken and are not acknowledged yet.
UNACKED = f"{_OURS}.unacked"
UNACKED_INDEX = f"{_OURS}.unacked_index"
UNACKED_MUTEX = f"{_OURS}.unacked_mutex"

RUNS = "uplift:runs"
TURN = "uplift:turn"
PROBE = "uplift:probe"
WORKERS = "uplift:workers"
WORKER = "uplift:worker:"  # and its name
HELD = "uplift:held:"  # and a worker's name
MENDER = f"uplift:mender:{PROTOCOL}"

DAY_SECONDS = 86_400
WORKING_DAYS = 7
WORKING_SECONDS = WORKING_DAYS * DAY_SECONDS


class _Key:
    """The name of one of a run's keys: `uplift:RUN:` and the attribute's own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, keys: Keys, owner: type) -> str:
        return f"uplift:{keys.run_id}:{self._name}"


@dataclass(frozen=True)
class Keys:
    """Names of a run's keys."""

    run_id: str

    manifest = _Key()
    info = _Key()
    tasks = _Key()
    state = _Key()
    records = _Key()
    errors = _Key()
    claims = _Key()
    owners = _Key()
    deaths = _Key()
    counts = _Key()
    failures = _Key()
    stored = _Key()
    artifacts = _Key()
    rounds = _Key()
    workers = _Key()
    breaker = _Key()
    tallies = _Key()
    handed_back = _Key()
    finishing = _Key()
    refused = _Key()

    def all(self) -> list[str]:
        return [getattr(self, name) for name, key in vars(Keys).items() if isinstance(key, _Key)]

    def beat(self, worker: str) -> str:
        """What a worker tells of the run; forgotten within seconds."""
        return f"uplift:{self.run_id}:beat:{worker}"


def bundle(digest: str) -> str:
    """The key of a bundle, which any number of runs may share."""
    return f"uplift:bundle:{digest}"


def limits(model: str) -> list[str]:
    """The keys of a model's limits: the slots that are taken, the pace, and what the last minute used."""
    return [f"uplift:limits:{model}:{part}" for part in ("slots", "pace", "minute")]


def queue(name: str) -> Queue:
    """A lane, the quarantine or the finishing queue, as Celery declares it."""
    from kombu import Exchange, Queue

    return Queue(name, Exchange("uplift", type="direct"), routing_key=name)


def waiting_keys(lane: str) -> list[str]:
    """The lists in which a lane's messages wait, one for each of the transport's priority steps."""
    return [f"{lane}\x06\x16{step}" if step else lane for step in (0, 3, 6, 9)]


def script(name: str) -> str:
    """The text of one of our Lua scripts."""
    return resources.files("workers.store").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


class InvalidBroker(UpliftError, ValueError):
    """The broker's address cannot be used, for the reason given."""


def checked_broker(url: str, *, insecure: bool = False) -> str:
    """Return `url` if it names a server that may be used.

    A server on another machine needs a password or TLS, because skills, prompts and outputs pass through it.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidBroker(f"unknown broker {redacted(url)!r}; give redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        if not parts.path:
            raise InvalidBroker(f"broker {url!r} names no socket; write unix:///path/to/socket")
        return url
    if not parts.hostname:
        raise InvalidBroker(f"broker {redacted(url)!r} names no host; write redis://host:6379/0")
    try:
        _ = parts.port
    except ValueError:
        raise InvalidBroker(f"broker {redacted(url)!r} has no valid port") from None
    if not insecure and parts.scheme == "redis" and not parts.password and not is_loopback(parts.hostname):
        raise InvalidBroker(
            f"broker {redacted(url)} is on another machine without password or TLS; "
            "use redis://:password@host, rediss://, or --insecure"
        )
    return url


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def redacted(url: str) -> str:
    """The address without its password, fit for logs and messages."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "(unreadable address)"
    if password:
        url = url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"([?&]password=)[^&#]+", r"\1***", url)

"""Names that producers and workers agree on: the broker's address, and its keys, lanes, queues and Lua scripts."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, urlsplit

from judges.errors import UpliftError

if TYPE_CHECKING:
    from kombu import Queue

SCHEMES = ("redis", "rediss", "unix")
# What producers and workers agree on. Whoever changes a message, a key or a script raises it, once between two
# releases: versions that do not understand each other then share a server without meeting, each in lanes of its own.
PROTOCOL: Literal[4] = 4
# What every key and channel begins with, those of kombu and Celery included: whoever has another one is another tenant
# of the server. It is read when the process starts, because names are constants.
PREFIX = os.environ.get("UPLIFT_PREFIX", "uplift:")
# kombu's names of queues, before which it puts the prefix itself.
LANES = tuple(f"v{PROTOCOL}.lane.{number}" for number in range(8))
QUARANTINE = f"v{PROTOCOL}.quarantine"
FINISH = f"v{PROTOCOL}.finish"
# Where kombu keeps messages that were taken and are not acknowledged yet.
UNACKED = f"{PREFIX}v{PROTOCOL}.unacked"
UNACKED_INDEX = f"{PREFIX}v{PROTOCOL}.unacked_index"

RUNS = f"{PREFIX}runs"
TURN = f"{PREFIX}turn"
PROBE = f"{PREFIX}probe"
WORKERS = f"{PREFIX}workers"
WORKER = f"{PREFIX}worker:"  # and its name
HELD = f"{PREFIX}held:"  # and a worker's name
MENDER = f"{PREFIX}mender:{PROTOCOL}"

DAY_SECONDS = 86_400
WORKING_DAYS = 7
WORKING_SECONDS = WORKING_DAYS * DAY_SECONDS


class _Key:
    """The name of one of a run's keys: the prefix, the run's id, and the attribute's own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, keys: Keys, owner: type) -> str:
        return f"{PREFIX}{keys.run_id}:{self._name}"


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
    assumed = _Key()
    billed = _Key()
    steps = _Key()

    @property
    def ledger(self) -> list[str]:
        """The keys that ledger.lua expects first in every script that moves money."""
        return [self.state, self.claims, self.owners, self.assumed, self.billed]

    def all(self) -> list[str]:
        return [getattr(self, name) for name, key in vars(Keys).items() if isinstance(key, _Key)]

    def beat(self, worker: str) -> str:
        """What a worker tells of the run; forgotten within seconds."""
        return f"{PREFIX}{self.run_id}:beat:{worker}"


def bundle(digest: str) -> str:
    """The key of a bundle, which any number of runs may share."""
    return f"{PREFIX}bundle:{digest}"


def limits(model: str) -> list[str]:
    """The keys of a model's limits: the slots that are taken, the pace, and what the last minute used."""
    return [f"{PREFIX}limits:{model}:{part}" for part in ("slots", "pace", "minute")]


def queue(name: str) -> Queue:
    """A lane, the quarantine or the finishing queue, as Celery declares it."""
    from kombu import Exchange, Queue

    # Redis keeps no queues: to declare one would only cost round trips.
    return Queue(name, Exchange("uplift", type="direct"), routing_key=name, no_declare=True)


def waiting_keys(lane: str) -> list[str]:
    """The lists in which a lane's messages wait, one for each of the transport's priority steps."""
    return [f"{PREFIX}{lane}\x06\x16{step}" if step else f"{PREFIX}{lane}" for step in (0, 3, 6, 9)]


# Scripts that move a run's money, which all begin with the ledger's functions.
_WITH_LEDGER = frozenset({"claim", "store", "lease", "seal", "artifacts"})


@cache
def script(name: str) -> str:
    """The text of one of our Lua scripts, as it was when this process first asked: an upgrade may replace the file."""
    lua = resources.files("workers.store").joinpath("lua")
    parts = ["ledger", name] if name in _WITH_LEDGER else [name]
    return "\n".join(lua.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in parts)


class InvalidBroker(UpliftError, ValueError):
    """The broker's address cannot be used, for the reason given."""


def checked_broker(url: str, *, insecure: bool = False) -> str:
    """Return `url` if it names a server that may be used.

    A server on another machine needs a password or TLS, because skills, prompts and outputs pass through it.
    """
    # One colon at the end, and none before it: no prefix is the beginning of another one.
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}:", PREFIX):
        raise InvalidBroker(
            f"UPLIFT_PREFIX is {PREFIX!r}; give letters, digits, . _ or - and a colon at the end"
        )
    if os.environ.get("UPLIFT_PREFIX", "uplift:") != PREFIX:
        raise InvalidBroker(f"UPLIFT_PREFIX was {PREFIX!r} when this process started; set it before")
    if (authority := os.environ.get("UPLIFT_BROKER_CA")) and not Path(authority).is_file():
        raise InvalidBroker(f"UPLIFT_BROKER_CA is {authority!r}, which is no file")
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


def with_authority(url: str) -> str:
    """The address with the certificate authority of UPLIFT_BROKER_CA, if it uses TLS and names none itself."""
    authority, parts = os.environ.get("UPLIFT_BROKER_CA"), urlsplit(url)
    if not authority or parts.scheme != "rediss" or "ssl_ca_certs=" in parts.query:
        return url
    named = f"ssl_ca_certs={quote(authority, safe='/')}"
    return parts._replace(query=f"{parts.query}&{named}" if parts.query else named).geturl()


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

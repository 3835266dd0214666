"""What a worker process is told by its environment: the server, how much to do at once, and how long leases last."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from judges.errors import UpliftError

SCHEMES = ("redis", "rediss", "unix")


class InvalidBroker(UpliftError, ValueError):
    """The broker's address cannot be used, for the reason given."""


@dataclass(frozen=True)
class ProcessSettings:
    """Seconds and counts; see docs/ARCHITECTURE.md for why leases and visibility are what they are."""

    broker: str
    in_flight: int = 100
    agent_in_flight: int = 2
    lease_seconds: float = 30.0
    visibility_seconds: float = 30.0
    drain_seconds: float = 8.0

    @property
    def threads(self) -> int:
        # More batches than slots, so that one slow attempt does not idle the others; threads start on demand.
        return self.in_flight + self.in_flight // 2 + 2


def from_environment(environment: Mapping[str, str] = os.environ) -> ProcessSettings:
    """Read UPLIFT_* variables; a worker without UPLIFT_BROKER looks at the usual local port."""
    return ProcessSettings(
        broker=checked_broker(environment.get("UPLIFT_BROKER", "redis://127.0.0.1:6379/0"), insecure=True),
        in_flight=_number(environment, "UPLIFT_IN_FLIGHT", 100),
        agent_in_flight=_number(environment, "UPLIFT_AGENT_IN_FLIGHT", os.cpu_count() or 1),
        lease_seconds=float(environment.get("UPLIFT_LEASE_SECONDS", "30")),
        visibility_seconds=float(environment.get("UPLIFT_VISIBILITY_SECONDS", "30")),
        drain_seconds=float(environment.get("UPLIFT_DRAIN_SECONDS", "8")),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}; give a whole number from 1")
    return int(text)


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


def celery_url(url: str) -> str:
    """Celery spells unix sockets in its own way, and wants to be told what TLS clients do anyway: verify."""
    parts = urlsplit(url)
    if parts.scheme == "rediss" and "ssl_cert_reqs=" not in parts.query:
        return parts._replace(query="&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))).geturl()
    if parts.scheme != "unix":
        return url
    path = quote(unquote(parts.path), safe="/")
    return f"redis+socket://{path}"

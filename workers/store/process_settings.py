"""What a worker process reads from its environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from workers.store.claims import LEASE_SECONDS
from workers.store.keys import checked_broker


@dataclass(frozen=True)
class ProcessSettings:
    """Seconds and counts; a worker that is silent for `lease_seconds` has lost what it held."""

    broker: str
    in_flight: int = 100
    agent_in_flight: int = 2
    lease_seconds: float = LEASE_SECONDS
    drain_seconds: float = 8.0

    @property
    def threads(self) -> int:
        # More batches than slots, so that one slow attempt does not idle the others, and of each of the other lanes as
        # many that only wait; threads start on demand.
        return 14 * self.in_flight + 2


def from_environment(environment: Mapping[str, str] = os.environ) -> ProcessSettings:
    """Read UPLIFT_* variables; a worker without UPLIFT_BROKER looks at the usual local port."""
    return ProcessSettings(
        broker=checked_broker(environment.get("UPLIFT_BROKER", "redis://127.0.0.1:6379/0"), insecure=True),
        in_flight=_number(environment, "UPLIFT_IN_FLIGHT", 100),
        agent_in_flight=_number(environment, "UPLIFT_AGENT_IN_FLIGHT", os.cpu_count() or 1),
        lease_seconds=float(environment.get("UPLIFT_LEASE_SECONDS", LEASE_SECONDS)),
        drain_seconds=float(environment.get("UPLIFT_DRAIN_SECONDS", "8")),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}; give a whole number from 1")
    return int(text)

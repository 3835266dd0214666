"""What a worker process reads from its environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError

from aggregate.text.formats import plain
from judges.errors import UpliftError
from workers.store.claims import LEASE_SECONDS
from workers.store.keys import DAY_SECONDS, checked_broker
from workers.store.messages import Policy

POLICY = "UPLIFT_POLICY"  # JSON: what a worker serves, with its programs; null for a private one, which obeys its runs


class InvalidSetting(UpliftError, ValueError):
    """A variable of a worker's environment that makes no sense."""


@dataclass(frozen=True)
class ProcessSettings:
    """Seconds and counts; a worker that is silent for `lease_seconds` has lost what it held."""

    broker: str
    in_flight: int = 100
    agent_in_flight: int = 2
    lease_seconds: float = LEASE_SECONDS
    drain_seconds: float = 8.0
    policy: Policy | None = field(default_factory=Policy)

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
        lease_seconds=_seconds(environment, "UPLIFT_LEASE_SECONDS", LEASE_SECONDS, least=1),
        drain_seconds=_seconds(environment, "UPLIFT_DRAIN_SECONDS", 8.0, least=0),
        policy=_policy(environment.get(POLICY) or "{}"),
    )


def _policy(text: str) -> Policy | None:
    try:
        return None if text == "null" else Policy.model_validate_json(text)
    except ValidationError as problem:
        raise InvalidSetting(f"{POLICY}: {plain(str(problem), 300)}") from None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSetting(f"{name} is {text!r}; give a whole number from 1")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float, *, least: int) -> float:
    text = environment.get(name) or str(default)
    with suppress(ValueError):
        if least <= (seconds := float(text)) <= DAY_SECONDS:
            return seconds
    raise InvalidSetting(f"{name} is {text!r}; give seconds from {least} to {DAY_SECONDS}")

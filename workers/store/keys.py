"""Names that producers and workers agree on: keys, lanes and queues on the server, and its Lua scripts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kombu import Queue

LANES = tuple(f"uplift.lane.{number}" for number in range(8))
QUARANTINE = "uplift.quarantine"
FINISH = "uplift.finish"

RUNS = "uplift:runs"
TURN = "uplift:turn"
PROBE = "uplift:probe"
WORKERS = "uplift:workers"
WORKER = "uplift:worker:"  # and its name

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

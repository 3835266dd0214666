"""A run as Redis holds it: manifest, tasks, bundles, state, records and, at the end, its artifacts.

Everything here is written idempotently and read by any process. Claiming and storing single attempts is in
claims.py. A run's keys expire WORKING_DAYS after the last sign of life, and KEEP_DAYS after its artifact is there.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, cast

import redis

from aggregate.records import AttemptRecord
from aggregate.run_info import RunInfo
from workers.grid import Grid
from workers.messages import Manifest, Task

WORKING_DAYS = 7
KEEP_DAYS = 2
MAX_TRIES = 3
COMPRESSED_BYTES = 1000
_DAY = 86_400
_PAGE = 500

_Field = bytes | bytearray | memoryview | str | int | float

Halt = Literal["", "paused", "cancelled", "over_budget", "decided", "hopeless"]


class UnknownRun(Exception):
    """No run of this name is in the store."""


@dataclass(frozen=True)
class Keys:
    """Names of a run's keys."""

    run_id: str

    def __getattr__(self, name: str) -> str:
        return f"uplift:{self.run_id}:{name}"

    def all(self) -> list[str]:
        names = "manifest info tasks state records errors claims owners deaths counts passed stored"
        return [getattr(self, name) for name in f"{names} artifacts rounds workers breaker tallies".split()]


@dataclass(frozen=True)
class State:
    """Where a run stands. `generation` grows with each resume; `rounds` of re-tried errors start at 1.

    `assumed` USD count towards the budget for attempts whose cost nobody knows; `why` explains a halt.
    """

    generation: int
    halt: Halt
    sealed: bool
    created: float
    sealed_at: float | None
    spent: float
    wasted: float
    wasted_attempts: int
    assumed: float
    why: str
    trouble: str | None


@dataclass(frozen=True)
class Progress:
    """Counts for a progress display: `outcomes[arm][outcome]`."""

    outcomes: dict[int, dict[str, int]] = field(default_factory=dict)
    in_flight: int = 0
    spent: float = 0.0

    @property
    def recorded(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())


def script(name: str) -> str:
    """The text of one of our Lua scripts."""
    return resources.files("workers").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def pack(record: AttemptRecord) -> bytes:
    """JSON without what is missing, compressed where that pays."""
    data = record.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
    return zlib.compress(data, 1) if len(data) > COMPRESSED_BYTES else data


def unpack(data: bytes) -> AttemptRecord:
    return AttemptRecord.model_validate_json(data if data[:1] == b"{" else zlib.decompress(data))


class Store:
    """One server's runs, for producers, the finishing job and anybody who looks; blocking."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def put_bundle(self, digest: str, data: bytes) -> None:
        self.client.set(f"uplift:bundle:{digest}", data, ex=WORKING_DAYS * _DAY)

    def bundle(self, digest: str) -> bytes:
        data = cast("bytes | None", self.client.get(f"uplift:bundle:{digest}"))
        if data is None:
            raise UnknownRun(f"bundle {digest[:12]} has expired; start the run again")
        return data

    def create(
        self, manifest: Manifest, info: RunInfo, tasks: Iterable[Task], cached: Mapping[int, AttemptRecord]
    ) -> bool:
        """Write a run; False when it is there already. The state is written last: it makes the run exist."""
        keys = Keys(manifest.run_id)
        if self.client.exists(keys.state):
            return False
        pipe = self.client.pipeline(transaction=False)
        pipe.set(keys.manifest, manifest.model_dump_json(by_alias=True))
        pipe.set(keys.info, _packed(info))
        page: dict[_Field, _Field] = {}
        for number, task in enumerate(tasks):
            text = task.model_dump_json(by_alias=True, exclude_defaults=True)
            page[str(number)] = zlib.compress(text.encode(), 1)
            if len(page) == _PAGE:
                pipe.hset(keys.tasks, mapping=page)
                pipe.execute()
                page = {}
        if page:
            pipe.hset(keys.tasks, mapping=page)
        self._put_cached(keys, manifest, cached)
        state: dict[_Field, _Field] = {"generation": 0, "halt": "", "sealed": 0, "created": repr(time.time())}
        if manifest.budget_usd is not None:
            state["budget"] = repr(manifest.budget_usd)
        pipe.hset(keys.state, mapping=state)
        pipe.zadd("uplift:runs", {manifest.run_id: time.time()})
        pipe.execute()
        self.touch(manifest.run_id)
        return True

    def _put_cached(self, keys: Keys, manifest: Manifest, cached: Mapping[int, AttemptRecord]) -> None:
        arms = len(manifest.arms)
        units = manifest.task_count * len(manifest.models) * arms
        pipe = self.client.pipeline()
        # What is there was left by a producer that died in this very place.
        pipe.delete(keys.records, keys.counts, keys.passed)
        for index, record in cached.items():
            pipe.hset(keys.records, str(index), pack(record))
            pipe.hincrby(keys.counts, f"{index % arms} {record.outcome}", 1)
            if manifest.stop_early == "verdict" and record.outcome == "passed":
                pipe.sadd(keys.passed, index % units)
        pipe.execute()

    def put_stored(self, run_id: str, answers: Iterable[tuple[int, AttemptRecord]]) -> None:
        """Keep an earlier run's records by attempt index, for a run that only judges them again."""
        key, page = Keys(run_id).stored, dict[_Field, _Field]()
        for index, record in answers:
            page[str(index)] = pack(record)
            if len(page) == _PAGE:
                self.client.hset(key, mapping=page)
                page = {}
        if page:
            self.client.hset(key, mapping=page)
        self.client.expire(key, WORKING_DAYS * _DAY)

    def touch(self, run_id: str, days: int = WORKING_DAYS) -> None:
        """Keep a run's keys for this many days from now."""
        pipe = self.client.pipeline(transaction=False)
        for key in Keys(run_id).all():
            pipe.expire(key, days * _DAY)
        pipe.execute()

    def manifest(self, run_id: str) -> Manifest:
        data = cast("bytes | None", self.client.get(Keys(run_id).manifest))
        if data is None:
            raise UnknownRun(f"no run {run_id!r} on this server; `uplift runs` lists them")
        return Manifest.model_validate_json(data)

    def info(self, run_id: str) -> RunInfo:
        """What the run was when it was submitted; how it ended is added when it is finished."""
        data = cast("bytes | None", self.client.get(Keys(run_id).info))
        if data is None:
            raise UnknownRun(f"no run {run_id!r} on this server; `uplift runs` lists them")
        return RunInfo.model_validate_json(zlib.decompress(data))

    def tasks(self, run_id: str) -> Iterator[Task]:
        keys, count = Keys(run_id), self.manifest(run_id).task_count
        for start in range(0, count, _PAGE):
            fields = [str(number) for number in range(start, min(start + _PAGE, count))]
            for data in cast("list[bytes | None]", self.client.hmget(keys.tasks, fields)):
                if data is None:
                    raise UnknownRun(f"run {run_id!r} has lost tasks; the server was flushed or evicted keys")
                yield Task.model_validate_json(zlib.decompress(data))

    def state(self, run_id: str) -> State | None:
        found = cast("dict[bytes, bytes]", self.client.hgetall(Keys(run_id).state))
        # After a FLUSHALL, a worker's late note may stand alone in a state that was never created.
        if b"generation" not in found:
            return None
        values = {_text(key): _text(value) for key, value in found.items()}
        return State(
            generation=int(values["generation"]),
            halt=cast("Halt", values.get("halt", "")),
            sealed=values.get("sealed") == "1",
            created=float(values["created"]),
            sealed_at=float(values["sealed_at"]) if values.get("sealed_at") else None,
            spent=float(values.get("spent", 0)),
            wasted=float(values.get("wasted", 0)),
            wasted_attempts=int(values.get("wasted_attempts", 0)),
            assumed=float(values.get("assumed", 0)),
            why=values.get("why", ""),
            trouble=values.get("trouble") or None,
        )

    def runs(self) -> list[str]:
        found = cast("list[bytes]", self.client.zrevrange("uplift:runs", 0, -1))
        return [run for run in map(_text, found) if self.client.exists(Keys(run).state)]

    def progress(self, run_id: str) -> Progress:
        keys = Keys(run_id)
        seconds, _ = self.client.time()  # leases are in the server's time, not ours
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(keys.counts)
        pipe.zcount(keys.claims, seconds * 1000, "+inf")
        pipe.hget(keys.state, "spent")
        counts, in_flight, spent = pipe.execute()
        outcomes: dict[int, dict[str, int]] = {}
        for key, value in counts.items():
            arm, outcome = _text(key).split(" ")
            outcomes.setdefault(int(arm), {})[outcome] = int(value)
        return Progress(outcomes=outcomes, in_flight=in_flight, spent=float(spent or 0))

    def records(self, run_id: str) -> Iterator[AttemptRecord]:
        """Stream all records, in the server's order."""
        for _, data in self.client.hscan_iter(Keys(run_id).records, count=_PAGE):
            yield unpack(cast("bytes", data))

    def record(self, run_id: str, index: int) -> AttemptRecord | None:
        data = cast("bytes | None", self.client.hget(Keys(run_id).records, str(index)))
        return unpack(data) if data is not None else None

    def published(self, run_id: str) -> int:
        """Attempts below this index have been published."""
        return int(cast("bytes | None", self.client.hget(Keys(run_id).state, "published")) or 0)

    def set_published(self, run_id: str, end: int) -> None:
        self.client.hset(Keys(run_id).state, "published", end)

    def unfinished(self, run_id: str, grid: Grid, end: int) -> list[int]:
        """Attempts below index `end` that have no record, or an `error` that may be tried again."""
        keys = Keys(run_id)
        recorded = {int(field) for field in cast("list[bytes]", self.client.hkeys(keys.records))}
        for index, value in cast("dict[bytes, bytes]", self.client.hgetall(keys.errors)).items():
            if int(value.split(b" ", 1)[0]) < MAX_TRIES:
                recorded.discard(int(index))
        decided = {int(unit) for unit in cast("set[bytes]", self.client.smembers(keys.passed))}
        missing = [index for index in range(end) if index not in recorded]
        return [index for index in missing if index % grid.units not in decided] if decided else missing

    def unit_counts(self, run_id: str, grid: Grid) -> dict[int, tuple[int, int, bool]]:
        """Of each unit that has records: how many, how many were judged, and whether one passed.

        Passes are known of runs only that stop at them.
        """
        keys = Keys(run_id)
        errors = set(cast("list[bytes]", self.client.hkeys(keys.errors)))
        passed = {int(unit) for unit in cast("set[bytes]", self.client.smembers(keys.passed))}
        made: Counter[int] = Counter()
        judged: Counter[int] = Counter()
        for field_name in cast("list[bytes]", self.client.hkeys(keys.records)):
            unit = int(field_name) % grid.units
            made[unit] += 1
            judged[unit] += field_name not in errors
        return {unit: (count, judged[unit], unit in passed) for unit, count in made.items()}

    def run_workers(self, run_id: str) -> list[str]:
        """Every worker process that took part in a run, as host:pid."""
        return sorted(map(_text, cast("set[bytes]", self.client.smembers(Keys(run_id).workers))))

    def deadly(self, run_id: str) -> set[int]:
        """Attempts whose worker vanished at least twice: they run alone from now on."""
        deaths = cast("dict[bytes, bytes]", self.client.hgetall(Keys(run_id).deaths))
        return {int(index) for index, count in deaths.items() if int(count) >= 2}

    def halt(self, run_id: str, why: Halt) -> bool:
        """Stop new attempts, or let them go on with ""; False when the run is over already."""
        keys = Keys(run_id)
        if self.client.hget(keys.state, "sealed") != b"0":
            return False
        self.client.hset(keys.state, "halt", why)
        return True

    def set_budget(self, run_id: str, usd: float) -> None:
        """Give a run another budget, for going on with it."""
        keys = Keys(run_id)
        manifest = self.manifest(run_id).model_copy(update={"budget_usd": usd})
        info = self.info(run_id).model_copy(update={"budget_usd": usd})
        pipe = self.client.pipeline()
        pipe.set(keys.manifest, manifest.model_dump_json(by_alias=True), keepttl=True)
        pipe.set(keys.info, _packed(info), keepttl=True)
        pipe.hset(keys.state, "budget", repr(usd))
        pipe.execute()

    def next_generation(self, run_id: str) -> int:
        """Unseal a run for going on; whatever an earlier generation's callback still does is ignored."""
        keys = Keys(run_id)
        pipe = self.client.pipeline()
        pipe.hincrby(keys.state, "generation", 1)
        pipe.hset(keys.state, mapping={"halt": "", "why": "", "sealed": 0, "sealed_at": "", "trouble": ""})
        # Whoever resumes a run that was given up has mended what was wrong: the count starts afresh.
        pipe.delete(keys.artifacts, keys.breaker)
        return int(pipe.execute()[0])

    def begin_round(self, run_id: str, generation: int, number: int, indexes: list[int]) -> list[int]:
        """The attempts of a round, as its first caller gave them; a second caller publishes the very same."""
        field_name = f"{generation}.{number}"
        keys = Keys(run_id)
        self.client.hsetnx(keys.rounds, field_name, zlib.compress(json.dumps(indexes).encode(), 1))
        data = cast("bytes", self.client.hget(keys.rounds, field_name))
        return cast("list[int]", json.loads(zlib.decompress(data)))

    def seal(self, run_id: str, generation: int) -> State | None:
        """No record is taken from now on; None when the run is gone, or was resumed since this generation."""
        seal = self.client.register_script(script("seal"))
        sealed = seal(keys=[Keys(run_id).state], args=[generation, repr(time.time())])
        return self.state(run_id) if sealed else None

    def set_trouble(self, run_id: str, trouble: str) -> None:
        self.client.hset(Keys(run_id).state, "trouble", trouble)

    def put_artifacts(self, run_id: str, generation: int, artifacts: list[dict[str, Any]]) -> bool:
        """True for the one caller whose artifacts count; those of a run that was resumed meanwhile do not."""
        data = zlib.compress(json.dumps(artifacts, allow_nan=False).encode(), 6)
        keys = Keys(run_id)
        names = [keys.state, keys.artifacts, keys.records, keys.errors, keys.claims, keys.owners]
        put = self.client.register_script(script("artifacts"))
        return bool(put(keys=names, args=[generation, data, WORKING_DAYS * _DAY]))

    def artifacts(self, run_id: str) -> list[dict[str, Any]] | None:
        data = cast("bytes | None", self.client.get(Keys(run_id).artifacts))
        return cast("list[dict[str, Any]]", json.loads(zlib.decompress(data))) if data is not None else None

    def delete(self, run_id: str) -> None:
        self.client.delete(*Keys(run_id).all())
        self.client.zrem("uplift:runs", run_id)


def _packed(info: RunInfo) -> bytes:
    return zlib.compress(info.model_dump_json().encode(), 1)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value

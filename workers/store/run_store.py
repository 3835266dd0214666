"""A run as Redis holds it: manifest, tasks, bundles, state, records and, at the end, its artifacts.

Everything here is written idempotently and read by any process. Claiming and storing single attempts is in
claims.py. A run's keys expire WORKING_DAYS after the last sign of life, and KEEP_DAYS after its artifact is there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal, cast

import redis
from pydantic import BaseModel, TypeAdapter, ValidationError

from aggregate.formulas.verdict import WEAK_BASELINE
from aggregate.records.record import SKILL, AttemptRecord
from aggregate.records.run_info import BASELINE, RunInfo
from aggregate.text.formats import plain, rate
from judges.errors import UpliftError
from workers.store import keys as names
from workers.store.bundles import BundleTooLarge, inflated
from workers.store.claims import MOST_BYTES
from workers.store.keys import DAY_SECONDS, PROTOCOL, RUNS, WORKING_DAYS, WORKING_SECONDS, Keys, script
from workers.store.messages import Grid, Manifest, Task
from workers.store.redis_client import UnusableServer

if TYPE_CHECKING:
    from redis.client import Pipeline

    from aggregate.artifact.model import Artifact
    from judges.trajectory import Trajectory

log = logging.getLogger(__name__)

KEEP_DAYS = 2
MAX_TRIES = 3
COMPRESSED_BYTES = 1000
MOST_TASK_BYTES = 64 << 20
_PAGE = 500
_FIRST_PAGE = 2
# Faster than the model's own method, for every record of a run.
_read: Callable[[bytes], AttemptRecord] = TypeAdapter(AttemptRecord).validator.validate_json

_Field = bytes | bytearray | memoryview | str | int | float

Halt = Literal["", "paused", "cancelled", "over_budget", "decided", "hopeless", "weak_baseline"]


class UnknownRun(UpliftError):
    """No run of this name is in the store."""


class NotServed(UpliftError):
    """This worker leaves the run to others, for the reason given."""


class OtherVersion(NotServed):
    """The run was begun by a version of Uplift whose runs this one cannot read."""


@dataclass(frozen=True)
class StoredRun:
    """A run on the server: its manifest and its description, read once and passed on."""

    manifest: Manifest
    info: RunInfo

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def grid(self) -> Grid:
        return self.manifest.grid


class State(BaseModel, frozen=True):
    """Where a run stands. `generation` grows with each resume.

    `assumed` USD count towards the budget for calls whose cost nobody knows; `why` explains a halt. Attempts below the
    index `published` have been sent. `weak` and `weak_lost` are how store.lua counts what the baseline failed.
    """

    generation: int
    halt: Halt = ""
    sealed: bool = False
    created: float
    sealed_at: float | None = None
    spent: float = 0.0
    wasted: float = 0.0
    wasted_attempts: int = 0
    assumed: float = 0.0
    why: str = ""
    warning: str = ""
    trouble: str | None = None
    published: int = 0
    weak: str = ""
    weak_lost: int = 0


@dataclass(frozen=True)
class Progress:
    """Counts for a progress display: `outcomes[arm][outcome]`."""

    outcomes: dict[int, dict[str, int]] = field(default_factory=dict)
    in_flight: int = 0
    spent: float = 0.0
    assumed: float = 0.0

    @property
    def recorded(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())


@dataclass(frozen=True)
class Look:
    """What whoever mends sees of a run that has no artifacts yet; while it stays the same, nothing happens.

    Attempts below `published` have been sent; `finishing` while some process ends the round. `refused` are the workers
    that leave it to others, each with its reason, which is empty where it is of another version.
    """

    protocol: int
    generation: int
    round: int
    halt: str
    sealed: bool
    published: int
    recorded: int
    in_flight: int
    finishing: bool
    refused: Mapping[str, str] = field(default_factory=dict)


def pack(record: AttemptRecord) -> bytes:
    """JSON without what is missing, compressed where that pays."""
    data = record.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
    return zlib.compress(data, 1) if len(data) > COMPRESSED_BYTES else data


def unpack(data: bytes) -> AttemptRecord:
    return _read(data if data[:1] == b"{" else zlib.decompress(data))


def pack_steps(trajectory: Trajectory) -> tuple[str, bytes]:
    """A trajectory as it is kept, and its digest. The same one always has the same bytes."""
    data = trajectory.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
    return hashlib.sha256(data).hexdigest(), gzip.compress(data, 6, mtime=0)


def pack_task(task: Task) -> bytes:
    return zlib.compress(task.model_dump_json(by_alias=True, exclude_defaults=True).encode(), 1)


def read_manifest(data: bytes, run_id: str) -> Manifest:
    """A run's manifest; raises OtherVersion for one that this version cannot read."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as problem:
        raise _other_version(run_id, problem) from None
    if manifest.run_id != run_id:
        raise _other_version(run_id, ValueError("run_id: another run's"))
    return manifest


def read_task(data: bytes, run_id: str) -> tuple[Task, int]:
    """A task as it is stored, and its size; raises OtherVersion for one that this version cannot read."""
    try:
        text = inflated(data, MOST_TASK_BYTES)
        return Task.model_validate_json(text), len(text)
    except (ValidationError, zlib.error, EOFError, BundleTooLarge) as problem:
        why = plain(str(problem), 200)
        raise OtherVersion(f"run {run_id} has a task that cannot be read ({why}); start it again") from None


def _other_version(run_id: str, problem: Exception) -> OtherVersion:
    first = problem.errors(include_url=False)[0] if isinstance(problem, ValidationError) else None
    what = plain(f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(problem), 200)
    return OtherVersion(
        f"run {run_id} was begun by another version of Uplift ({what}); use that version for it, or start it again"
    )


class Store:
    """One server's runs, for producers, the finishing job and anybody who looks; blocking."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._odd: set[str] = set()

    def put_bundle(self, digest: str, data: bytes) -> None:
        self.client.set(names.bundle(digest), data, ex=WORKING_SECONDS)

    def bundle(self, digest: str) -> bytes:
        data = cast("bytes | None", self.client.get(names.bundle(digest)))
        if data is None:
            raise UnknownRun(f"bundle {digest[:12]} has expired; start the run again")
        return data

    def create(
        self, manifest: Manifest, info: RunInfo, tasks: Iterable[Task], cached: Mapping[int, AttemptRecord]
    ) -> StoredRun:
        """Write a run, or find the one that is there already. The state is written last: it makes the run exist."""
        keys = Keys(manifest.run_id)
        if self.client.exists(keys.state):
            return self.run(manifest.run_id)
        pipe = self.client.pipeline(transaction=False)
        pipe.set(keys.manifest, manifest.model_dump_json(by_alias=True))
        pipe.set(keys.info, _packed(info))
        self._put_pages(keys.tasks, enumerate(map(pack_task, tasks)))
        state: dict[_Field, _Field] = {"generation": 0, "halt": "", "sealed": 0, "created": repr(time.time())}
        state["protocol"] = PROTOCOL
        state.update(self._put_cached(keys, manifest, info, cached))
        if manifest.budget_usd is not None:
            state["budget"] = repr(manifest.budget_usd)
        pipe.hset(keys.state, mapping=state)
        pipe.zadd(RUNS, {manifest.run_id: time.time()})
        self._touch(pipe, manifest.run_id)
        pipe.execute()
        return StoredRun(manifest, info)

    def _put_cached(
        self, keys: Keys, manifest: Manifest, info: RunInfo, cached: Mapping[int, AttemptRecord]
    ) -> dict[_Field, _Field]:
        """Write records that are there already; returns what the state tells of a baseline that may be too weak."""
        arms, units = manifest.grid.arms, manifest.grid.units
        # What is there was left by a producer that died in this very place.
        self.client.delete(keys.records, keys.counts, keys.failures)
        self._put_pages(keys.records, ((index, pack(record)) for index, record in cached.items()))
        counts = Counter(f"{index % arms} {record.outcome}" for index, record in cached.items())
        failures = Counter(
            index % units
            for index, record in cached.items()
            if record.arm == BASELINE and record.outcome in ("failed", "timeout")
        )
        for key, numbers in ((keys.counts, counts), (keys.failures, failures)):
            if numbers:
                self.client.hset(key, mapping={str(name): number for name, number in numbers.items()})
        if not info.baseline_must_pass:
            return {}
        baseline = [arm.name for arm in manifest.arms].index(BASELINE)
        each = manifest.task_count * len(manifest.models)
        too_many = next(lost for lost in range(each + 1) if (each - lost) / each < WEAK_BASELINE)
        lost = sum(count == manifest.pass_k for count in failures.values())
        return {"weak": f"{baseline} {units} {manifest.pass_k} {too_many}", "weak_lost": lost}

    def put_stored(self, run_id: str, answers: Iterable[tuple[int, AttemptRecord]]) -> None:
        """Keep an earlier run's records by attempt index, for a run that only judges them again."""
        key = Keys(run_id).stored
        self._put_pages(key, ((index, pack(record)) for index, record in answers))
        self.client.expire(key, WORKING_SECONDS)

    def _put_pages(self, key: str, numbered: Iterable[tuple[int, bytes]]) -> None:
        """Write values by number into a hash, some at a time: all at once may be more than a server takes."""
        page, size = dict[_Field, _Field](), 0
        for number, data in numbered:
            if page and (len(page) == _PAGE or size + len(data) > MOST_BYTES):
                self.client.hset(key, mapping=page)
                page, size = {}, 0
            page[number] = data
            size += len(data)
        if page:
            self.client.hset(key, mapping=page)

    def steps(self, run_id: str, digests: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """What is kept of these attempts' steps, and the skills' texts that they leave out."""
        key = Keys(run_id).steps
        fields = (field.decode() for field in cast("list[bytes]", self.client.hkeys(key)))
        wanted = (field for field in fields if field in digests or field.startswith(SKILL))
        return ((field, data) for field, data in self._values(key, wanted) if data is not None)

    def steps_left_out(self, run_id: str) -> int:
        """How many attempts' steps the run had no room for."""
        return int(cast("bytes | None", self.client.hget(Keys(run_id).steps, "left_out")) or 0)

    def put_steps(self, run_id: str, kept: Iterable[tuple[str, bytes]]) -> None:
        """Keep the steps of an earlier run's attempts, for a run that judges them again."""
        for digest, data in kept:
            self.client.hset(Keys(run_id).steps, digest, data)
        self.client.expire(Keys(run_id).steps, WORKING_SECONDS)

    def touch(self, run_id: str, days: int = WORKING_DAYS) -> None:
        """Keep a run's keys for this many days from now."""
        pipe = self.client.pipeline(transaction=False)
        self._touch(pipe, run_id, days)
        pipe.execute()

    def _touch(self, pipe: Pipeline, run_id: str, days: int = WORKING_DAYS) -> None:
        keys = Keys(run_id)
        for key in keys.all():
            if key != keys.finishing:  # a lease of seconds, which must end with whoever had it
                pipe.expire(key, days * DAY_SECONDS)

    def touch_all(self, manifest: Manifest) -> None:
        """Keep a run that goes on, with its bundles, which other runs may share."""
        self.touch(manifest.run_id)
        for digest in filter(None, (manifest.fixtures, *(arm.bundle for arm in manifest.arms))):
            self.client.expire(names.bundle(digest), WORKING_SECONDS)

    def run(self, run_id: str) -> StoredRun:
        return StoredRun(self.manifest(run_id), self.info(run_id))

    def manifest(self, run_id: str) -> Manifest:
        return read_manifest(self._value(Keys(run_id).manifest, run_id), run_id)

    def info(self, run_id: str) -> RunInfo:
        """What the run was when it was submitted; how it ended is added when it is finished."""
        data = self._value(Keys(run_id).info, run_id)
        try:
            return RunInfo.model_validate_json(zlib.decompress(data))
        except (ValidationError, zlib.error) as problem:
            raise _other_version(run_id, problem) from None

    def _value(self, key: str, run_id: str) -> bytes:
        data = cast("bytes | None", self.client.get(key))
        if data is None:
            raise UnknownRun(
                f"no run {run_id!r} on this server; `uplift runs`, with the same --broker, lists them"
            )
        return data

    def tasks(self, run: StoredRun) -> Iterator[Task]:
        run_id = run.run_id
        for _, data in self._values(Keys(run_id).tasks, map(str, range(run.manifest.task_count))):
            if data is None:
                raise UnknownRun(f"run {run_id!r} has lost tasks; the server was flushed or evicted keys")
            yield read_task(data, run_id)[0]

    def _values(self, key: str, fields: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Values of a hash, as many at a time as come to about MOST_BYTES, going by those before."""
        rest, count = iter(fields), _FIRST_PAGE
        while page := list(islice(rest, count)):
            values = cast("list[bytes | None]", self.client.hmget(key, page))
            yield from zip(page, values, strict=True)
            size = sum(len(value or b"") for value in values)
            count = max(1, min(_PAGE, 4 * count, MOST_BYTES * count // max(1, size)))

    def state(self, run_id: str) -> State | None:
        fields = cast("dict[bytes, bytes]", self.client.hgetall(Keys(run_id).state))
        # After a FLUSHALL, a worker's late note may stand alone in a state that was never created.
        if b"generation" not in fields:
            return None
        # What is empty was never there, or is no more.
        try:
            return State.model_validate(
                {key.decode(): value.decode() for key, value in fields.items() if value}
            )
        except (ValidationError, UnicodeDecodeError) as problem:
            raise _other_version(run_id, problem) from None

    def runs(self) -> list[str]:
        run_ids = [
            run_id.decode(errors="replace")
            for run_id in cast("list[bytes]", self.client.zrevrange(RUNS, 0, -1))
        ]
        return [run_id for run_id in run_ids if self.client.exists(Keys(run_id).state)]

    def progress(self, run_id: str) -> Progress:
        keys = Keys(run_id)
        seconds, _ = self.client.time()  # leases are in the server's time, not ours
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(keys.counts)
        pipe.zcount(keys.claims, seconds * 1000, "+inf")
        pipe.hmget(keys.state, "spent", "assumed")
        counts, in_flight, money = pipe.execute()
        outcomes: dict[int, dict[str, int]] = {}
        for key, value in counts.items():
            arm, outcome = key.decode().split(" ")
            outcomes.setdefault(int(arm), {})[outcome] = int(value)
        spent, assumed = (float(amount or 0) for amount in money)
        return Progress(outcomes=outcomes, in_flight=in_flight, spent=spent, assumed=assumed)

    def records(self, run_id: str) -> Iterator[AttemptRecord]:
        """Stream all records, in the server's order."""
        return (record for _, record in self.indexed_records(run_id))

    def indexed_records(self, run_id: str) -> Iterator[tuple[int, AttemptRecord]]:
        """Stream all records, each with the index of its attempt, in the server's order."""
        key = Keys(run_id).records
        for index, data in self._values(key, cast("list[str]", self.client.hkeys(key))):
            if data is not None:
                yield int(index), unpack(data)

    def set_published(self, run_id: str, generation: int, end: int) -> None:
        self._note(run_id, generation, "sealed", published=end)

    def unfinished(self, run: StoredRun, end: int) -> list[int]:
        """Attempts below index `end` that have no record, or an `error` that may be tried again."""
        keys, most = Keys(run.run_id), self._most_tries(run.run_id)
        pipe = self.client.pipeline(transaction=False)
        pipe.hkeys(keys.records)
        pipe.hgetall(keys.errors)
        present, errors = pipe.execute()
        recorded = {int(field) for field in present}
        for index, value in errors.items():
            if int(value.split(b" ", 1)[0]) < most:
                recorded.discard(int(index))
        return [index for index in range(min(end, run.grid.attempts)) if index not in recorded]

    def _most_tries(self, run_id: str) -> int:
        """How often an attempt may end in `error`: more in a run whose errors were to be tried again."""
        return MAX_TRIES + int(cast("bytes | None", self.client.hget(Keys(run_id).state, "tries")) or 0)

    def try_errors_again(self, run_id: str) -> None:
        """Give every final error of a run that is over as many tries again; none to a run that was decided."""
        keys, state = Keys(run_id), self.state(run_id)
        if state is None or not state.sealed or state.halt not in ("", "hopeless"):
            return
        pipe = self.client.pipeline()
        counts = []
        for index, value in cast("dict[bytes, bytes]", self.client.hgetall(keys.errors)).items():
            count, _, rest = value.split(b" ", 2)
            counts.append(int(count))
            pipe.hset(keys.errors, cast("str", index), b" ".join([count, b"0", rest]))  # of no round yet
        pipe.hset(keys.state, "tries", max(counts, default=0))
        pipe.execute()

    def leave_out(self, run_id: str, problem: Exception) -> None:
        """Say once that something is odd about a run, which must hold up no other."""
        if run_id not in self._odd:
            self._odd.add(run_id)
            words = "run %s is left out, something is wrong with it: %s: %s"
            log.warning(words, run_id, type(problem).__name__, problem, extra={"run": run_id})

    def open_runs(self) -> dict[str, Look]:
        """Every run that is to go on and has no artifacts yet, by its id; what is gone leaves the list of runs."""
        run_ids = [
            run_id.decode(errors="replace") for run_id in cast("list[bytes]", self.client.zrange(RUNS, 0, -1))
        ]
        pipe = self.client.pipeline(transaction=False)
        for run_id in run_ids:  # most are over, and kept for days
            pipe.exists(Keys(run_id).artifacts)
        run_ids = [run_id for run_id, over in zip(run_ids, pipe.execute(), strict=True) if not over]
        seconds, _ = self.client.time()
        fields = ("protocol", "generation", "round", "halt", "sealed", "published", "trouble")
        for keys in map(Keys, run_ids):
            pipe.hmget(keys.state, fields)
            pipe.hlen(keys.records)
            pipe.zcount(keys.claims, seconds * 1000, "+inf")
            pipe.exists(keys.finishing)
            pipe.hgetall(keys.refused)
        answers = iter(pipe.execute(raise_on_error=False))
        looks = {}
        for run_id, *of_run in zip(run_ids, *[answers] * 5, strict=True):
            try:
                for answer in of_run:
                    if isinstance(answer, Exception):
                        raise answer
                if not of_run[0][1]:
                    unlist = self.client.register_script(script("unlist"))
                    unlist(keys=[RUNS, Keys(run_id).state], args=[run_id])
                elif (look := _look(*of_run)) is not None:
                    looks[run_id] = look
            except (ValueError, redis.ResponseError) as problem:
                self.leave_out(run_id, problem)
        return looks

    def missing(self, manifest: Manifest, look: Look) -> list[int]:
        """Attempts that the current round was to make and that it has not recorded."""
        keys, most = Keys(manifest.run_id), self._most_tries(manifest.run_id)
        behind = []
        for index, value in cast("dict[bytes, bytes]", self.client.hgetall(keys.errors)).items():
            count, last = map(int, value.split(b" ", 2)[:2])
            if count < most and last < look.round:
                behind.append(int(index))
        if look.recorded >= manifest.grid.attempts:
            return behind
        recorded = {int(index) for index in cast("list[bytes]", self.client.hkeys(keys.records))}
        return [
            *behind,
            *(index for index in range(min(look.published, manifest.grid.attempts)) if index not in recorded),
        ]

    def claimed(self, run_id: str) -> set[int]:
        """Attempts that some worker is at."""
        seconds, _ = self.client.time()
        claims = self.client.zrangebyscore(Keys(run_id).claims, seconds * 1000, "+inf")
        return {int(index) for index in cast("list[bytes]", claims)}

    @contextmanager
    def finishing(self, run_id: str, lease_seconds: float) -> Iterator[bool]:
        """Be the one process that ends a round of the run; the value is False where another one is."""
        mine, over, elect = (
            os.urandom(8).hex(),
            threading.Event(),
            self.client.register_script(script("elect")),
        )

        def ask(seconds: float) -> bool:
            return bool(elect(keys=[Keys(run_id).finishing], args=[mine, int(seconds * 1000)]))

        if not ask(lease_seconds):
            yield False
            return

        def renew() -> None:
            while not over.wait(lease_seconds / 4):
                with suppress(redis.RedisError):
                    ask(lease_seconds)

        thread = threading.Thread(target=renew, name="uplift-finishing", daemon=True)
        thread.start()
        try:
            yield True
        finally:
            over.set()
            thread.join()  # or it might ask once more afterwards
            with suppress(redis.RedisError):
                ask(0)

    def run_workers(self, run_id: str) -> list[str]:
        """Every worker process that took part in a run, as host:pid."""
        names = cast("set[bytes]", self.client.smembers(Keys(run_id).workers))
        return sorted(name.decode() for name in names)

    def deadly(self, run_id: str) -> set[int]:
        """Attempts whose worker vanished at least twice: they run alone from now on."""
        deaths = cast("dict[bytes, bytes]", self.client.hgetall(Keys(run_id).deaths))
        return {int(index) for index, count in deaths.items() if int(count) >= 2}

    def halt(self, run_id: str, why: Halt, generation: int | None = None) -> bool:
        """Stop new attempts; False when the run is over already, or was resumed since `generation`.

        Whoever cancels has the last word; all others come too late where a run is halted.
        """
        return self._note(run_id, generation, "sealed" if why == "cancelled" else "halted", halt=why)

    def _note(self, run_id: str, generation: int | None, until: str, **fields: str | int) -> bool:
        """Write into a run's state, unless it is gone or was resumed since that generation; see note.lua."""
        note, keys = self.client.register_script(script("note")), Keys(run_id)
        pairs = [value for pair in fields.items() for value in pair]
        asked = "" if generation is None else generation
        return bool(note(keys=[keys.state, keys.artifacts], args=[asked, until, *pairs]))

    def set_budget(self, run: StoredRun, usd: float) -> StoredRun:
        """Give a run another budget, for going on with it."""
        keys = Keys(run.run_id)
        manifest = run.manifest.model_copy(update={"budget_usd": usd})
        info = run.info.model_copy(update={"budget_usd": usd})
        pipe = self.client.pipeline()
        pipe.set(keys.manifest, manifest.model_dump_json(by_alias=True), keepttl=True)
        pipe.set(keys.info, _packed(info), keepttl=True)
        pipe.hset(keys.state, "budget", repr(usd))
        pipe.execute()
        return StoredRun(manifest, info)

    def next_generation(self, run_id: str) -> int:
        """Unseal a run for going on; whatever an earlier generation's callback still does is ignored."""
        keys = Keys(run_id)
        pipe = self.client.pipeline()
        pipe.hincrby(keys.state, "generation", 1)
        empty: dict[_Field, _Field] = dict.fromkeys(("halt", "why", "warning", "sealed_at", "trouble"), "")
        pipe.hset(keys.state, mapping={**empty, "sealed": 0})
        # Whoever resumes a run that was given up has mended what was wrong: the count starts afresh.
        pipe.delete(keys.artifacts, keys.breaker, keys.handed_back, keys.refused)
        return int(pipe.execute()[0])

    def refuse(self, run_id: str, worker: str, problem: NotServed) -> bool:
        """Note that a worker leaves the run to others; whether the run goes on, so that others are to be asked."""
        keys = Keys(run_id)
        pipe = self.client.pipeline()
        pipe.hset(keys.refused, worker, "" if isinstance(problem, OtherVersion) else str(problem))
        pipe.expire(keys.refused, WORKING_SECONDS)
        pipe.hmget(keys.state, "generation", "trouble", "halt", "sealed")
        generation, trouble, halt, sealed = pipe.execute()[2]
        return generation is not None and not (trouble or halt or sealed == b"1")

    def count_hand_back(self, run_id: str, what: str, reason: str) -> int:
        """Note that a message of a run goes back to its queue; returns how often it did so for this reason."""
        key = Keys(run_id).handed_back
        pipe = self.client.pipeline()
        pipe.hincrby(key, f"{what} {reason}", 1)
        pipe.expire(key, WORKING_SECONDS)
        return int(pipe.execute()[0])

    def begin_round(self, run_id: str, generation: int, number: int, indexes: list[int]) -> list[int]:
        """The attempts of a round, as its first caller gave them; a second caller publishes the very same."""
        field_name = f"{generation}.{number}"
        keys = Keys(run_id)
        pipe = self.client.pipeline(transaction=False)
        pipe.hsetnx(keys.rounds, field_name, zlib.compress(json.dumps(indexes).encode(), 1))
        pipe.expire(keys.rounds, WORKING_SECONDS)
        pipe.hget(keys.rounds, field_name)
        first, _, data = pipe.execute()
        if first:
            self._note(run_id, generation, "sealed", round=number)
        return cast("list[int]", json.loads(zlib.decompress(data)))

    def seal(self, run_id: str, generation: int) -> State | None:
        """No record is taken from now on; None when the run is gone, or was resumed since this generation."""
        seal = self.client.register_script(script("seal"))
        sealed = seal(keys=Keys(run_id).ledger, args=[generation, repr(time.time())])
        return self.state(run_id) if sealed else None

    def set_trouble(self, run_id: str, generation: int, trouble: str) -> None:
        """Say why a run cannot go on, for whoever watches it."""
        self._note(run_id, generation, "ended", trouble=trouble)

    def set_warning(self, run_id: str, generation: int, warning: str) -> None:
        """Say what went wrong in a run that goes on, for its artifact."""
        self._note(run_id, generation, "over", warning=warning)

    def put_artifacts(self, run_id: str, generation: int, artifacts: list[Artifact]) -> bool:
        """True for the one caller whose artifacts count; those of a run that was resumed meanwhile do not."""
        from aggregate.artifact.model import dumps_all

        data = zlib.compress(dumps_all(artifacts), 6)
        keys = Keys(run_id)
        names = [*keys.ledger, keys.artifacts, keys.records, keys.errors]
        put = self.client.register_script(script("artifacts"))
        return bool(put(keys=names, args=[generation, data, WORKING_SECONDS]))

    def artifacts(self, run_id: str) -> list[Artifact] | None:
        from aggregate.artifact.model import NotAnArtifact, loads_all

        data = cast("bytes | None", self.client.get(Keys(run_id).artifacts))
        try:
            return None if data is None else loads_all(zlib.decompress(data))
        except (NotAnArtifact, zlib.error) as problem:
            raise UnusableServer(
                f"the server's artifact of run {run_id} cannot be read ({problem})"
            ) from None

    def delete(self, run_id: str) -> None:
        self.client.delete(*Keys(run_id).all())
        self.client.zrem(RUNS, run_id)


def _look(
    state: list[bytes | None],
    recorded: int,
    in_flight: int,
    finishing: int,
    refused: dict[bytes, bytes],
) -> Look | None:
    """What the server answered of a run without artifacts; None for one that waits for a person."""
    protocol, generation, number, halt, sealed, published, trouble = (value or b"" for value in state)
    if trouble or halt == b"paused":
        return None
    return Look(
        int(protocol or 1),
        int(generation),
        int(number or 1),
        halt.decode(),
        sealed == b"1",
        int(published or 0),
        recorded,
        in_flight,
        bool(finishing),
        {name.decode(): why.decode() for name, why in refused.items()},
    )


def weak_baseline(run: StoredRun, state: State) -> str | None:
    """Why the verdict is an error whatever else is run: the best that the baseline can reach; None if it is not."""
    if not state.weak:
        return None
    too_many, each = int(state.weak.split()[3]), run.grid.tasks * run.grid.models
    if state.weak_lost < too_many:
        return None
    best = rate((each - state.weak_lost) / each)
    lost = f"it failed {state.weak_lost} of {each} tasks"
    return f"baseline pass rate can reach {best} at most, < {rate(WEAK_BASELINE)}: {lost}"


def _packed(info: RunInfo) -> bytes:
    return zlib.compress(info.model_dump_json().encode(), 1)

"""Whatever happens in whatever order, each attempt counts once, money too, and runs end by themselves.

Hypothesis invents the order: simulated workers take real messages, claim and store through the real scripts, lose
replies, freeze, die and leave; people pause, cancel and resume; the server refuses writes; messages vanish; clocks jump
and two menders mend. A ledger in Python, which knows no script, says after every step what must be true.

Simulated are only the asking of models, the passing of time (leases run out when a rule says so) and the numbers of an
artifact. A chord's callback is sent when all its batches have returned, or is lost.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import refusing_writes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kombu.exceptions import OperationalError
from submitting import a_server, a_stored_run

from aggregate.records.record import AttemptRecord
from producer.runs import submit
from workers.rounds import finish as finishing
from workers.rounds.mend import Mender
from workers.rounds.publish import publish_batches, send_finish
from workers.store.claims import Claim, Finished, RunClaims, Wanted, drop_all, lease
from workers.store.keys import (
    FINISH,
    HELD,
    LANES,
    MENDER,
    PROTOCOL,
    QUARANTINE,
    UNACKED,
    UNACKED_INDEX,
    WORKERS,
    Keys,
    queue,
    waiting_keys,
)
from workers.store.redis_client import UnusableServer, forget_worker, sign_of_life, tell_held
from workers.store.run_store import OtherVersion, Store

LEASE = 30.0
MOST_RUNS = 20
MOST_WORKERS = 4
OURS = (LANES[0], LANES[1], QUARANTINE)
# As long as this, in seconds of the mender's clock, until everything has ended that nobody holds up.
LONGEST_END = 240

pick = st.integers(0, 40)
amounts = st.sampled_from([0.0, 0.125, 0.25, 1.0])
outcomes = st.sampled_from(["passed", "passed", "failed", "error"])
pairs = st.sampled_from([("error", "error"), ("error", "passed"), ("passed", "error"), ("failed", "passed")])
# How many commands somebody gives before dying; most live.
fuels = st.one_of(st.just(10_000), st.just(10_000), st.integers(1, 12))
# A mender reads a clock that may stand still or leap, but never goes back (time.monotonic).
jumps = st.one_of(st.just(0), st.just(0), st.integers(0, 3600))


CACHED = {
    0: AttemptRecord(
        run_id="earlier", task="task-0", arm="baseline", model="sim", attempt=1, outcome="passed", score=1.0
    )
}


class Died(redis.RedisError):
    """Whoever gave this command did not live to give it."""


class Mortal(redis.Redis):
    """The client of a process that dies after some commands; one such process lives at a time."""

    fuel = 0

    def _burn(self) -> None:
        Mortal.fuel -= 1
        if Mortal.fuel < 0:
            raise Died

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._burn()
        return super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        self._burn()
        return super().pipeline(*args, **options)


class Lossy(redis.asyncio.Redis):
    """A client that may lose the reply to a script that has run."""

    loses = False

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        answer = await super().execute_command(*args, **options)
        if self.loses and args[0] == "EVALSHA":
            raise redis.ConnectionError("the reply got lost")
        return answer


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Job:
    """A message that a worker has taken, and how far it has come with its only attempt."""

    number: int
    message: Any
    run_id: str
    round: int
    index: int
    alone: bool
    claim: Claim | None = None
    asked: bool = False
    record: Finished | None = None


@dataclass(eq=False)
class Worker:
    name: str
    reads: bool = True
    jobs: list[Job] = field(default_factory=list)
    claims: dict[tuple[str, bool], RunClaims] = field(default_factory=dict)


@dataclass
class Facts:
    """A run as the server has it."""

    state: dict[str, str]
    records: dict[int, bytes]
    errors: set[int]
    owners: dict[int, tuple[int, float, str]]
    expiries: dict[int, float]
    counts: dict[str, int]
    deaths: dict[int, int]
    ended: bool
    now: float

    def amount(self, name: str) -> float:
        return float(self.state.get(name) or 0)

    @property
    def sealed(self) -> bool:
        return self.state["sealed"] == "1"

    @property
    def end(self) -> tuple[str, bool, bool]:
        """Whether the run is over, and in which generation."""
        return self.state["generation"], self.sealed, self.ended


@dataclass
class Ledger:
    """What must be true of a run, by what was sent to it."""

    attempts: int
    cached: int
    seen: Facts
    sent: dict[bytes, Finished] = field(default_factory=dict)
    replaced: list[Finished] = field(default_factory=list)
    assumed: dict[int, float] = field(default_factory=dict)  # by token, of those that were not billed yet
    unpriced: float = 0.0
    billed: set[int] = field(default_factory=set)
    token: int = 0

    def check(
        self, facts: Facts, stored: Finished | None = None, unasked: Collection[int] = frozenset()
    ) -> None:
        """Compare with what was seen the last time; since then `stored` was sent, and `unasked` given up."""
        if stored is not None:
            self.sent[stored.payload] = stored
        self._check_records(facts)
        self._check_claims(facts, stored, unasked)
        self._check_money(facts)
        assert not facts.ended or facts.sealed
        if (
            facts.state["generation"] == self.seen.state["generation"]
            and self.seen.state["halt"] == "cancelled"
        ):
            assert facts.state["halt"] == "cancelled", "a cancel was overwritten"
        self.seen = facts

    def _check_records(self, facts: Facts) -> None:
        for index, before in self.seen.records.items():
            now = facts.records[index]
            if now != before:
                old, new = self.sent[before], self.sent[now]
                assert old.outcome == "error", f"a final record of {index} changed"
                assert old.token < new.token, "an older try took a newer one's place"
                self.replaced.append(old)
        if facts.end == self.seen.end and facts.sealed:
            assert facts.records == self.seen.records, "a sealed run took a record"
        assert all(0 <= index < self.attempts for index in facts.records)
        kept = {index: self.sent.get(payload) for index, payload in facts.records.items()}
        assert sum(record is None for record in kept.values()) == self.cached
        counts = Counter(f"{record.arm} {record.outcome}" for record in kept.values() if record)
        counts["0 passed"] += self.cached
        assert {name: count for name, count in facts.counts.items() if count} == +counts
        assert facts.errors == {i for i, record in kept.items() if record and record.outcome == "error"}

    def _check_claims(self, facts: Facts, stored: Finished | None, unasked: Collection[int]) -> None:
        assert facts.owners.keys() == facts.expiries.keys()
        given = [
            token for i, (token, *_) in facts.owners.items() if self.seen.owners.get(i, (0,))[0] != token
        ]
        assert all(token > self.token for token in given), "a token was given twice"
        self.token = max([self.token, *given])
        ended = facts.ended and facts.end != self.seen.end
        for index, (token, reserve, _) in self.seen.owners.items():
            now, left, _ = facts.owners.get(index, (0, 0.0, ""))
            gone = reserve - left if now == token else reserve
            billed = stored is not None and stored.token == token
            if token not in unasked and (billed or not ended or self.seen.expiries[index] <= facts.now):
                # The artifacts of a run drop what is not needed any more.
                self.assumed[token] = self.assumed.get(token, 0.0) + gone
        if stored is not None and stored.token not in self.billed:
            self.billed.add(stored.token)
            self.unpriced += stored.unpriced * self.assumed.pop(stored.token, 0.0)
        assert facts.amount("assumed") == pytest.approx(sum(self.assumed.values()) + self.unpriced)
        reserved = sum(reserve for _, reserve, _ in facts.owners.values())
        assert facts.amount("reserved") == pytest.approx(reserved)
        if facts.sealed and not self.seen.sealed:
            dead = [i for i, expiry in facts.expiries.items() if expiry <= self.seen.now]
            assert not any(facts.owners[i][1] for i in dead), "what the dead had reserved is not assumed"

    def _check_money(self, facts: Facts) -> None:
        spent = sum(record.cost for record in self.sent.values())
        assert facts.amount("spent") == pytest.approx(spent), "money was not counted once"
        kept = sum(self.sent[payload].cost for payload in facts.records.values() if payload in self.sent)
        carried = sum(record.cost - record.lost for record in self.replaced)
        assert facts.amount("wasted") == pytest.approx(spent - kept - carried)
        assert facts.amount("wasted_attempts") == len(self.sent) + self.cached - len(facts.records)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, server: Any, runner: asyncio.Runner, lossy: Lossy, channel: Any) -> None:
        super().__init__()
        self.server, self.runner, self.lossy, self.channel = server, runner, lossy, channel
        self.client: redis.Redis = server.store.client
        for key in self.client.scan_iter():
            if not key.startswith(b"uplift:_kombu"):
                self.client.delete(key)
        self.runs: dict[str, Ledger] = {}
        self.workers: list[Worker] = []
        self.dead: set[str] = set()  # whose leases are not over yet
        self.left: set[tuple[str, int, str]] = set()  # claims that a living worker does not renew any more
        self.made = 0
        self.refuses = ""
        self.told: dict[tuple[str, int, int], set[int]] = {}
        self.called: set[tuple[str, int, int]] = set()
        self.clocks = [Clock(), Clock()]
        self.menders = [
            Mender(server.app, f"mender-{n}", self.client, LEASE, clock)
            for n, clock in enumerate(self.clocks)
        ]

    # What is on the server

    def facts(self, run_ids: list[str]) -> list[Facts]:
        pipe = self.client.pipeline(transaction=False)
        pipe.time()
        for keys in map(Keys, run_ids):
            for key in (keys.state, keys.records, keys.owners, keys.counts, keys.deaths):
                pipe.hgetall(key)
            pipe.hkeys(keys.errors)
            pipe.zrange(keys.claims, 0, -1, withscores=True)
            pipe.exists(keys.artifacts)
        (seconds, micros), *answers = pipe.execute()
        found = []
        for state, records, owners, counts, deaths, errors, claims, ended in zip(
            *[iter(answers)] * 8, strict=True
        ):
            held = {int(index): value.decode().split(" ", 2) for index, value in owners.items()}
            found.append(
                Facts(
                    state={key.decode(): value.decode() for key, value in state.items()},
                    records={int(index): payload for index, payload in records.items()},
                    errors=set(map(int, errors)),
                    owners={
                        index: (int(token), float(usd), who) for index, (token, usd, who) in held.items()
                    },
                    expiries={int(index): score for index, score in claims},
                    counts={key.decode(): int(value) for key, value in counts.items()},
                    deaths={int(index): int(count) for index, count in deaths.items()},
                    ended=bool(ended),
                    now=seconds * 1000 + micros / 1000,
                )
            )
        return found

    def check(
        self, run_id: str, stored: Finished | None = None, unasked: Collection[int] = frozenset()
    ) -> Facts:
        (facts,) = self.facts([run_id])
        self.runs[run_id].check(facts, stored, unasked)
        return facts

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Whoever writes while the server refuses to gets an error, and nothing has happened."""
        try:
            yield
        except (redis.ResponseError, OperationalError, redis.ConnectionError, UnusableServer):
            if not self.refuses:
                raise

    @contextmanager
    def mortal(self, fuel: int) -> Iterator[Store]:
        """A store for somebody who may die after `fuel` commands."""
        Mortal.fuel = fuel
        with self.unless_refused(), suppress(Died):
            yield Store(Mortal(connection_pool=self.client.connection_pool))

    # People

    @initialize(tasks=st.integers(1, 2), cached=st.booleans(), budget=st.sampled_from([None, None, 1.0, 2.0]))
    def open(self, tasks, cached, budget):
        """Hypothesis leaves out some rules of each example: without a run and workers most would do nothing."""
        self.join(True)
        self.join(True)
        self.begin(1, tasks, cached, budget, "normal", 10_000)

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(
        many=st.sampled_from([1, 1, 2, 5]),
        tasks=st.integers(1, 2),
        cached=st.booleans(),
        budget=st.sampled_from([None, None, 1.0, 2.0]),
        priority=st.sampled_from(["normal", "high"]),
        fuel=fuels,
    )
    def begin(self, many, tasks, cached, budget, priority, fuel):
        for _ in range(min(many, MOST_RUNS - len(self.runs))):
            self.made += 1
            run_id = f"run-{self.made}"
            with self.mortal(fuel) as store:
                a_stored_run(
                    store,
                    tasks,
                    run_id=run_id,
                    cached=CACHED if cached else {},
                    budget_usd=budget,
                    lane=OURS[self.made % 2],
                    priority=priority,
                )
                submit.go_on(replace(self.server, store=store), store.run(run_id), insist_seconds=0)
            (facts,) = self.facts([run_id])
            if "generation" in facts.state:
                self.runs[run_id] = Ledger(2 * tasks, cached=int(cached), seen=facts)

    @precondition(lambda self: self.runs)
    @rule(n=pick, why=st.sampled_from(["paused", "cancelled"]))
    def halt(self, n, why):
        with self.unless_refused():
            self.server.store.halt(self.a_run(n), why)

    @precondition(lambda self: self.runs)
    @rule(n=pick, more=st.booleans(), fuel=fuels)
    def resume(self, n, more, fuel):
        run_id = self.a_run(n)
        with self.mortal(fuel) as store:
            run = store.run(run_id)
            if more and run.manifest.budget_usd:
                run = store.set_budget(run, run.manifest.budget_usd + 1)
            submit.go_on(replace(self.server, store=store), run, insist_seconds=0)

    def a_run(self, n: int) -> str:
        return list(self.runs)[n % len(self.runs)]

    # Workers

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule(reads=st.sampled_from([True, True, True, False]))
    def join(self, reads):
        self.made += 1
        self.workers.append(Worker(f"worker:{self.made}", reads))
        self.tell()

    @precondition(lambda self: self.workers)
    @rule(n=pick)
    def take(self, n):
        self.take_one(self.workers[n % len(self.workers)])

    def take_one(self, worker: Worker) -> Job | None:
        """The next message for a worker; one that cannot read the run gives it back."""
        with self.unless_refused():
            for lane in OURS:
                message = queue(lane).bind(self.channel).get(accept=["json"])
                if message is None:
                    continue
                run_id, number, (index,), alone = message.payload[0]
                self.made += 1
                job = Job(self.made, message, run_id, number, index, alone)
                if worker.reads:
                    worker.jobs.append(job)
                    return job
                self.server.store.refuse(run_id, worker.name, OtherVersion("unreadable"))
                message.reject(requeue=True)
                return None
        return None

    @precondition(lambda self: self.jobs())
    @rule(n=pick, estimate=amounts, unseen=st.booleans(), loses=st.booleans())
    def claim(self, n, estimate, unseen, loses):
        worker, job = self.a_job(n)
        if job.claim is None:
            self.claim_one(worker, job, estimate, unseen, loses=loses)

    def claim_one(
        self, worker: Worker, job: Job, estimate: float, unseen: bool = False, *, loses: bool = False
    ) -> None:
        before = self.runs[job.run_id].seen
        claims = self.claims_of(worker, job)
        knows = job.index in claims.held
        claim = self.send(
            claims.claim(Wanted(job.index, job.round, job.alone, estimate, unseen)), loses=loses
        )
        facts = self.check(job.run_id)
        self.check_death(facts, before, job.index)
        if job.index in facts.owners and facts.owners[job.index][0] not in {
            t for t, *_ in before.owners.values()
        }:
            self.check_grant(facts, before, job)
        if claim is not None and claim.code == "held" and not knows:
            assert facts.owners[job.index][2] != self.owner(worker, job), "who holds it is sent away"
        if claim is None:
            job.asked = job.asked or (loses and not self.refuses)
        elif claim.code == "go":
            token, _, owner = facts.owners[job.index]
            assert (token, owner) == (claim.token, self.owner(worker, job))
            job.claim = claim
        elif claim.code == "poison":
            job.claim = claim
            self.record(job, "error", 0.0, 0.0, 0)
        elif claim.code not in ("held", "full"):
            self.done(worker, job)

    def check_death(self, facts: Facts, before: Facts, index: int) -> None:
        """Whoever asks for an attempt whose holder's lease is over has found a death, and counts it."""
        died = index in before.owners and before.expiries[index] <= facts.now
        found = died and before.owners[index][0] != facts.owners.get(index, (0,))[0]
        assert facts.deaths.get(index, 0) == before.deaths.get(index, 0) + found, (
            "deaths were not counted once"
        )

    def check_grant(self, facts: Facts, before: Facts, job: Job) -> None:
        """An attempt may start that nobody else is at, that is wanted, and that there is money for."""
        assert not before.state["halt"], "a halted run started an attempt"
        assert not before.sealed, "a sealed run started an attempt"
        assert before.expiries.get(job.index, 0) <= facts.now, "an attempt started that another was at"
        assert job.index not in before.records or job.index in before.errors
        assert facts.deaths.get(job.index, 0) < 2 + job.alone, "an attempt started that ends its workers"
        if budget := facts.state.get("budget"):
            used = facts.amount("spent") + facts.amount("assumed") + facts.amount("reserved")
            assert used <= float(budget) + 1e-6, "an attempt started that there was no money for"

    @precondition(lambda self: self.jobs())
    @rule(n=pick)
    def ask(self, n):
        """Ask the model of an attempt that is claimed: what was reserved may be spent from now on."""
        worker, job = self.a_job(n)
        if job.claim is not None:
            self.claims_of(worker, job).asked.add(job.claim.token)

    @precondition(lambda self: self.jobs())
    @rule(
        n=pick, outcome=outcomes, cost=amounts, kept=amounts, unpriced=st.integers(0, 2), loses=st.booleans()
    )
    def store(self, n, outcome, cost, kept, unpriced, loses):
        worker, job = self.a_job(n)
        if job.claim is not None:
            if job.record is None:
                self.record(job, outcome, cost, max(0.0, cost - kept), unpriced)
            self.store_one(worker, job, loses=loses)

    def record(self, job: Job, outcome: str, cost: float, lost: float, unpriced: int) -> None:
        payload = f"{outcome} {job.claim.token} {job.number}".encode()
        job.record = Finished(
            job.index, job.claim.token, job.round, outcome, cost, lost, unpriced, job.index % 2, payload
        )

    def store_one(self, worker: Worker, job: Job, *, loses: bool = False, tells: bool = True) -> None:
        # A full server lets a script go on whose first write frees something: whoever holds a claim can store.
        answer = self.send(self.claims_of(worker, job).store(job.record), loses=loses and not self.refuses)
        self.check(job.run_id, stored=None if self.refuses and answer is None else job.record)
        if answer is not None:
            self.done(worker, job, tells=tells)

    @precondition(lambda self: any(ledger.sent for ledger in self.runs.values()))
    @rule(n=pick)
    def store_again(self, n):
        """Whoever heard no answer sends records once more, perhaps long after they were taken."""
        for run_id, ledger in self.runs.items():
            again = RunClaims(self.lossy, run_id, "again", lease_seconds=LEASE)
            for record in list(ledger.sent.values())[n % 3 :: 3]:
                self.send(again.store(record))
            self.check(run_id)

    @precondition(lambda self: self.workers)
    @rule(
        n=pick,
        many=st.integers(1, 6),
        outcome=outcomes,
        cost=amounts,
        unpriced=st.integers(0, 1),
        tells=st.booleans(),
    )
    def work(self, n, many, outcome, cost, unpriced, tells):
        """What workers mostly do."""
        worker = self.workers[n % len(self.workers)]
        for _ in range(many):
            job = self.take_one(worker)
            if job is None:
                return
            self.claim_one(worker, job, cost)
            if job.claim is not None:
                if job.record is None:
                    self.record(job, outcome, cost, cost, unpriced)
                self.store_one(worker, job, tells=tells)

    @precondition(lambda self: self.workers)
    @rule(n=pick, many=st.integers(1, 4), estimate=amounts, loses=st.booleans())
    def start(self, n, many, estimate, loses):
        """A worker is at some attempts when the next thing happens; it asks again where an answer got lost."""
        worker = self.workers[n % len(self.workers)]
        for _ in range(many):
            if (job := self.take_one(worker)) is None:
                return
            self.claim_one(worker, job, estimate, loses=loses)
            if job.asked and job.claim is None:
                self.claim_one(worker, job, estimate)

    @precondition(lambda self: len(self.workers) > 1 and not self.refuses)
    @rule(n=pick, frozen=st.booleans(), older_first=st.booleans(), both=pairs)
    def send_twice(self, n, frozen, older_first, both):
        """Another worker is asked for what one is at, or was before it froze, and both store."""
        worker, job = self.a_claim(n)
        if job is None:
            return
        if frozen:
            self.leases_are_over({worker.name})
            self.every_run_is_in_order()
        run, alone = self.server.store.run(job.run_id), [job.index] * job.alone
        publish_batches(self.server.app, run, number=job.round, indexes=[job.index], alone=alone)
        other = next(other for other in self.workers if other is not worker)
        self.start(self.workers.index(other), 10, 0.25, False)
        pairs = [(worker, job), *((other, its) for its in other.jobs if its.index == job.index)]
        self.renew(self.workers.index(worker))  # it may hold what is another's by now
        for (who, what), outcome in zip(pairs if older_first else pairs[::-1], both, strict=False):
            if what in who.jobs and what.claim is not None and what.run_id == job.run_id:
                self.end(who, what, outcome)

    @precondition(lambda self: self.workers and not self.refuses)
    @rule(n=pick, outcome=outcomes)
    def cancel_under_way(self, n, outcome):
        """A run is ended while attempts of it are under way; what they store comes too late."""
        worker, job = self.a_claim(n)
        if job is None:
            return
        self.server.store.halt(job.run_id, "cancelled")
        Mortal.fuel = 10_000
        self.finish_one(job.run_id, int(self.check(job.run_id).state["generation"]), job.round)
        self.check(job.run_id)
        if job.claim is not None:
            self.end(worker, job, outcome)

    def end(self, worker: Worker, job: Job, outcome: str) -> None:
        """Store a record twice, because the first answer gets lost."""
        if job.record is None:
            self.record(job, outcome, 0.25, 0.125, 1)
        self.store_one(worker, job, loses=True)
        self.store_one(worker, job)

    @precondition(lambda self: self.workers and not self.refuses)
    @rule(n=pick, times=st.integers(1, 4), estimate=amounts)
    def kill(self, n, times, estimate):
        """An attempt ends its process, and the next one that gets it."""
        worker = self.workers[n % len(self.workers)]
        for _ in range(times):
            if (job := self.take_one(worker)) is None:
                return
            self.claim_one(worker, job, estimate)
            if job not in worker.jobs:
                return
            worker.jobs.remove(job)
            if job.claim is not None and job.record is None:
                self.claims_of(worker, job).held.pop(job.index)
                self.client.zadd(Keys(job.run_id).claims, {str(job.index): 1}, xx=True)
                self.check(job.run_id)
            job.message.reject(requeue=True)

    @precondition(lambda self: self.jobs())
    @rule(n=pick)
    def hand_back(self, n):
        """An attempt breaks in its worker."""
        worker, job = self.a_job(n)
        worker.jobs.remove(job)
        if job.claim is not None:
            unasked = {job.claim.token} - self.claims_of(worker, job).asked
            self.send(self.claims_of(worker, job).release(job.index, job.claim.token))
            self.check(job.run_id, unasked=unasked)
        self.left.add((job.run_id, job.index, self.owner(worker, job)))
        with self.unless_refused():
            job.message.reject(requeue=True)

    @precondition(lambda self: self.workers)
    @rule(n=pick)
    def renew(self, n):
        worker = self.workers[n % len(self.workers)]
        for (run_id, _), claims in worker.claims.items():
            (before,) = self.facts([run_id])
            with self.unless_refused():
                lease(self.client, run_id, dict(claims.held), LEASE)
            (after,) = self.facts([run_id])
            for index, (token, *_) in after.owners.items():
                mine = claims.held.get(index) == token
                assert mine or after.expiries[index] == before.expiries[index], "another's claim was renewed"

    @precondition(lambda self: self.runs)
    @rule(n=pick)
    def come_late(self, n):
        """Somebody writes what was true of a run before it was resumed."""
        run_id, store = self.a_run(n), self.server.store
        earlier = int(self.check(run_id).state["generation"]) - 1
        before = RunClaims(self.lossy, run_id, "before", lease_seconds=LEASE)
        with self.unless_refused():
            assert not store.put_artifacts(run_id, earlier, [])
            assert store.seal(run_id, earlier) is None
            assert not store.halt(run_id, "decided", earlier)
            assert not self.send(before.halt(earlier, "hopeless", "no key"))
            store.set_trouble(run_id, earlier, "late")
            assert not store.state(run_id).trouble
        assert self.check(run_id).end == self.runs[run_id].seen.end

    @precondition(lambda self: self.workers and not self.refuses)
    @rule(n=pick)
    def freeze(self, n):
        """For longer than a lease; then it goes on with what it had."""
        worker = self.workers[n % len(self.workers)]
        self.leases_are_over({worker.name})

    @precondition(lambda self: self.workers)
    @rule(n=pick)
    def drain(self, n):
        worker = self.workers.pop(n % len(self.workers))
        for (run_id, alone), claims in worker.claims.items():
            name = worker.name + "!" * alone
            held = [token for token, _, owner in self.runs[run_id].seen.owners.values() if owner == name]
            with self.unless_refused():
                drop_all(self.client, run_id, name, claims.asked)
            self.check(run_id, unasked=set(held) - claims.asked)
        for job in worker.jobs:
            with self.unless_refused():
                job.message.reject(requeue=True)
        with self.unless_refused():
            forget_worker(self.client, worker.name)
        if self.refuses:
            self.dead.add(worker.name)

    @precondition(lambda self: self.workers)
    @rule(n=pick)
    def die(self, n):
        self.dead.add(self.workers.pop(n % len(self.workers)).name)

    @precondition(lambda self: (self.dead or self.left) and not self.refuses)
    @rule()
    def a_lease_passes(self):
        self.leases_are_over(self.dead, self.left)
        self.dead, self.left = set(), set()

    def leases_are_over(self, names: set[str], left: Collection[tuple[str, int, str]] = ()) -> None:
        for run_id, facts in zip(self.runs, self.facts(list(self.runs)), strict=True):
            for index, (_, _, owner) in facts.owners.items():
                forgotten = (run_id, index, owner) in left and not self.has_a_job(run_id, index, owner)
                if owner.rstrip("!") in names or forgotten:
                    self.client.zadd(Keys(run_id).claims, {str(index): 1})
            if "finisher" in names:
                self.client.delete(Keys(run_id).finishing)
        for name in names:
            self.client.delete(HELD + name)
            self.client.zadd(WORKERS, {name: 1}, xx=True)

    @precondition(lambda self: not self.refuses)
    @rule()
    def power_is_lost(self):
        """Everybody is gone at once, and whoever comes next knows that."""
        self.dead.update(worker.name for worker in self.workers)
        self.workers.clear()
        self.a_lease_passes()
        for run_id in self.runs:
            drop_all(self.client, run_id)
        self.join(True)

    def jobs(self) -> list[tuple[Worker, Job]]:
        return [(worker, job) for worker in self.workers for job in worker.jobs]

    def a_job(self, n: int) -> tuple[Worker, Job]:
        jobs = self.jobs()
        return jobs[n % len(jobs)]

    def a_claim(self, n: int) -> tuple[Worker, Job | None]:
        """What a worker is at, or takes now and is at then if it may start; None where nothing is left to take."""
        worker = self.workers[n % len(self.workers)]
        job = worker.jobs[n % len(worker.jobs)] if worker.jobs else self.take_one(worker)
        if job is not None and job.claim is None:
            self.claim_one(worker, job, 0.25)
        return worker, job

    def owner(self, worker: Worker, job: Job) -> str:
        """An attempt that runs alone has a process, and so a name, of its own."""
        return worker.name + "!" * job.alone

    def claims_of(self, worker: Worker, job: Job) -> RunClaims:
        key = job.run_id, job.alone
        if key not in worker.claims:
            made = RunClaims(self.lossy, job.run_id, self.owner(worker, job), lease_seconds=LEASE)
            worker.claims[key] = made
        return worker.claims[key]

    def send(self, question: Any, *, loses: bool = False) -> Any:
        """The answer, or None where there was none."""
        self.lossy.loses = loses
        try:
            return self.runner.run(question)
        except redis.ResponseError:
            assert self.refuses
        except redis.ConnectionError:
            assert loses
        finally:
            self.lossy.loses = False
        return None

    def done(self, worker: Worker, job: Job, *, tells: bool = True) -> None:
        """Acknowledge a message; the last one of a round calls back, unless one of them was lost."""
        worker.jobs.remove(job)
        self.left.add((job.run_id, job.index, self.owner(worker, job)))
        with self.unless_refused():
            job.message.ack()
            if not tells:
                return
            generation = int(self.runs[job.run_id].seen.state["generation"])
            part = job.run_id, generation, job.round
            self.told.setdefault(part, set()).add(job.index)
            if part not in self.called and self.told[part] >= set(self.indexes(*part)):
                self.called.add(part)
                send_finish(self.server.app, *part)

    def indexes(self, run_id: str, generation: int, number: int) -> list[int]:
        """The attempts of a round, of which the chord that calls back has a message each."""
        if not self.client.hexists(Keys(run_id).rounds, f"{generation}.{number}"):
            return [-1]
        return self.server.store.begin_round(run_id, generation, number, [])

    @rule(fuel=fuels)
    def finish(self, fuel):
        """A worker ends a round, and may die meanwhile."""
        with self.unless_refused():
            message = queue(FINISH).bind(self.channel).get(accept=["json"])
            if message is None:
                return
            with self.mortal(fuel):
                self.finish_one(*message.payload[0])
            if Mortal.fuel < 0:
                self.dead.add("finisher")
            else:
                message.ack()

    def finish_one(self, run_id: str, generation: int, number: int) -> None:
        finishing.finish(self.server.app, self.server.settings, run_id, generation, number)

    # Menders

    def tell(self) -> None:
        """What every living worker tells once a second."""
        with self.unless_refused():
            for worker in self.workers:
                sign_of_life(self.client, worker.name, {"name": worker.name, "protocol": PROTOCOL})
                tell_held(self.client, worker.name, [job.message.delivery_tag for job in worker.jobs], LEASE)

    @rule(n=st.integers(0, 1), jump=jumps, looks=st.integers(1, 6), step=st.sampled_from([1, 4]))
    def mend(self, n, jump, looks, step):
        self.tell()
        self.clocks[n].now += jump
        for _ in range(looks):
            self.look(n, step)

    def look(self, n: int, step: float) -> None:
        try:
            self.menders[n].look()
        except (redis.ResponseError, OperationalError):
            assert self.refuses
            self.menders[n].forget()
        self.clocks[n].now += step

    @precondition(lambda self: not self.refuses)
    @rule(n=st.integers(0, 1))
    def a_mender_dies(self, n):
        self.menders[n].resign()  # as when its lease is over
        self.menders[n].forget()

    # The server

    @rule(how=st.sampled_from(["", "MISCONF", "OOM"]))
    def refuse(self, how):
        self.refuses = how
        self.client.config_set("stop-writes-on-bgsave-error", "yes" if how == "MISCONF" else "no")
        self.client.config_set("maxmemory", "1" if how == "OOM" else "0")

    @precondition(lambda self: not self.refuses)
    @rule(n=pick, which=st.sampled_from([*OURS, FINISH]))
    def a_waiting_message_is_lost(self, n, which):
        for key in waiting_keys(which):
            if waiting := self.client.llen(key):
                self.client.lrem(key, 1, self.client.lindex(key, n % waiting))
                return

    @precondition(lambda self: not self.refuses)
    @rule(n=pick)
    def a_taken_message_is_lost(self, n):
        if jobs := self.jobs():
            tag = jobs[n % len(jobs)][1].message.delivery_tag
            self.client.hdel(UNACKED, tag)
            self.client.zrem(UNACKED_INDEX, tag)

    # What must be true

    @invariant()
    def every_run_is_in_order(self):
        for run_id, facts in zip(self.runs, self.facts(list(self.runs)), strict=True):
            self.runs[run_id].check(facts)
            for index, (token, _, owner) in facts.owners.items():
                if facts.expiries[index] > facts.now:
                    assert self.has_a_runner(run_id, index, token, owner), (run_id, index, owner)

    def has_a_runner(self, run_id: str, index: int, token: int, owner: str) -> bool:
        """Whether somebody is at an attempt, or was until now."""
        if owner.rstrip("!") in self.dead or (run_id, index, owner) in self.left:
            return True
        return self.has_a_job(run_id, index, owner, token)

    def has_a_job(self, run_id: str, index: int, owner: str, token: int | None = None) -> bool:
        return any(
            (job.run_id, job.index, self.owner(worker, job)) == (run_id, index, owner)
            and (token is None or job.asked or (job.claim is not None and job.claim.token == token))
            for worker, job in self.jobs()
        )

    def teardown(self):
        if sys.exc_info()[0] is None:
            self.everything_ends()
        self.refuse("")

    def everything_ends(self) -> None:
        """With everybody dead and one honest worker, every run ends that nobody holds up."""
        self.refuse("")
        Mortal.fuel = 1_000_000
        self.dead.update(["finisher", *(worker.name for worker in self.workers)])
        self.workers.clear()
        self.a_lease_passes()
        self.every_run_is_in_order()
        self.client.delete(MENDER)
        self.join(True)
        for _ in range(0, LONGEST_END, 4):
            self.tell()
            self.look(0, 4)
            self.do_everything(self.workers[0])
            if not self.server.store.open_runs():
                break
        self.every_run_is_in_order()
        for run_id, ledger in self.runs.items():
            facts = ledger.seen
            halt = facts.state["halt"]
            if halt == "paused" or facts.state.get("trouble"):
                assert not facts.ended
                continue
            assert facts.ended, f"{run_id} does not end"
            assert not [e for e in facts.expiries.values() if e > facts.now], "a claim without a runner"
            if not halt:  # one that was halted may be resumed, and then its claims are looked at
                assert facts.amount("reserved") == pytest.approx(0)
                assert len(facts.records) == ledger.attempts
                assert not facts.owners

    def do_everything(self, worker: Worker) -> None:
        for job in chain(list(worker.jobs), iter(lambda: self.take_one(worker), None)):
            self.claim_one(worker, job, 0.125)
            if job.claim is not None:
                if job.record is None:
                    self.record(job, "passed", 0.0, 0.0, 0)
                self.store_one(worker, job)
        while message := queue(FINISH).bind(self.channel).get(accept=["json"]):
            self.finish_one(*message.payload[0])
            message.ack()


def end_without_numbers(_: Any, store: Store, run_id: str, generation: int) -> None:
    """What the child process that aggregates a run does to the store."""
    if store.seal(run_id, generation) is not None:
        store.put_artifacts(run_id, generation, [])


@pytest.fixture
def parts(valkey, monkeypatch):
    """What every example shares: a server, a loop, a client that loses replies and a channel to take messages from."""
    server = a_server(valkey)
    client = server.store.client
    # Hashes that keep their order, or the same steps would not have the same effects.
    client.config_set("hash-max-listpack-value", 1_000_000)
    client.config_set("hash-max-listpack-entries", 100_000)
    monkeypatch.setattr(finishing, "connect", lambda _: Mortal(connection_pool=client.connection_pool))
    monkeypatch.setattr(finishing, "aggregate", end_without_numbers)
    monkeypatch.setattr(submit, "aggregate", end_without_numbers)
    lossy = Lossy.from_url(valkey)
    with asyncio.Runner() as runner, server.app.connection_for_read() as connection:
        yield server, runner, lossy, connection.default_channel
        connection.default_channel._qos._delivered.clear()  # or closing the connection would give them back
        runner.run(lossy.aclose())
    server.close()


def test_whatever_happens_each_attempt_and_its_money_count_once_and_runs_end(parts, short_tmp):
    client = parts[0].store.client
    client.config_set("stop-writes-on-bgsave-error", "no")
    with refusing_writes(client, short_tmp):  # as soon as a rule says so
        run_state_machine_as_test(
            lambda: StoreMachine(*parts), settings=settings(max_examples=100, stateful_step_count=40)
        )


# Orders in which a broken script shows at once: Hypothesis comes upon each of them only now and then.
ORDERS = {
    "two errors, the younger first": lambda it: it.send_twice(0, True, False, ("error", "error")),
    "two answers, the older first": lambda it: it.send_twice(0, True, True, ("passed", "failed")),
    "two answers, nobody froze": lambda it: it.send_twice(0, False, True, ("passed", "failed")),
    "dead before the end": lambda it: (
        it.start(0, 1, 1.0, False),
        it.freeze(0),
        it.cancel_under_way(1, "failed"),
    ),
    "cancelled, then paused": lambda it: [
        (it.halt(0, how), it.check("run-3")) for how in ("cancelled", "paused")
    ],
    "handed back": lambda it: (it.start(0, 1, 1.0, False), it.hand_back(0)),
    "more than there is money for": lambda it: (
        it.begin(1, 2, False, 1.0, "normal", 10_000),
        it.start(0, 10, 1.0, False),
    ),
    "resumed, then somebody late": lambda it: (it.resume(0, False, 10_000), it.come_late(0)),
    "killed twice": lambda it: it.kill(0, 4, 0.25),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_in_which_broken_scripts_show(parts, order):
    machine = StoreMachine(*parts)
    machine.open(2, False, None)
    ORDERS[order](machine)
    machine.every_run_is_in_order()
    machine.everything_ends()

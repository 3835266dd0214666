"""Whoever asks, gives up or dies in whatever order: a model's limits hold over all workers, and nobody waits in vain.

Hypothesis invents the order: workers ask for permission through the real scripts, call, tell what they used, are
refused by the provider, give up while the server answers, and die. Time is simulated, that of expiring keys too. A
ledger in Python, which knows no script, says when a call may start, and by when one must.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import redis
import redis.asyncio
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

from workers.attempts.permits import ModelLimits, Permit
from workers.store.keys import limits as limit_keys
from workers.store.messages import Limits

MODEL = "openai:some-model"
LEASE = 30.0
MINUTE = 61.0  # as long as the scripts remember a call
MOST_WORKERS = 3
PROVIDER_LEAST = 6  # calls a minute, however often it refuses
PAUSE = 5.0  # in which nobody asks, where it refuses again and again
MOMENT = 0.002

pick = st.integers(0, 40)
# As shares of `tpm`.
sizes = st.sampled_from([0.02, 0.1, 0.4, 1.0])
seconds = st.sampled_from([0.0, 0.05, 0.5, 3.0, 20.0, 29.0, 45.0, 61.0, 130.0])
all_limits = st.builds(
    Limits,
    rpm=st.sampled_from([None, 3, 20, 20, 600]),
    tpm=st.sampled_from([None, 1_000, 60_000]),
    max_in_flight=st.sampled_from([None, 1, 3]),
).filter(lambda limits: not limits.none)


class Waits(Exception):
    """Whoever asked would sleep now."""


async def would_wait(_: float) -> None:
    raise Waits


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Asking:
    """The script that gives permission, and what it answered; `cancel` is called while the answer is on its way."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.answer: list[Any] = []
        self.cancel: Callable[[], object] | None = None

    async def __call__(self, **what: Any) -> Any:
        self.answer = await self._script(**what)
        if self.cancel is not None:
            self.cancel()
            await asyncio.sleep(0)
        return self.answer


@dataclass(eq=False)
class Worker:
    limits: ModelLimits
    asking: Asking


@dataclass(eq=False)
class Call:
    at: float
    estimate: int
    worker: Worker
    permit: Permit
    used: int | None = None
    leased: float = float("inf")  # until when its slot is taken, once its worker is dead
    running: bool = True

    @property
    def tokens(self) -> int:
        """What one knows of its use so far."""
        return self.permit.aside if self.used is None else self.used


@dataclass(eq=False)
class Waiter:
    worker: Worker
    estimate: int
    asks_at: float


class LimitsMachine(RuleBasedStateMachine):
    def __init__(self, client: redis.Redis, runner: asyncio.Runner, shared: redis.asyncio.Redis) -> None:
        super().__init__()
        self.client, self.runner, self.shared = client, runner, shared
        self.client.flushdb()
        self.clock = Clock()
        self.workers: list[Worker] = []
        self.calls: list[Call] = []  # all that were permitted, but those that were given back
        self.expiries: dict[str, float] = {}
        self.excess = 0.0  # tokens above what was set aside, told since the last start
        self.told = self.gave_back = False  # what was used, or a permission, since the last start
        self.gave_back_at = 0.0
        self.had_to_wait_at = 0.0
        self.quiet_until = 0.0  # the provider said so
        self.paused_until = 0.0
        self.refused_at: float | None = None
        self.next_after_refusal = 0.0

    @initialize(limits=all_limits, right=st.booleans(), workers=st.integers(1, MOST_WORKERS))
    def begin(self, limits: Limits, right: bool, workers: int) -> None:
        """In half of the examples all estimates are right."""
        self.limits, self.right = limits, right
        self.rpm, self.tpm, self.most = int(limits.rpm or 0), int(limits.tpm or 0), limits.max_in_flight or 0
        for _ in range(workers):
            self.join()

    # Workers

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule()
    def join(self) -> None:
        limits = ModelLimits(self.shared, lease_seconds=LEASE, sleep=would_wait, clock=self.clock)
        limits._keeper = cast(Any, object())  # leases are renewed when simulated time passes
        limits._script = asking = cast(Any, Asking(limits._script))
        self.workers.append(Worker(limits, asking))

    @rule(n=pick, size=sizes)
    def ask(self, n: int, size: float) -> None:
        self.ask_once(self.workers[n % len(self.workers)], self.estimate(size))

    @rule(n=pick, size=sizes, times=st.integers(2, 12))
    def ask_often(self, n: int, size: float, times: int) -> None:
        """As soon as the next one may start, again and again."""
        for _ in range(times):
            self.ask_once(self.workers[n % len(self.workers)], self.estimate(size))
            worker = self.workers[n % len(self.workers)]
            self.pass_time(max(0, worker.asking.answer[0]) / 1_000_000)

    @rule(n=pick, size=sizes, times=st.integers(1, 30))
    def give_up(self, n: int, size: float, times: int) -> None:
        """Whoever asked is cancelled before the answer has come."""
        worker = self.workers[n % len(self.workers)]

        async def cancelled() -> None:
            task = asyncio.ensure_future(worker.limits.acquire(MODEL, self.limits, self.estimate(size)))
            worker.asking.cancel = task.cancel
            await asyncio.wait([task])
            worker.asking.cancel = None

        for _ in range(times):
            self.runner.run(cancelled())
            self.gave_back, self.gave_back_at = True, self.clock.now
            self.had_to_wait_at = self.clock.now
        self.note_expiries()

    @precondition(lambda self: self.running())
    @rule(n=pick, share=st.sampled_from([0.0, 0.3, 1.0, 2.5]))
    def end(self, n: int, share: float) -> None:
        """A call ends, and has used this share of what was estimated."""
        running = self.running()
        self.end_one(running[n % len(running)], share)

    @precondition(lambda self: self.running())
    @rule(n=pick)
    def give_back(self, n: int) -> None:
        """A call that was permitted is not made."""
        running = self.running()
        call = running[n % len(running)]
        self.runner.run(call.worker.limits.give_back(call.permit))
        self.calls.remove(call)
        self.gave_back, self.gave_back_at = True, self.clock.now

    @precondition(lambda self: self.running())
    @rule(n=pick, retry_after=st.sampled_from([0.0, 0.0, 2.0, 20.0, 90.0]))
    def refuse(self, n: int, retry_after: float) -> None:
        """The provider says no; nobody may ask before it wants to be asked."""
        running = self.running()
        call, now = running[n % len(running)], self.clock.now
        recent = [one.at for one in self.calls if one.at > now - MINUTE + MOMENT]
        fresh = self.refused_at is None or call.at > self.refused_at
        self.runner.run(call.worker.limits.refused(call.permit, retry_after))
        self.note_expiries()
        self.quiet_until = max(self.quiet_until, now + retry_after)
        self.paused_until = max(self.paused_until, now + max(retry_after, PAUSE))
        if fresh:
            self.refused_at = now
            # At most so fast it was asked, and now a tenth less at least.
            asked = max(1, len(recent) - 1) * MINUTE / max(0.05, now - min(recent, default=now))
            self.next_after_refusal = now + MINUTE / max(PROVIDER_LEAST, 0.9 * asked)
        self.end_one(call, 0.0 if self.tpm and not self.right else 1.0)

    @precondition(lambda self: self.workers)
    @rule(n=pick)
    def die(self, n: int) -> None:
        """Its calls may have been made, and its slots come back when their leases are over."""
        worker = self.workers.pop(n % len(self.workers))
        for call in self.running():
            if call.worker is worker:
                call.running, call.leased = False, self.leases[call.permit.token]
        if not self.workers:
            self.join()

    @rule(passed=seconds)
    def pass_time(self, passed: float) -> None:
        until = round(self.clock.now + passed, 6)  # servers know whole microseconds
        while (left := until - self.clock.now) > 0:
            self.clock.now = round(self.clock.now + min(left, LEASE / 3), 6)
            if gone := [key for key, at in self.expiries.items() if at <= self.clock.now]:
                self.client.delete(*gone)
                for key in gone:
                    del self.expiries[key]
            self.renew()

    def renew(self) -> None:
        """What every living worker does three times in a lease."""
        slots, ends = limit_keys(MODEL)[0], self.clock.now + LEASE
        held = {call.permit.token: round(ends * 1_000_000) for call in self.running()} if self.most else {}
        if held:
            self.client.zadd(slots, held, xx=True)
            self.expiries[slots] = self.clock.now + 2 * LEASE

    # What the ledger knows

    @property
    def leases(self) -> dict[str, float]:
        slots = self.client.zrange(limit_keys(MODEL)[0], 0, -1, withscores=True)
        found = {token.decode(): ends / 1_000_000 for token, ends in slots}
        return {call.permit.token: found.get(call.permit.token, 0.0) for call in self.calls}

    def estimate(self, size: float) -> int:
        return round(size * (self.tpm or 1_000) * (1 if self.right else 2))

    def running(self) -> list[Call]:
        return [call for call in self.calls if call.running]

    def recent(self, span: float) -> list[Call]:
        return [call for call in self.calls if call.at > self.clock.now - span]

    def ask_once(self, worker: Worker, estimate: int) -> Call | None:
        permit = None
        try:
            permit = self.runner.run(worker.limits.acquire(MODEL, self.limits, estimate))
        except Waits:
            self.is_refused_for_a_reason(worker.asking.answer[0], estimate)
        self.note_expiries()
        if permit is None:
            return None
        call = Call(self.clock.now, estimate, worker, permit)
        self.may_start(call)
        self.calls.append(call)
        self.excess, self.told, self.gave_back = 0.0, False, False
        self.limits_hold()
        return call

    def note_expiries(self) -> None:
        for key in limit_keys(MODEL):
            if (left := self.client.pttl(key)) > 0:
                self.expiries[key] = self.clock.now + left / 1000

    def end_one(self, call: Call, share: float) -> None:
        used = call.estimate if self.right else round(share * call.estimate)

        async def ended() -> None:
            await call.worker.limits.used(call.permit, used)
            await call.worker.limits.release(call.permit)

        self.runner.run(ended())
        call.running = False
        self.excess += max(0, used - call.permit.aside)
        self.told = True
        if self.tpm:
            call.used = used

    # What must be true

    def may_start(self, call: Call) -> None:
        """Nobody starts sooner than the provider wants, nor in a burst."""
        now = self.clock.now + MOMENT
        assert now >= self.quiet_until, "a call started before Retry-After was over"
        if self.refused_at is not None and not self.gave_back and not self.recent_since(self.refused_at):
            assert now >= self.next_after_refusal, "a model that refused a call is not asked less"
        if self.calls and not self.gave_back and not self.told:
            last = self.calls[-1]
            if self.rpm:
                assert now >= last.at + MINUTE / self.rpm, "calls are not spread over the minute"
            if self.tpm:
                assert now >= last.at + last.permit.aside * MINUTE / self.tpm, "tokens come in a burst"

    def recent_since(self, moment: float) -> bool:
        return any(call.at > moment for call in self.calls)

    def limits_hold(self) -> None:
        minute = self.recent(60.0)
        assert not self.rpm or len(minute) <= self.rpm, "more calls in a minute than allowed"
        if self.tpm and len(minute) > 1:
            assert sum(call.tokens for call in minute) <= 1.05 * self.tpm, "started though the minute is full"
            if self.right:
                assert sum(call.estimate for call in minute) <= 1.05 * self.tpm, "more tokens than allowed"
        assert not self.most or len(self.running()) <= self.most, "more calls in flight than allowed"

    def is_refused_for_a_reason(self, wait: int, estimate: int) -> None:
        if wait < 0:
            taken = sum(call.running or self.clock.now < call.leased < float("inf") for call in self.calls)
            assert taken >= self.most, "nobody has the slot that is not free"
        else:
            left = self.latest_start(estimate) - self.clock.now
            if self.tpm and self.clock.now - self.had_to_wait_at < 5.2:
                left = max(left, MINUTE / 60)  # whoever asked before may go first
            self.had_to_wait_at = self.clock.now
            assert wait / 1_000_000 <= left + MOMENT, (
                f"{wait / 1_000_000:.2f} s to wait instead of {left:.2f} s"
            )

    def latest_start(self, estimate: int) -> float:
        """By when a call may start that has a slot, whatever was asked and given up before."""
        minute = self.recent(MINUTE)
        paced = self.refused_at is not None
        times = [self.clock.now]
        rpm = min(self.rpm or PROVIDER_LEAST, PROVIDER_LEAST) if paced else self.rpm
        if rpm and len(minute) >= rpm:
            times.append(minute[-rpm].at + MINUTE)
        if rpm and self.calls:
            times.append(self.calls[-1].at + MINUTE / rpm)
        if paced and self.refused_at is not None:
            times += [self.refused_at + MINUTE / rpm, self.paused_until, self.clock.now + MINUTE / rpm]
        if self.tpm and self.calls:
            last = self.calls[-1]
            begun = max(last.at + last.permit.aside * MINUTE / self.tpm, self.gave_back_at)
            times.append(begun + self.excess * MINUTE / self.tpm)
            # Where estimates are wrong, more may be set aside for it; what is larger than a minute starts alone.
            used = estimate if self.right else self.tpm
            for call in reversed(minute):
                used += call.tokens
                if used > self.tpm:
                    times.append(call.at + MINUTE)
                    break
        return max(times)

    @invariant()
    def nothing_is_left_of_those_who_are_gone(self) -> None:
        slots, _, minute = limit_keys(MODEL)
        known = {call.permit.token for call in self.calls}
        held = {call.permit.token for call in self.calls if call.running or call.leased < float("inf")}
        assert {token.decode() for token in self.client.zrange(slots, 0, -1)} <= held
        assert {one.decode().split(" ")[0] for one in self.client.zrange(minute, 0, -1)} <= known

    @rule(waiting=st.lists(st.tuples(pick, sizes), min_size=1, max_size=6), takes=st.sampled_from([0.1, 5.0]))
    def everybody_is_served(self, waiting: list[tuple[int, float]], takes: float) -> None:
        """Who keeps asking gets permission, in turn with the others and however many gave up or died before."""
        for call in self.running():
            self.end_one(call, 1.0)
        waiters = [
            Waiter(self.workers[n % len(self.workers)], self.estimate(size), self.clock.now)
            for n, size in waiting
        ]
        excess = MINUTE * self.excess / self.tpm if self.tpm else 0.0
        quiet = max(0.0, self.paused_until - self.clock.now)
        # Each once at least after the minute before is over; what runs over is counted by the estimate's double.
        over = 2.5 * MINUTE if self.tpm and not self.right else 0.0
        latest = self.clock.now + excess + quiet + LEASE + len(waiters) * (MINUTE + over + takes + 1)
        ends: list[tuple[float, Call]] = []
        while waiters:
            waiter = min(waiters, key=lambda one: one.asks_at)
            self.pass_time(max(0.0, waiter.asks_at - self.clock.now))
            for at, call in list(ends):
                if at <= self.clock.now:
                    self.end_one(call, 1.0)
                    ends.remove((at, call))
            assert self.clock.now <= latest, f"{len(waiters)} of {len(waiting)} wait in vain"
            if (call := self.ask_once(waiter.worker, waiter.estimate)) is not None:
                ends.append((self.clock.now + takes, call))
                waiters.remove(waiter)
            else:
                wait = waiter.worker.asking.answer[0] / 1_000_000
                waiter.asks_at = self.clock.now + (max(wait, MOMENT) if wait > 0 else 0.5)

    def teardown(self) -> None:
        self.client.flushdb()


@pytest.fixture
def parts(valkey):
    """What every example shares: a client that looks, a loop, and the client of all workers."""
    client, shared = redis.Redis.from_url(valkey), redis.asyncio.Redis.from_url(valkey)
    with asyncio.Runner() as runner:
        yield client, runner, shared
        runner.run(shared.aclose())
    client.close()


def test_whatever_happens_limits_hold_and_nobody_waits_in_vain(parts):
    run_state_machine_as_test(
        lambda: LimitsMachine(*parts), settings=settings(max_examples=40, stateful_step_count=30)
    )

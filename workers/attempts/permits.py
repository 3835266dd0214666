"""Permission to call a model: a slot of this process first, then the model's limits over all workers together.

Slots are given to runs in turn, so that a small run need not wait for a big one. Rates are paced, not bucketed: calls
are spread evenly, so that no sixty seconds hold more than `rpm` of them or more than `tpm` tokens, whichever workers
they come from. A call's permission is taken when it starts, never ahead. In-flight slots are leases; those of a dead
worker come back by themselves.

A vendor's model whose limits nobody has told is asked slowly at first. Once it refuses a call, the provider sets the
pace: all workers together ask it less at once, and more again while it refuses nothing (slow.lua).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import uuid4

import redis.asyncio

from judges.judgment import Completion
from workers.attempts.run_context import Bill, Question, Run
from workers.models.choose import parse
from workers.models.model import Model, ModelBusy, ModelFailed, Request, Room
from workers.models.retries import RETRIES, with_retries
from workers.store.keys import Keys, script
from workers.store.keys import limits as limit_keys
from workers.store.messages import Limits, ModelSettings
from workers.store.process_settings import ProcessSettings

# How often whoever waits for a limit looks whether the run was halted.
LOOK_SECONDS = 2.0
# A second more than a minute: a call reaches the model a little after its permission, the first one later than others.
_MINUTE = 61_000_000  # microseconds
# Somebody else's call may use less than was reserved for it, so that we may start sooner than the server said: with
# a limit on tokens, each call does.
_LOOK_SECONDS = 1.0
_POLL_SECONDS = (0.02, 0.06)
_GIVE_BACK_SECONDS = 5.0
_LIKELY_ANSWER = 1000
_FIRST_CALLS = 20.0  # a second; so many more each second
_COLD_SECONDS = 60.0
_LITTLE_ROOM = 0.25
_VENDORS = ("anthropic", "openai")  # who say that they are asked too often

Sleep = Callable[[float], Awaitable[None]]


class FairSlots:
    """A semaphore whose free slots go to the runs that wait in turn, and within a run to whoever came first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, run_id: str) -> None:
        """Wait for a slot, which is to be released."""
        if self.used < self.slots:
            self.used += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            # The slot may have been handed over in the very moment of the cancellation.
            if future.done() and not future.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back, or on to whoever waits for it."""
        self.used -= 1
        while self._waiting:
            run_id, queue = next(iter(self._waiting.items()))
            self._waiting.move_to_end(run_id)
            future = queue.popleft()
            if not queue:
                del self._waiting[run_id]
            if not future.done():
                self.used += 1
                future.set_result(None)
                return


def estimated_tokens(prompt: str, settings: ModelSettings) -> int:
    """What a call may use, before it is made: its prompt at four characters a token, and its longest answer."""
    longest = settings.params.get("max_tokens")
    return len(prompt) // 4 + (longest if isinstance(longest, int) else _LIKELY_ANSWER)


class Permit(NamedTuple):
    """Permission to make one call, with `aside` tokens reserved for it.

    Without a token nothing was noted of it. `at` is when it was given, in microseconds of the server.
    """

    model: str
    token: str
    estimated_tokens: int
    limits: Limits
    aside: int = 0
    at: int = 0


class ModelLimits:
    """The limits as one worker process sees them; use it on one event loop and close it at the end.

    Tests may bring a clock of their own (in seconds) that their `sleep` moves on.
    """

    def __init__(
        self,
        server: redis.asyncio.Redis,
        *,
        lease_seconds: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._server = server
        self._lease = lease_seconds
        self._sleep = sleep
        self._clock = clock
        self._script = server.register_script(script("limit"))
        self._used = server.register_script(script("used"))
        self._slow = server.register_script(script("slow"))
        self._held: dict[str, Permit] = {}
        self._paced: dict[str, bool] = {}
        self._starts: dict[str, tuple[float, float]] = {}
        self._notes: set[asyncio.Task[Any]] = set()
        self._turns: dict[tuple[str, Limits], asyncio.Lock] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    async def acquire(self, model: str, limits: Limits, estimated_tokens: int = 0) -> Permit:
        """Wait until one more call of the model may start.

        One waiter per process asks, others with the same limits queue behind it. A model without limits is not waited
        for; those of vendors are noted all the same, because the last minute's calls tell what the provider allows.
        """
        if self.is_unlimited(permit := Permit(model, "", estimated_tokens, limits)):
            return permit
        token = uuid4().hex
        arguments: list[Any] = [token, round(self._lease * 1000), limits.max_in_flight or 0, limits.rpm or 0]
        arguments += [limits.tpm or 0, estimated_tokens, _MINUTE]
        since = 0

        async def ask() -> tuple[int, Permit]:
            nonlocal since
            wait, aside, paced, at = await self._script(
                keys=limit_keys(model), args=[*arguments, self._now(), since]
            )
            since = since or at
            self._paced[model] = paced > 0
            permit = Permit(model, token, estimated_tokens, limits, aside, at)
            if wait == 0 and limits.max_in_flight:
                self._held[token] = permit
                if self._keeper is None:
                    self._keeper = asyncio.create_task(self._keep())
            return wait, permit

        if limits.none and self.is_free(model):
            await self._warm_up(model)
            if self.is_free(model):
                self.note(ask())
                return Permit(model, "", estimated_tokens, limits)
        async with self._turns.setdefault((model, limits), asyncio.Lock()):
            while True:
                asking = asyncio.ensure_future(ask())
                try:
                    wait, permit = await asyncio.shield(asking)
                except asyncio.CancelledError:
                    # It may be granted all the same, to somebody who is gone: others would wait for its end.
                    with suppress(Exception):
                        async with asyncio.timeout(_GIVE_BACK_SECONDS):
                            wait, permit = await asking
                            if wait == 0:
                                await self.give_back(permit)
                    raise
                if wait == 0:
                    return permit
                look = _LOOK_SECONDS / 4 if limits.tpm else _LOOK_SECONDS
                pause = random.uniform(*_POLL_SECONDS) if wait < 0 else min(wait / 1_000_000, look)
                await self._sleep(pause)

    def is_unlimited(self, wanted: Permit) -> bool:
        """Whether nobody need ask the server before the call."""
        return wanted.limits.none and parse(wanted.model).kind not in _VENDORS

    def is_free(self, model: str) -> bool:
        """Whether no provider sets the model's pace, as far as this process has heard."""
        return parse(model).kind not in _VENDORS or not self._paced.get(model, True)

    async def refused(self, permit: Permit, retry_after: float = 0.0) -> None:
        """Let all workers ask less of a model that refused this call, and nothing for `retry_after` seconds."""
        await self._slow_down(permit, round(retry_after * 1_000_000), Room(0.0))

    async def heed(self, permit: Permit, room: Room) -> None:
        """Ask less of a model that says how little of its limit is left."""
        await self._slow_down(permit, -1, room)

    async def _slow_down(self, permit: Permit, wait: int, room: Room) -> None:
        arguments = [permit.at, wait, room.share, room.limit, round(room.seconds * 1_000_000), _MINUTE]
        _, *keys = limit_keys(permit.model)
        with suppress(redis.RedisError):  # the call has ended, however fast others may follow
            self._paced[permit.model] = bool(await self._slow(keys=keys, args=[*arguments, self._now()]))

    async def _warm_up(self, model: str) -> None:
        """Space a process's first calls of a model, or all of them would be under way when the first is refused."""
        now = self._clock() if self._clock is not None else time.monotonic()
        begun, last = self._starts.get(model, (now, float("-inf")))
        if now - last > _COLD_SECONDS:
            begun = last = now
        start = max(now, last + 1 / (_FIRST_CALLS * (1 + last - begun)))
        self._starts[model] = begun, start
        if start > now:
            await self._sleep(start - now)

    def note(self, telling: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Tell the server something on which no answer of a model depends."""
        note = asyncio.create_task(telling)
        self._notes.add(note)
        note.add_done_callback(self._noted)
        return note

    def _noted(self, note: asyncio.Task[Any]) -> None:
        self._notes.discard(note)
        if not note.cancelled():
            note.exception()  # a server that does not answer holds nobody up

    def _now(self) -> int:
        return round(self._clock() * 1_000_000) if self._clock is not None else 0

    async def give_back(self, permit: Permit) -> None:
        """Undo a permission that nobody used."""
        try:
            await self.used(permit, None)
        finally:  # a slot that is kept would be renewed for ever
            await self.release(permit)

    async def release(self, permit: Permit) -> None:
        """Give the slot back."""
        if self._held.pop(permit.token, None) is not None:
            await self._server.zrem(limit_keys(permit.model)[0], permit.token)

    async def used(self, permit: Permit, tokens: int | None) -> None:
        """Replace what was reserved by what the call used; None where it was not made at all."""
        rpm, tpm = permit.limits.rpm or 0, permit.limits.tpm or 0
        if tpm or tokens is None:
            _, *keys = limit_keys(permit.model)
            arguments: list[Any] = [permit.token, permit.aside, -1 if tokens is None else tokens]
            arguments += [permit.estimated_tokens, tpm, rpm, _MINUTE]
            await self._used(keys=keys, args=arguments)

    async def close(self) -> None:
        """Stop refreshing, and give back every slot that is still held."""
        self._closed = True
        for task in (*self._notes, *([self._keeper] if self._keeper is not None else [])):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for permit in list(self._held.values()):
            await self.release(permit)

    async def _keep(self) -> None:
        """Refresh the leases of what is held; a worker that dies stops doing so.

        A cancellation that comes in the very moment in which a command's time is over is lost: redis-py raises that
        its time is over.
        """
        while not self._closed:
            await asyncio.sleep(self._lease / 3)
            # Whatever it was, the next time may be better: without refreshing, others would take the slots as well.
            with suppress(Exception):
                seconds, micros = await self._server.time()
                until = seconds * 1_000_000 + micros + round(self._lease * 1_000_000)
                pipeline = self._server.pipeline(transaction=False)
                for token, permit in self._held.items():
                    slots, *_ = limit_keys(permit.model)
                    pipeline.zadd(slots, {token: until}, xx=True)
                    pipeline.pexpire(slots, round(self._lease * 2000))
                await pipeline.execute()


class Halted(Exception):
    """The run takes no new attempts."""


class Turn:
    """A place in line for one request and its repetitions; `bill` sums up the calls, `tries` counts them.

    Within `async with` it has a slot of this process, if it is to have `slots`: whoever asks for itself, and not to
    judge what is there. Whoever waits for a limit holds a slot, so only one attempt of a model does: the others stand
    in line without one, and leave the slots to other models. Raises Halted when the run is halted while we wait.
    """

    def __init__(self, turns: Turns, run: Run, wanted: Permit, slots: FairSlots | None = None) -> None:
        self._turns = turns
        self._shared = turns.limits
        self._wanted = wanted
        self._run = run
        self._slots = slots
        self._has_slot = False
        self._line: FairSlots | None = None
        self._has_place = False
        self._permit: Permit | None = None
        self._last: Permit | None = None
        self._told: asyncio.Task[Any] | None = None
        self._billed: Bill | None = None
        self.bill = Bill()
        self.tries = 0

    async def __aenter__(self) -> Turn:
        run = self._run
        try:
            if self._slots is None:
                with self._turns.waits(run):
                    await self.permit()
            elif self._wanted.limits.none and self._shared.is_free(self._wanted.model):
                await self._slots.acquire(run.manifest.run_id)
                self._has_slot = True
            else:
                await self._stand_in_line(self._slots)
            if self._slots is not None and run.halted.is_set():
                if await is_halted(run):
                    raise Halted
                run.halted.clear()  # it was resumed
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give everything back, and correct the pace by what was used."""
        if self._has_slot and self._slots is not None:
            self._slots.release()
        self._leave()
        try:
            await self._settle()
            await self._tell_used()
        finally:
            if self._permit is not None:
                await self._shared.release(self._permit)

    async def _stand_in_line(self, slots: FairSlots) -> None:
        """Wait for the turn to wait for the limit, and for a slot to do that in."""
        run_id = self._run.manifest.run_id
        self._line = self._turns.line(self._wanted)
        if self._has_slot:
            slots.release()
            self._has_slot = False
        with self._turns.waits(self._run):
            await self._line.acquire(run_id)
        self._has_place = True
        await slots.acquire(run_id)
        self._has_slot = True

    async def permit(self) -> None:
        """Wait for the model's limit before the first call; raises Halted when the run is halted meanwhile."""
        wanted = self._wanted
        try:
            if self._shared.is_unlimited(wanted):
                return
            if self._slots is None:
                self._permit = await self._shared.acquire(
                    wanted.model, wanted.limits, wanted.estimated_tokens
                )
            else:
                # The provider may have set the pace only while we waited for a slot.
                if self._line is None and not self._shared.is_free(wanted.model):
                    await self._stand_in_line(self._slots)
                    if await is_halted(self._run):
                        self._run.halted.set()
                        raise Halted
                self._permit = await _unless_halted(self._run, self._shared, wanted)
            self._last = self._permit
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let the next attempt of this model wait for its limit."""
        if self._has_place and self._line is not None:
            self._line.release()
            self._has_place = False

    async def answer(self, model: Model, request: Request, *, wait_beyond: bool = True) -> Completion:
        """Call the model, again while it is busy; the answer includes what the failed tries before it used.

        Raises TimeoutError after the request's time. Without `wait_beyond`, a wait that would end after that time is
        not begun, and the last problem is raised.
        """
        async with asyncio.timeout(request.timeout_seconds) as deadline:

            async def call() -> Completion:
                self.tries += 1
                if self.tries > 1:
                    await uncounted(deadline, self.wait_for_retry())
                return await self._call(model, request)

            def seconds_left() -> float:
                return (deadline.when() or 0.0) - asyncio.get_running_loop().time()

            retries = RETRIES if self._run.settings.retry else 0
            completion, _ = await with_retries(
                call, retries=retries, seconds_left=None if wait_beyond else seconds_left
            )
        return self.bill.answered(completion)

    async def _call(self, model: Model, request: Request) -> Completion:
        """Call the model once, and tell all workers what it says of being asked too often.

        Nobody waits here until that is told: a server that is away must not make an answer come too late.
        """
        permit = self._last or self._wanted
        try:
            completion = await self.bill.call(model.complete(request))
        except ModelBusy as busy:
            if busy.refused:
                wait, longest = busy.retry_after or 0.0, request.timeout_seconds
                self._told = self._shared.note(self._shared.refused(permit, min(wait, longest)))
                if wait < longest:  # the limit waits for that now, and no deadline counts it
                    busy.retry_after = None
            raise
        room = cast("Room | None", getattr(model, "room", None))
        if room is not None and room.share < _LITTLE_ROOM:
            self._told = self._shared.note(self._shared.heed(permit, room))
        return completion

    async def wait_for_retry(self) -> None:
        """Wait for the limit before the call is repeated, in the slot that is ours already."""
        wanted = self._wanted
        self._turns.count_retry(self._run.manifest.run_id, wanted.model)
        await self._settle()
        await self._tell_used()
        pace = Limits(rpm=wanted.limits.rpm, tpm=wanted.limits.tpm)
        try:
            self._last = await _unless_halted(self._run, self._shared, wanted._replace(limits=pace))
        except Halted:
            raise ModelFailed("the run was stopped before the call could be repeated") from None

    async def _settle(self) -> None:
        """Wait until all workers know of the pace: whoever is next must not ask sooner."""
        if self._told is not None:
            await asyncio.wait([self._told])

    async def _tell_used(self) -> None:
        """Tell the limit what the last call used; where nobody knows, that is what was reserved for it."""
        # Told already, or never permitted: whoever waits for a call has none to tell of.
        if self._last is None or not self._last.token:
            return
        now, before = self.bill, self._billed or Bill()
        if now.calls == before.calls:
            await self._shared.used(self._last, None)
        elif now.uncounted == before.uncounted:
            await self._shared.used(self._last, now.tokens - before.tokens)
        self._billed, self._last = replace(now), None


async def uncounted(deadline: asyncio.Timeout, waiting: Awaitable[None]) -> None:
    """Wait while the deadline stands still: a pace is no slow answer."""
    loop = asyncio.get_running_loop()
    left = (deadline.when() or 0.0) - loop.time()
    deadline.reschedule(None)
    await waiting
    deadline.reschedule(loop.time() + left)


class Turns:
    """Gives permission to call models, in this process; `used` counts what is in flight.

    `count_retry` is told the run and the model of every call that is repeated; within `waits` an attempt has no slot
    and waits for others' calls to the model.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        settings: ProcessSettings,
        count_retry: Callable[[str, str], None],
        waits: Callable[[Run], AbstractContextManager[None]] = lambda run: nullcontext(),
    ) -> None:
        self.count_retry = count_retry
        self.waits = waits
        self.limits = ModelLimits(client, lease_seconds=settings.lease_seconds)
        self._slots = FairSlots(settings.in_flight)
        self._agent_slots = FairSlots(settings.agent_in_flight)
        self._lines: dict[tuple[str, Limits], FairSlots] = {}

    @property
    def used(self) -> int:
        return self._slots.used + self._agent_slots.used

    async def close(self) -> None:
        await self.limits.close()

    def line(self, wanted: Permit) -> FairSlots:
        """Where those stand who wait for a model with the same limits."""
        return self._lines.setdefault((wanted.model, wanted.limits), FairSlots(1))

    def turn(self, run: Run, question: Question) -> Turn:
        """The turn of an attempt: a slot, in which to wait for the model's limit."""
        terms = run.terms(question.model)
        prompt = run.prompt_and_skill(question)[0] if terms.limits.tpm else ""
        tokens = estimated_tokens(prompt, run.settings) if terms.limits.tpm else 0
        slots = self._agent_slots if terms.is_agent else self._slots
        return Turn(self, run, Permit(question.model, "", tokens, terms.limits), slots)

    def judging(self, run: Run, spec: str, prompt: str) -> Turn:
        """The turn of a model that judges. No slot: the answer is there and wants to be judged."""
        limits = run.settings.limits_of(spec)
        tokens = estimated_tokens(prompt, run.settings) if limits.tpm else 0
        return Turn(self, run, Permit(spec, "", tokens, limits))


async def is_halted(run: Run) -> bool:
    """Ask the store whether the run takes no new attempts."""
    halt, sealed = await run.client.hmget(Keys(run.manifest.run_id).state, ["halt", "sealed"])
    return bool(halt) or sealed != b"0"


async def _unless_halted(run: Run, shared: ModelLimits, wanted: Permit) -> Permit:
    """Wait for a model's limit; raises Halted when the run is halted meanwhile."""
    waiting = asyncio.ensure_future(shared.acquire(wanted.model, wanted.limits, wanted.estimated_tokens))
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=LOOK_SECONDS)
            if not waiting.done() and await is_halted(run):
                run.halted.set()
                raise Halted
        return waiting.result()
    except BaseException:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # Given while we looked, and wanted by nobody: it would be renewed for ever.
        if not waiting.cancelled() and waiting.exception() is None:
            await shared.give_back(waiting.result())
        raise

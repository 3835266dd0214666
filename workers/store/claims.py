"""Claim attempts, keep the claims alive and store their records: each one a Lua script, sent for many at once.

Claims and stores that arrive while a call is under way travel together in the next call, so that a thousand
short attempts cost a few dozen round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import redis.asyncio

from workers.store.keys import Keys, script

Code = Literal["go", "final", "held", "halted", "quarantine", "poison", "full", "budget"]
StoreResult = Literal["stored", "replaced", "duplicate", "late"]
LEASE_SECONDS = 30.0  # so long a dead worker holds its attempts, unless UPLIFT_LEASE_SECONDS says otherwise
MOST_AT_ONCE = 200
MOST_BYTES = 8 << 20
RELEASE_SECONDS = 5.0
_ASKED = 0
_DROP, _DROP_UNASKED = 0, -1  # in place of a lease
_Kind = tuple[int, bool, float, bool]


class Claim(NamedTuple):
    """The answer to "is it still wanted?"; only `go` allows an attempt to start.

    `deliveries` counts this start and all earlier ones, `errors` the earlier tries that ended in `error`;
    `wait_seconds` is what is left of another worker's claim. `full` means that the budget is reserved by attempts
    that are in flight: what they really cost decides whether this one may start. `generation` is the run's by then.
    """

    code: Code
    token: int = 0
    deliveries: int = 0
    errors: int = 0
    wait_seconds: float = 0.0
    generation: int = 0


@dataclass  # not frozen: each attempt has some, and those take thrice as long to make
class Wanted:
    """An attempt that a worker would like to start; `unseen` where its estimate is the longest answer's price."""

    index: int
    round: int
    quarantine: bool = False
    estimate: float = 0.0
    unseen: bool = False


@dataclass  # as above
class Finished:
    """A packed record on its way to the store, its fields in the order in which the script reads them.

    Each of its `unpriced` calls counts with what was reserved. `lost` is the part of `cost` that was for nothing if
    another try takes this record's place.
    """

    index: int
    token: int
    round: int
    outcome: str
    cost: float
    lost: float
    unpriced: int
    arm: int
    payload: bytes


class Coalescer:
    """Hand items to `send` in lists: one call at a time, and what waits goes along, by `size` up to MOST_BYTES."""

    def __init__(
        self,
        send: Callable[[list[Any]], Awaitable[Sequence[Any]]],
        size: Callable[[Any], int] = lambda item: 0,
    ) -> None:
        self._send = send
        self._size = size
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def __call__(self, item: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._drain())
        return await future

    async def settle(self) -> None:
        """Wait until everything that was asked for has been sent and answered."""
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _drain(self) -> None:
        await asyncio.sleep(0)  # let everything that is ready in this turn of the loop join the first call
        while self._waiting:
            count, room = 0, MOST_BYTES
            for item, _ in self._waiting[:MOST_AT_ONCE]:
                room -= self._size(item)
                if count and room < 0:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            try:
                answers = await self._send([item for item, _ in taken])
            except Exception as problem:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(problem)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


class RunClaims:
    """One run's claims and stores from one worker process."""

    def __init__(self, client: redis.asyncio.Redis, run_id: str, owner: str, *, lease_seconds: float) -> None:
        keys = Keys(run_id)
        self._owner = owner
        self._lease_ms = int(lease_seconds * 1000)
        self._lease_keys = keys.ledger
        self._note_keys = [keys.state, keys.artifacts]
        both = [*keys.ledger, keys.records, keys.errors]
        self._claim_keys = [*both, keys.deaths]
        self._store_keys = [*both, keys.counts, keys.failures]
        self._claim_script = client.register_script(script("claim"))
        self._store_script = client.register_script(script("store"))
        self._lease_script = client.register_script(script("lease"))
        self._note_script = client.register_script(script("note"))
        self._claims: dict[_Kind, Coalescer] = {}
        self._store = Coalescer(self._send_records, size=lambda finished: len(finished.payload))
        self.held: dict[int, int] = {}
        self.asked: set[int] = set()  # tokens of claims for which a model was asked

    async def claim(self, wanted: Wanted) -> Claim:
        if wanted.index in self.held:  # delivered twice to this very process
            return Claim("held", wait_seconds=1.0)
        self.held[wanted.index] = _ASKED
        try:
            kind = (wanted.round, wanted.quarantine, wanted.estimate, wanted.unseen)
            if kind not in self._claims:
                self._claims[kind] = Coalescer(partial(self._send_claims, kind))
            claim = cast("Claim", await self._claims[kind](wanted.index))
        except BaseException:
            self.held.pop(wanted.index, None)
            raise
        if claim.code == "go":
            self.held[wanted.index] = claim.token
        else:
            self.held.pop(wanted.index, None)
        return claim

    async def store(self, finished: Finished) -> StoreResult:
        """Store a record, which ends its claim. One that could not be stored keeps it: `release` it then."""
        stored = cast("StoreResult", await self._store(finished))
        self.held.pop(finished.index, None)
        self.asked.discard(finished.token)
        return stored

    async def release(self, index: int, token: int) -> None:
        """Give up a claim whose attempt ended without a record, so that whoever gets it next can start at once.

        What was reserved is assumed to be spent if the model was asked. What is not held with this token is left
        alone. A server that does not answer lets the claim run out by itself.
        """
        if token == _ASKED or self.held.get(index) != token:
            return
        del self.held[index]
        with suppress(redis.RedisError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                drop = _DROP if token in self.asked else _DROP_UNASKED
                await self._lease_script(keys=self._lease_keys, args=[drop, index, token])
                self.asked.discard(token)

    async def halt(self, generation: int, halt: str, why: str) -> bool:
        """Let nothing more of the run start, unless it was halted, sealed or resumed before."""
        arguments: list[str | int] = [generation, "halted", "halt", halt, "why", why]
        return bool(await self._note_script(keys=self._note_keys, args=arguments))

    async def settle(self) -> None:
        """Wait for everything that is on its way to the server."""
        await asyncio.gather(*(coalescer.settle() for coalescer in (*self._claims.values(), self._store)))

    async def _send_claims(self, kind: _Kind, indexes: list[int]) -> list[Claim]:
        round_number, quarantine, estimate, unseen = kind
        settings: list[Any] = [
            self._lease_ms,
            round_number,
            int(quarantine),
            estimate,
            int(unseen),
            self._owner,
        ]
        answers = await self._claim_script(keys=self._claim_keys, args=[*settings, *indexes])
        return [_claim(answer) for answer in answers]

    async def _send_records(self, records: list[Finished]) -> list[StoreResult]:
        arguments = [value for record in records for value in vars(record).values()]
        answers = await self._store_script(keys=self._store_keys, args=arguments)
        return [cast("StoreResult", answer.decode()) for answer in answers]


def _claim(answer: list[Any]) -> Claim:
    code = cast("Code", answer[0].decode())
    if code == "held":
        return Claim(code, wait_seconds=answer[4] / 1000)
    if len(answer) == 1:
        return Claim(code)
    generation = answer[4] if code == "go" else 0
    return Claim(code, token=answer[1], deliveries=answer[2], errors=answer[3], generation=generation)


def lease(client: redis.Redis, run_id: str, held: dict[int, int], seconds: float) -> int:
    """Refresh claims from the lease thread; returns how many were still ours."""
    return _send_lease(client, run_id, held, int(seconds * 1000))


def _send_lease(client: redis.Redis, run_id: str, held: dict[int, int], lease_ms: int) -> int:
    if not held:
        return 0
    pairs = [value for pair in held.items() if pair[1] != _ASKED for value in pair]
    refresh = client.register_script(script("lease"))
    return int(cast("int", refresh(keys=Keys(run_id).ledger, args=[lease_ms, *pairs])))


def drop_all(
    client: redis.Redis, run_id: str, owner: str | None = None, asked: Collection[int] | None = None
) -> int:
    """Give up everything that `owner`, or anybody, holds of a run: somebody else can start it at once.

    Nothing of it counts as a death: whoever held it was stopped, not ended by it. What was reserved is assumed to be
    spent for the tokens in `asked`, or for all where nobody knows: a claim may come when its attempt has gone.
    """
    held: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for index, value in cast("dict[bytes, bytes]", client.hgetall(Keys(run_id).owners)).items():
        token, _, name = value.decode().split(" ", 2)
        if owner is None or name == owner:
            held[asked is None or int(token) in asked][int(index)] = int(token)
    return _send_lease(client, run_id, held[True], _DROP) + _send_lease(
        client, run_id, held[False], _DROP_UNASKED
    )

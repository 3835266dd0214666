"""Set going again what got lost: messages, callbacks and whatever a dead worker held. Every worker can, one does.

The one is elected by a short lease. It looks at all runs once a second and acts only on what it has seen for a while,
because a message that is on its way looks like a lost one for a moment. Whatever it does may be done twice: attempts
are claimed before they start, and a run is finished by one process at a time.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import redis

from workers.rounds.publish import publish_batches, send_finish
from workers.store.keys import MENDER, PROTOCOL, QUARANTINE, UNACKED, UNACKED_INDEX, script, waiting_keys
from workers.store.redis_client import held_messages, is_away, serving, versions, workers
from workers.store.run_store import Look, NotServed, Store, UnknownRun

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STANDBY_SECONDS = 3.0  # between two looks where nothing is to be mended, or somebody else does
ELECTED_SECONDS = 5.0
UNSERVED_SECONDS = 60.0
TOUCH_SECONDS = 3600.0
_PAGE = 500


@dataclass
class _Quiet:
    """Since when a run has looked the same, and which of its attempts nobody seemed to have at the last search."""

    look: Look
    since: float
    searched: float
    pause: float
    lost: frozenset[int] = frozenset()


@dataclass
class Mender:
    """What one worker has seen of all runs while it is the one that mends."""

    app: Celery
    name: str
    client: redis.Redis
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    _quiet: dict[str, _Quiet] = field(default_factory=dict)
    _taken: dict[bytes, float] = field(default_factory=dict)
    _unserved: dict[str, float] = field(default_factory=dict)
    _touched: dict[str, float] = field(default_factory=dict)
    _looked: float = 0.0
    _aside_until: float = float("-inf")

    def __post_init__(self) -> None:
        self._store = Store(self.client)
        self._elect = self.client.register_script(script("elect"))
        self._put_back = self.client.register_script(script("put_back"))
        # A round that is complete waits this long for its callback, which is usually there in a moment.
        self._callback_seconds = min(2.0, self.lease_seconds / 4)
        self._search_seconds = self.lease_seconds / 3
        # Workers tell once a second what they hold; right after an outage nobody has told anything yet.
        self._grace_seconds = max(3.0, self.lease_seconds / 3)

    def look(self) -> bool:
        """Mend what needs it, if this worker is the one that is elected; whether it is."""
        now = self.clock()
        if now - self._looked > ELECTED_SECONDS:
            self.forget()  # what was seen before a long pause says nothing of now
        self._looked = now
        if now < self._aside_until or not self._elect(
            keys=[MENDER], args=[self.name, int(ELECTED_SECONDS * 1000)]
        ):
            self.forget()
            return False
        looks, beats = self._store.open_runs(), workers(self.client)
        self._end_unserved(looks, beats)
        self._quiet = {run_id: quiet for run_id, quiet in self._quiet.items() if run_id in looks}
        self._touched = {run_id: then for run_id, then in self._touched.items() if run_id in looks}
        for run_id, look in looks.items():
            try:
                if look.protocol == PROTOCOL:
                    self._mend(run_id, look)
            except UnknownRun:  # deleted meanwhile
                continue
            except NotServed as problem:
                self._store.refuse(run_id, self.name, problem)
                if {str(beat["name"]) for beat in _able(look, beats)} - {self.name}:
                    return self._step_aside()
            except Exception as problem:  # one odd run must not keep all others from being mended
                if is_away(problem):
                    raise
                self._store.leave_out(run_id, problem)
        self._put_back_orphans()
        self._looked = self.clock()  # a look at many runs takes its time, and is no pause
        return True

    @property
    def busy(self) -> bool:
        """Whether the last look saw a run that is open, or a message that is taken."""
        return bool(self._quiet or self._taken)

    def _step_aside(self) -> bool:
        """Leave mending to somebody who can read every run; False, as for whoever is not elected."""
        self.resign()
        self.forget()
        self._aside_until = self.clock() + 2 * ELECTED_SECONDS
        return False

    def forget(self) -> None:
        """Start afresh: the server was away, or somebody else was elected."""
        for memory in (self._quiet, self._taken, self._unserved):
            memory.clear()

    def resign(self) -> None:
        """Let another worker be elected at once."""
        self._elect(keys=[MENDER], args=[self.name, 0])

    def _mend(self, run_id: str, look: Look) -> None:
        now = self.clock()
        quiet = self._quiet.get(run_id)
        if quiet is None or quiet.look != look:
            self._quiet[run_id] = _Quiet(look, now, now, self._search_seconds)
            if now - self._touched.get(run_id, -TOUCH_SECONDS) >= TOUCH_SECONDS:
                self._store.touch_all(self._store.manifest(run_id))
                self._touched[run_id] = now
            return
        if look.finishing or now - quiet.since < self._callback_seconds:
            return
        over = look.sealed or (bool(look.halt) and not look.in_flight)
        # What was never published may still be on its way from its producer.
        begun = look.published > 0 or now - quiet.since > self._search_seconds
        if over or (begun and not look.in_flight and not self._missing(run_id, look)):
            log.info("run %s waits for its callback; sending another", run_id, extra={"run": run_id})
            send_finish(self.app, run_id, look.generation, look.round)
            quiet.since = now + self._search_seconds
        elif not look.halt and now - quiet.searched > quiet.pause:
            self._search(run_id, look, quiet)

    def _end_unserved(self, looks: dict[str, Look], beats: list[dict[str, Any]]) -> None:
        """End runs that all workers have left to others for a minute; with none alive they wait."""
        now = self.clock()
        self._unserved = {
            run_id: self._unserved.get(run_id, now)
            for run_id, look in looks.items()
            if beats and not _able(look, beats)
        }
        for run_id, since in self._unserved.items():
            if now - since > UNSERVED_SECONDS:
                reasons = sorted({*looks[run_id].refused.values()} - {""})
                why = f"no worker can read this run, which another version began; there are {versions(beats)}"
                if reasons:
                    why = f"no worker serves this run; there are {serving(beats)}: {'; '.join(reasons[:3])}"
                log.warning("run %s: %s", run_id, why, extra={"run": run_id})
                self._store.set_trouble(run_id, looks[run_id].generation, why)

    def _missing(self, run_id: str, look: Look) -> list[int]:
        return self._store.missing(self._store.manifest(run_id), look)

    def _search(self, run_id: str, look: Look, quiet: _Quiet) -> None:
        """Publish again what no queue and no worker has, once two searches in a row have missed the same."""
        lost = frozenset(self._missing(run_id, look)) - self._store.claimed(run_id)
        if lost:
            lost -= self._with_a_message(run_id, self._store.manifest(run_id).lane)
        quiet.searched = self.clock()
        if lost and lost == quiet.lost:
            words = "run %s: %d attempts got lost; publishing them again"
            log.warning(words, run_id, len(lost), extra={"run": run_id})
            run, alone = self._store.run(run_id), self._store.deadly(run_id)
            publish_batches(self.app, run, number=look.round, indexes=sorted(lost), alone=alone)
            lost = frozenset()
        quiet.lost = lost
        quiet.pause = self._search_seconds / 2 if lost else self._search_seconds

    def _with_a_message(self, run_id: str, lane: str) -> set[int]:
        """The attempts of a run that some message asks for, waiting or taken."""
        name, indexes = run_id.encode(), set[int]()
        for message in self._messages(lane):
            if name in message:
                indexes.update(_indexes(message, run_id))
        return indexes

    def _messages(self, lane: str) -> Iterator[bytes]:
        for key in (*waiting_keys(lane), *waiting_keys(QUARANTINE)):
            for start in range(0, int(self.client.llen(key)), _PAGE):
                yield from cast("list[bytes]", self.client.lrange(key, start, start + _PAGE - 1))
        for _, taken in self.client.hscan_iter(UNACKED, count=_PAGE):
            with suppress(ValueError, LookupError):
                yield json.dumps(json.loads(taken)[0]).encode()

    def _put_back_orphans(self) -> None:
        """Put back what was taken and is held by no worker that is alive: its worker died, or could not return it."""
        now = self.clock()
        tags = cast("list[bytes]", self.client.hkeys(UNACKED))
        held = held_messages(self.client) if tags else set()
        self._taken = {tag: self._taken.get(tag, now) for tag in tags}
        orphans = [
            tag.decode()
            for tag, since in self._taken.items()
            if tag.decode() not in held and now - since >= self._grace_seconds
        ]
        for start in range(0, len(orphans), _PAGE):
            self._put_back_page(orphans[start : start + _PAGE])

    def _put_back_page(self, tags: list[str]) -> None:
        pipe = self.client.pipeline(transaction=False)
        for tag, data in zip(tags, cast("list[bytes | None]", self.client.hmget(UNACKED, tags)), strict=True):
            if data is None:
                continue
            try:
                message, _, lane = json.loads(data)
                step = int(message["properties"].get("priority") or 0)
                back = waiting_keys(str(lane))[max(0, min(step // 3, 3))]
            except (ValueError, LookupError, TypeError, AttributeError):
                log.warning("a message that nobody can read is thrown away")
                pipe.hdel(UNACKED, tag)
            else:
                self._put_back(
                    keys=[UNACKED, UNACKED_INDEX, back], args=[tag, json.dumps(message)], client=pipe
                )
        if done := sum(pipe.execute()):
            log.warning("%d messages had no worker any more; they wait again", done)


def _able(look: Look, beats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The workers that may serve a run: they speak its protocol, and have not left it to others."""
    return [
        beat
        for beat in beats
        if beat.get("protocol", 1) == look.protocol and beat.get("name") not in look.refused
    ]


def _indexes(message: bytes, run_id: str) -> list[int]:
    """The attempts that a waiting message asks for, if it is a batch of this run; none for what nobody can read."""
    with suppress(ValueError, LookupError, TypeError):
        arguments: Any = json.loads(base64.b64decode(json.loads(message)["body"]))[0]
        return list(arguments[2]) if arguments[0] == run_id else []  # a callback has a number there
    return []

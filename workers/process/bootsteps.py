"""What a worker process adds to Celery's own: prefetch that does not hoard, leases, a watchdog, and finishing runs."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from contextlib import closing, nullcontext, suppress
from typing import Any

import redis
from celery import bootsteps
from celery.worker import state
from celery.worker.control import control_command

from workers.process.engine import Engine, too_often
from workers.process.heartbeat import BEAT_SECONDS, silent_beats, start_again
from workers.rounds.mend import LOOK_SECONDS, STANDBY_SECONDS, Mender
from workers.store.keys import FINISH, waiting_keys
from workers.store.redis_client import connect, is_away
from workers.store.run_store import NotServed, Store

log = logging.getLogger(__name__)

CREDIT_SECONDS = 0.05
EVENT_SECONDS = 0.5
# Flower asks for events every five seconds, as long as it is there.
FIRST_ASK_SECONDS, LISTENING_SECONDS = 12.0, 15.0
WAIT_SECONDS = 10


class Deliveries(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Take messages only while the process has room for their attempts, and note which it has taken.

    Runs as timers on the consumer's own loop, which also wakes that loop up as soon as there is room again, and sends
    events together: Celery would send every event by itself, a tenth of a worker's time. Those of batches are sent
    only while somebody asks for them; at first that is assumed.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    listened_until = 0.0

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._consumer = consumer
        self._engine: Engine = consumer.app.engine
        consumer.connection_errors = tolerated(consumer.connection_errors)
        consumer.on_send_event_buffered = lambda: None
        Deliveries.listened_until = time.monotonic() + FIRST_ASK_SECONDS

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._set()
        self._send_events()  # before the first batch is taken: its events would be in no group that is sent
        hub.timer.call_repeatedly(CREDIT_SECONDS, self._set)
        hub.timer.call_repeatedly(EVENT_SECONDS, self._send_events)
        hub.timer.call_repeatedly(BEAT_SECONDS / 2, self._note_taken)

    def stop(self, consumer: Any) -> None:
        self._send_events()

    def _set(self) -> None:
        if (qos := self._consumer.qos) is not None:
            qos.value = self._engine.load.room()  # or Celery would go back to one message for each thread
            qos.set(qos.value)
            self._consumer.task_consumer.channel.closed_lanes = self._engine.load.closed()

    def _send_events(self) -> None:
        if (events := self._consumer.event_dispatcher) is not None:
            events.groups |= {"worker", "task"}  # none at all would mean every group
            if time.monotonic() > Deliveries.listened_until:
                events.groups.discard("task")
            events.flush()

    def _note_taken(self) -> None:
        """Note what is waiting or running here. Celery may keep a request that ended while it lost its connection."""
        requests, ended = list(state.reserved_requests), self._engine.ended
        ended.intersection_update([request.id for request in requests])
        self._engine.taken = [request.message.delivery_tag for request in requests if request.id not in ended]


@control_command(name="enable_events")  # type: ignore[untyped-decorator]  # Celery has no hints
def send_events(_: Any = None) -> dict[str, str]:
    """Send the events of batches for a while: in place of Celery's own command, which sends them for ever."""
    Deliveries.listened_until = time.monotonic() + LISTENING_SECONDS
    return {"ok": "task events enabled"}


def tolerated(errors: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    """Exceptions on which Celery reconnects instead of ending the worker.

    kombu raises AttributeError when a job that ended during a reconnect is acknowledged on the channel that is
    gone. Celery would end the worker for that; the message is delivered again anyway.
    """
    return (*errors, AttributeError)


class Watchdog(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Starts this process anew when it is idle although messages wait for it.

    A consumer can lose its broker without noticing; whoever looks only at the process would never know.
    """

    requires = ("celery.worker.components:Pool",)
    broke_down = False

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._engine: Engine = worker.app.engine
        self._idle = Idleness(silent_beats(self._engine.heartbeat.seconds))
        queues = [*worker.app.amqp.queues.consume_from, FINISH]
        self._lists = [name for lane in queues for name in waiting_keys(lane)]

    def start(self, worker: Any) -> None:
        self._engine.heartbeat.add(self._look)

    def stop(self, worker: Any) -> None:
        self._engine.heartbeat.remove(self._look)
        # Celery stops its steps for an error of its own, too, and then tells nobody but its exit code.
        Watchdog.broke_down = bool(worker.exitcode)

    terminate = stop

    def _look(self, client: redis.Redis) -> None:
        try:
            waiting = bool(client.exists(*self._lists))
        except redis.RedisError:  # no reason to leave, and the server's return starts the count anew
            waiting = False
        busy = self._engine.active or Finisher.busy.is_set()
        taken = Finisher.taken + sum(state.total_count.values())
        if self._idle.is_stuck(waiting=waiting, busy=busy, taken=taken):
            start_again(
                "messages wait and this worker takes none; starting it anew", worked=self._idle.worked
            )


class Idleness:
    """Counts how often in a row messages waited while this worker was idle and took none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._looks = 0

    @property
    def worked(self) -> bool:
        return self._taken > 0

    def is_stuck(self, *, waiting: bool, busy: bool, taken: int) -> bool:
        """Count one look at the queues; whether the worker has now been idle too often."""
        self._looks = self._looks + 1 if waiting and not busy and taken == self._taken else 0
        self._taken = taken
        return self._looks > self._most


class Mending(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Mends runs in a thread of its own, while this worker is the one that is elected to."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._app = worker.app
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uplift-mend", daemon=True)

    def start(self, worker: Any) -> None:
        self._thread.start()

    def stop(self, worker: Any) -> None:
        self._stopped.set()

    terminate = stop

    def _run(self) -> None:
        engine, pause = self._app.engine, LOOK_SECONDS
        mender = Mender(self._app, engine.name, engine.client, engine.settings.lease_seconds)
        while not self._stopped.wait(pause):
            try:
                with nullcontext() if mender.busy else engine.heartbeat.turn:
                    is_elected = mender.look()
                pause = LOOK_SECONDS if is_elected and mender.busy else STANDBY_SECONDS
            # Whatever it was, the next look may be better; a dead thread would mend nothing.
            except Exception as problem:
                if is_away(problem):
                    mender.forget()
                log.warning("mending was interrupted: %s", problem)
        with suppress(redis.RedisError):
            mender.resign()


class Finisher(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Finishes runs in a thread of its own, so that long attempts never hold up a finished run."""

    requires = ("celery.worker.components:Pool",)
    busy = threading.Event()
    taken = 0

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._app = worker.app
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uplift-finish", daemon=True)

    def start(self, worker: Any) -> None:
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Take no more runs; the one at hand has as long to end as attempts have."""
        self.terminate(worker)
        if Finisher.busy.is_set():
            self._thread.join(worker.app.settings.drain_seconds)

    def terminate(self, worker: Any) -> None:
        self._stopped.set()

    def _run(self) -> None:
        """Take callbacks until told to stop; should one get lost on the way, whoever mends sends another."""
        with closing(connect(self._app.settings.broker)) as client:
            while not self._stopped.is_set():
                try:
                    found = client.brpop(waiting_keys(FINISH), WAIT_SECONDS)
                    if found is not None:
                        self.finish(found[1])
                except Exception as problem:
                    log.warning("finishing runs was interrupted: %s", problem)
                    self._stopped.wait(1)

    def finish(self, message: bytes | str) -> None:
        """Do what the callback of a round asks for; what fails is asked for again by whoever mends."""
        args = json.loads(base64.b64decode(json.loads(message)["body"]))[0]
        Finisher.busy.set()
        Finisher.taken += 1
        try:
            self._app.tasks["uplift.finish_run"].run(*args)
        except NotServed as problem:
            self._app.engine.leave_to_others(args[0], problem)
        except Exception as problem:
            run_id = args[0] if args else "?"
            log.exception("finishing run %s failed; it will be tried again", run_id, extra={"run": run_id})
            if not is_away(problem) and too_often(self._app.engine, args[0], "finish", problem):
                trouble = f"finishing failed: {type(problem).__name__}: {problem}"[:500]
                Store(self._app.engine.client).set_trouble(args[0], args[1], trouble)
        finally:
            Finisher.busy.clear()

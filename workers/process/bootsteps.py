"""What a worker process adds to Celery's own: prefetch that does not hoard, leases, a watchdog, and finishing runs."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, suppress
from typing import Any

import redis
from celery import bootsteps
from celery.worker import state
from kombu.mixins import ConsumerMixin

from workers.process.engine import Engine, too_often
from workers.process.heartbeat import BEAT_SECONDS, silent_beats, start_again
from workers.rounds.mend import ELECTED_SECONDS, LOOK_SECONDS, Mender
from workers.store.keys import FINISH, queue, waiting_keys
from workers.store.redis_client import AWAY, connect
from workers.store.run_store import OtherVersion, Store

log = logging.getLogger(__name__)

CREDIT_SECONDS = 0.05


class Deliveries(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Take messages only while the process has room for their attempts, and note which it has taken.

    Runs as timers on the consumer's own loop, which also wakes that loop up as soon as there is room again, and sends
    events together: Celery would send every event by itself, a tenth of a worker's time.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._consumer = consumer
        self._engine: Engine = consumer.app.engine
        consumer.connection_errors = tolerated(consumer.connection_errors)
        consumer.on_send_event_buffered = lambda: None

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._set()
        hub.timer.call_repeatedly(CREDIT_SECONDS, self._set)
        hub.timer.call_repeatedly(BEAT_SECONDS / 2, self._note_taken)

    def stop(self, consumer: Any) -> None:
        self._send_events()

    def _set(self) -> None:
        if self._consumer.qos is not None:
            self._consumer.qos.set(self._engine.load.room())
        self._send_events()

    def _send_events(self) -> None:
        if self._consumer.event_dispatcher is not None:
            self._consumer.event_dispatcher.flush()

    def _note_taken(self) -> None:
        """Note what is waiting or running here. Celery may keep a request that ended while it lost its connection."""
        requests, ended = list(state.reserved_requests), self._engine.ended
        ended.intersection_update([request.id for request in requests])
        self._engine.taken = [request.message.delivery_tag for request in requests if request.id not in ended]


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
        self._queues = [*worker.app.amqp.queues.consume_from, FINISH]

    def start(self, worker: Any) -> None:
        self._engine.heartbeat.add(self._look)

    def stop(self, worker: Any) -> None:
        self._engine.heartbeat.remove(self._look)
        # Celery stops its steps for an error of its own, too, and then tells nobody but its exit code.
        Watchdog.broke_down = bool(worker.exitcode)

    terminate = stop

    def _look(self, client: redis.Redis) -> None:
        try:
            waiting = any(client.llen(name) for lane in self._queues for name in waiting_keys(lane))
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
        settings = self._app.settings
        client = connect(settings.broker, timeout_seconds=ELECTED_SECONDS, retries=1)
        mender = Mender(self._app, self._app.engine.name, client, settings.lease_seconds)
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                mender.look()
            # Whatever it was, the next look may be better; a dead thread would mend nothing.
            except Exception as problem:
                mender.forget()
                log.warning("mending was interrupted: %s", problem)
        with suppress(redis.RedisError):
            mender.resign()
        client.close()


class Finisher(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Finishes runs in a thread with a consumer of its own, so that long attempts never hold up a finished run."""

    requires = ("celery.worker.components:Pool",)
    busy = threading.Event()
    taken = 0

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._consumer: Any = None
        self._thread = threading.Thread(
            target=lambda: self._consumer.insist(), name="uplift-finish", daemon=True
        )

    def start(self, worker: Any) -> None:
        self._consumer = _FinishConsumer(worker.app)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Take no more runs; the one at hand has as long to end as attempts have."""
        self.terminate(worker)
        if Finisher.busy.is_set():
            self._thread.join(worker.app.settings.drain_seconds)

    def terminate(self, worker: Any) -> None:
        if self._consumer is not None:
            self._consumer.should_stop = True


class _FinishConsumer(ConsumerMixin):  # type: ignore[misc]  # kombu has no hints
    def __init__(self, app: Any) -> None:
        self.app = app
        self.connection = app.connection_for_read()

    def insist(self) -> None:
        """Consume until told to stop, whatever happens: kombu survives lost connections, but no refused command."""
        while not self.should_stop:
            try:
                self.run()
            except Exception as problem:
                log.warning("finishing runs was interrupted: %s", problem)
                time.sleep(1)

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        channel.basic_qos(0, 1, False)
        return [consumer(queues=[queue(FINISH)], on_message=self._on_message, accept=["json"])]

    def _on_message(self, message: Any) -> None:
        args, _, _ = message.payload
        message.ack()  # should we fail or die now, whoever mends sees a run that nobody finishes
        Finisher.busy.set()
        Finisher.taken += 1
        try:
            self.app.tasks["uplift.finish_run"].run(*args)
        except OtherVersion as problem:
            self.app.engine.leave_to_others(args[0], problem)
        except Exception as problem:
            log.exception("finishing run %s failed; it will be tried again", args[0] if args else "?")
            if not isinstance(problem, AWAY) and too_often(self.app.settings, args[0], "finish", problem):
                with closing(connect(self.app.settings.broker)) as client:
                    trouble = f"finishing failed: {type(problem).__name__}: {problem}"[:500]
                    Store(client).set_trouble(args[0], args[1], trouble)
        finally:
            Finisher.busy.clear()

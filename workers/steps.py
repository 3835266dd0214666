"""What a worker process adds to Celery's own: prefetch that does not hoard, leases, a watchdog, and finishing runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import bootsteps
from celery.worker import state
from kombu.mixins import ConsumerMixin

from workers.app import queue
from workers.lease import beat_seconds, silent_beats, start_again
from workers.publish import waiting_keys
from workers.server import connect
from workers.settings import FINISH, from_environment
from workers.store import Store
from workers.tasks import engine

log = logging.getLogger(__name__)

CREDIT_SECONDS = 0.05


class Credit(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Take messages only while the process has room for their attempts, and send events together.

    Runs as a timer on the consumer's own loop, which also wakes that loop up as soon as there is room again.
    Celery would send every event by itself, a tenth of a worker's time.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._engine = engine(from_environment())
        consumer.connection_errors = tolerated(consumer.connection_errors)
        consumer.on_send_event_buffered = lambda: None

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._set(consumer)
        hub.timer.call_repeatedly(CREDIT_SECONDS, self._set, (consumer,))

    def stop(self, consumer: Any) -> None:
        _send_events(consumer)

    def _set(self, consumer: Any) -> None:
        if consumer.qos is not None:
            consumer.qos.set(self._engine.load.room())
        _send_events(consumer)


def _send_events(consumer: Any) -> None:
    if consumer.event_dispatcher is not None:
        consumer.event_dispatcher.flush()


def tolerated(errors: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    """What Celery must take for a lost connection.

    kombu raises AttributeError when a job that ended during a reconnect is acknowledged on the channel that is
    gone. Celery would end the worker for that; the message is delivered again anyway.
    """
    return (*errors, AttributeError)


class Lease(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """A thread that keeps this process's messages from being delivered to somebody else while it is at them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._settings = from_environment()
        self._engine = engine(self._settings)
        self._stopped = threading.Event()

    def start(self, consumer: Any) -> None:
        self._stopped = threading.Event()
        arguments = (consumer, self._stopped)
        threading.Thread(target=self._beat, args=arguments, name="uplift-messages", daemon=True).start()

    def stop(self, consumer: Any) -> None:
        self._stopped.set()

    def _beat(self, consumer: Any, stopped: threading.Event) -> None:
        every = beat_seconds(self._settings)
        store = Store(connect(self._settings.broker, timeout_seconds=max(1.0, every), retries=1))
        while not stopped.is_set():
            try:
                # What a process holds without working at it is stuck on its way back: somebody else may have it.
                if self._engine.active:
                    refresh_messages(consumer.task_consumer.channel, store)
            # A missed beat is mended by the next one; a dead thread would be mended by nobody.
            except Exception as problem:
                log.warning("messages not refreshed: %s", problem)
            stopped.wait(every)
        store.client.close()


class Watchdog(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """A thread that starts this process anew when it is idle although messages wait for it.

    A consumer can lose its broker without noticing; whoever looks only at the process would never know.
    """

    requires = ("celery.worker.components:Pool",)
    broke_down = False

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopped = threading.Event()

    def start(self, worker: Any) -> None:
        threading.Thread(target=self._watch, args=(worker,), name="uplift-watchdog", daemon=True).start()

    def stop(self, worker: Any) -> None:
        self._stopped.set()
        # Celery stops its steps for an error of its own, too, and then tells nobody but its exit code.
        Watchdog.broke_down = bool(worker.exitcode)

    terminate = stop

    def _watch(self, worker: Any) -> None:
        settings = from_environment()
        every = beat_seconds(settings)
        client = connect(settings.broker, timeout_seconds=max(1.0, every), retries=1)
        queues = [*worker.app.amqp.queues.consume_from, FINISH]
        idle = Idleness(silent_beats(every))
        while not self._stopped.wait(every):
            try:
                waiting = any(client.llen(name) for lane in queues for name in waiting_keys(lane))
            except (
                Exception
            ):  # a server that is away is no reason to leave, and its return starts the count anew
                waiting = False
            busy = engine(settings).active or Finisher.busy.is_set()
            if idle.is_stuck(
                waiting=waiting, busy=busy, taken=Finisher.taken + sum(state.total_count.values())
            ):
                start_again("messages wait and this worker takes none; starting it anew", worked=idle.worked)


class Idleness:
    """Counts looks at which messages waited and nothing was taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._looks = 0

    @property
    def worked(self) -> bool:
        return self._taken > 0

    def is_stuck(self, *, waiting: bool, busy: bool, taken: int) -> bool:
        """Whether this look was one too many."""
        self._looks = self._looks + 1 if waiting and not busy and taken == self._taken else 0
        self._taken = taken
        return self._looks > self._most


def refresh_messages(channel: Any, store: Store) -> None:
    """Keep this channel's messages from being delivered to somebody else.

    kombu's private `_delivered` and `_dirty` say which those are; they are looked up afresh, since a reconnect
    replaces them.
    """
    qos = channel.qos
    tags = set(qos._delivered) - qos._dirty
    if tags:
        now = time.time()
        store.client.zadd(channel.unacked_index_key, dict.fromkeys(tags, now), xx=True)


class Finisher(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Finishes runs in a thread with a consumer of its own, so that long attempts never hold up a finished run."""

    requires = ("celery.worker.components:Pool",)
    busy = threading.Event()
    taken = 0

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._consumer: _FinishConsumer | None = None
        self._thread = threading.Thread(target=self._insist, name="uplift-finish", daemon=True)

    def start(self, worker: Any) -> None:
        self._consumer = _FinishConsumer(worker.app)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Take no more runs; the one at hand has as long to end as attempts have."""
        self.terminate(worker)
        if Finisher.busy.is_set():
            self._thread.join(from_environment().drain_seconds)

    def terminate(self, worker: Any) -> None:
        if self._consumer is not None:
            self._consumer.should_stop = True

    def _insist(self) -> None:
        assert self._consumer is not None
        self._consumer.insist()


class _FinishConsumer(ConsumerMixin):  # type: ignore[misc]  # kombu has no hints
    def __init__(self, app: Any) -> None:
        self.app = app
        self.connection = app.connection_for_read()
        self._store = Store(connect(from_environment().broker))

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
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(message.channel, over), daemon=True)
        keeper.start()
        Finisher.busy.set()
        Finisher.taken += 1
        try:
            self.app.tasks["uplift.finish_run"].run(*args)
            message.ack()
        except Exception:
            log.exception("finishing run %s failed; it will be tried again", args[0] if args else "?")
            over.wait(1)
            message.requeue()
        finally:
            Finisher.busy.clear()
            over.set()
            keeper.join()

    def _keep(self, channel: Any, over: threading.Event) -> None:
        while not over.wait(beat_seconds(from_environment())):
            try:
                refresh_messages(channel, self._store)
            except Exception as problem:  # the next beat mends it
                log.warning("lease of a finishing run not refreshed: %s", problem)

"""What a worker process adds to Celery's own: prefetch that does not hoard, leases, and a thread for finishing runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import bootsteps
from kombu.mixins import ConsumerMixin

from workers.app import queue
from workers.claims import lease
from workers.server import connect, sign_of_life
from workers.settings import FINISH, from_environment
from workers.store import Store
from workers.tasks import engine

log = logging.getLogger(__name__)

CREDIT_SECONDS = 0.05


class Credit(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """Take messages only while the process has room for their attempts.

    Runs as a timer on the consumer's own loop, which also wakes that loop up as soon as there is room again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._engine = engine(from_environment())

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._set(consumer)
        hub.timer.call_repeatedly(CREDIT_SECONDS, self._set, (consumer,))

    def _set(self, consumer: Any) -> None:
        if consumer.qos is not None:
            consumer.qos.set(self._engine.load.room())


class Lease(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no hints
    """A thread that says "still at it": to the server's list of unacknowledged messages, and to the claims.

    It is a thread so that a busy loop cannot let leases run out. A killed process stops saying so at once.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._settings = from_environment()
        self._engine = engine(self._settings)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, consumer: Any) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._beat, args=(consumer,), name="uplift-lease", daemon=True)
        self._thread.start()

    def stop(self, consumer: Any) -> None:
        self._stopped.set()

    def _beat(self, consumer: Any) -> None:
        every = min(self._settings.visibility_seconds, self._settings.lease_seconds) / 4
        store = Store(connect(self._settings.broker))
        while not self._stopped.is_set():
            try:
                refresh_messages(consumer.task_consumer.channel, store)
                for run in self._engine.runs.known():
                    held = dict(run.claims.held)
                    lease(store.client, run.manifest.run_id, held, self._settings.lease_seconds)
                sign_of_life(store.client, self._engine.name, self._about())
            # A missed beat is mended by the next one; a dead lease thread would be mended by nobody.
            except Exception as problem:
                log.warning("lease not refreshed: %s", problem)
            self._stopped.wait(every)
        store.client.close()

    def _about(self) -> dict[str, Any]:
        return {
            "name": self._engine.name,
            "in_flight": self._engine.in_flight,
            "slots": self._settings.in_flight,
            "done": self._engine.done,
        }


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

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._consumer: _FinishConsumer | None = None

    def start(self, worker: Any) -> None:
        self._consumer = _FinishConsumer(worker.app)
        threading.Thread(target=self._consumer.run, name="uplift-finish", daemon=True).start()

    def stop(self, worker: Any) -> None:
        if self._consumer is not None:
            self._consumer.should_stop = True

    terminate = stop


class _FinishConsumer(ConsumerMixin):  # type: ignore[misc]  # kombu has no hints
    def __init__(self, app: Any) -> None:
        self.app = app
        self.connection = app.connection_for_read()
        self._store = Store(connect(from_environment().broker))

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        channel.basic_qos(0, 1, False)
        return [consumer(queues=[queue(FINISH)], on_message=self._on_message, accept=["json"])]

    def _on_message(self, message: Any) -> None:
        args, _, _ = message.payload
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(message.channel, over), daemon=True)
        keeper.start()
        try:
            self.app.tasks["uplift.finish_run"].run(*args)
            message.ack()
        except Exception:
            log.exception("finishing run %s failed; it will be tried again", args[0] if args else "?")
            over.wait(1)
            message.requeue()
        finally:
            over.set()
            keeper.join()

    def _keep(self, channel: Any, over: threading.Event) -> None:
        while not over.wait(from_environment().visibility_seconds / 4):
            try:
                refresh_messages(channel, self._store)
            except Exception as problem:  # the next beat mends it
                log.warning("lease of a finishing run not refreshed: %s", problem)

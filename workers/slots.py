"""A limit on what is in flight at once, served round robin over runs: a small one need not wait for a big one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """A semaphore whose free slots go to the runs that wait in turn, and within a run to whoever came first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, run_id: str) -> AsyncIterator[None]:
        await self._acquire(run_id)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, run_id: str) -> None:
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
                self._release()
            raise

    def _release(self) -> None:
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

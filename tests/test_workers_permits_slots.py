"""Slots bound what is in flight and take runs in turn."""

import asyncio
from contextlib import asynccontextmanager

from workers.attempts.permits import FairSlots


@asynccontextmanager
async def a_slot(slots, run_id):
    await slots.acquire(run_id)
    try:
        yield
    finally:
        slots.release()


async def test_no_more_than_the_slots_are_in_flight():
    slots, most = FairSlots(3), 0

    async def hold():
        nonlocal most
        async with a_slot(slots, "run"):
            most = max(most, slots.used)
            await asyncio.sleep(0)

    await asyncio.gather(*(hold() for _ in range(20)))
    assert most == 3
    assert slots.used == 0


async def test_a_small_run_does_not_wait_for_all_of_a_big_one():
    slots, order = FairSlots(1), []

    async def hold(run):
        async with a_slot(slots, run):
            order.append(run)
            await asyncio.sleep(0)

    big = [asyncio.create_task(hold("big")) for _ in range(50)]
    await asyncio.sleep(0)
    small = [asyncio.create_task(hold("small")) for _ in range(3)]
    await asyncio.gather(*big, *small)
    assert [place for place, run in enumerate(order) if run == "small"][-1] < 10


async def test_a_cancelled_waiter_loses_no_slot():
    slots = FairSlots(1)
    release = asyncio.Event()

    async def hold():
        async with a_slot(slots, "run"):
            await release.wait()

    first = asyncio.create_task(hold())
    await asyncio.sleep(0)
    second = asyncio.create_task(hold())
    await asyncio.sleep(0)
    release.set()
    await first
    second.cancel()  # the slot has just been handed to it
    await asyncio.gather(second, return_exceptions=True)
    assert slots.used == 0

"""What an attempt's calls cost: failed tries count, and what nobody knows is not nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from judges.judgment import Completion
from workers.attempts.run_context import Bill
from workers.models.model import UNBILLED, ModelBusy, ModelFailed, ModelTimedOut


def a_call(cost: float | None = 0.5, text: str = "") -> Completion:
    return Completion(
        text=text, input_tokens=100, output_tokens=10, cost_usd=cost, skill_loaded=True, turns=3
    )


async def says(said: Completion) -> Completion:
    return said


async def raises(problem: BaseException) -> Completion:
    raise problem


async def after(*calls: Awaitable[Completion]) -> Bill:
    """The bill of these calls, however they ended."""
    bill = Bill()
    for call in calls:
        with suppress(ModelBusy, ModelFailed, ModelTimedOut):
            await bill.call(call)
    return bill


async def test_failed_tries_are_added_to_the_answer_that_came_after_them() -> None:
    bill = await after(raises(ModelBusy("full", completion=a_call(0.25))), says(a_call(0.5)))
    assert (bill.usd, bill.unpriced, bill.tokens) == (0.75, 0, 220)
    said = bill.answered(a_call(0.5, "iOS"))
    assert (said.text, said.input_tokens, said.output_tokens, said.cost_usd) == ("iOS", 200, 20, 0.75)


async def test_what_was_paid_without_an_answer_is_kept_and_holds_nothing_to_judge() -> None:
    paid = a_call(0.25, "I will not")
    bill = await after(raises(ModelBusy("full", completion=paid)), raises(ModelFailed("no", completion=paid)))
    kept = bill.unanswered()
    assert kept == Completion(input_tokens=200, output_tokens=20, cost_usd=0.5)
    assert bill.usd == 0.5


async def test_a_refusal_that_nobody_bills_is_a_known_nothing() -> None:
    bill = await after(
        raises(ModelBusy("HTTP 500", completion=UNBILLED)), raises(ModelFailed("no key", hopeless=True))
    )
    assert (bill.usd, bill.unpriced, bill.unanswered()) == (0.0, 0, None)


async def test_a_call_that_nobody_knows_the_cost_of_is_counted_and_hides_no_known_one() -> None:
    bill = await after(raises(ModelBusy("dropped")), says(a_call(0.5)))
    assert (bill.usd, bill.unpriced, bill.uncounted) == (0.5, 1, 1)
    assert bill.answered(a_call(0.5)).cost_usd == 0.5


async def test_a_call_that_a_deadline_cuts_off_is_of_unknown_cost() -> None:
    bill = Bill()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bill.call(asyncio.sleep(60, a_call()))
    assert (bill.usd, bill.unpriced, bill.uncounted) == (0.0, 1, 1)


async def test_an_agent_that_was_stopped_told_its_tokens_but_not_its_cost() -> None:
    stopped = Completion(input_tokens=50)
    bill = await after(raises(ModelTimedOut(stopped)))
    assert (bill.unpriced, bill.uncounted, bill.tokens) == (1, 1, 50)


async def test_what_a_recording_cost_was_paid_before() -> None:
    bill = await after(says(a_call(0.5).model_copy(update={"cost_source": "replay"})))
    assert (bill.usd, bill.unpriced) == (0.0, 0)


@pytest.mark.parametrize("cost", [-1.0, 1e300])
async def test_a_cost_that_nobody_can_have_measured_is_unknown(cost: float) -> None:
    bill = await after(says(a_call(cost)), raises(ModelBusy("full", completion=a_call(cost))))
    assert (bill.usd, bill.unpriced) == (0.0, 2)

"""Claiming and storing: one attempt, one record, whoever comes, as often as they come."""

import asyncio
import time

import pytest
import redis.asyncio

from workers.store.claims import Claim, Finished, RunClaims, Wanted, drop_all, lease
from workers.store.keys import Keys
from workers.store.run_store import Store

RUN = "run-1"


@pytest.fixture
def state(client):
    """A run that exists and is going on."""
    client.hset(Keys(RUN).state, mapping={"generation": 1, "halt": "", "sealed": 0, "created": "0.0"})
    return client


@pytest.fixture
async def workers(valkey, state):
    """Make claims for a named worker."""
    clients = []

    def make(owner="w1", *, lease_seconds=30.0):
        clients.append(redis.asyncio.Redis.from_url(valkey))
        return RunClaims(clients[-1], RUN, owner, lease_seconds=lease_seconds)

    yield make
    for made in clients:
        await made.aclose()


def finished(index, claim, outcome="passed", *, cost=0.5, lost=None, unpriced=0, round=1, payload=None):
    token = claim.token if isinstance(claim, Claim) else claim
    payload = payload or f"{outcome} {token}".encode()
    lost = cost if lost is None else lost
    return Finished(index, token, round, outcome, cost, lost, unpriced, 0, payload)


def expire(client, index):
    client.zadd(Keys(RUN).claims, {str(index): time.time() * 1000 - 1000})


async def test_an_attempt_is_claimed_once_and_stored_once(workers, state):
    mine, other = workers("w1"), workers("w2")
    claim = await mine.claim(Wanted(0, 1))
    assert (claim.code, claim.deliveries, claim.errors) == ("go", 1, 0)
    held = await other.claim(Wanted(0, 1))
    assert held.code == "held"
    assert 25 < held.wait_seconds <= 30
    assert await mine.store(finished(0, claim)) == "stored"
    assert (await other.claim(Wanted(0, 1))).code == "final"
    assert state.hgetall(Keys(RUN).counts) == {b"0 passed": b"1"}
    assert float(state.hget(Keys(RUN).state, "spent")) == 0.5
    assert not state.zcard(Keys(RUN).claims)


async def test_many_claims_travel_together_and_each_is_answered(workers, state):
    mine = workers()
    claims = await asyncio.gather(*(mine.claim(Wanted(index, 1)) for index in range(450)))
    assert [claim.code for claim in claims] == ["go"] * 450
    assert len({claim.token for claim in claims}) == 450
    stored = await asyncio.gather(*(mine.store(finished(i, c)) for i, c in enumerate(claims)))
    assert stored == ["stored"] * 450
    assert state.hlen(Keys(RUN).records) == 450


async def test_a_second_delivery_to_the_same_process_waits(workers):
    mine = workers()
    first, second = await asyncio.gather(mine.claim(Wanted(0, 1)), mine.claim(Wanted(0, 1)))
    assert {first.code, second.code} == {"go", "held"}


async def test_a_worker_whose_answer_was_lost_gets_the_same_claim_again(workers):
    claim = await workers("w1").claim(Wanted(0, 1))
    again = await workers("w1").claim(Wanted(0, 1))
    assert again == claim


@pytest.mark.parametrize("halt", ["paused", "cancelled", "over_budget", "decided"])
async def test_nothing_starts_in_a_halted_run(workers, state, halt):
    state.hset(Keys(RUN).state, "halt", halt)
    assert (await workers().claim(Wanted(0, 1))).code == "halted"


async def test_nothing_starts_in_a_sealed_or_deleted_run(workers, state):
    state.hset(Keys(RUN).state, "sealed", 1)
    assert (await workers().claim(Wanted(0, 1))).code == "halted"
    state.delete(Keys(RUN).state)
    assert (await workers().claim(Wanted(0, 1))).code == "halted"


async def test_the_first_record_counts_and_what_a_second_cost_is_waste(workers, state):
    slow, fast = workers("slow"), workers("fast")
    lost = await slow.claim(Wanted(0, 1))
    expire(state, 0)
    claim = await fast.claim(Wanted(0, 1))
    assert claim.deliveries == 2
    assert await slow.store(finished(0, lost, cost=0.25)) == "stored"
    assert await fast.store(finished(0, claim, cost=0.5)) == "duplicate"
    facts = state.hgetall(Keys(RUN).state)
    assert float(facts[b"spent"]) == 0.75
    assert (float(facts[b"wasted"]), facts[b"wasted_attempts"]) == (0.5, b"1")
    assert state.hgetall(Keys(RUN).counts) == {b"0 passed": b"1"}


@pytest.mark.parametrize(
    ("halt", "left"), [("", []), ("cancelled", [b"1", b"2"])], ids=["finished", "cancelled"]
)
async def test_a_claim_that_outlived_its_attempt_goes_when_the_artifact_comes(workers, state, halt, left):
    """A frozen worker stores first, and who had taken over dies: chaos schedule 88 found the claim left behind."""
    frozen, heir = workers("frozen"), workers("heir")
    lost = [await frozen.claim(Wanted(index, 1, estimate=0.5)) for index in (0, 1, 2)]
    for index in (0, 1, 2):
        expire(state, index)
        await heir.claim(Wanted(index, 1, estimate=0.5))
    await frozen.store(finished(0, lost[0]))
    await frozen.store(finished(1, lost[1], "error"))
    if not halt:
        await frozen.store(finished(2, lost[2]))
    store = Store(state)
    state.hset(Keys(RUN).state, "halt", halt)
    assert store.seal(RUN, 1) is not None
    assert store.put_artifacts(RUN, 1, [])
    assert sorted(state.zrange(Keys(RUN).claims, 0, -1)) == left  # clocks of two processors may be apart
    assert sorted(state.hkeys(Keys(RUN).owners)) == left
    assert float(state.hget(Keys(RUN).state, "reserved")) == 0.5 * len(left)


async def test_calls_of_the_dead_are_assumed_to_be_billed_when_their_run_is_sealed(workers, state):
    dead, living = workers("dead"), workers("living")
    await dead.claim(Wanted(0, 1, estimate=0.5))
    await living.claim(Wanted(1, 1, estimate=0.25))
    expire(state, 0)
    state.hset(Keys(RUN).state, "halt", "cancelled")
    for _ in range(2):  # whoever seals again assumes nothing twice
        assert Store(state).seal(RUN, 1) is not None
    assert float(state.hget(Keys(RUN).state, "assumed")) == 0.5
    assert float(state.hget(Keys(RUN).state, "reserved")) == 0.25


async def test_a_record_sent_twice_because_the_answer_was_lost_counts_once(workers, state):
    mine = workers()
    record = finished(0, await mine.claim(Wanted(0, 1)))
    assert [await mine.store(record), await mine.store(record)] == ["stored", "stored"]
    assert float(state.hget(Keys(RUN).state, "spent")) == 0.5
    assert state.hget(Keys(RUN).state, "wasted") is None


async def test_a_duplicate_sent_twice_is_billed_once(workers, state):
    slow, fast = workers("slow"), workers("fast")
    lost = await slow.claim(Wanted(0, 1))
    expire(state, 0)
    claim = await fast.claim(Wanted(0, 1))
    await fast.store(finished(0, claim, cost=1.0))
    late = finished(0, lost, cost=1.0)
    assert [await slow.store(late), await slow.store(late)] == ["duplicate", "duplicate"]
    facts = state.hgetall(Keys(RUN).state)
    assert (float(facts[b"spent"]), float(facts[b"wasted"]), facts[b"wasted_attempts"]) == (2.0, 1.0, b"1")


async def test_a_late_record_sent_twice_is_billed_once(workers, state):
    mine = workers()
    record = finished(0, await mine.claim(Wanted(0, 1)), cost=1.0)
    state.hset(Keys(RUN).state, "sealed", 1)
    assert [await mine.store(record), await mine.store(record)] == ["late", "late"]
    facts = state.hgetall(Keys(RUN).state)
    assert (float(facts[b"spent"]), float(facts[b"wasted"]), facts[b"wasted_attempts"]) == (1.0, 1.0, b"1")


async def test_a_token_that_is_given_twice_because_the_server_lost_its_last_writes_loses_no_record(
    workers, state
):
    mine, other = workers("w1"), workers("w2")
    claim = await mine.claim(Wanted(0, 1))
    state.delete(Keys(RUN).claims, Keys(RUN).owners)  # as when a replica takes over that had not got them
    state.hdel(Keys(RUN).state, "token")
    again = await other.claim(Wanted(1, 1))
    assert again.token == claim.token
    assert await mine.store(finished(0, claim)) == "stored"
    assert await other.store(finished(1, again, cost=0.25)) == "stored"
    assert await other.store(finished(1, again, cost=0.25)) == "stored"  # its answer was lost on the way
    assert float(state.hget(Keys(RUN).state, "spent")) == 0.75


async def test_an_error_that_is_sent_again_after_it_was_replaced_is_billed_once(workers, state):
    mine = workers()
    error = finished(0, await mine.claim(Wanted(0, 1)), "error", cost=1.0)
    await mine.store(error)
    await mine.store(finished(0, await mine.claim(Wanted(0, 2)), cost=1.0, round=2))
    assert await mine.store(error) == "duplicate"
    facts = state.hgetall(Keys(RUN).state)
    assert (float(facts[b"spent"]), float(facts[b"wasted"]), facts[b"wasted_attempts"]) == (2.0, 1.0, b"1")


async def test_what_was_assumed_of_a_worker_that_was_only_slow_gives_way_to_its_bill(workers, state):
    slow, fast = workers("slow"), workers("fast")
    lost = await slow.claim(Wanted(0, 1, estimate=0.5))
    expire(state, 0)
    claim = await fast.claim(Wanted(0, 1, estimate=0.5))
    assert float(state.hget(Keys(RUN).state, "assumed")) == 0.5
    assert await slow.store(finished(0, lost, cost=0.25)) == "stored"
    assert float(state.hget(Keys(RUN).state, "assumed")) == 0.0
    # Of a call whose cost nobody knows, what was assumed stays.
    assert await fast.store(finished(0, claim, cost=0.0, unpriced=1)) == "duplicate"
    assert float(state.hget(Keys(RUN).state, "assumed")) == 0.5
    assert float(state.hget(Keys(RUN).state, "spent")) == 0.25


async def test_a_poisoned_attempt_is_an_error_that_counts(workers, state):
    """Its record had no token of its own, so that none took the place of the one before, and no error was the last."""
    for owner in ("w1", "w2", "w3"):
        await workers(owner).claim(Wanted(0, 1, quarantine=True))
        expire(state, 0)
    mine = workers("w4")
    for number in (1, 2, 3):
        claim = await mine.claim(Wanted(0, number, quarantine=True))
        assert (claim.code, claim.errors) == ("poison", number - 1)
        stored = await mine.store(finished(0, claim, "error", cost=0.0, round=number))
        assert stored == ("stored" if number == 1 else "replaced")


async def test_a_claim_that_is_given_up_before_the_model_was_asked_costs_nothing(workers, state):
    mine = workers()
    for index, asked in ((0, False), (1, True)):
        claim = await mine.claim(Wanted(index, 1, estimate=0.5))
        if asked:
            mine.asked.add(claim.token)
        await mine.release(index, claim.token)
        assert float(state.hget(Keys(RUN).state, "assumed") or 0) == (0.5 if asked else 0.0)
    assert float(state.hget(Keys(RUN).state, "reserved")) == 0.0


async def test_a_claim_that_comes_when_its_attempt_has_gone_costs_nothing_and_one_that_was_asked_for_does(
    workers, state
):
    mine = workers("w1")
    asked = await mine.claim(Wanted(0, 1, estimate=0.5))
    mine.asked.add(asked.token)
    on_its_way = asyncio.create_task(mine.claim(Wanted(1, 1, estimate=0.25)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    on_its_way.cancel()
    await asyncio.gather(on_its_way, return_exceptions=True)
    await mine.settle()
    assert float(state.hget(Keys(RUN).state, "reserved")) == 0.75
    assert drop_all(state, RUN, "w1", mine.asked) == 2
    assert float(state.hget(Keys(RUN).state, "assumed")) == 0.5
    assert float(state.hget(Keys(RUN).state, "reserved")) == 0.0


async def test_a_record_that_comes_after_sealing_is_late(workers, state):
    mine = workers()
    claim = await mine.claim(Wanted(0, 1))
    state.hset(Keys(RUN).state, "sealed", 1)
    assert await mine.store(finished(0, claim)) == "late"
    assert not state.hlen(Keys(RUN).records)
    assert float(state.hget(Keys(RUN).state, "wasted")) == 0.5


async def test_an_error_is_final_in_its_round_and_open_in_the_next(workers, state):
    mine = workers()
    claim = await mine.claim(Wanted(0, 1))
    assert await mine.store(finished(0, claim, "error", cost=0.25)) == "stored"
    assert (await mine.claim(Wanted(0, 1))).code == "final"
    again = await mine.claim(Wanted(0, 2))
    assert (again.code, again.errors, again.deliveries) == ("go", 1, 2)
    assert await mine.store(finished(0, again, "passed", round=2)) == "replaced"
    assert state.hgetall(Keys(RUN).counts) == {b"0 error": b"0", b"0 passed": b"1"}
    assert float(state.hget(Keys(RUN).state, "wasted")) == 0.25
    assert (await mine.claim(Wanted(0, 3))).code == "final"


async def test_an_older_error_never_replaces_a_newer_one(workers, state):
    first, second = workers("w1"), workers("w2")
    old = await first.claim(Wanted(0, 1))
    expire(state, 0)
    new = await second.claim(Wanted(0, 1))
    assert await second.store(finished(0, new, "error")) == "stored"
    assert await first.store(finished(0, old, "error")) == "duplicate"


async def test_two_deaths_lead_to_quarantine_and_a_third_there_to_poison(workers, state):
    for owner in ("w1", "w2"):
        assert (await workers(owner).claim(Wanted(0, 1))).code == "go"
        expire(state, 0)
    assert (await workers("w3").claim(Wanted(0, 1))).code == "quarantine"
    assert (await workers("w3").claim(Wanted(0, 1, quarantine=True))).code == "go"
    expire(state, 0)
    assert (await workers("w4").claim(Wanted(0, 1, quarantine=True))).code == "poison"


async def test_rounding_does_not_refuse_the_last_attempt_that_the_budget_pays_for(workers, state):
    state.hset(Keys(RUN).state, "budget", "0.06")
    mine = workers()
    for index in range(6):
        claim = await mine.claim(Wanted(index, 1, estimate=0.01))
        assert claim.code == "go", index
        await mine.store(finished(index, claim, cost=0.01))
    assert (await mine.claim(Wanted(6, 1, estimate=0.01))).code == "budget"


async def test_no_attempt_starts_past_the_budget_and_the_run_is_halted(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    mine = workers()
    first = await mine.claim(Wanted(0, 1, estimate=0.6))
    assert first.code == "go"
    await mine.store(finished(0, first, cost=0.5))
    assert (await mine.claim(Wanted(1, 1, estimate=0.6))).code == "budget"
    assert state.hget(Keys(RUN).state, "halt") == b"over_budget"


async def test_a_budget_that_is_only_reserved_makes_others_wait_and_ends_nothing(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    mine, other = workers("w1"), workers("w2")
    first = await mine.claim(Wanted(0, 1, estimate=0.6))
    assert (await other.claim(Wanted(1, 1, estimate=0.6))).code == "full"
    assert state.hget(Keys(RUN).state, "halt") == b""
    await mine.store(finished(0, first, cost=0.01))
    assert (await other.claim(Wanted(1, 1, estimate=0.6))).code == "go"


async def test_where_nobody_has_seen_a_cost_one_attempt_starts_alone_with_all_that_is_left(workers, state):
    state.hset(Keys(RUN).state, "budget", "0.15")
    mine, other = workers("w1"), workers("w2")
    first = await mine.claim(Wanted(0, 1, estimate=0.28, unseen=True))
    assert first.code == "go"
    assert (await other.claim(Wanted(1, 1, estimate=0.28, unseen=True))).code == "full"
    await mine.store(finished(0, first, cost=0.02))
    # Whoever has seen that reserves what it saw; whoever has not goes alone again.
    assert (await mine.claim(Wanted(1, 1, estimate=0.02))).code == "go"
    assert (await other.claim(Wanted(2, 1, estimate=0.28, unseen=True))).code == "full"
    assert float(state.hget(Keys(RUN).state, "reserved")) == pytest.approx(0.02)


async def test_a_spent_budget_starts_nothing_even_where_nobody_has_seen_a_cost(workers, state):
    state.hset(Keys(RUN).state, mapping={"budget": "0.15", "spent": "0.1", "assumed": "0.05"})
    assert (await workers().claim(Wanted(0, 1, estimate=0.28, unseen=True))).code == "budget"
    assert state.hget(Keys(RUN).state, "halt") == b"over_budget"


async def test_of_a_replaced_record_only_what_is_lost_was_for_nothing(workers, state):
    mine = workers()
    first = await mine.claim(Wanted(0, 1))
    await mine.store(finished(0, first, "error", cost=0.5, lost=0.125))
    second = await mine.claim(Wanted(0, 2))
    assert await mine.store(finished(0, second, cost=0.25, round=2)) == "replaced"
    facts = state.hgetall(Keys(RUN).state)
    assert (float(facts[b"spent"]), float(facts[b"wasted"])) == (0.75, 0.125)


async def test_what_a_dead_worker_had_reserved_is_assumed_to_be_spent_once(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    dead, mine = workers("w1"), workers("w2")
    await dead.claim(Wanted(0, 1, estimate=0.3))
    expire(state, 0)
    assert (await mine.claim(Wanted(1, 1, estimate=0.6))).code == "go"
    await mine.store(finished(1, Claim("go", token=2), cost=0.0))
    # The dead worker's own attempt is started again: its reserve is not assumed a second time.
    assert (await mine.claim(Wanted(0, 1, estimate=0.6))).code == "go"
    assert float(state.hget(Keys(RUN).state, "assumed")) == pytest.approx(0.3)
    assert float(state.hget(Keys(RUN).state, "reserved")) == pytest.approx(0.6)


async def test_a_run_ends_when_what_dead_workers_had_asked_for_reaches_the_budget(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    await workers("w1").claim(Wanted(0, 1, estimate=0.6))
    expire(state, 0)
    assert (await workers("w2").claim(Wanted(0, 1, estimate=0.6))).code == "budget"


async def test_a_call_that_a_leaving_worker_cuts_off_is_assumed_to_have_cost_its_estimate(
    workers, state, client
):
    claim = await workers().claim(Wanted(0, 1, estimate=0.6))
    assert lease(client, RUN, {0: claim.token}, 0) == 1
    assert float(state.hget(Keys(RUN).state, "assumed")) == pytest.approx(0.6)
    assert float(state.hget(Keys(RUN).state, "reserved")) == pytest.approx(0.0)


@pytest.mark.parametrize("outcome", ["timeout", "error"])
async def test_an_attempt_of_unknown_cost_is_assumed_to_have_cost_its_estimate(workers, state, outcome):
    state.hset(Keys(RUN).state, "budget", "1.0")
    mine = workers()
    late = await mine.claim(Wanted(0, 1, estimate=0.6))
    await mine.store(finished(0, late, outcome, cost=0.0, unpriced=1))
    assert float(state.hget(Keys(RUN).state, "assumed")) == pytest.approx(0.6)
    assert state.hget(Keys(RUN).state, "spent") is None
    assert (await mine.claim(Wanted(1, 1, estimate=0.6))).code == "budget"


async def test_each_call_of_unknown_cost_is_assumed_beside_what_is_known(workers, state):
    mine = workers()
    claim = await mine.claim(Wanted(0, 1, estimate=0.25))
    await mine.store(finished(0, claim, cost=0.5, unpriced=3))
    assert float(state.hget(Keys(RUN).state, "assumed")) == pytest.approx(0.75)
    assert float(state.hget(Keys(RUN).state, "spent")) == pytest.approx(0.5)


async def test_an_attempt_that_nobody_billed_costs_nothing(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    mine = workers()
    await mine.store(finished(0, await mine.claim(Wanted(0, 1, estimate=0.6)), "error", cost=0.0))
    assert (await mine.claim(Wanted(1, 1, estimate=0.6))).code == "go"


async def test_an_ended_attempt_frees_what_it_had_reserved(workers, state):
    state.hset(Keys(RUN).state, "budget", "1.0")
    mine = workers()
    first = await mine.claim(Wanted(0, 1, estimate=0.6))
    await mine.store(finished(0, first, cost=0.1))
    assert (await mine.claim(Wanted(1, 1, estimate=0.6))).code == "go"
    assert float(state.hget(Keys(RUN).state, "reserved")) == pytest.approx(0.6)


async def test_a_lease_keeps_a_claim_and_dropping_it_frees_the_attempt_at_once(workers, state, client):
    mine, other = workers("w1"), workers("w2")
    claim = await mine.claim(Wanted(0, 1))
    state.zadd(Keys(RUN).claims, {"0": time.time() * 1000 + 5000})
    assert lease(client, RUN, {0: claim.token}, 30) == 1
    assert (await other.claim(Wanted(0, 1))).wait_seconds > 20
    assert lease(client, RUN, {0: claim.token}, 0) == 1
    freed = await other.claim(Wanted(0, 1))
    assert (freed.code, freed.deliveries) == ("go", 1)
    assert lease(client, RUN, {0: claim.token}, 30) == 0

"""More runs in one worker than it remembers: none is forgotten while a batch of it is under way."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis.asyncio
from submitting import a_stored_run

from workers.attempts.run_context import RUNS_KEPT, Runs
from workers.models.sim import Sim
from workers.process.engine import Batch, Engine
from workers.store.bundles import pack_files
from workers.store.process_settings import ProcessSettings
from workers.store.run_store import NotServed, Store


@pytest.fixture
async def runs(valkey, client):
    """What a worker knows of runs a, b, c and d, of which it remembers two."""
    for name in "abcd":
        a_stored_run(Store(client), 1, run_id=name)
    server = redis.asyncio.Redis.from_url(valkey)
    made = Runs(server, "here:1", lease_seconds=30)
    yield made
    await made.close()
    await server.aclose()


@pytest.fixture
def closed(monkeypatch):
    """The models that were closed."""
    found = []

    async def close(self):
        found.append(self)

    monkeypatch.setattr(Sim, "close", close)
    return found


def known(runs):
    return {run.manifest.run_id for run in runs.known()}


async def test_tasks_of_runs_are_not_all_kept(runs, monkeypatch):
    monkeypatch.setattr("workers.attempts.run_context.TASKS_KEPT_BYTES", 1)
    for name in "abcd":
        async with runs.use(name) as run:
            await run.questions([0, 1])
    assert list(run.tasks) == [("d", 0)]


async def test_a_run_is_forgotten_only_when_nobody_uses_it(runs, closed, monkeypatch):
    monkeypatch.setattr("workers.attempts.run_context.RUNS_KEPT", 2)
    async with runs.use("a") as first:
        model = first.model("sim")
        async with runs.use("b"), runs.use("c"), runs.use("a") as again:
            assert again is first
            assert known(runs) == {"a", "b", "c"}
        async with runs.use("d") as last:
            assert known(runs) == {"a", "d"}
        assert closed == []
    async with runs.use("b"), runs.use("d") as again:
        assert again is last
        assert known(runs) == {"b", "d"}
    assert closed == [model]


async def test_a_run_that_cannot_be_used_is_counted_back(runs):
    with pytest.raises(ValueError, match="broken"):
        async with runs.use("a"):
            raise ValueError("broken")
    assert [run.batches for run in runs.known()] == [0]


async def test_a_run_whose_bundle_is_missing_can_be_tried_again(runs, client):
    bundle = pack_files({"fixtures/a.txt": b"x"})
    a_stored_run(Store(client), 1, run_id="e", fixtures=bundle.digest)
    with pytest.raises(NotServed, match=bundle.digest[:12]):
        async with runs.use("e"):
            pass
    Store(client).put_bundle(bundle.digest, bundle.data)
    async with runs.use("e") as run:
        assert (run.fixtures / "fixtures/a.txt").read_bytes() == b"x"


def test_a_worker_runs_more_runs_at_a_time_than_it_remembers(valkey, client, closed, monkeypatch):
    """With one slot all but one of them wait, and a run that waits is not idle."""
    store, names = Store(client), [f"run-{number}" for number in range(RUNS_KEPT + 8)]
    complete, met = Sim.complete, set()

    async def complete_while_open(self, request):
        """The first one waits until all runs are there; the others wait for its slot."""
        async with asyncio.timeout(60):
            while len(met) < len(names):  # another thread meets them
                met.update(run.manifest.run_id for run in engine.runs.known())
                await asyncio.sleep(0.01)
        assert not any(self is one for one in closed)
        return await complete(self, request)

    monkeypatch.setattr(Sim, "complete", complete_while_open)
    for name in names:
        a_stored_run(store, 1, run_id=name, models=("sim:latency=0",))
    engine = Engine(ProcessSettings(valkey, in_flight=1))
    with ThreadPoolExecutor(len(names)) as threads:
        stored = list(threads.map(lambda name: engine.run_batch(Batch(name, 1, (0, 1))), names))
    assert stored == [2] * len(names)
    assert {record.outcome for name in names for record in store.records(name)} <= {"passed", "failed"}
    assert not any(engine.held().values())
    engine.close()

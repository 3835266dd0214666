"""Tell what a plan would do and cost; bring it to the server, once its models can be asked and it fits there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

import redis
from kombu.exceptions import OperationalError

from judges.errors import InfrastructureError
from producer.baselines.cache import Reuse, look_up
from producer.plan import Plan, mounts
from producer.runs.watch import vanished
from producer.server import Server
from workers.models.choose import Need, asked, graders, is_agent, lacking, needs, usable
from workers.models.prices import attempt_estimate, longest_answer
from workers.rounds.finish import aggregate, finish
from workers.rounds.publish import next_end, publish_round
from workers.store import keys, redis_client
from workers.store.keys import LANES, TURN, waiting_keys
from workers.store.messages import ModelSettings
from workers.store.redis_client import AWAY, UnusableServer
from workers.store.run_store import State, Store, StoredRun, pack, pack_task, weak_baseline

INSIST_SECONDS = 60.0

# Bytes, measured with `python -m bench.server_memory`; docs/scaling.md has its table.
ENTRY = 64  # what the server needs for a task or a record beside its text
SMALLEST_RECORD = 400  # with an answer of a few words
TYPICAL_RECORD = 900  # with an answer of 1 kB
MESSAGE = 120  # an attempt's share of its batch
FIXED = 700_000  # manifest, scripts, connections of a few workers
# In tokens, a few paragraphs: an assumption, and told beside the figure that rests on it.
TYPICAL_ANSWER = 300


def asked_by(plan: Plan) -> list[str]:
    """The models that a plan asks; none where nothing is run."""
    models, rejudged = plan.options.models if plan.arms else (), plan.rejudged_from is not None
    return asked(models, plan.suite.tasks, plan.options.judge_model, rejudged=rejudged)


def estimate(plan: Plan, *, private: bool) -> dict[str, Any]:
    """Facts of a plan in the order in which people want them; None where something is not known.

    What is missing is known for a `private` worker only: others have surroundings of their own.
    """
    grid = plan.grid
    reuse = look_up(plan, time.time(), only_look=True) if plan.arms else Reuse()
    cached = {**reuse.cached, **reuse.answers}
    lacks = lacking(asked_by(plan), plan.options.settings, os.environ) if private else []
    judged = sum(len(task.rubrics) for task in plan.suite.tasks)
    return {
        "suite": str(plan.suite.path),
        "tasks": grid.tasks,
        "arms": ", ".join(arm.name for arm in plan.arms) or "none",
        "not_run": "; ".join(f"{one.candidate_id} ({one.verdict}: {one.reason})" for one in plan.not_run)
        or "none",
        "models": ", ".join(plan.options.models),
        "missing": ("; ".join(need.found for need in lacks) or "none") if private else None,
        "attempts_per_task": grid.pass_k,
        "model_calls": grid.attempts - len(cached),
        "from_cache": len(cached),
        "rubric_calls": judged * (grid.attempts // grid.tasks),
        **_costs(plan, cached),
    }


def _costs(plan: Plan, cached: Container[int]) -> dict[str, float | str | None]:
    """What the calls may cost at most and what is likely, and what both figures rest on."""
    settings = plan.options.settings
    agents = [spec for spec in asked_by(plan) if is_agent(spec, settings)]
    if agents:
        assumed = f"how many turns {', '.join(agents)} takes, nobody can foresee"
        return {"cost_usd_at_most": None, "cost_usd_likely": None, "assumed": assumed}
    longest = longest_answer(settings)
    typical = min(TYPICAL_ANSWER, longest)
    return {
        "cost_usd_at_most": _cost(plan, cached, longest),
        "cost_usd_likely": _cost(plan, cached, typical),
        "assumed": f"each call made once; every answer has {longest} tokens at most, and {typical} likely",
    }


def _cost(plan: Plan, cached: Container[int], tokens: int) -> float | None:
    """What all calls cost if each answer has that many tokens; None where a model's price is unknown."""
    options, grid, total = plan.options, plan.grid, 0.0
    lengths = {arm.name: len(arm.skill.text) if arm.skill else 0 for arm in plan.arms}
    for index in range(grid.attempts):
        if index in cached:
            continue
        cell = grid.cell(index)
        task, spec = plan.suite.tasks[cell.task], options.models[cell.model]
        characters = len(task.prompt) + (0 if mounts(spec, options) else lengths[plan.arms[cell.arm].name])
        judging = graders(task, spec, options.judge_model)
        cost = attempt_estimate(spec, characters, judging, options.settings, tokens)
        if cost is None:
            return None
        total += cost
    return round(total, 6)


class DoesNotFit(InfrastructureError):
    """The server has less memory left than the run needs at least."""


def check_size(store: Store, plan: Plan, reuse: Reuse) -> str | None:
    """What to say of a run that may not fit into the server's maxmemory; raises DoesNotFit for one that cannot.

    New records are taken to be as large as those that are there already: from a cache, a blessed baseline or a
    recording. What agents leave in their folders is not foreseen.
    """
    memory = redis_client.memory(store.client)
    if memory is None or store.client.exists(keys.Keys(plan.run_id).state):
        return None
    used, most = memory
    reused = [len(pack(record)) + ENTRY for record in reuse.cached.values()]
    recorded = [len(pack(record)) + ENTRY for _, record in plan.placed(plan.recorded)]
    tasks = sum(len(pack_task(task)) + ENTRY for task in plan.suite.tasks)
    carried = {bundle.digest: len(bundle.data) for bundle in plan.bundles}
    bundles = sum(size for digest, size in carried.items() if not store.client.exists(keys.bundle(digest)))
    known = tasks + bundles + sum(reused) + sum(recorded)
    new, options, seen = plan.grid.attempts - len(reused), plan.options, reused + recorded
    certain = 0 if options.stop_early or options.budget_usd is not None else new
    least = known + certain * SMALLEST_RECORD
    each = max(SMALLEST_RECORD, sum(seen) // len(seen)) if seen else TYPICAL_RECORD
    likely = known + new * (each + MESSAGE) + FIXED
    parts = f"tasks {_mb(tasks)}, bundles {_mb(bundles)}, records that are there {_mb(sum(seen))}"
    left = f"{_mb(max(0, most - used))} of its maxmemory ({_mb(most)}) are left"
    remedy = "raise maxmemory, delete runs, or run fewer attempts"
    if least > most - used:
        raise DoesNotFit(
            f"the run needs at least {_mb(least)} on the server ({parts}, and {certain:,} new ones of "
            f"{SMALLEST_RECORD} bytes), but {left}; {remedy}"
        )
    if likely > most - used:
        basis = f"as in the {len(seen):,} that are there" if seen else "an assumption"
        return (
            f"the run may fill the server: it takes about {_mb(likely)} ({parts}, and {new:,} new ones of "
            f"{each:,} bytes, {basis}), but {left}; while it is full the run waits: {remedy}"
        )
    return None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class CannotAsk(InfrastructureError):
    """A model of the run cannot be asked: one line says what is missing, the next what to type."""


def check_models(plan: Plan, broker: str | None) -> None:
    """Look for everything that a new run's models need; raises CannotAsk before anything is written or sent."""
    specs, settings = asked_by(plan), plan.options.settings
    if broker is None:
        there = ", ".join(usable(settings, os.environ)) or "none"
        choose = f"models usable here: {there}; choose with --model SPEC, or models in uplift.toml"
        instead = "" if plan.rejudged_from else f"; or try it without a model: --mock\n{choose}"
        check_here(specs, settings, instead=instead)
    elif specs:
        with closing(redis_client.connect(broker)) as client:
            check_there(specs, settings, client)


def check_here(specs: Sequence[str], settings: ModelSettings, *, instead: str = "") -> None:
    """For a private worker, whose surroundings are ours; raises CannotAsk."""
    lacks = {spec: needed for spec in specs if (needed := lacking([spec], settings, os.environ))}
    if lacks:
        words = dict.fromkeys(need.found for needed in lacks.values() for need in needed)
        raise CannotAsk(
            f"{', '.join(lacks)} cannot be asked here: {'; '.join(words)}\ntype: {_remedies(lacks)}{instead}"
        )


def check_there(specs: Sequence[str], settings: ModelSettings, client: redis.Redis) -> None:
    """For the workers of a broker, as they say of themselves; raises CannotAsk where none can ask a model.

    Where no worker is alive, the run may wait for one. A program of the config is known only where it is started.
    """
    alive = [_lacks(worker) for worker in redis_client.workers(client)]
    lacks = {}
    for spec in specs if alive else ():
        wanted = [need for need in needs([spec], settings, {}) if need.wanted and need.vital]
        if all(any(need.name in absent for need in wanted) for absent in alive):
            lacks[spec] = [need for need in wanted if any(need.name in absent for absent in alive)]
    if lacks:
        words = dict.fromkeys(need.name for needed in lacks.values() for need in needed)
        who = "the broker's only worker" if len(alive) == 1 else f"any of the broker's {len(alive)} workers"
        raise CannotAsk(
            f"{', '.join(lacks)} cannot be asked by {who}; missing there: {', '.join(words)}\n"
            f"type, where workers run: {_remedies(lacks)}; then start them again"
        )


def _lacks(worker: dict[str, Any]) -> set[str]:
    """What a worker says that it lacks; an older one says nothing, and may have it all."""
    names = worker.get("lacks")
    return set(map(str, names)) if isinstance(names, list) else set()


def _remedies(lacks: Mapping[str, Sequence[Need]]) -> str:
    return "; ".join(dict.fromkeys(need.remedy for needed in lacks.values() for need in needed))


def submit(
    server: Server,
    plan: Plan,
    reuse: Reuse,
    *,
    say: Callable[[str], None] = lambda text: None,
    resume: str = "",
) -> StoredRun:
    """Create the run and publish what is not to be reused. May be called again for the same plan.

    Raises DoesNotFit, before anything is written, where the server has too little memory left.

    What the server or the skills make doubtful is said first. `resume` is what to type to go on with the run, should
    the server stay away.
    """
    store = server.store
    for warning in (*redis_client.check(store.client), check_size(store, plan, reuse), *plan.remarks):
        if warning:
            say(warning)
    if reuse.cached:
        say(f"{len(reuse.cached)} {reuse.told}")
    lane = quietest_lane(store)
    for bundle in plan.bundles:
        store.put_bundle(bundle.digest, bundle.data)
    if plan.recorded:
        store.put_stored(plan.run_id, plan.placed(plan.recorded))
    if reuse.answers:
        say(
            f"{len(reuse.answers)} baseline answers are judged anew and not asked for: their checks have changed"
        )
        store.put_stored(plan.run_id, reuse.answers.items())
    info = plan.info(baseline_reuse_count=reuse.comparisons)
    manifest = plan.manifest(lane).model_copy(update={"has_answers": bool(reuse.answers)})
    run = store.create(manifest, info, plan.suite.tasks, reuse.cached)
    go_on(server, run, resume=resume)
    return run


def go_on(server: Server, run: StoredRun, *, resume: str = "", insist_seconds: float = INSIST_SECONDS) -> int:
    """Publish everything that has no final record; returns how many attempts.

    A server that goes away meanwhile is waited for, and everything is published anew: half a round that is out
    already costs nothing, because each attempt is claimed before it starts.
    """
    deadline, resume = time.monotonic() + insist_seconds, resume or f"uplift resume {run.run_id}"
    while True:
        try:
            generation, indexes = _next_generation(server, run)
            if indexes:
                alone = server.store.deadly(run.run_id) if generation > 1 else ()
                publish_round(server.app, run, generation=generation, number=1, indexes=indexes, alone=alone)
            return len(indexes)
        except (*AWAY, OperationalError) as problem:
            if isinstance(problem, redis.AuthenticationError):
                raise
            if time.monotonic() > deadline:
                raise redis.ConnectionError(f"{problem}; go on later with: {resume}") from problem
            time.sleep(0.5)
        except redis.ResponseError as problem:
            if refused := redis_client.refuses_writes(server.store.client):
                raise UnusableServer(f"{refused}, then go on with: {resume}") from problem
            raise


def is_anything_left(store: Store, run: StoredRun) -> bool:
    """Whether a run that goes on would start another attempt."""
    state = store.state(run.run_id)
    return not _is_decided(state) and bool(store.unfinished(run, _end(run, state)))


def _is_decided(state: State | None) -> bool:
    """Whether a run is over and lacks at most its artifacts."""
    over = ("decided", "weak_baseline")
    return state is not None and state.sealed and (bool(state.trouble) or state.halt in over)


def _end(run: StoredRun, state: State | None) -> int:
    return (state.published if state else 0) or next_end(run, 0)


def _next_generation(server: Server, run: StoredRun) -> tuple[int, list[int]]:
    """Start a new generation; returns its number and the attempts to publish, those without a final record.

    Serves a fresh run and a resumed one alike. Where nothing is left to do, the run is finished at once; one that
    was over, and only lacks its artifacts, gets those and asks nothing more.
    """
    store, run_id = server.store, run.run_id
    state = store.state(run_id)
    if state is None:  # a server without persistence was restarted while we tried
        raise vanished(run_id)
    if _is_decided(state):
        if store.artifacts(run_id) is None:
            aggregate(server.settings, store, run_id, state.generation)
        return state.generation, []
    generation = store.next_generation(run_id)
    weak = weak_baseline(run, state) is not None  # by the cache's records, or before the run was stopped
    if weak:
        store.halt(run_id, "weak_baseline")
    end = _end(run, state)
    store.set_published(run_id, generation, end)
    unfinished = store.begin_round(run_id, generation, 1, store.unfinished(run, end))
    if weak or not unfinished:
        finish(server.app, server.settings, run_id, generation, 1)
        return generation, []
    return generation, unfinished


def quietest_lane(store: Store) -> str:
    """The lane with the fewest messages waiting, so that a small run does not stand behind a big one."""
    pipe = store.client.pipeline(transaction=False)
    waiting_in = [waiting_keys(lane) for lane in LANES]
    for key in chain.from_iterable(waiting_in):
        pipe.llen(key)
    # Equal lanes are told apart by how many runs there are, so that runs that start together spread out.
    pipe.incr(TURN)
    *found, turns = pipe.execute()
    lengths, turn = iter(found), int(turns) % len(LANES)
    waiting = [sum(islice(lengths, len(lane))) for lane in waiting_in]
    order = [*range(turn, len(LANES)), *range(turn)]
    quietest: int = min(order, key=waiting.__getitem__)
    return LANES[quietest]

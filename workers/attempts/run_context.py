"""What a worker process knows of a run, fetched once: its manifest, tasks, skills, fixtures and model clients.

And what it asks and gets: a question, the answer, and the bill of the calls. Calls that failed are on the bill, and
what nobody knows is counted apart, never as nothing.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import redis.asyncio

from aggregate.records.record import SKILL, AttemptRecord, unpack_steps
from judges.judgment import Completion, ranges, usage
from judges.trajectory import Trajectory
from workers.attempts.breaker import Breaker
from workers.attempts.prompts import prepend, skill_text
from workers.models.choose import is_agent, model_for, mounts_skills, parse
from workers.models.model import Model, ModelError, ModelTimedOut, Request, UnknownModel, message
from workers.models.policy import refuses
from workers.store import keys
from workers.store.bundles import MAX_TOTAL_BYTES, BundleError, BundleMissing, Folders, is_digest
from workers.store.claims import Coalescer, RunClaims
from workers.store.keys import WORKING_SECONDS, Keys, script
from workers.store.messages import NO_LIMITS, Grid, Limits, Manifest, ModelSettings, Policy, Task
from workers.store.run_store import NotServed, pack_steps, read_manifest, read_task

RUNS_KEPT = 16
TASKS_KEPT_BYTES = 4 << 20  # of their JSON, whose objects take some ten times as much
LARGE_TASK_BYTES = 64 << 10
_RANGES = ranges(Completion)


class RunGone(Exception):
    """The run's manifest is no longer in the store: it was deleted, it expired, or the server was flushed."""


@dataclass(frozen=True)
class Question:
    """What an attempt asks: a task of a model, in an arm, for the `number`-th time."""

    task: Task
    arm: str
    model: str
    number: int


@dataclass
class Bill:
    """A sum over calls: `usd` and `tokens` that are known, and how many calls nobody knows them of.

    `failed` are the calls that gave no answer and were billed, as far as that is known. `judging_usd` is the part of
    `usd` that judges cost.
    """

    calls: int = 0
    usd: float = 0.0
    judging_usd: float = 0.0
    unpriced: int = 0
    tokens: int = 0
    uncounted: int = 0
    failed: list[Completion] = field(default_factory=list)

    async def call(self, asking: Awaitable[Completion]) -> Completion:
        """Wait for a call and put it on the bill, however it ends."""
        try:
            completion = await asking
        except (ModelError, ModelTimedOut) as problem:
            self._add(problem.completion)
            billed = measured(problem.completion) if problem.completion else None
            if billed is not None and (billed.input_tokens or billed.cost_usd):
                self.failed.append(billed)
            raise
        except BaseException:  # cut off by a deadline: the model may have answered all the same
            self._add(None)
            raise
        self._add(completion)
        return completion

    def _add(self, completion: Completion | None) -> None:
        self.calls += 1
        known = measured(completion or Completion())
        if known.cost_source == "replay":
            return  # that was paid before
        self.usd += known.cost_usd or 0.0
        self.unpriced += known.cost_usd is None
        self.tokens += (known.input_tokens or 0) + (known.output_tokens or 0)
        self.uncounted += known.input_tokens is None or known.output_tokens is None

    def include_judging(self, other: Bill) -> None:
        """Add what calls of a judge cost."""
        self.usd += other.usd
        self.judging_usd += other.usd
        self.unpriced += other.unpriced

    def answered(self, answer: Completion) -> Completion:
        """The answer with what the failed tries before it used and cost."""
        return answer.model_copy(update=usage([*self.failed, answer])) if self.failed else answer

    def unanswered(self) -> Completion | None:
        """What was used and paid without an answer, and nothing else: there is nothing to judge or to compare."""
        if not self.failed:
            return None
        who = {"cost_source", "unit_prices", "agent_version", "served_model"}
        return Completion(**usage(self.failed), **self.failed[-1].model_dump(include=who))


def measured(completion: Completion) -> Completion:
    """The completion without numbers that nobody can have measured: negative, not finite, or beyond all sense."""
    wrong = [
        name
        for name, valid in _RANGES.items()
        if (value := getattr(completion, name)) is not None and not valid.low <= value <= valid.high
    ]
    return completion.model_copy(update=dict.fromkeys(wrong)) if wrong else completion


@dataclass(frozen=True)
class Answer:
    """How asking ended: with a completion, or with a time-out or an error and why.

    Where there is no answer, `completion` is what was used and paid, as far as it is known. `trajectory` leaves out the
    text of the `skill`, which is kept once a run.
    """

    request: Request
    started_at: str
    seconds: float
    completion: Completion | None = None
    outcome: Literal["timeout", "error"] | None = None
    error: str | None = None
    retries: int = 0
    hopeless: bool = False
    bill: Bill = field(default_factory=Bill)
    trajectory: Trajectory | None = None
    skill: str = ""


def now() -> str:
    """The time of day, as records tell it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_ungraded(record: AttemptRecord) -> bool:
    """Whether the model did answer and only the judge failed: the answer is kept and judged again."""
    return record.outcome == "error" and record.completion is not None and bool(record.judgments)


@dataclass(frozen=True)
class Terms:
    """How a run asks one of its models; agents mount a skill unless told otherwise, others read it in the prompt.

    `source` says whose answers are in the store, a recording's or an earlier run's; None where the model is asked.
    """

    source: str | None
    is_agent: bool
    mounts_skills: bool
    limits: Limits


@dataclass
class Run:
    """One run in this process.

    `halted` is set once the store says that nothing more may start, so that nobody waits for a limit in vain.
    `batches` counts those that use the run here.
    """

    manifest: Manifest
    grid: Grid
    claims: RunClaims
    client: redis.asyncio.Redis
    settings: ModelSettings
    fixtures: Path | None
    skills: dict[str, Path]
    breaker: Breaker
    policy: Policy | None = None
    models: dict[str, Model] = field(default_factory=dict)
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    largest_costs: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    tasks: TaskCache = field(default_factory=lambda: TaskCache())
    _terms: dict[str, Terms] = field(default_factory=dict)

    async def questions(self, indexes: Sequence[int]) -> list[Question]:
        """What the attempts with these indexes ask; their tasks come here in one round trip."""
        cells = [self.grid.cell(index) for index in indexes]
        tasks = await self._fetch_tasks({cell.task for cell in cells})
        arms, models = self.manifest.arms, self.manifest.models
        return [
            Question(tasks[cell.task], arms[cell.arm].name, models[cell.model], cell.number) for cell in cells
        ]

    def __post_init__(self) -> None:
        # What batches ask for meanwhile travels together; a task is taken to be as large as a long one.
        self._keep = self.client.register_script(script("keep_steps"))
        self._fetch = Coalescer(self._fetched, size=lambda numbers: len(numbers) * LARGE_TASK_BYTES)

    async def _fetch_tasks(self, numbers: set[int]) -> dict[int, Task]:
        run_id = self.manifest.run_id
        tasks = {number: task for number in numbers if (task := self.tasks.get((run_id, number))) is not None}
        missing = numbers - tasks.keys()
        return {**tasks, **await self._fetch(missing)} if missing else tasks

    async def _fetched(self, wanted: list[set[int]]) -> list[dict[int, Task]]:
        run_id, tasks = self.manifest.run_id, dict[int, Task]()
        numbers = sorted(set[int]().union(*wanted))
        fields = [str(number) for number in numbers]
        texts = await cast("Awaitable[list[bytes | None]]", self.client.hmget(Keys(run_id).tasks, fields))
        for number, data in zip(numbers, texts, strict=True):
            if data is None:
                raise RunGone(f"run {run_id} has lost task {number}; was the server flushed?")
            tasks[number], size = read_task(data, run_id)
            serve(self.policy, self.manifest, tasks[number])
            self.tasks.add((run_id, number), tasks[number], size)
        self.tasks.shrink()
        return [tasks] * len(wanted)

    def terms(self, spec: str) -> Terms:
        """What is the same for all attempts of this model."""
        if (known := self._terms.get(spec)) is None:
            earlier, mode = self.manifest.rejudged_from, self.manifest.skill_mode
            source = (
                f"run {earlier}" if earlier is not None else spec if parse(spec).kind == "replay" else None
            )
            # An earlier run's program may be declared nowhere any more; its skill was mounted there.
            is_program = earlier is None and is_agent(spec, self.settings)
            decides = mode is None and earlier is None
            mounts = mounts_skills(spec, self.settings) if decides else mode == "mount"
            # A stored answer is not asked for again, so the model's limit does not hold it up.
            limits = self.settings.limits_of(spec) if source is None else NO_LIMITS
            known = self._terms[spec] = Terms(source, is_program, mounts, limits)
        return known

    def prompt_and_skill(self, question: Question) -> tuple[str, Path | None]:
        """What the model is asked, and the skill's folder where it is mounted instead of put in front."""
        skill = self.skills.get(question.arm)
        if skill is None or self.terms(question.model).mounts_skills:
            return question.task.prompt, skill
        return prepend(skill_text(skill), question.task.prompt), None

    def skill_of(self, question: Question) -> str:
        """The text of the arm's skill; empty where it has none that can be read."""
        with suppress(OSError, UnicodeDecodeError, KeyError):
            return skill_text(self.skills[question.arm])
        return ""

    async def keep_steps(self, trajectory: Trajectory, skill: str) -> str:
        """Keep an attempt's steps while the run has room for more; returns their digest, or why they are not kept."""
        digest, data = await asyncio.to_thread(pack_steps, trajectory)
        most = int(self.manifest.trajectory_mb * 1_000_000)
        text = gzip.compress(skill.encode(), mtime=0) if trajectory.skill else b""
        values: list[Any] = [
            most,
            digest,
            data,
            WORKING_SECONDS,
            SKILL + trajectory.skill if trajectory.skill else "",
            text,
        ]
        named = Keys(self.manifest.run_id)
        if await self._keep(keys=[named.state, named.steps], args=values):
            return digest
        return f"not kept: the run's steps have {self.manifest.trajectory_mb:g} MB (trajectory_mb) already"

    async def kept_steps(self, digest: str | None) -> Trajectory | None:
        """The steps of an answer that was given before; None where they were not kept."""
        if digest is None or not is_digest(digest):
            return None
        key = Keys(self.manifest.run_id).steps
        data = await cast("Awaitable[bytes | None]", self.client.hget(key, digest))
        return None if data is None else Trajectory.model_validate_json(unpack_steps(data))

    def model(self, spec: str) -> Model:
        if spec not in self.models:
            self.models[spec] = model_for(spec, self.settings)
        return self.models[spec]

    def prepare(self, spec: str) -> None:
        """Make a model's client now, because importing an SDK takes seconds; what is wrong shows when it is asked."""
        with suppress(ModelError, UnknownModel):
            if self.terms(spec).source is None:
                self.model(spec)

    async def close(self) -> None:
        for model in self.models.values():
            await model.close()


class TaskCache(dict[tuple[str, int], Task]):
    """Tasks that were asked for lately, of all runs together, by run and number; the oldest go first."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], int] = {}
        self._bytes = 0

    def add(self, key: tuple[str, int], task: Task, size: int) -> None:
        self[key] = task
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def shrink(self) -> None:
        """Forget the oldest until all together are small enough, but keep the newest."""
        while self._bytes > TASKS_KEPT_BYTES and len(self) > 1:
            oldest = next(iter(self))
            del self[oldest]
            self._bytes -= self._sizes.pop(oldest)


class Runs:
    """The runs that this process has met lately."""

    def __init__(
        self, client: redis.asyncio.Redis, owner: str, *, lease_seconds: float, policy: Policy | None = None
    ) -> None:
        self._client = client
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._policy = policy
        self._folders = Folders(
            most_bytes=int(policy.largest_bundle_mb * 2**20) if policy else MAX_TOTAL_BYTES
        )
        self._tasks = TaskCache()
        self._known: OrderedDict[str, Run] = OrderedDict()
        self._opening: dict[str, asyncio.Lock] = {}

    def known(self) -> list[Run]:
        """A snapshot, for the lease thread, which looks while the loop adds."""
        return list(self._known.values())

    @asynccontextmanager
    async def use(self, run_id: str) -> AsyncIterator[Run]:
        """The run, fetched if need be, and kept for as long as the block runs; raises RunGone."""
        run = await self._get(run_id)
        run.batches += 1
        try:
            await self._forget_oldest()
            yield run
        finally:
            run.batches -= 1

    async def _get(self, run_id: str) -> Run:
        if run_id not in self._known:
            async with self._opening.setdefault(run_id, asyncio.Lock()):
                if run_id not in self._known:
                    self._known[run_id] = await self._open(run_id)
            self._opening.pop(run_id, None)
        self._known.move_to_end(run_id)
        return self._known[run_id]

    async def _open(self, run_id: str) -> Run:
        data = await cast("Awaitable[bytes | None]", self._client.get(Keys(run_id).manifest))
        if data is None:
            raise RunGone(f"run {run_id} is no longer in the store")
        manifest = read_manifest(data, run_id)
        serve(self._policy, manifest)
        if manifest.sandbox == "auto" and self._policy and self._policy.least_sandbox == "required":
            manifest = manifest.model_copy(update={"sandbox": "required"})
        try:
            fixtures = await self._folder(manifest.fixtures) if manifest.fixtures else None
            arms = [arm for arm in manifest.arms if arm.bundle]
            skills = {arm.name: await self._folder(arm.bundle or "") / arm.folder for arm in arms}
        except BundleError as problem:
            raise NotServed(f"run {run_id} is not served here: {problem}") from None
        pipe = self._client.pipeline(transaction=False)
        pipe.sadd(Keys(run_id).workers, self._owner)
        pipe.expire(Keys(run_id).workers, WORKING_SECONDS)
        pipe.hdel(Keys(run_id).refused, self._owner)  # what was in the way, such as a full disk, is over
        await pipe.execute()
        return Run(
            manifest=manifest,
            policy=self._policy,
            grid=manifest.grid,
            claims=RunClaims(self._client, run_id, self._owner, lease_seconds=self._lease_seconds),
            client=self._client,
            breaker=Breaker(self._client, Keys(run_id).breaker),
            tasks=self._tasks,
            settings=manifest.settings,
            fixtures=fixtures,
            skills=skills,
        )

    async def _folder(self, digest: str) -> Path:
        if (ready := self._folders.get(digest)) is not None:
            return ready
        data = await cast("Awaitable[bytes | None]", self._client.get(keys.bundle(digest)))
        if data is None:
            raise BundleMissing(f"bundle {digest[:12]} is no longer in the store")
        return await asyncio.to_thread(self._folders.open, digest, data)

    async def _forget_oldest(self) -> None:
        """Of more than RUNS_KEPT runs, close the ones that were asked for longest ago and that nobody uses."""
        idle = [run_id for run_id, run in self._known.items() if not run.batches]
        for run_id in idle[: max(0, len(self._known) - RUNS_KEPT)]:
            await self._known.pop(run_id).close()

    async def close(self) -> None:
        for run in self._known.values():
            await run.close()
        self._folders.close()


def serve(policy: Policy | None, manifest: Manifest, task: Task | None = None) -> None:
    """Raise NotServed where this worker leaves the run to others; tasks are asked about as they come here."""
    if (why := refuses(policy, manifest, task)) is not None:
        raise NotServed(message(f"run {manifest.run_id} is not served here: {why}"))

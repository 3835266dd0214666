"""What a worker process knows of a run, fetched once: its manifest, tasks, skills, fixtures and model clients."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import cast

import redis.asyncio

from workers.attempts.shared_limits import Breaker
from workers.models.choose import is_agent, model_for, mounts_skills
from workers.models.model import Model, ModelError
from workers.models.names import UnknownModel, parse
from workers.store import keys
from workers.store.bundles import BundleMissing, Folders
from workers.store.claims import RunClaims
from workers.store.keys import Keys
from workers.store.messages import Grid, Manifest, ModelSettings, SkillMode, Task

RUNS_KEPT = 16
TASKS_KEPT_BYTES = 4 << 20  # of their JSON, whose objects take some ten times as much


_INTRODUCTION = "You have the following skill. Use it where it helps with the task that comes after it."
_SHORTEST_FENCE = 4


class RunGone(Exception):
    """The run's manifest is no longer in the store: it was deleted, it expired, or the server was flushed."""


def prepend(skill_text: str, prompt: str) -> str:
    """The skill's text in front of the prompt, neither of them changed.

    The fence is longer than any run of backticks in the skill, so that no skill can end it early; it depends
    on the skill's text alone, so that a repeated run asks the very same thing.
    """
    longest = max(map(len, re.findall("`+", skill_text)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    end = "" if skill_text.endswith("\n") else "\n"
    return f"{_INTRODUCTION}\n\n{fence}markdown\n{skill_text}{end}{fence}\n\n{prompt}"


@lru_cache(maxsize=64)
def _skill_text(folder: Path) -> str:
    return (folder / "SKILL.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Question:
    """What an attempt asks: a task of a model, in an arm, for the `number`-th time."""

    task: Task
    arm: str
    model: str
    number: int


@dataclass
class Run:
    """One run in this process.

    `halted` is set once the store says that nothing
    more may start, so that nobody waits for a limit in vain. `batches` counts those that use the run here.
    """

    manifest: Manifest
    grid: Grid
    claims: RunClaims
    client: redis.asyncio.Redis
    folders: Folders
    settings: ModelSettings
    fixtures: Path | None
    skills: dict[str, Path]
    breaker: Breaker
    models: dict[str, Model] = field(default_factory=dict)
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    largest_costs: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    _tasks: OrderedDict[int, tuple[Task, int]] = field(default_factory=OrderedDict)
    _tasks_bytes: int = 0

    async def fetch_tasks(self, numbers: set[int]) -> None:
        """Bring these tasks here in one round trip."""
        missing = sorted(number for number in numbers if number not in self._tasks)
        if not missing:
            return
        fields = [str(number) for number in missing]
        found = await cast(
            "Awaitable[list[bytes | None]]", self.client.hmget(Keys(self.manifest.run_id).tasks, fields)
        )
        for number, data in zip(missing, found, strict=True):
            if data is None:
                raise RunGone(f"run {self.manifest.run_id} has lost task {number}; was the server flushed?")
            text = zlib.decompress(data)
            self._tasks[number] = (Task.model_validate_json(text), len(text))
            self._tasks_bytes += len(text)
        while self._tasks_bytes > TASKS_KEPT_BYTES and len(self._tasks) > len(numbers):
            _, (_, size) = self._tasks.popitem(last=False)
            self._tasks_bytes -= size

    async def task(self, number: int) -> Task:
        if number not in self._tasks:
            await self.fetch_tasks({number})
        return self._tasks[number][0]

    async def question(self, index: int) -> Question:
        """What the attempt with this index asks."""
        cell = self.grid.cell(index)
        task = await self.task(cell.task)
        return Question(
            task, self.manifest.arms[cell.arm].name, self.manifest.models[cell.model], cell.number
        )

    def prompt_and_skill(self, question: Question) -> tuple[str, Path | None]:
        """What the model is asked, and the skill's folder where it is mounted instead of put in front."""
        skill = self.skills.get(question.arm)
        if skill is None or self.skill_mode(question.model) == "mount":
            return question.task.prompt, skill
        return prepend(_skill_text(skill), question.task.prompt), None

    def model(self, spec: str) -> Model:
        if spec not in self.models:
            self.models[spec] = model_for(spec, self.settings)
        return self.models[spec]

    def prepare(self, spec: str) -> None:
        """Make a model's client now, because importing an SDK takes seconds; what is wrong shows when it is asked."""
        with suppress(ModelError, UnknownModel):
            if self.source_of_answers(spec) is None:
                self.model(spec)

    def source_of_answers(self, spec: str) -> str | None:
        """Whose answers of this model are in the store, a recording's or an earlier run's; None where it is asked."""
        if self.manifest.rejudged_from is not None:
            return f"run {self.manifest.rejudged_from}"
        return spec if parse(spec).kind == "replay" else None

    def is_agent(self, spec: str) -> bool:
        """Whether attempts of this model run a program here; stored answers need none."""
        return self.manifest.rejudged_from is None and is_agent(spec, self.settings)

    def skill_mode(self, spec: str) -> SkillMode:
        """Agents mount a skill their own way unless told otherwise; everybody else reads it in the prompt."""
        if self.manifest.skill_mode is not None:
            return self.manifest.skill_mode
        return "mount" if mounts_skills(spec, self.settings) else "prepend"


class Runs:
    """The runs that this process has met lately."""

    def __init__(self, client: redis.asyncio.Redis, owner: str, *, lease_seconds: float) -> None:
        self._client = client
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._folders = Folders()
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
        await self._client.sadd(Keys(run_id).workers, self._owner)
        manifest = Manifest.model_validate_json(data)
        return Run(
            manifest=manifest,
            grid=manifest.grid,
            claims=RunClaims(
                self._client,
                run_id,
                self._owner,
                lease_seconds=self._lease_seconds,
            ),
            client=self._client,
            breaker=Breaker(self._client, Keys(run_id).breaker),
            folders=self._folders,
            settings=manifest.settings,
            fixtures=await self._folder(manifest.fixtures) if manifest.fixtures else None,
            skills={
                arm.name: await self._folder(arm.bundle) / arm.folder for arm in manifest.arms if arm.bundle
            },
        )

    async def _folder(self, digest: str) -> Path:
        if (ready := self._folders.get(digest)) is not None:
            return ready
        data = await cast("Awaitable[bytes | None]", self._client.get(keys.bundle(digest)))
        if data is None:
            raise BundleMissing(f"bundle {digest[:12]} is no longer in the store")
        return await asyncio.to_thread(self._folders.open, digest, lambda _: data)

    async def _forget_oldest(self) -> None:
        """Of more than RUNS_KEPT runs, close the ones that were asked for longest ago and that nobody uses."""
        idle = [run_id for run_id, run in self._known.items() if not run.batches]
        for run_id in idle[: max(0, len(self._known) - RUNS_KEPT)]:
            run = self._known.pop(run_id)
            for model in run.models.values():
                await model.close()

    async def close(self) -> None:
        for run in self._known.values():
            for model in run.models.values():
                await model.close()
        self._folders.close()

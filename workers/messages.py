"""What a producer tells workers: the run's manifest and its tasks. Both live in Redis; job arguments hold ids only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from judges.judgment import Sandbox
from judges.spec import JudgeSpec

FORMAT_VERSION: Literal[1] = 1
DEFAULT_TIMEOUT_SECONDS = 300
SkillMode = Literal["prepend", "mount"]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Replies(_Message):
    """Files with what the simulated model says when it is to pass or to fail."""

    passing: Annotated[str | None, Field(alias="pass")] = None
    failing: Annotated[str | None, Field(alias="fail")] = None


class Task(_Message):
    """One prompt and one judge."""

    id: str
    description: str = ""
    prompt: str
    judge: Annotated[JudgeSpec, Field(discriminator="type")]
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    tier: str | None = None
    tags: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    replies: Replies | None = None
    should_trigger: bool | None = None


class Arm(_Message):
    """What the model is given: a skill by its bundle's digest and the folder's name in it, or nothing."""

    name: str
    bundle: str | None = None
    folder: str = ""


class CommandSpec(_Message):
    """A program that stands for a model, as the config declares it; see docs/models.md for each field."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    prompt: Literal["stdin", "file"] = "stdin"
    output: Literal["text", "json", "jsonl"] = "text"
    text_path: str | None = None
    input_tokens_path: str | None = None
    output_tokens_path: str | None = None
    cache_read_tokens_path: str | None = None
    cost_path: str | None = None
    turns_path: str | None = None
    skill_invoked_path: str | None = None
    error_path: str | None = None
    environment: tuple[str, ...] = ()
    skill_folder: str | None = None
    skill_argv: tuple[str, ...] = ()
    ok_exit_codes: tuple[int, ...] = (0,)
    busy_exit_codes: tuple[int, ...] = ()
    readable: tuple[str, ...] = ()
    agent: bool = True


class Price(_Message):
    """USD per million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_read: Annotated[float | None, Field(ge=0)] = None
    cache_write: Annotated[float | None, Field(ge=0)] = None


class Limits(_Message):
    """What one model may be asked, over all workers together; None is no limit."""

    rpm: Annotated[float | None, Field(gt=0)] = None
    tpm: Annotated[float | None, Field(gt=0)] = None
    max_in_flight: Annotated[int | None, Field(ge=1)] = None

    @property
    def none(self) -> bool:
        """Whether the model may be asked as often as anybody likes."""
        return self.rpm is None and self.tpm is None and self.max_in_flight is None


NO_LIMITS = Limits()


class ModelSettings(_Message):
    """How models are to be asked: sampling parameters, declared programs, prices and shared limits.

    `replays` says where the recording of a `replay:` model lies here; it is each worker's own.
    """

    params: dict[str, Any] = {}
    commands: dict[str, CommandSpec] = {}
    prices: dict[str, Price] = {}
    limits: dict[str, Limits] = {}
    default_limits: Limits = NO_LIMITS
    tools: tuple[str, ...] | None = None
    retry: bool = True
    replays: dict[str, str] = {}


class Manifest(_Message):
    """All that workers need to know of a run, apart from its tasks, which are fetched one by one.

    `fixtures` is a bundle's digest; `replays` has one for each `replay:` model, whose recording is in it.
    With `rejudged_from`, an earlier run's id, no model is asked: its answers are in the store.
    """

    format_version: Literal[1] = FORMAT_VERSION
    run_id: str
    created_at: str
    task_count: int
    arms: tuple[Arm, ...]
    models: tuple[str, ...]
    pass_k: int
    skill_mode: SkillMode | None = None
    judge_model: str | None = None
    sandbox: Sandbox = "auto"
    fixtures: str | None = None
    replays: dict[str, str] = {}
    settings: ModelSettings = ModelSettings()
    budget_usd: float | None = None
    stop_early: Literal["verdict", "decision"] | None = None
    rejudged_from: str | None = None
    lane: str
    priority: Literal["high", "normal", "low"] = "normal"

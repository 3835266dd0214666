"""What workers are told: by a producer, a run's manifest and tasks; by their environment, how much to do at once.

Manifest and tasks live in Redis; job arguments hold ids only.

Attempts are numbered breadth first, so that a message needs only integers: attempt 1 of all tasks in all arms comes
first, then attempt 2, and so on; arms alternate fastest. A unit is a (task, model, arm); the same unit's attempts lie
`units` apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from aggregate.records.settings import Setting, SharedSettings
from judges.judgment import CHECKS, Sandbox
from judges.spec import MAX_CHECKS, JudgeSpec, OneJudge, Rubric, Threshold, unnamed
from workers.store.keys import PROTOCOL

DEFAULT_TIMEOUT_SECONDS = 300
MOST_ATTEMPTS = 10_000_000  # whoever ends or mends a run lists them
SkillMode = Literal["prepend", "mount"]
Network = Literal["provider", "open"]
# A host, with a port where it is not that of HTTP or HTTPS.
HOST = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[1-9][0-9]{0,4})?$"
Host = Annotated[str, Field(pattern=HOST)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Replies(_Message):
    """Files with what the simulated model says when it is to pass or to fail."""

    passing: Annotated[str | None, Field(alias="pass")] = None
    failing: Annotated[str | None, Field(alias="fail")] = None


class ChatMessage(_Message):
    """What one side of a conversation has said."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, StringConstraints(pattern=r"\S")]


def _asks(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    if not any(message.role == "user" for message in messages):
        raise ValueError("must hold a message whose role is user")
    return messages


class Task(_Message):
    """A prompt or a conversation, one judge or several checks. What is not used is nowhere written, as in digests."""

    id: str
    description: str = ""
    prompt: str
    messages: Annotated[
        tuple[ChatMessage, ...],
        Field(json_schema_extra={"minItems": 1}, exclude_if=lambda messages: not messages),
        AfterValidator(_asks),
    ] = ()
    judge: Annotated[
        Annotated[OneJudge, AfterValidator(unnamed)] | None, Field(exclude_if=lambda judge: judge is None)
    ] = None
    checks: Annotated[
        list[OneJudge],
        Field(min_length=1, max_length=MAX_CHECKS, exclude_if=lambda checks: not checks),
    ] = []
    threshold: Annotated[Threshold | None, Field(exclude_if=lambda threshold: threshold is None)] = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    tier: str | None = None
    tags: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    network: Annotated[tuple[Host, ...], Field(exclude_if=lambda hosts: not hosts)] = ()
    replies: Replies | None = None
    should_trigger: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt_of_messages(cls, value: Any) -> Any:
        """Messages have a text too, for judges, pages and estimates."""
        if not isinstance(value, dict) or "messages" not in value or "prompt" in value:
            return value
        messages = value["messages"] if isinstance(value["messages"], list) else []
        said = [f"{each.get('role')}: {each.get('content')}" for each in messages if isinstance(each, dict)]
        return {**value, "prompt": "\n\n".join(said) or "-"}

    @model_validator(mode="after")
    def _is_judged(self) -> Self:
        if (self.judge is None) != bool(self.checks):
            raise ValueError("must have either judge or checks")
        return self

    @property
    def judges(self) -> tuple[JudgeSpec, ...]:
        """The task's judge alone, or its checks."""
        return tuple(self.checks) if self.judge is None else (self.judge,)

    @property
    def judged_by(self) -> str:
        """The kind of the judge, in one word; tasks with several checks are a kind of their own."""
        return CHECKS if self.judge is None else self.judge.kind

    @property
    def leaves(self) -> list[JudgeSpec]:
        """All judges that look at the output, those included that others combine."""
        return [leaf for judge in self.judges for leaf in judge.leaves]

    @property
    def rubrics(self) -> list[Rubric]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Rubric)]


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
    trajectory: str | None = None
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    skill_folder: str | None = None
    skill_argv: tuple[str, ...] = ()
    model_argv: tuple[str, ...] = ()
    ok_exit_codes: tuple[int, ...] = (0,)
    busy_exit_codes: tuple[int, ...] = ()
    readable: tuple[str, ...] = ()
    hosts: Annotated[tuple[Host, ...], Field(exclude_if=lambda hosts: not hosts)] = ()
    agent: bool = True


class Price(_Message):
    """USD per million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_read: Annotated[float | None, Field(ge=0)] = None
    cache_write: Annotated[float | None, Field(ge=0)] = None


class Limits(_Message):
    """What one model may be asked, over all workers together; None is no limit."""

    rpm: Annotated[
        float | None,
        Field(gt=0),
        Setting("Limits and money", "Calls per minute to each model, over all workers together.", "NUMBER"),
    ] = None
    tpm: Annotated[
        float | None,
        Field(gt=0),
        Setting("Limits and money", "Tokens per minute of each model, over all workers.", "NUMBER"),
    ] = None
    max_in_flight: Annotated[
        int | None,
        Field(ge=1),
        Setting("Limits and money", "Calls at once to each model, over all workers.", "NUMBER"),
    ] = None

    @property
    def none(self) -> bool:
        """Whether the model may be asked as often as anybody likes."""
        return self.rpm is None and self.tpm is None and self.max_in_flight is None


NO_LIMITS = Limits()


class CallSettings(_Message):
    """The settings of a run that the clients of models need."""

    params: Annotated[
        dict[str, Any],
        Setting(
            "Models",
            "A parameter of the models, such as temperature=0 or max_tokens=2000; may repeat.",
            "KEY=VALUE",
            flag="--param",
        ),
    ] = {}
    tools: Annotated[
        tuple[str, ...] | None,
        Setting("Models", "Tools that claude-code may use, between commas; empty for none.", "LIST"),
    ] = None
    network: Annotated[
        Network,
        Setting(
            "Models",
            "What confined agents may reach: their provider and what a task names, or open (the internet).",
            "WHAT",
        ),
    ] = "provider"
    commands: Annotated[
        dict[str, CommandSpec], Setting("Models", "Programs that stand for models.", in_evaluate=False)
    ] = {}
    prices: Annotated[
        dict[str, Price],
        Setting(
            "Limits and money",
            "Per model: input, output, optionally cache_read and cache_write.",
            in_evaluate=False,
        ),
    ] = {}
    retry: Annotated[
        bool,
        Setting(
            "Limits and money",
            "Ask a busy or broken model once, not up to six times.",
            flag="--no-retry",
        ),
    ] = True


class ModelSettings(CallSettings):
    """How models are to be asked: sampling parameters, declared programs, prices and shared limits."""

    limits: dict[str, Limits] = {}
    default_limits: Limits = NO_LIMITS

    def limits_of(self, model: str) -> Limits:
        """A model's own limits, or the run's default ones."""
        return self.limits.get(model, self.default_limits)


class Cell(NamedTuple):
    """Where an attempt stands: positions of its task, model and arm in the manifest, and its number from 1."""

    task: int
    model: int
    arm: int
    number: int


@dataclass(frozen=True)
class Grid:
    """The sizes that fix every attempt's index."""

    tasks: int
    models: int
    arms: int
    pass_k: int

    @property
    def units(self) -> int:
        return self.tasks * self.models * self.arms

    @property
    def attempts(self) -> int:
        return self.units * self.pass_k

    def cell(self, index: int) -> Cell:
        if not 0 <= index < self.attempts:
            raise ValueError(f"attempt {index} is outside this run's {self.attempts} attempts")
        rest, arm = divmod(index, self.arms)
        rest, model = divmod(rest, self.models)
        number, task = divmod(rest, self.tasks)
        return Cell(task, model, arm, number + 1)

    def index(self, cell: Cell) -> int:
        return (
            ((cell.number - 1) * self.tasks + cell.task) * self.models + cell.model
        ) * self.arms + cell.arm


class WorkerSettings(SharedSettings):
    """The settings of a run that workers need, beside how models are called."""

    judge_model: Annotated[
        str | None,
        Setting("Models", "Model for llm-rubric judges.", "SPEC", default="the run's model"),
    ] = None
    skill_mode: Annotated[
        SkillMode | None,
        Setting(
            "Models",
            "prepend (the skill goes in front of the prompt) or mount (its folder is installed).",
            "MODE",
            default="mount for agents, else prepend",
        ),
    ] = None
    spare_checks: Annotated[
        bool,
        Setting(
            "Limits and money",
            "Ask no judge model once a required check that asks none has failed; such scores are missing.",
        ),
    ] = False
    trajectory: Annotated[
        Literal["all", "failed", "off"],
        Setting(
            "Output",
            "Keep the steps of all attempts, of those that failed, or of none (off): they hold what agents saw.",
            "WHICH",
        ),
    ] = "all"
    trajectory_mb: Annotated[
        float,
        Field(ge=0),
        Setting("Output", "How many MB of steps a run keeps on the server, compressed.", in_evaluate=False),
    ] = 256
    sandbox: Annotated[
        Sandbox,
        Setting(
            "Where it runs",
            "Confine code that judges and agents run: auto (where it works), required or off.",
            "WHEN",
        ),
    ] = "auto"
    priority: Annotated[
        Literal["high", "normal", "low"],
        Setting("Where it runs", "high, normal or low: whose batches a shared broker serves first.", "LEVEL"),
    ] = "normal"


_serves = partial(Setting, "Serving", in_evaluate=False)


class ServeSettings(_Message):
    """The settings of a worker: what it does for whoever can write to its broker."""

    serve_models: Annotated[
        tuple[str, ...] | None,
        _serves(
            "Only these models, judges' included: a kind such as anthropic, or a spec with *; may repeat.",
            "SPEC",
            "--serve-model",
            default="mock, sim, replay, programs of its own config, and those it has the program and the key for",
        ),
    ] = None
    serve_judges: Annotated[
        tuple[str, ...] | None,
        _serves("Only these judges, by type; may repeat.", "TYPE", "--serve-judge", default="all"),
    ] = None
    serve_base_urls: Annotated[
        tuple[str, ...],
        _serves(
            "Ask models at this address, too, beside the vendors'; may repeat.", "URL", "--serve-base-url"
        ),
    ] = ()
    serve_hosts: Annotated[
        tuple[str, ...],
        _serves("A host that runs may open to agents; * is all of them; may repeat.", "HOST", "--serve-host"),
    ] = ()
    least_sandbox: Annotated[
        Sandbox,
        _serves("The least sandbox: required also holds for runs with auto; off takes any run.", "WHEN"),
    ] = "auto"
    largest_bundle_mb: Annotated[
        float, Field(gt=0), _serves("The largest skill, or fixtures of a suite, unpacked.", "NUMBER")
    ] = 64
    largest_run: Annotated[int, Field(ge=1), _serves("The most attempts of a run.", "NUMBER")] = 1_000_000


class Policy(ServeSettings):
    """What a worker process is told of it, with the programs that its own config declares."""

    commands: dict[str, CommandSpec] = {}


class Manifest(WorkerSettings):
    """All that workers need to know of a run, apart from its tasks, which are fetched one by one.

    `fixtures` is a bundle's digest. With `rejudged_from`, an earlier run's id, no model is asked: its answers are in
    the store, as those of `replay:` models always are; with `has_answers`, so are some of this run.
    """

    format_version: Literal[4] = PROTOCOL
    run_id: str
    created_at: str
    task_count: Annotated[int, Field(ge=1)]
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]
    fixtures: str | None = None
    settings: ModelSettings = ModelSettings()
    rejudged_from: str | None = None
    has_answers: bool = False
    lane: str

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.grid.attempts > MOST_ATTEMPTS:
            raise ValueError(f"must not have more than {MOST_ATTEMPTS:,} attempts")
        return self

    @property
    def grid(self) -> Grid:
        """The sizes that number the run's attempts."""
        return Grid(self.task_count, len(self.models), len(self.arms), self.pass_k)

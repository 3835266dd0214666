"""Model clients: one file a kind, all with the same shape, so that an attempt does not know whom it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from judges.judgment import Completion, Sandbox
from workers.messages import Task

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
KINDS = ("claude-code", "anthropic:", "openai:", "command:", "mock", "sim", "replay:")


class ModelError(Exception):
    """The model gave no answer."""


class ModelFailed(ModelError):
    """Asking again will not help: wrong key, unknown model, refused request.

    `hopeless` means that no other attempt of this model can succeed either.
    """

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class ModelBusy(ModelError):
    """Asking again later may help: rate limit, overload, dropped connection."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelTimedOut(TimeoutError):
    """An agent was stopped at its deadline; `completion` holds what it had said and spent by then."""

    def __init__(self, completion: Completion) -> None:
        super().__init__("stopped at its deadline")
        self.completion = completion


@dataclass(frozen=True)
class Request:
    """One question, with what agents and simulated models need beside the prompt.

    `prompt` already holds the skill's text in prepend mode; `skill` is the folder to mount in mount mode.
    `workspace` is the agent's working folder and holds the task's files.
    """

    prompt: str
    system: str = ""
    task: Task | None = None
    arm: str = ""
    attempt: int = 1
    earlier_errors: int = 0
    skill: Path | None = None
    workspace: Path | None = None
    suite: Path | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 300.0
    sandbox: Sandbox = "auto"


class Model(Protocol):
    """Anything that completes a request. `agent` models run a program of their own and mount skills."""

    agent: bool

    async def complete(self, request: Request) -> Completion: ...

    async def close(self) -> None: ...

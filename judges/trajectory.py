"""What an attempt did, step by step: the shape of a trajectory, and what can be counted in one.

Steps are in the order in which they came. Tool calls are numbered through the whole trajectory, by us: a step of a
sub-agent names the call that it works for (`within`), which is always an earlier one, so that nesting has an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from judges.judgment import AttemptPart, Count, Seconds, Usd

MOST_NAMES = 50
OTHER = "(other)"


class ToolCall(AttemptPart):
    """One use of a tool; `result` is None where none came, as in an attempt that was killed."""

    number: Annotated[int, Field(ge=1)]
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str | None = None
    failed: bool = False


class Step(AttemptPart):
    """What one side said; of the agent, most often one call of a model.

    `skill_at` is the place in the text where the skill's text stood, from its character `skill_from` on: it is kept
    once for all attempts.
    """

    source: Literal["system", "user", "agent"]
    text: str = ""
    skill_at: int | None = None
    skill_from: int = 0
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    within: int | None = None
    at: str | None = None
    seconds: Seconds = None
    model: str | None = None
    stop_reason: str | None = None
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_tokens: Count = None
    cache_write_tokens: Count = None
    reasoning_tokens: Count = None
    cost_usd: Usd = None


class Trajectory(AttemptPart):
    """One attempt's steps; `skill` is the digest of the skill's text, and `left_out` counts steps that are not kept.

    An attempt that was stopped from outside has not `ended` by itself.
    """

    agent: str = ""
    version: str | None = None
    ended: bool = True
    left_out: int = 0
    skill: str | None = None
    steps: tuple[Step, ...] = ()

    @property
    def calls(self) -> Iterator[ToolCall]:
        for step in self.steps:
            yield from step.calls

    @property
    def stop_reason(self) -> str | None:
        """How the last answer of the agent itself ended."""
        told = (step.stop_reason for step in reversed(self.steps) if step.within is None)
        return next(filter(None, told), None)

    def sum(self, field: str) -> float | None:
        """A sum over the steps that tell; None where none does."""
        told = [value for step in self.steps if (value := getattr(step, field)) is not None]
        return sum(told) if told else None

    def facts(self) -> dict[str, Any]:
        """What the attempt's record tells of its steps."""
        tools = _counted(call.name for call in self.calls)
        errors = _counted(call.name for call in self.calls if call.failed)
        return {
            "tool_calls": tools,
            "tool_errors": errors,
            "stop_reason": self.stop_reason,
            "reasoning_tokens": self.sum("reasoning_tokens"),
        }

    def with_skill(self, text: str) -> Trajectory:
        """The trajectory with the skill's text where it stood."""
        return self.model_copy(update={"steps": tuple(_filled(step, text) for step in self.steps)})


def _filled(step: Step, skill: str) -> Step:
    if step.skill_at is None:
        return step
    text = step.text[: step.skill_at] + skill[step.skill_from :] + step.text[step.skill_at :]
    return step.model_copy(update={"text": text, "skill_at": None, "skill_from": 0})


def _counted(names: Iterator[str]) -> dict[str, int]:
    """How often each name comes, the most frequent first; a model can invent any number of names."""
    counts = Counter(names).most_common()
    others = sum(count for _, count in counts[MOST_NAMES:])
    return dict(counts[:MOST_NAMES]) | ({OTHER: others} if others else {})

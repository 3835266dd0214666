"""Take apart a model's name, such as `anthropic:NAME` or `sim:candidate=0.8`: what kind it is, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast, get_args

from judges.errors import UpliftError
from judges.safe_text import did_you_mean
from judges.spec import Rubric
from workers.models import sim
from workers.store.messages import Task

Kind = Literal["claude-code", "anthropic", "openai", "command", "mock", "sim", "replay"]
KINDS = ("claude-code", "anthropic:", "openai:", "command:", "mock", "sim", "replay:")
_NEEDS_NAME = ("anthropic", "openai", "command", "replay")


class UnknownModel(UpliftError, ValueError):
    """A model spec that names no model; the message says what is allowed."""


@dataclass(frozen=True)
class ModelSpec:
    """A spec taken apart: what kind of client, and the name or settings after the colon."""

    kind: Kind
    name: str = ""

    @property
    def program(self) -> str:
        """Of a `command:PROGRAM:MODEL`, what the config or a preset declares."""
        return self.name.partition(":")[0]


@lru_cache(maxsize=256)
def parse(spec: str) -> ModelSpec:
    """Take a spec apart and check all of it that needs no config; raises UnknownModel."""
    word, colon, name = spec.partition(":")
    if word not in get_args(Kind):
        hint = did_you_mean(word, get_args(Kind))
        raise UnknownModel(f"unknown model {spec!r}; known kinds: {', '.join(KINDS)}{hint}")
    kind = cast(Kind, word)
    if kind in _NEEDS_NAME and not name.strip():
        raise UnknownModel(f"model {spec!r} lacks a name; write {kind}:{_example(kind)}")
    if colon and (not name.strip() or name.endswith(":")):
        raise UnknownModel(f"model {spec!r} ends in a colon; write {kind} or {kind}:{_example(kind)}")
    if kind == "mock" and name:
        raise UnknownModel(f"model {spec!r}: mock takes no name; write mock")
    if kind == "sim":
        try:
            sim.parse(name)
        except ValueError as problem:
            raise UnknownModel(f"model {spec!r}: {problem}") from None
    return ModelSpec(kind, name)


def is_simulated(spec: str) -> bool:
    """Whether no real model answers, so that the numbers say nothing about a skill."""
    return parse(spec).kind in ("mock", "sim")


def graders(task: Task, spec: str, judge_model: str | None) -> list[str]:
    """The models that judge an answer of `spec`, one call each; none where the answer itself is not real."""
    if not isinstance(task.judge, Rubric) or is_simulated(spec):
        return []
    return [judge or judge_model or spec for judge in task.judge.judges or [""]]


def asked(
    models: Sequence[str], tasks: Iterable[Task], judge_model: str | None, *, rejudged: bool = False
) -> list[str]:
    """Every model that a run asks, its judges' included; a run that only judges again asks no other."""
    judging = {judge for task in tasks for spec in models for judge in graders(task, spec, judge_model)}
    return list(dict.fromkeys([*(() if rejudged else models), *sorted(judging)]))


def _example(kind: Kind) -> str:
    return {"command": "codex", "replay": "records.jsonl", "sim": "candidate=0.8"}.get(kind, "MODEL")

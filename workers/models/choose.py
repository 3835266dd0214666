"""Turn a model's spec, such as `anthropic:NAME` or `sim:candidate=0.8`, into the client that asks it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, assert_never, cast, get_args

from judges.spec import Rubric
from workers.messages import ModelSettings, Task
from workers.models import KINDS, Model

Kind = Literal["claude-code", "anthropic", "openai", "command", "mock", "sim", "replay"]
_NEEDS_NAME = ("anthropic", "openai", "command", "replay")


class UnknownModel(ValueError):
    """A model spec that names no model; the message says what is allowed."""


@dataclass(frozen=True)
class ModelSpec:
    """A spec taken apart: what kind of client, and the name or settings after the colon."""

    kind: Kind
    name: str = ""


@lru_cache(maxsize=256)
def parse(spec: str) -> ModelSpec:
    """Take a spec apart and check all of it that needs no config; raises UnknownModel."""
    word, colon, name = spec.partition(":")
    if word not in get_args(Kind):
        raise UnknownModel(f"unknown model {spec!r}; {_suggestion(word)}known kinds: {', '.join(KINDS)}")
    kind = cast(Kind, word)
    if kind in _NEEDS_NAME and not name.strip():
        raise UnknownModel(f"model {spec!r} lacks a name; write {kind}:{_example(kind)}")
    if colon and not name.strip():
        raise UnknownModel(f"model {spec!r} ends in a colon; write {kind} or {kind}:{_example(kind)}")
    if kind == "mock" and name:
        raise UnknownModel(f"model {spec!r}: mock takes no name; write mock")
    if kind == "sim":
        from workers.models import sim

        try:
            sim.parse(name)
        except ValueError as problem:
            raise UnknownModel(f"model {spec!r}: {problem}") from None
    return ModelSpec(kind, name)


def model_for(spec: str, settings: ModelSettings) -> Model:
    """The client for a spec; vendors' SDKs are imported only here, only when asked for.

    Raises UnknownModel for a bad spec, ModelFailed for a missing extra or an unreadable replay.
    """
    parsed = parse(spec)
    match parsed.kind:
        case "mock":
            from workers.models.mock import Mock

            return Mock()
        case "sim":
            from workers.models import sim

            return sim.Sim(sim.parse(parsed.name))
        case "replay":
            from workers.models import replay

            return replay.load(Path(settings.replays.get(spec, parsed.name)))
        case "anthropic":
            from workers.models.anthropic_api import Anthropic

            return Anthropic(parsed.name, settings)
        case "openai":
            from workers.models.openai_api import OpenAI

            return OpenAI(parsed.name, settings)
        case "command":
            from workers.models.command import Command, declared

            return Command(parsed.name, declared(parsed.name, settings), settings)
        case "claude-code":
            from workers.models.claude_code import ClaudeCode

            return ClaudeCode(parsed.name, settings)
        case _:
            assert_never(parsed.kind)


def is_agent(spec: str, settings: ModelSettings) -> bool:
    """Whether the model is a program with a workspace, so that skills are mounted and cores bound it."""
    parsed = parse(spec)
    if parsed.kind == "command":
        from workers.models.command import declared

        return declared(parsed.name, settings).agent
    return parsed.kind == "claude-code"


def mounts_skills(spec: str, settings: ModelSettings) -> bool:
    """Whether the model can be given a skill's folder; the others get its text in front of the prompt."""
    parsed = parse(spec)
    if parsed.kind == "command":
        from workers.models.command import declared, mounts

        return mounts(declared(parsed.name, settings))
    return parsed.kind == "claude-code"


def agent_version(spec: str) -> str | None:
    """The version of the program behind a model, where one is installed here; answers depend on it."""
    if parse(spec).kind != "claude-code":
        return None
    from workers.models import claude_code

    return claude_code.version()


def is_simulated(spec: str) -> bool:
    """Whether no real model answers, so that the numbers say nothing about a skill."""
    return parse(spec).kind in ("mock", "sim")


def graders(task: Task, spec: str, judge_model: str | None) -> list[str]:
    """The models that judge an answer of `spec`, one call each; none where the answer itself is not real."""
    if not isinstance(task.judge, Rubric) or is_simulated(spec):
        return []
    return [judge or judge_model or spec for judge in task.judge.judges or [""]]


def _suggestion(word: str) -> str:
    close = difflib.get_close_matches(word, get_args(Kind), n=1)
    return f"did you mean {close[0]}? " if close else ""


def _example(kind: Kind) -> str:
    return {"command": "codex", "replay": "records.jsonl", "sim": "candidate=0.8"}.get(kind, "MODEL")

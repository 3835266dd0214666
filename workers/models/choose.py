"""Turn a model's spec, such as `anthropic:NAME` or `sim:candidate=0.8`, into the client that asks it."""

from __future__ import annotations

from typing import assert_never

from workers.models.model import UNBILLED, Model, ModelFailed
from workers.models.names import parse
from workers.store.messages import ModelSettings


def model_for(spec: str, settings: ModelSettings) -> Model:
    """The client for a spec; vendors' SDKs are imported only here, only when asked for.

    Raises UnknownModel for a bad spec, ModelFailed for a missing extra or a recording that is to judge.
    """
    parsed = parse(spec)
    match parsed.kind:
        case "mock":
            from workers.models.sim import Mock

            return Mock()
        case "sim":
            from workers.models import sim

            return sim.Sim(sim.parse(parsed.name))
        case "replay":
            # Its answers to tasks are in the store; whoever judges asks something that no recording holds.
            raise ModelFailed(f"{parsed.name} holds no completion of what a judge asks", completion=UNBILLED)
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

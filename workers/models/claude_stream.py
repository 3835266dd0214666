"""Read what `claude -p --output-format stream-json` writes, line by line: text, tokens, turns, tools, errors.

Whether a run failed is decided by `is_error`: API errors come with subtype "success" and odd exit codes.
A run that is killed leaves no result, so everything is also collected on the way.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from judges.judgment import Completion
from workers.models import ModelError, ModelFailed
from workers.models.http_status import HOPELESS
from workers.models.output import message
from workers.models.process import Finished

_NO_ACCESS = ("Invalid API key", "There's an issue with the selected model", "Credit balance is too low")


class Stream:
    """One run's events so far."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.skill_invoked = False
        self.result: dict[str, Any] | None = None
        self.hopeless_status: int | None = None
        self._said = ""
        self._messages: dict[str, dict[str, Any]] = {}

    def read(self, line: bytes) -> bool:
        """Take one line in; True when the run cannot succeed any more and need not go on."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict):
            return False
        kind = event.get("type")
        if kind == "system":
            self._system(event)
        elif kind == "assistant" and isinstance(event.get("message"), dict):
            self._assistant(event["message"])
        elif kind == "result":
            self.result = event
        return self.hopeless_status is not None

    def _system(self, event: dict[str, Any]) -> None:
        if event.get("subtype") == "init" and isinstance(event.get("claude_code_version"), str):
            self.version = event["claude_code_version"]
        # The CLI would try a wrong key again and again.
        if event.get("subtype") == "api_retry" and event.get("error_status") in HOPELESS:
            self.hopeless_status = event["error_status"]

    def _assistant(self, said: dict[str, Any]) -> None:
        if isinstance(said.get("id"), str):
            self._messages[said["id"]] = said
        blocks = said.get("content")
        for block in blocks if isinstance(blocks, list) else []:
            if isinstance(block, dict) and block.get("type") == "text":
                self._said = str(block.get("text", ""))
            if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("name") == "Skill":
                self.skill_invoked = True

    @property
    def text(self) -> str:
        """The final answer; of a run that did not get there, the last thing said."""
        final = self.result.get("result") if self.result else None
        return final if isinstance(final, str) else self._said

    @property
    def turns(self) -> int | None:
        counted = self.result.get("num_turns") if self.result else len(self._messages)
        return counted if isinstance(counted, int) else None

    @property
    def unfinished(self) -> bool:
        """Whether the answer was cut: out of turns, out of tokens, or stopped from outside."""
        return self.result is None or self._out_of_turns or self.result.get("stop_reason") == "max_tokens"

    @property
    def _out_of_turns(self) -> bool:
        return self.result is not None and self.result.get("subtype") == "error_max_turns"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Tools that were denied: such a run ends well, but could not do what it wanted."""
        denials = self.result.get("permission_denials") if self.result else None
        names = [str(one.get("tool_name")) for one in denials or [] if isinstance(one, dict)]
        return tuple(
            f"tool {name} was denied {times} times" for name, times in sorted(Counter(names).items())
        )

    @property
    def used(self) -> dict[str, Completion]:
        """Tokens by model; without a result, outputs are unknown: the stream tells only how they began."""
        usage = self.result.get("modelUsage") if self.result else None
        if isinstance(usage, dict):
            return {
                model: _counted(one, _RESULT_NAMES) for model, one in usage.items() if isinstance(one, dict)
            }
        inputs: dict[str, Completion] = {}
        for said in self._messages.values():
            model, counts = str(said.get("model")), said.get("usage")
            if isinstance(counts, dict):
                one = _counted({**counts, "output_tokens": None}, _MESSAGE_NAMES)
                inputs[model] = _added(inputs[model], one) if model in inputs else one
        return inputs

    def error(self, finished: Finished) -> ModelError | None:
        """Why the run gave no answer, or None where it did; one that ran out of turns is to be judged."""
        if self.result is None and self.hopeless_status is None:
            how = f"exit code {finished.exit_code}"
            return ModelFailed(message(f"claude ended without a result ({how}): {finished.errors}"))
        if self.result is not None and (not self.result.get("is_error") or self._out_of_turns):
            return None
        status = self.hopeless_status or (self.result or {}).get("api_error_status")
        hopeless = status in HOPELESS or any(sign in self.text for sign in _NO_ACCESS)
        told = self.text or str((self.result or {}).get("errors", ""))
        return ModelFailed(
            message(f"claude failed{f' with HTTP {status}' if status else ''}: {told}"), hopeless=hopeless
        )


_RESULT_NAMES = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_MESSAGE_NAMES = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _counted(usage: dict[str, Any], names: tuple[str, str, str, str]) -> Completion:
    """Token counts with cached input added to the input, which the CLI leaves out of it."""
    plain, output, read, written = (
        value if isinstance(value := usage.get(name), int) and value >= 0 else None for name in names
    )
    whole = None if plain is None else plain + (read or 0) + (written or 0)
    return Completion(
        input_tokens=whole, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written
    )


def _added(one: Completion, other: Completion) -> Completion:
    return Completion(
        input_tokens=(one.input_tokens or 0) + (other.input_tokens or 0),
        cache_read_tokens=(one.cache_read_tokens or 0) + (other.cache_read_tokens or 0),
        cache_write_tokens=(one.cache_write_tokens or 0) + (other.cache_write_tokens or 0),
    )

"""Ask OpenAI's Chat Completions API, or any server that speaks it, through the SDK (extra `openai`)."""

from __future__ import annotations

import os
from typing import Any

import openai

from workers.models.http import SdkModel
from workers.models.model import count, named
from workers.models.prices import provider_cost


class OpenAI(SdkModel):
    """A model of OpenAI's, or of any server that speaks its protocol."""

    kind = "openai"
    text_holder = "choice"
    sdk = openai

    def _base_url(self) -> str | None:
        return self.settings.params.get("base_url") or os.environ.get("OPENAI_BASE_URL") or None

    def _client(self, **shared: Any) -> openai.AsyncOpenAI:
        # Servers of one's own often want no key, but the SDK wants something to send.
        key = os.environ.get("OPENAI_API_KEY") or ("none" if self._base_url() else None)
        return openai.AsyncOpenAI(api_key=key, base_url=self._base_url(), **shared)

    async def _send(self, client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> Any:
        return await client.chat.completions.with_raw_response.create(**arguments)

    def _arguments(self, params: dict[str, Any], messages: list[dict[str, str]]) -> dict[str, Any]:
        system = params.pop("system", None)
        before = [{"role": "system", "content": system}] if system else []
        arguments: dict[str, Any] = {"messages": [*before, *messages]}
        if (max_tokens := params.pop("max_tokens", None)) is not None:
            # OpenAI's newer models refuse the old name; other servers often know only that one.
            arguments["max_tokens" if self._base_url() else "max_completion_tokens"] = max_tokens
        return arguments

    def _text(self, answer: dict[str, Any]) -> str | None:
        said = _choice(answer).get("message")
        if not isinstance(said, dict):
            return None
        # A refusal is an answer too, and the judge is to see it.
        words = said.get("content") or said.get("refusal")
        return words if isinstance(words, str) else ""

    def _is_cut(self, answer: dict[str, Any]) -> bool:
        return _choice(answer).get("finish_reason") == "length"

    def _stop_reason(self, answer: dict[str, Any]) -> str | None:
        return named(_choice(answer).get("finish_reason"))

    def _reasoning(self, answer: dict[str, Any]) -> str:
        """What some servers that speak this protocol tell of the model's thoughts; OpenAI's own does not."""
        said = _choice(answer).get("message")
        told = said.get("reasoning_content") if isinstance(said, dict) else None
        return told if isinstance(told, str) else ""

    def _usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Token counts and cost; OpenAI's input count holds cached tokens already, as ours does."""
        details = usage.get("prompt_tokens_details")
        thoughts = usage.get("completion_tokens_details")
        amount = provider_cost(usage)
        return {
            "input_tokens": count(usage.get("prompt_tokens")),
            "output_tokens": count(usage.get("completion_tokens")),
            "cache_read_tokens": count(details.get("cached_tokens")) if isinstance(details, dict) else None,
            "reasoning_tokens": count(thoughts.get("reasoning_tokens"))
            if isinstance(thoughts, dict)
            else None,
            "cost_usd": amount,
            "cost_source": None if amount is None else "provider",
        }


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}

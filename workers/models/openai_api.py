"""Ask OpenAI's Chat Completions API, or any server that speaks it, through the SDK (extra `openai`)."""

from __future__ import annotations

import os
from typing import Any

from judges.judgment import Completion
from workers.models.model import ModelFailed, Request, capped, message, named
from workers.models.needs import how_to_install
from workers.models.prices import provider_cost

try:
    import openai

    from workers.models import http as api
except ImportError as missing:
    raise ModelFailed(
        f"openai: {missing.name} is not installed; install it where workers run: {how_to_install('openai')}",
        hopeless=True,
    ) from None


class OpenAI(api.SdkModel):
    """A model of OpenAI's, or of any server that speaks its protocol."""

    kind = "openai"
    sdk = openai

    def _base_url(self) -> str | None:
        return self.settings.params.get("base_url") or os.environ.get("OPENAI_BASE_URL") or None

    def _client(self, **shared: Any) -> openai.AsyncOpenAI:
        # Servers of one's own often want no key, but the SDK wants something to send.
        key = os.environ.get("OPENAI_API_KEY") or ("none" if self._base_url() else None)
        return openai.AsyncOpenAI(api_key=key, base_url=self._base_url(), **shared)

    async def _send(self, client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> Any:
        return await client.chat.completions.with_raw_response.create(**arguments)

    def _arguments(self, request: Request) -> dict[str, Any]:
        params = api.parameters(self.settings, request)
        params.pop("base_url", None)
        messages = [{"role": "user", "content": request.prompt}]
        if system := params.pop("system", None):
            messages.insert(0, {"role": "system", "content": system})
        arguments: dict[str, Any] = {"model": self.name, "messages": messages}
        if (max_tokens := params.pop("max_tokens", None)) is not None:
            # OpenAI's newer models refuse the old name; other servers often know only that one.
            arguments["max_tokens" if self._base_url() else "max_completion_tokens"] = max_tokens
        # The SDK's signature changes with the models; what a server does not know it refuses by name.
        return {**arguments, "extra_body": params} if params else arguments

    def _reason(self, body: Any) -> str | None:
        # The SDK has already unwrapped the error object.
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            return f"{body.get('code') or body.get('type') or 'error'}: {body['message']}"
        return None

    def _completion(self, body: bytes) -> tuple[Completion, str | None]:
        """An answer, and what is wrong with one that is billed but holds none.

        OpenAI's input count holds cached tokens already, as ours does.
        """
        answer, cut = api.read(body)
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        said = choice.get("message") if isinstance(choice, dict) else None
        unusable = None
        if not isinstance(choice, dict) or not isinstance(said, dict):
            unusable = f"unreadable answer: no choice in {message(str(answer))}"
            choice, said = {}, {}
        # A refusal is an answer too, and the judge is to see it.
        words = said.get("content") or said.get("refusal") or ""
        text, capped_off = capped(words if isinstance(words, str) else "")
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        amount = provider_cost(usage)
        completion = Completion(
            text=text,
            truncated=cut or capped_off or choice.get("finish_reason") == "length",
            input_tokens=api.count(usage.get("prompt_tokens")),
            output_tokens=api.count(usage.get("completion_tokens")),
            cache_read_tokens=api.count(details.get("cached_tokens")) if isinstance(details, dict) else None,
            cost_usd=amount,
            cost_source=None if amount is None else "provider",
            turns=1,
            served_model=named(answer.get("model")),
        )
        return completion, unusable

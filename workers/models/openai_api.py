"""Ask OpenAI's Chat Completions API, or any server that speaks it, through the SDK (extra `openai`)."""

from __future__ import annotations

import os
from typing import Any

from judges.judgment import Completion
from workers.messages import ModelSettings
from workers.models import ModelBusy, ModelFailed, Request
from workers.models.http_status import status_error
from workers.models.output import capped, message
from workers.models.prices import priced, provider_cost

try:
    import openai

    from workers.models import api
    from workers.models.api import Transport
except ImportError as missing:
    raise ModelFailed(
        f"openai: {missing.name} is not installed; install the extra: pip install '.[openai]'",
        hopeless=True,
    ) from None

NO_KEY = "openai has no key; set OPENAI_API_KEY where the worker runs"


class OpenAI:
    """One client and its connections, for one model; use it on one event loop only."""

    agent = False

    def __init__(self, name: str, settings: ModelSettings, *, transport: Transport = "aiohttp") -> None:
        self.name = name
        self.settings = settings
        self.transport = transport
        self._client: openai.AsyncOpenAI | None = None

    async def complete(self, request: Request) -> Completion:
        arguments = self._arguments(request)
        try:
            client = self._connected()
            response = await client.chat.completions.with_raw_response.create(**arguments)
        except openai.APIStatusError as refused:
            raise status_error(refused.status_code, _reason(refused), refused.response.headers) from None
        except openai.APIConnectionError as broken:
            raise ModelBusy(message(f"no connection: {broken.__cause__ or broken}")) from None
        except (openai.OpenAIError, TypeError, ValueError) as wrong:
            text = f"{type(wrong).__name__}: {wrong}" if has_key() or self._base_url() else NO_KEY
            raise ModelFailed(message(text), hopeless=True) from None
        return priced(_completion(response.http_response.content), f"openai:{self.name}", self.settings)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _base_url(self) -> str | None:
        return self.settings.params.get("base_url") or os.environ.get("OPENAI_BASE_URL") or None

    def _connected(self) -> openai.AsyncOpenAI:
        """The client, made at the first call so that its connections belong to the running loop."""
        if self._client is None:
            make = openai.DefaultAioHttpClient
            if self.transport == "httpx":
                make = openai.DefaultAsyncHttpxClient
            http = make(timeout=api.TIMEOUT, limits=api.LIMITS, event_hooks=api.HOOKS)
            # Servers of one's own often want no key, but the SDK wants something to send.
            key = os.environ.get("OPENAI_API_KEY") or ("none" if self._base_url() else None)
            self._client = openai.AsyncOpenAI(
                api_key=key,
                base_url=self._base_url(),
                max_retries=0,
                timeout=api.TIMEOUT,
                http_client=http,
                default_headers=api.HEADERS,
            )
        return self._client

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


def has_key() -> bool:
    """Whether the environment holds something to sign requests with."""
    return bool(os.environ.get("OPENAI_API_KEY"))


def _reason(refused: openai.APIStatusError) -> str:
    # The SDK has already unwrapped the error object.
    body = refused.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return f"{body.get('code') or body.get('type') or 'error'}: {body['message']}"
    return refused.message


def _completion(body: bytes) -> Completion:
    """Read an answer; OpenAI's input count holds cached tokens already, as ours does."""
    answer, cut = api.read(body)
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(said, dict):
        raise ModelFailed(f"unreadable answer: no choice in {message(str(answer))}")
    # A refusal is an answer too, and the judge is to see it.
    words = said.get("content") or said.get("refusal") or ""
    text, capped_off = capped(words if isinstance(words, str) else "")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    amount = provider_cost(usage)
    return Completion(
        text=text,
        truncated=cut or capped_off or choice.get("finish_reason") == "length",
        input_tokens=api.count(usage.get("prompt_tokens")),
        output_tokens=api.count(usage.get("completion_tokens")),
        cache_read_tokens=api.count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        cost_usd=amount,
        cost_source=None if amount is None else "provider",
        turns=1,
    )

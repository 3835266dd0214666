"""Ask Anthropic's Messages API through the vendor's SDK (extra `anthropic`)."""

from __future__ import annotations

import os
from typing import Any

from judges.judgment import Completion
from workers.messages import ModelSettings
from workers.models import ModelBusy, ModelFailed, Request
from workers.models.http_status import status_error
from workers.models.output import capped, message
from workers.models.prices import priced

try:
    import anthropic

    from workers.models import api
    from workers.models.api import Transport
except ImportError as missing:
    raise ModelFailed(
        f"anthropic: {missing.name} is not installed; install the extra: pip install '.[anthropic]'",
        hopeless=True,
    ) from None

DEFAULT_MAX_TOKENS = 8192
NO_KEY = "anthropic has no key; set ANTHROPIC_API_KEY where the worker runs"


class Anthropic:
    """One client and its connections, for one model; use it on one event loop only."""

    agent = False

    def __init__(self, name: str, settings: ModelSettings, *, transport: Transport = "aiohttp") -> None:
        self.name = name
        self.settings = settings
        self.transport = transport
        self._client: anthropic.AsyncAnthropic | None = None

    async def complete(self, request: Request) -> Completion:
        arguments = self._arguments(request)
        try:
            client = self._connected()
            response = await client.messages.with_raw_response.create(**arguments)
        except anthropic.APIStatusError as refused:
            raise status_error(refused.status_code, _reason(refused), refused.response.headers) from None
        except anthropic.APIConnectionError as broken:
            raise ModelBusy(message(f"no connection: {broken.__cause__ or broken}")) from None
        except (anthropic.AnthropicError, TypeError, ValueError) as wrong:
            # Without a key the SDK raises TypeError before it sends anything, and does not name the variable.
            text = f"{type(wrong).__name__}: {wrong}" if has_key() else NO_KEY
            raise ModelFailed(message(text), hopeless=True) from None
        return priced(_completion(response.http_response.content), f"anthropic:{self.name}", self.settings)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _connected(self) -> anthropic.AsyncAnthropic:
        """The client, made at the first call so that its connections belong to the running loop."""
        if self._client is None:
            make = anthropic.DefaultAioHttpClient
            if self.transport == "httpx":
                make = anthropic.DefaultAsyncHttpxClient
            http = make(timeout=api.TIMEOUT, limits=api.LIMITS, event_hooks=api.HOOKS)
            self._client = anthropic.AsyncAnthropic(
                base_url=self.settings.params.get("base_url"),
                max_retries=0,
                timeout=api.TIMEOUT,
                http_client=http,
                default_headers=api.HEADERS,
            )
        return self._client

    def _arguments(self, request: Request) -> dict[str, Any]:
        params = api.parameters(self.settings, request)
        # The Messages API has no seed, but one run may ask several vendors with the same parameters.
        for ours in ("base_url", "seed"):
            params.pop(ours, None)
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": params.pop("max_tokens", DEFAULT_MAX_TOKENS),
        }
        # The SDK's signature changes with the models; what the API does not know it refuses by name.
        return {**arguments, "extra_body": params} if params else arguments


def has_key() -> bool:
    """Whether the environment holds something to sign requests with."""
    return any(os.environ.get(name) for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))


def _reason(refused: anthropic.APIStatusError) -> str:
    body = refused.body
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return f"{error.get('type', 'error')}: {error['message']}"
    return refused.message


def _completion(body: bytes) -> Completion:
    """Read an answer; Anthropic's input count leaves out cached tokens, ours counts all."""
    answer, cut = api.read(body)
    blocks = answer.get("content")
    if not isinstance(blocks, list):
        raise ModelFailed(f"unreadable answer: no content in {message(str(answer))}")
    said = [
        block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    text, capped_off = capped("".join(said))
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    read = api.count(usage.get("cache_read_input_tokens"))
    written = api.count(usage.get("cache_creation_input_tokens"))
    plain = api.count(usage.get("input_tokens"))
    return Completion(
        text=text,
        truncated=cut or capped_off or answer.get("stop_reason") == "max_tokens",
        input_tokens=None if plain is None else plain + (read or 0) + (written or 0),
        output_tokens=api.count(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        turns=1,
    )

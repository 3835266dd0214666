"""Ask Anthropic's Messages API through the vendor's SDK (extra `anthropic`)."""

from __future__ import annotations

from typing import Any

from judges.judgment import Completion
from workers.models.model import CUT, ModelFailed, Request, capped, message, named
from workers.models.needs import how_to_install

try:
    import anthropic

    from workers.models import http as api
except ImportError as missing:
    raise ModelFailed(
        f"anthropic: {missing.name} is not installed; install it where workers run: {how_to_install('anthropic')}",
        hopeless=True,
    ) from None

DEFAULT_MAX_TOKENS = 8192


class Anthropic(api.SdkModel):
    """A model of Anthropic's."""

    kind = "anthropic"
    sdk = anthropic

    def _client(self, **shared: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.settings.params.get("base_url"), **shared)

    async def _send(self, client: anthropic.AsyncAnthropic, arguments: dict[str, Any]) -> Any:
        return await client.messages.with_raw_response.create(**arguments)

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

    def _reason(self, body: Any) -> str | None:
        error = body.get("error") if isinstance(body, dict) else None
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return f"{error.get('type', 'error')}: {error['message']}"
        return None

    def _completion(self, body: bytes) -> tuple[Completion, str | None]:
        """An answer, and what is wrong with one that is billed but holds none.

        Anthropic's input count leaves out cached tokens, ours counts all.
        """
        answer, cut = api.read(body)
        blocks = answer.get("content")
        unusable = (
            None if isinstance(blocks, list) else f"unreadable answer: no content in {message(str(answer))}"
        )
        said = [
            block["text"]
            for block in (blocks if isinstance(blocks, list) else [])
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        ]
        text, capped_off = capped("".join(said))
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        read = api.count(usage.get("cache_read_input_tokens"))
        written = api.count(usage.get("cache_creation_input_tokens"))
        plain = api.count(usage.get("input_tokens"))
        completion = Completion(
            text=text,
            truncated=cut or capped_off or answer.get("stop_reason") in CUT,
            input_tokens=None if plain is None else plain + (read or 0) + (written or 0),
            output_tokens=api.count(usage.get("output_tokens")),
            cache_read_tokens=read,
            cache_write_tokens=written,
            turns=1,
            served_model=named(answer.get("model")),
        )
        return completion, unusable

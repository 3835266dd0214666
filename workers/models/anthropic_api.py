"""Ask Anthropic's Messages API through the vendor's SDK (extra `anthropic`)."""

from __future__ import annotations

from typing import Any

import anthropic

from workers.models.http import SdkModel
from workers.models.model import CUT, named, tokens
from workers.models.prices import DEFAULT_MAX_TOKENS


class Anthropic(SdkModel):
    """A model of Anthropic's."""

    kind = "anthropic"
    text_holder = "content"
    sdk = anthropic

    def _client(self, **shared: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.settings.params.get("base_url"), **shared)

    async def _send(self, client: anthropic.AsyncAnthropic, arguments: dict[str, Any]) -> Any:
        return await client.messages.with_raw_response.create(**arguments)

    def _arguments(self, params: dict[str, Any], messages: list[dict[str, str]]) -> dict[str, Any]:
        params.pop("seed", None)  # the Messages API has none, but one run may ask several vendors
        said = [message for message in messages if message["role"] != "system"]
        if len(said) < len(messages):
            system = [message["content"] for message in messages if message["role"] == "system"]
            params["system"] = "\n\n".join([*filter(None, [params.get("system")]), *system])
        return {"messages": said, "max_tokens": params.pop("max_tokens", DEFAULT_MAX_TOKENS)}

    def _text(self, answer: dict[str, Any]) -> str | None:
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            return None
        texts = [block.get("text") for block in blocks if isinstance(block, dict)]
        return "".join(text for text in texts if isinstance(text, str))

    def _is_cut(self, answer: dict[str, Any]) -> bool:
        return answer.get("stop_reason") in CUT

    def _stop_reason(self, answer: dict[str, Any]) -> str | None:
        return named(answer.get("stop_reason"))

    def _reasoning(self, answer: dict[str, Any]) -> str:
        blocks = answer.get("content")
        said = [block for block in (blocks if isinstance(blocks, list) else []) if isinstance(block, dict)]
        thoughts = [block.get("thinking") for block in said]
        return "\n\n".join(thought for thought in thoughts if isinstance(thought, str))

    _usage = staticmethod(tokens)

"""A model that always says the same, for free: no network, no key, no delay."""

from __future__ import annotations

from judges.judgment import Completion
from workers.models import Request

REPLY = "This is a mock reply: no model was asked."


class Mock:
    """Gives one fixed reply, so that plumbing can be tried without a model."""

    agent = False

    async def complete(self, request: Request) -> Completion:
        return Completion(
            text=REPLY,
            input_tokens=len(request.prompt) // 4,
            output_tokens=len(REPLY) // 4,
            cost_usd=0.0,
            cost_source="mock",
            turns=1,
        )

    async def close(self) -> None:
        pass

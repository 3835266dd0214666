"""Ask a model through its vendor's SDK: send the request, bound and read the answer.

The SDKs build requests, sign them and keep connections; retries, deadlines and limits are ours.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2

from judges.judgment import Completion
from workers.models import steps
from workers.models.model import (
    KEYS,
    MAX_OUTPUT_BYTES,
    UNBILLED,
    ModelBusy,
    ModelFailed,
    Request,
    Room,
    capped,
    message,
    named,
)
from workers.models.prices import priced
from workers.models.retries import room, status_error
from workers.models.steps import Trace
from workers.store.messages import ModelSettings

# Escaped as JSON, a text of emoji is three times as long; the envelope around it is small.
MAX_BODY_BYTES = 3 * MAX_OUTPUT_BYTES + 65536
CONNECT_SECONDS = 15.0

# The attempt's deadline bounds an answer; only a connection that nobody accepts is given up before it.
TIMEOUT = httpx2.Timeout(None, connect=CONNECT_SECONDS)
LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=200)
HEADERS = {"Accept-Encoding": "identity"}


class _CappedStream(httpx2.AsyncByteStream):
    """Hands on at most MAX_BODY_BYTES of an answer; closing it then ends the connection."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self.inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_BODY_BYTES
        async for chunk in self.inner:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self.inner.aclose()


async def cap(response: httpx2.Response) -> None:
    """Bound an answer before its body is read; a hook for the SDK's HTTP client, errors included."""
    if response.headers.get("content-encoding", "identity") != "identity":
        # A small compressed body can unpack to gigabytes, and we asked for a plain one.
        raise httpx2.DecodingError("compressed answer, though none was asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _CappedStream(response.stream)


# A redirect would send prompt, skill and perhaps key to a host that nobody named; the SDKs follow by default.
HTTP: dict[str, Any] = {
    "timeout": TIMEOUT,
    "limits": LIMITS,
    "event_hooks": {"response": [cap]},
    "follow_redirects": False,
}


class SdkModel:
    """One client of a vendor's SDK and its connections, for one model; use it on one event loop only.

    The SDKs come from one generator: their errors and HTTP clients have the same names. A vendor's class adds the
    methods that are named at the end.
    """

    kind: str
    sdk: Any
    http_client = "DefaultAioHttpClient"
    room: Room | None = None  # what the last answer said of the model's limits

    def __init__(self, name: str, settings: ModelSettings) -> None:
        self.name = name
        self.settings = settings
        self._connected: Any = None

    async def complete(self, request: Request) -> Completion:
        arguments = self._call(request)
        self._note_asked(request, arguments)
        try:
            # The client is made at the first call, so that its connections belong to the running loop.
            if self._connected is None:
                http = getattr(self.sdk, self.http_client)(**HTTP)
                self._connected = self._client(
                    max_retries=0, timeout=TIMEOUT, http_client=http, default_headers=HEADERS
                )
            response = await self._send(self._connected, arguments)
        except self.sdk.APIStatusError as refused:
            reason = _reason(refused.body) or refused.message
            raise status_error(refused.status_code, reason, refused.response.headers) from None
        except self.sdk.APIConnectionError as broken:
            raise no_connection(broken) from None
        except (self.sdk.APIError.__base__, TypeError, ValueError) as wrong:
            # Without a key an SDK raises before it sends anything, and may not name the variable.
            keys = KEYS[self.kind]
            known = self._base_url() or any(os.environ.get(name) for name in keys)
            words = f"{self.kind} has no key; set {keys[0]} where the worker runs"
            if known:
                words = f"{type(wrong).__name__}: {wrong}"
            raise ModelFailed(message(words), hopeless=True) from None
        self.room = room(response.http_response.headers)
        return self._completion(response.http_response.content, steps.of(request))

    def _note_asked(self, request: Request, arguments: dict[str, Any]) -> None:
        """The exchange as it is sent, once for all tries."""
        trace = steps.of(request)
        trace.agent, trace.observed = f"{self.kind}:{self.name}", True
        if trace.is_empty:
            system = arguments.get("extra_body", {}).get("system")
            said = [{"role": "system", "content": system}] if system else []
            for message in [*said, *arguments["messages"]]:
                source = "agent" if message["role"] == "assistant" else message["role"]
                trace.step(source, str(message["content"]))

    def _call(self, request: Request) -> dict[str, Any]:
        """The arguments of a call: the run's parameters with the request's own on top."""
        params = {**self.settings.params, **request.params}
        if request.system:
            params["system"] = request.system
        params = {name: value for name, value in params.items() if value is not None}
        params.pop("base_url", None)
        arguments = self._arguments(params, _messages(request))
        # The SDK's signature changes with the models; what the API does not know it refuses by name.
        return {"model": self.name, **arguments, **({"extra_body": params} if params else {})}

    def _completion(self, body: bytes, trace: Trace) -> Completion:
        answer, cut = read(body)
        text = self._text(answer)
        words, capped_off = capped(text or "")
        usage = answer.get("usage")
        completion = Completion(
            text=words,
            truncated=cut or capped_off or self._is_cut(answer),
            turns=1,
            served_model=named(answer.get("model")),
            **self._usage(usage if isinstance(usage, dict) else {}),
        )
        completion = priced(completion, f"{self.kind}:{self.name}", self.settings)
        step = trace.step(
            "agent", words, model=completion.served_model, stop_reason=self._stop_reason(answer)
        )
        if reasoning := self._reasoning(answer):
            trace.say(step, reasoning, "reasoning")
        trace.spent(step, completion)
        trace.ended = True
        if text is None:  # it is billed all the same
            words = f"unreadable answer: no {self.text_holder} in {message(str(answer))}"
            raise ModelFailed(words, completion=completion)
        return completion

    async def close(self) -> None:
        if self._connected is not None:
            await self._connected.close()

    def _base_url(self) -> str | None:
        """The address of a self-hosted server, which may need no key; None for the vendor's own."""
        return None

    # What a vendor's class knows. `_arguments` takes out of the parameters what has a place of its own; `_text` is None
    # where an answer has no `text_holder`.
    text_holder: str
    _client: Callable[..., Any]
    _arguments: Callable[[dict[str, Any], list[dict[str, str]]], dict[str, Any]]
    _send: Callable[[Any, dict[str, Any]], Awaitable[Any]]
    _text: Callable[[dict[str, Any]], str | None]
    _is_cut: Callable[[dict[str, Any]], bool]
    _stop_reason: Callable[[dict[str, Any]], str | None]
    _reasoning: Callable[[dict[str, Any]], str]
    _usage: Callable[[dict[str, Any]], dict[str, Any]]


def _messages(request: Request) -> list[dict[str, str]]:
    """What is said to the model: a task's own messages have the skill in front of the user's first."""
    task = request.task
    if task is None or not task.messages:
        return [{"role": "user", "content": request.prompt}]
    messages = [message.model_dump() for message in task.messages]
    first = next(message for message in messages if message["role"] == "user")
    first["content"] = request.prompt.removesuffix(task.prompt) + first["content"]
    return messages


def read(body: bytes) -> tuple[dict[str, Any], bool]:
    """A body as JSON, and whether it was cut; of a cut body, as much as can be read."""
    import jiter

    cut = len(body) >= MAX_BODY_BYTES
    try:
        parsed = jiter.from_json(body, partial_mode="trailing-strings") if cut else json.loads(body)
    except (ValueError, RecursionError):
        raise ModelFailed(f"unreadable answer: {message(body[:200].decode('utf-8', 'replace'))}") from None
    if not isinstance(parsed, dict):
        raise ModelFailed(f"unreadable answer: a JSON {type(parsed).__name__} instead of an object")
    return parsed, cut


def no_connection(broken: Exception) -> ModelBusy:
    """ModelBusy for a broken connection; only a call that reached no server is known to cost nothing."""
    words = message(f"no connection: {broken.__cause__ or broken}")
    why: BaseException | None = broken
    while why is not None and not isinstance(why, ConnectionRefusedError | socket.gaierror):
        why = why.__cause__ or why.__context__
    return ModelBusy(words, completion=UNBILLED if why is not None else None)


def _reason(body: Any) -> str | None:
    """What an error's body says is wrong; OpenAI's SDK has already unwrapped its error object."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return f"{error.get('code') or error.get('type') or 'error'}: {error['message']}"
    return None

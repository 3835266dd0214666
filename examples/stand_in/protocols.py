"""How a reply looks on the wire: Anthropic Messages, OpenAI Chat Completions and Responses, Gemini."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

_numbers = count(1)


@dataclass(frozen=True)
class Reply:
    """What the stand-in is to do with one request. Times are seconds; the default is a quick answer."""

    text: str = "Hello from the stand-in."
    status: int = 200
    message: str = "scripted error"  # the error's text where status is not 200
    retry_after: str | None = None
    latency: float = 0.0
    spread: Literal["fixed", "exp"] = "fixed"
    drip: float = 0.0  # pause after every few bytes of the body
    hang: bool = False  # read the request and never answer
    drop: bool = False  # close the connection instead of answering
    pad_bytes: int = 0  # lengthen the text to so many bytes
    raw: str | None = None  # send this body as it is
    tool: dict[str, Any] | None = None  # call this tool: {"name": …, "input": {…}}
    input_tokens: int = 10
    output_tokens: int = 5
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    stop: str | None = None
    model: str | None = None  # who answers, where it is not the model that was asked


def body_of(path: str, asked: dict[str, Any], reply: Reply) -> tuple[str, bytes]:
    """The content type and body of a reply; the text's padding is added while it is sent."""
    if reply.raw is not None:
        return "application/json", reply.raw.encode()
    if path.endswith("/count_tokens"):
        return "application/json", json.dumps({"input_tokens": reply.input_tokens}).encode()
    if reply.status != 200:
        return "application/json", json.dumps(_error(path, reply)).encode()
    if path.endswith("/responses"):
        return "text/event-stream", "".join(_response_events(asked, reply)).encode()
    if "enerateContent" in path:
        whole = json.dumps(_gemini(path, reply))
        stream = path.endswith(":streamGenerateContent")
        return (
            ("text/event-stream", f"data: {whole}\n\n".encode())
            if stream
            else ("application/json", whole.encode())
        )
    openai = path.endswith("/chat/completions")
    if asked.get("stream"):
        events = _openai_events(asked, reply) if openai else _anthropic_events(asked, reply)
        return "text/event-stream", "".join(events).encode()
    return "application/json", json.dumps((_openai if openai else _anthropic)(asked, reply)).encode()


def _error(path: str, reply: Reply) -> dict[str, Any]:
    error = {"type": "scripted_error", "message": reply.message}
    return {"type": "error", "error": error} if path.endswith("/messages") else {"error": error}


def _anthropic_usage(reply: Reply) -> dict[str, int]:
    return {
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "cache_read_input_tokens": reply.cache_read_tokens,
        "cache_creation_input_tokens": reply.cache_write_tokens,
    }


def _anthropic(asked: dict[str, Any], reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}]
    if reply.tool:
        content = [{"type": "tool_use", "id": "toolu_1", **reply.tool}]
    return {
        "id": f"msg_{next(_numbers)}",
        "type": "message",
        "role": "assistant",
        "model": reply.model or asked.get("model", "unknown"),
        "content": content,
        "stop_reason": reply.stop or ("tool_use" if reply.tool else "end_turn"),
        "stop_sequence": None,
        "usage": _anthropic_usage(reply),
    }


def _anthropic_events(asked: dict[str, Any], reply: Reply) -> list[str]:
    message = _anthropic(asked, reply)
    start = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    if reply.tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": reply.tool["name"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply.tool["input"])}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": reply.text}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": reply.output_tokens},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _openai_usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cache_read_tokens},
    }


def _openai(asked: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model or asked.get("model", "unknown"),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.stop or "stop"}],
        "usage": _openai_usage(reply),
    }


def _openai_events(asked: dict[str, Any], reply: Reply) -> list[str]:
    model = reply.model or asked.get("model")
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": model}
    text = {"index": 0, "delta": {"role": "assistant", "content": reply.text}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": reply.stop or "stop"}
    chunks: list[dict[str, Any]] = [{**chunk, "choices": [text]}, {**chunk, "choices": [end]}]
    if (asked.get("stream_options") or {}).get("include_usage"):
        chunks.append({**chunk, "choices": [], "usage": _openai_usage(reply)})
    return [f"data: {json.dumps(one)}\n\n" for one in chunks] + ["data: [DONE]\n\n"]


def _response_events(asked: dict[str, Any], reply: Reply) -> list[str]:
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    item = {**said, "content": [{"type": "output_text", "text": reply.text, "annotations": []}]}
    if reply.tool:
        arguments = json.dumps(reply.tool["input"])
        item = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": f"call_{next(_numbers)}",
            "status": "completed",
        }
        item |= {"name": reply.tool["name"], "arguments": arguments}
    usage = {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": reply.cache_read_tokens},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
    response = {
        "id": f"resp_{next(_numbers)}",
        "object": "response",
        "model": reply.model or asked.get("model"),
    }
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": [item], "usage": usage},
        },
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _gemini(path: str, reply: Reply) -> dict[str, Any]:
    part: dict[str, Any] = {"text": reply.text}
    if reply.tool:
        part = {"functionCall": {"name": reply.tool["name"], "args": reply.tool["input"]}}
    return {
        "candidates": [
            {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": reply.stop or "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": reply.input_tokens,
            "candidatesTokenCount": reply.output_tokens,
            "cachedContentTokenCount": reply.cache_read_tokens,
            "totalTokenCount": reply.input_tokens + reply.output_tokens,
        },
        "modelVersion": reply.model or path.rpartition("/")[2].partition(":")[0],
    }

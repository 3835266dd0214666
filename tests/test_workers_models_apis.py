"""The vendors' SDK clients against the stand-in: what is sent, what is read, what an error means."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from standing_in import Asked, Reply, StandIn, standing_in

from workers.models import model
from workers.models.choose import model_for
from workers.models.model import (
    MAX_OUTPUT_BYTES,
    UNBILLED,
    Model,
    ModelBusy,
    ModelError,
    ModelFailed,
    Request,
)
from workers.models.retries import status_error, with_retries
from workers.store.messages import ModelSettings, Price

KEY = "sk-canary-0123456789"
pytestmark = pytest.mark.xdist_group("vendors")  # loading their SDKs takes seconds: once, in one process
BOTH = pytest.mark.parametrize("kind", ["anthropic", "openai"])


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model._secrets_among.cache_clear()  # another test of this process may have had as many variables


@asynccontextmanager
async def asking(
    kind: str, stand_in: StandIn, name: str = "some-model", **settings: Any
) -> AsyncIterator[Model]:
    params = {"base_url": stand_in.url + ("/v1" if kind == "openai" else ""), **settings.pop("params", {})}
    model = model_for(f"{kind}:{name}", ModelSettings(params=params, **settings))
    try:
        yield model
    finally:
        await model.close()


async def error_from(kind: str, reply: Reply) -> ModelError:
    async with standing_in(reply) as stand_in, asking(kind, stand_in) as model:
        with pytest.raises(ModelError) as caught:
            await model.complete(Request("hi"))
        assert len(stand_in.asked) == 1, "the SDK retried by itself"
    return caught.value


@BOTH
async def test_an_answer_carries_text_tokens_and_one_turn(kind: str) -> None:
    reply = Reply(text="Grüße 🌍", input_tokens=90, output_tokens=7)
    async with standing_in(reply) as stand_in, asking(kind, stand_in) as model:
        said = await model.complete(Request("hi"))
    assert (said.text, said.input_tokens, said.output_tokens, said.turns) == ("Grüße 🌍", 90, 7, 1)
    assert not said.truncated


@pytest.mark.parametrize(("kind", "counted"), [("anthropic", 100 + 30 + 20), ("openai", 100)])
async def test_input_tokens_count_all_input_whatever_the_vendor_leaves_out(kind: str, counted: int) -> None:
    reply = Reply(input_tokens=100, cache_read_tokens=30, cache_write_tokens=20)
    async with standing_in(reply) as stand_in, asking(kind, stand_in) as model:
        said = await model.complete(Request("hi"))
    assert (said.input_tokens, said.cache_read_tokens) == (counted, 30)


async def test_anthropic_is_sent_system_temperature_and_max_tokens_and_no_seed() -> None:
    params = {"temperature": 0.5, "max_tokens": 77, "seed": 3, "metadata": {"user_id": "u"}}
    async with standing_in() as stand_in, asking("anthropic", stand_in, params=params) as model:
        await model.complete(Request("hi", system="be brief"))
    sent = stand_in.asked[0].body
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["system"], sent["temperature"], sent["max_tokens"]) == ("be brief", 0.5, 77)
    assert sent["metadata"] == {"user_id": "u"}
    assert "seed" not in sent
    assert "base_url" not in sent


async def test_openai_is_sent_system_temperature_max_tokens_and_seed() -> None:
    params = {"system": "be brief", "temperature": 0.5, "max_tokens": 77, "seed": 3, "logit_bias": {}}
    async with standing_in() as stand_in, asking("openai", stand_in, params=params) as model:
        await model.complete(Request("hi"))
    sent = stand_in.asked[0].body
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert (sent["temperature"], sent["max_tokens"], sent["seed"], sent["logit_bias"]) == (0.5, 77, 3, {})


@BOTH
@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_overload_may_be_asked_again(kind: str, status: int) -> None:
    error = await error_from(kind, Reply(status=status, message="slow down", retry_after="7"))
    assert isinstance(error, ModelBusy)
    assert error.retry_after == 7
    assert "slow down" in str(error)
    assert error.completion == UNBILLED


@BOTH
@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_wrong_key_or_an_unknown_model_is_hopeless(kind: str, status: int) -> None:
    error = await error_from(kind, Reply(status=status, message="no such thing"))
    assert isinstance(error, ModelFailed)
    assert error.hopeless
    assert f"HTTP {status}" in str(error)
    assert "no such thing" in str(error)


@BOTH
async def test_a_refused_request_is_not_hopeless_because_the_next_prompt_may_do(kind: str) -> None:
    error = await error_from(kind, Reply(status=400, message="prompt is too long"))
    assert isinstance(error, ModelFailed)
    assert not error.hopeless


@BOTH
async def test_an_empty_account_is_hopeless_even_as_a_429(kind: str) -> None:
    error = await error_from(kind, Reply(status=429, message="insufficient_quota: pay first"))
    assert isinstance(error, ModelFailed)
    assert error.hopeless


@BOTH
async def test_a_dropped_connection_may_be_asked_again(kind: str) -> None:
    error = await error_from(kind, Reply(drop=True))
    assert isinstance(error, ModelBusy)
    assert error.completion is None, "it may be billed, and nobody knows how much"


@BOTH
async def test_nobody_listening_may_be_asked_again(kind: str) -> None:
    async with standing_in() as stand_in:
        pass
    async with asking(kind, stand_in) as model:
        with pytest.raises(ModelBusy, match="no connection") as caught:
            await model.complete(Request("hi"))
    assert caught.value.completion == UNBILLED


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("anthropic", '{"content": null, "usage": {"input_tokens": 1000, "output_tokens": 100}}'),
        ("openai", '{"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}'),
    ],
)
async def test_an_answer_that_cannot_be_used_is_billed_all_the_same(kind: str, body: str) -> None:
    prices = {"some-model": Price(input=1, output=10)}
    async with standing_in(Reply(raw=body)) as stand_in, asking(kind, stand_in, prices=prices) as model:
        with pytest.raises(ModelFailed, match="unreadable answer") as caught:
            await model.complete(Request("hi"))
    paid = caught.value.completion
    assert paid is not None
    assert (paid.input_tokens, paid.output_tokens) == (1000, 100)
    assert paid.cost_usd == pytest.approx(0.001 + 0.001)


@BOTH
@pytest.mark.parametrize(
    "body", ["<html>proxy</html>", "[]", "{}", '{"content": 3, "choices": []}', "[" * 100_000, ""]
)
async def test_an_answer_that_is_no_message_is_an_error(kind: str, body: str) -> None:
    error = await error_from(kind, Reply(raw=body))
    assert isinstance(error, ModelFailed)
    assert "unreadable answer" in str(error)


@BOTH
async def test_lone_surrogates_and_nul_become_text_that_can_be_stored(kind: str) -> None:
    raw = {
        "anthropic": '{"content": [{"type": "text", "text": "a\\ud800b\\u0000"}]}',
        "openai": '{"choices": [{"message": {"content": "a\\ud800b\\u0000"}}]}',
    }[kind]
    async with standing_in(Reply(raw=raw)) as stand_in, asking(kind, stand_in) as model:
        said = await model.complete(Request("hi"))
    assert said.text == "a\ufffdb\x00"
    assert said.input_tokens is None
    assert json.loads(said.model_dump_json())["text"] == said.text


@BOTH
async def test_a_hundred_megabytes_are_cut_while_reading(kind: str) -> None:
    reply = Reply(text="start ", pad_bytes=100_000_000)
    async with standing_in(Reply(), reply) as stand_in, asking(kind, stand_in) as model:
        await model.complete(Request("hi"))  # loads the SDK, which takes a minute when it is traced
        tracemalloc.start()
        said = await model.complete(Request("hi"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        sent = stand_in.asked[1]
    assert said.truncated
    assert said.text.startswith("start xxx")
    assert len(said.text.encode()) == MAX_OUTPUT_BYTES
    assert (said.output_tokens, said.cost_usd) == (None, None)
    assert not sent.finished
    assert peak < 60_000_000


@BOTH
async def test_a_hundred_megabytes_of_error_are_cut_too(kind: str) -> None:
    error = await error_from(kind, Reply(status=500, text="!", message="!", pad_bytes=100_000_000))
    assert isinstance(error, ModelBusy)
    assert len(str(error)) < 1000


@BOTH
async def test_the_reply_tells_which_model_answered(kind: str) -> None:
    replies = Reply(model="the-model-of-today"), Reply(model="x\ny" * 5000), Reply(raw='{"model": []}')
    async with standing_in(*replies) as stand_in, asking(kind, stand_in, "an-alias") as model:
        assert (await model.complete(Request("hi"))).served_model == "the-model-of-today"
        long = (await model.complete(Request("hi"))).served_model
        with pytest.raises(ModelFailed) as caught:
            await model.complete(Request("hi"))
    assert long is not None
    assert len(long) <= 500
    assert long.isprintable()
    assert caught.value.completion is not None
    assert caught.value.completion.served_model is None


@pytest.mark.parametrize(
    ("kind", "stop"),
    [("anthropic", "max_tokens"), ("anthropic", "model_context_window_exceeded"), ("openai", "length")],
)
async def test_an_answer_that_hit_its_token_limit_is_marked_as_truncated(kind: str, stop: str) -> None:
    async with standing_in(Reply(stop=stop)) as stand_in, asking(kind, stand_in) as model:
        assert (await model.complete(Request("hi"))).truncated


@BOTH
@pytest.mark.parametrize(
    "reply", [Reply(hang=True), Reply(drip=0.05, text="y" * 5000)], ids=["hangs", "drips"]
)
async def test_a_deadline_ends_a_call_that_hangs_or_drips_and_the_next_call_works(
    kind: str, reply: Reply
) -> None:
    async with standing_in(reply, Reply(text="fine")) as stand_in, asking(kind, stand_in) as model:
        call = asyncio.create_task(model.complete(Request("hi")))
        while not stand_in.asked:  # noqa: ASYNC110  # the deadline is to end a call that has begun
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.5)
        assert (await model.complete(Request("hi"))).text == "fine"


@BOTH
async def test_cost_comes_from_the_configs_prices(kind: str) -> None:
    prices = {"some-model": Price(input=2.0, output=10.0, cache_read=0.5)}
    reply = Reply(input_tokens=1000, output_tokens=100, cache_read_tokens=400)
    async with standing_in(reply) as stand_in, asking(kind, stand_in, prices=prices) as model:
        said = await model.complete(Request("hi"))
    plain = 1000 if kind == "anthropic" else 600
    assert said.cost_usd == pytest.approx((plain * 2.0 + 400 * 0.5 + 100 * 10.0) / 1e6)
    assert said.cost_source == "config"
    assert said.unit_prices == {"input": 2.0, "output": 10.0, "cache_read": 0.5}


@BOTH
async def test_an_unknown_models_cost_is_unknown(kind: str) -> None:
    async with standing_in() as stand_in, asking(kind, stand_in) as model:
        said = await model.complete(Request("hi"))
    assert (said.cost_usd, said.cost_source) == (None, None)


async def test_a_providers_own_figure_wins() -> None:
    raw = '{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1, "cost": 0.125}}'
    prices = {"some-model": Price(input=2.0, output=10.0)}
    async with standing_in(Reply(raw=raw)) as stand_in, asking("openai", stand_in, prices=prices) as model:
        said = await model.complete(Request("hi"))
    assert (said.cost_usd, said.cost_source) == (0.125, "provider")


@BOTH
async def test_no_error_tells_the_key(kind: str) -> None:
    error = await error_from(kind, Reply(status=401, message=f"key {KEY} is wrong"))
    assert KEY not in str(error)
    assert "[redacted]" in str(error)


@pytest.mark.parametrize(("kind", "name"), [("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")])
async def test_a_missing_key_is_hopeless_and_sends_nothing(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name)
    model = model_for(f"{kind}:some-model", ModelSettings())
    with pytest.raises(ModelFailed, match=f"has no key; set {name} where the worker runs") as caught:
        await model.complete(Request("hi"))
    await model.close()
    assert caught.value.hopeless


@BOTH
async def test_a_cancelled_call_closes_its_connection(kind: str) -> None:
    async with standing_in() as stand_in, asking(kind, stand_in) as model:
        arrived = asyncio.Event()

        def hang(asked: Asked) -> Reply:
            arrived.set()
            return Reply(hang=True)

        stand_in.answer = hang
        call = asyncio.create_task(model.complete(Request("hi")))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await stand_in.all_gone()


@BOTH
async def test_a_storm_of_429_and_500_is_waited_out_as_the_server_asks(kind: str) -> None:
    storm = Reply(status=429, retry_after="9"), Reply(status=500), Reply(status=503), Reply(drop=True)
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    async with standing_in(*storm, Reply(text="calm")) as stand_in, asking(kind, stand_in) as model:
        said, retries = await with_retries(lambda: model.complete(Request("hi")), sleep=note)
    assert (said.text, retries) == ("calm", 4)
    assert waits[0] >= 9
    assert all(wait < 9 for wait in waits[1:])


async def test_the_stand_in_streams_as_both_sdks_expect() -> None:
    import anthropic
    import openai

    reply = Reply(text="piece by piece", input_tokens=7, output_tokens=3)
    async with standing_in(reply) as stand_in:
        async with anthropic.AsyncAnthropic(base_url=stand_in.url) as client:
            asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        async with openai.AsyncOpenAI(base_url=f"{stand_in.url}/v1") as other:
            asked = {"model": "m", "messages": asked["messages"], "stream_options": {"include_usage": True}}
            chunks = [chunk async for chunk in await other.chat.completions.create(stream=True, **asked)]
    assert [block.text for block in message.content] == ["piece by piece"]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 3)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "piece by piece"
    )
    assert chunks[-1].usage.completion_tokens == 3


@asynccontextmanager
async def redirecting(status: int, location: str) -> AsyncIterator[StandIn]:
    """A provider that sends everybody elsewhere; `asked` counts who came."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))
        head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    came: list[Any] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    stand_in = StandIn()
    stand_in.url, stand_in.asked = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    try:
        yield stand_in
    finally:
        server.close()


@BOTH
@pytest.mark.parametrize("transport", ["aiohttp", "httpx"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_the_other_host_hears_nothing(
    kind: str, status: int, transport: str
) -> None:
    async with standing_in() as other:
        host = other.url.removeprefix("http://")
        goal = f"http://somebody:pass@{host}/v1/messages?token=of-the-query"
        async with redirecting(status, goal) as provider, asking(kind, provider) as model:
            model.transport = transport  # type: ignore[attr-defined]
            with pytest.raises(ModelFailed) as caught:
                await with_retries(lambda: model.complete(Request("a secret prompt")))
            assert len(provider.asked) == 1
        assert other.asked == []
    assert f"HTTP {status}: the provider redirects to {host}; redirects are not followed" in str(caught.value)
    assert "of-the-query" not in str(caught.value)
    assert "somebody" not in str(caught.value)
    assert caught.value.hopeless


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/v2/messages", "another path of the same host"),
        ("", "nowhere"),
        ("http://[::1", "an address that cannot be read"),
        ("//other.example/x", "other.example;"),
    ],
)
def test_where_a_redirect_leads_is_told_without_its_path(location: str, words: str) -> None:
    error = status_error(302, "moved", {"location": location})
    assert words in str(error)
    assert "/x" not in str(error)

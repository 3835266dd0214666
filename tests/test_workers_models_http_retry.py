"""When a busy model is asked again, how long that takes, and what a call costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.judgment import Completion
from workers.models.model import (
    ModelBusy,
    ModelError,
    ModelFailed,
    Room,
    capped,
    decoded,
    message,
    without_secrets,
)
from workers.models.prices import attempt_estimate, first_estimate, priced, unit_prices
from workers.models.retries import LONGEST_WAIT, retry_after, room, status_error, with_retries
from workers.store.messages import ModelSettings, Price


def answers(*outcomes: Completion | ModelError) -> Callable[[], Awaitable[Completion]]:
    left = list(outcomes)

    async def call() -> Completion:
        outcome = left.pop(0)
        if isinstance(outcome, ModelError):
            raise outcome
        return outcome

    return call


class Waits:
    """Notes how long would have been waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def longest(low: float, high: float) -> float:
    return high


DONE = Completion(text="done")


async def test_a_busy_model_is_asked_again_with_growing_waits() -> None:
    waits = Waits()
    call = answers(ModelBusy("429"), ModelBusy("500"), ModelBusy("529"), DONE)
    assert await with_retries(call, sleep=waits, uniform=longest) == (DONE, 3)
    assert waits.seconds == [0.5, 1.0, 2.0]


async def test_waits_are_jittered_over_their_whole_length() -> None:
    waits = Waits()
    await with_retries(answers(ModelBusy("429"), DONE), sleep=waits, uniform=lambda low, high: low)
    assert waits.seconds == [0.0]


async def test_retry_after_is_the_least_that_is_waited() -> None:
    waits = Waits()
    await with_retries(answers(ModelBusy("429", retry_after=20), DONE), sleep=waits, uniform=longest)
    assert waits.seconds == [20.5]


async def test_the_sixth_failure_in_a_row_is_final_and_says_how_often_it_was_tried() -> None:
    waits = Waits()
    with pytest.raises(ModelBusy, match=r"overloaded \(after 6 tries\)"):
        await with_retries(answers(*[ModelBusy("overloaded")] * 6, DONE), sleep=waits)
    assert len(waits.seconds) == 5


async def test_a_failed_request_is_not_asked_again() -> None:
    waits = Waits()
    with pytest.raises(ModelFailed, match="wrong key"):
        await with_retries(answers(ModelFailed("wrong key"), DONE), sleep=waits)
    assert waits.seconds == []


async def test_without_retries_the_first_failure_is_final() -> None:
    with pytest.raises(ModelBusy, match=r"after 1 try\)"):
        await with_retries(answers(ModelBusy("429"), DONE), retries=0, sleep=Waits())


async def test_a_wait_that_the_deadline_would_cut_short_is_not_begun() -> None:
    waits = Waits()
    call = answers(ModelBusy("429", retry_after=60), DONE)
    with pytest.raises(ModelBusy, match="429"):
        await with_retries(call, seconds_left=lambda: 30.0, sleep=waits)
    assert waits.seconds == []


async def test_no_backoff_is_longer_than_the_longest_wait() -> None:
    waits = Waits()
    await with_retries(answers(*[ModelBusy("x")] * 9, DONE), retries=9, sleep=waits)
    assert all(0 <= wait <= LONGEST_WAIT for wait in waits.seconds)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "3", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "nan"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def limit_headers(prefix: str, suffix: str, limit: str, remaining: str, reset: str) -> dict[str, str]:
    said = {"limit": limit, "remaining": remaining, "reset": reset}
    return {
        f"{prefix}{word}{suffix}" if suffix else f"{prefix}-{word}": value for word, value in said.items()
    }


OPENAI, ANTHROPIC = ("x-ratelimit-", "-requests"), ("anthropic-ratelimit-requests", "")
OPENAI_TOKENS = ("x-ratelimit-", "-tokens")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, None),
        (limit_headers(*OPENAI, "60", "15", "45s"), Room(0.25, 60, 45)),
        (limit_headers(*OPENAI, "60", "0", "1m30.5s"), Room(0, 60, 90.5)),
        (limit_headers(*OPENAI, "200", "20", "7h12m0s"), Room(0.1, 200, 25_920)),
        (limit_headers(*OPENAI, "5000", "4999", "12ms"), Room(0.9998, 5000, 0.012)),
        (limit_headers(*OPENAI, "60", "30", "20"), Room(0.5, 60, 20)),
        (limit_headers(*OPENAI, "60", "61", "1s"), None),
        (limit_headers(*OPENAI, "0", "0", "1s"), None),
        (limit_headers(*OPENAI, "sixty", "0", "1s"), None),
        (limit_headers(*OPENAI, "60", "0", "soon"), None),
        (limit_headers(*OPENAI, "60", "nan", "1s"), None),
        (limit_headers(*OPENAI, "60", "0", "-1"), None),
        (limit_headers(*OPENAI, "60", "0", "9" * 400), None),
        (limit_headers(*ANTHROPIC, "50", "5", "2001-01-01T00:00:00Z"), Room(0.1, 50, 0)),
        (limit_headers(*OPENAI_TOKENS, "1000", "10", "6s"), Room(0.01, 0, 6)),
        # The tightest counts.
        (
            {**limit_headers(*OPENAI, "60", "30", "9s"), **limit_headers(*OPENAI_TOKENS, "9", "9", "0s")},
            Room(0.5, 60, 9),
        ),
    ],
)
def test_what_a_provider_says_is_left_of_its_limits_is_read(
    headers: dict[str, str], told: Room | None
) -> None:
    assert room(headers) == told


@pytest.mark.parametrize(
    ("status", "headers", "refused"),
    [(429, {}, True), (529, {}, True), (503, {"retry-after": "3"}, True), (503, {}, False), (500, {}, False)],
)
def test_only_a_model_that_is_asked_too_often_is_to_be_asked_less(
    status: int, headers: dict[str, str], refused: bool
) -> None:
    error = status_error(status, "no", headers)
    assert isinstance(error, ModelBusy)
    assert error.refused == refused


async def test_a_model_that_refuses_every_retry_is_hopeless_and_one_that_is_not_retried_is_not() -> None:
    long = answers(ModelBusy("429", refused=True, retry_after=60))
    with pytest.raises(ModelBusy) as caught:
        await with_retries(long, seconds_left=lambda: 30.0, sleep=Waits())
    assert caught.value.hopeless
    for retries, hopeless in ((5, True), (0, False)):
        with pytest.raises(ModelBusy) as caught:
            await with_retries(answers(*[ModelBusy("429", refused=True)] * 6), retries=retries, sleep=Waits())
        assert caught.value.hopeless == hopeless


def test_retry_after_may_be_a_date() -> None:
    seconds = retry_after({"retry-after": formatdate(time() + 100, usegmt=True)})
    assert seconds is not None
    assert 90 < seconds <= 101


def used(**counts: int | None) -> Completion:
    return Completion.model_validate({"input_tokens": 1_000_000, "output_tokens": 100_000, **counts})


def test_the_configs_price_wins_over_the_tables() -> None:
    settings = ModelSettings(prices={"anthropic:claude-sonnet-4-5": Price(input=1, output=2)})
    said = priced(used(), "anthropic:claude-sonnet-4-5", settings)
    assert (said.cost_usd, said.cost_source) == (pytest.approx(1 + 0.2), "config")


def test_the_table_knows_published_models_and_says_so() -> None:
    completion = used(input_tokens=100_000, output_tokens=10_000, cache_read_tokens=50_000)
    said = priced(completion, "anthropic:claude-sonnet-4-5", ModelSettings())
    # Published per million tokens: input 3, cached input 0.30, output 15.
    assert said.cost_usd == pytest.approx(0.05 * 3 + 0.05 * 0.3 + 0.01 * 15)
    assert said.cost_source is not None
    assert said.cost_source.startswith("genai-prices ")
    assert said.unit_prices is not None
    assert (said.unit_prices["input"], said.unit_prices["output"]) == (3, 15)


def test_a_cost_that_a_provider_gave_stays() -> None:
    said = priced(used(), "openai:gpt-4o", ModelSettings()).cost_usd
    given_cost = Completion(cost_usd=9.0, cost_source="provider", input_tokens=1, output_tokens=1)
    assert said != 9.0
    assert priced(given_cost, "openai:gpt-4o", ModelSettings()) == given_cost


@pytest.mark.parametrize(
    "spec", ["anthropic:never-heard-of-it", "openai:my-own", "command:codex", "claude-code"]
)
def test_an_unknown_models_price_is_none_and_never_zero(spec: str) -> None:
    assert unit_prices(spec, ModelSettings()) is None
    assert first_estimate(spec, 300, ModelSettings(), 100) is None
    assert priced(used(), spec, ModelSettings()).cost_usd is None


def test_a_missing_token_count_leaves_the_cost_unknown() -> None:
    settings = ModelSettings(prices={"m": Price(input=1, output=2)})
    assert priced(used(output_tokens=None), "openai:m", settings).cost_usd is None


def test_the_largest_cost_of_a_call_is_its_input_and_all_its_allowed_output() -> None:
    settings = ModelSettings(prices={"m": Price(input=1, output=2)})
    assert first_estimate("openai:m", 3000, settings, 8000) == pytest.approx(0.001 + 0.016)


def test_what_an_attempt_may_cost_counts_its_judges_and_is_unknown_where_one_price_is() -> None:
    settings = ModelSettings(params={"max_tokens": 1000}, prices={"m": Price(input=3, output=15)})
    alone = attempt_estimate("openai:m", 300, [], settings)
    assert alone == pytest.approx((100 * 3 + 1000 * 15) / 1e6)
    # A judge reads the prompt and an answer of a thousand tokens at four characters each.
    judged = attempt_estimate("openai:m", 300, ["openai:m"], settings)
    assert judged == pytest.approx(alone + (4300 // 3 * 3 + 1000 * 15) / 1e6)
    assert attempt_estimate("openai:m", 300, ["openai:unheard-of"], settings) is None


@pytest.mark.parametrize(("spec", "cost"), [("mock", 0), ("replay:x.jsonl", 0), ("sim:cost=0.25", 0.25)])
def test_models_that_are_not_asked_cost_what_they_say(spec: str, cost: float) -> None:
    assert attempt_estimate(spec, 300, [], ModelSettings()) == cost


def test_four_mebibytes_are_kept_and_no_half_character() -> None:
    text, cut = capped("é" * (3 * 1024 * 1024))
    assert cut
    assert text == "é" * (2 * 1024 * 1024)
    assert decoded(b"a" + "é".encode() * (2 * 1024 * 1024)) == ("a" + "é" * (2 * 1024 * 1024 - 1), True)


@given(st.text(st.characters(codec=None), max_size=50))
def test_any_text_becomes_storable_and_all_of_it_is_kept(text: str) -> None:
    safe, cut = capped(text)
    safe.encode()
    assert len(safe) == len(text)
    assert not cut


def test_an_errors_text_is_one_short_line_without_secrets() -> None:
    environment = {"MY_API_KEY": "hunter2hunter2", "HOME": "/home/someone", "SHORT_KEY": "a"}
    said = message("bad key hunter2hunter2\x1b[31m\n\tat home" + "!" * 1000, environment)
    assert said.startswith("bad key [redacted] [31m at home!!!")
    assert len(said) == 500


def test_secrets_are_found_in_headers_addresses_and_under_many_names() -> None:
    environment = {
        "ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: gateway-secret\nAuthorization: Bearer abc+def/0123==\nX-A: short",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=otel-secret,x-b=other-secret",
        "HTTPS_PROXY": "http://me:proxy%40secret@proxy.example:3128",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE00000",
        "AWS_SESSION_TOKEN": "session-secret\n",
        "DB_PASS": "database-secret",
        "OPENAI_API_KEY_2": "second-secret",
        "GOOGLE_API_KEY": 'quoted"secret',
    }
    for secret in (
        *("gateway-secret", "abc+def/0123==", "abc%2Bdef%2F0123%3D%3D", "otel-secret", "other-secret"),
        *("proxy%40secret", "proxy@secret", "AKIAEXAMPLE00000", "session-secret", "database-secret"),
        *("second-secret", 'quoted"secret', 'quoted\\"secret'),
    ):
        assert without_secrets(f"({secret})", environment) == "([redacted])", secret


def test_what_is_short_or_no_secret_is_left_as_it_is() -> None:
    environment = {
        "ANTHROPIC_CUSTOM_HEADERS": "anthropic-beta: context-1m\ncontent-type: application/json\nX-Debug: true",
        "USE_TOKEN": "true",
        "SOME_KEY": "1",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "PROXY_WITH_USER": "http://me:short@proxy.example:3128",
        "PWD": "/home/someone",
        "HOME": "/home/someone",
        "PATH": "/usr/local/bin",
    }
    text = "context-1m application/json true 1 short X-Debug proxy.example:3128 /home/someone /usr/local/bin"
    assert without_secrets(text, environment) == text

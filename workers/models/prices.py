"""Find what a call cost in USD: the provider says it, or the config's prices do, or the genai-prices table.

Unknown stays None; a guess would look like a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from judges.judgment import Completion
from workers.models import sim
from workers.store.messages import ModelSettings, Price

_PROVIDERS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "claude-code": "anthropic",
    "command:codex": "openai",
    "command:gemini": "google",
}
_MILLION = 1_000_000
DEFAULT_MAX_TOKENS = 8192


def unit_prices(spec: str, settings: ModelSettings) -> tuple[Price, str] | None:
    """A model's prices in USD per million tokens, and where they come from; None if unknown.

    The config's count first ("config"), under the spec or the bare name, then the table's ("genai-prices VERSION").
    The table charges very long prompts more; this is then the price of all others.
    """
    model = _model(spec)
    for key in (spec, spec.partition(":")[2], model):
        if key and (price := settings.prices.get(key)) is not None:
            return price, "config"
    provider = _provider(spec)
    return _table_prices(model, provider) if provider and model else None


def priced(completion: Completion, spec: str, settings: ModelSettings) -> Completion:
    """The completion with its cost filled in from unit prices, unless it has one or nobody knows.

    The table's prices of long prompts are for one call; a program tells only the sum of all its calls.
    """
    if completion.cost_usd is not None:
        return completion
    prices = unit_prices(spec, settings)
    if prices is None or completion.input_tokens is None or completion.output_tokens is None:
        return completion
    price, source = prices
    flat = source == "config" or spec.startswith("command:")
    amount = _flat_cost(completion, price) if flat else _table_cost(completion, spec)
    used = price.model_dump(exclude_none=True)
    return completion.model_copy(update={"cost_usd": amount, "cost_source": source, "unit_prices": used})


def first_estimate(
    spec: str, characters: int, settings: ModelSettings, tokens: int | None = None
) -> float | None:
    """What a call may cost, before any has been seen, by the length of its prompt; None where nobody knows.

    Its answer has that many `tokens`, as many as allowed unless given. An agent's estimate is that of one turn.
    Mocked and recorded answers cost nothing.
    """
    kind, _, name = spec.partition(":")
    if kind in ("mock", "replay"):
        return 0.0
    if kind == "sim":
        return sim.parse(name).cost
    if (prices := unit_prices(spec, settings)) is None:
        return None
    price, answer = prices[0], tokens or longest_answer(settings)
    return (characters // 3 * price.input + answer * price.output) / _MILLION


def attempt_estimate(
    spec: str, characters: int, graders: Sequence[str], settings: ModelSettings, tokens: int | None = None
) -> float | None:
    """What an attempt may cost with the models that judge it, which read prompt and answer; None if unknown."""
    read = characters + 4 * (tokens or longest_answer(settings))
    calls = [
        first_estimate(spec, characters, settings, tokens),
        *(first_estimate(grader, read, settings, tokens) for grader in graders),
    ]
    known = [cost for cost in calls if cost is not None]
    return sum(known) if len(known) == len(calls) else None


def longest_answer(settings: ModelSettings) -> int:
    """The most tokens of an answer: what the run allows, else a default."""
    longest = settings.params.get("max_tokens")
    return longest if isinstance(longest, int) else DEFAULT_MAX_TOKENS


def provider_cost(usage: Mapping[str, Any]) -> float | None:
    """The provider's own figure, as some OpenAI-compatible services put it into their usage block."""
    value = usage.get("cost")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    return None


def _flat_cost(completion: Completion, price: Price) -> float:
    """`input_tokens` counts all input; its cached parts have their own price where there is one."""
    read, written = completion.cache_read_tokens or 0, completion.cache_write_tokens or 0
    plain = max(0, (completion.input_tokens or 0) - read - written)
    read_price = price.input if price.cache_read is None else price.cache_read
    write_price = price.input if price.cache_write is None else price.cache_write
    total = plain * price.input + read * read_price + written * write_price
    return (total + (completion.output_tokens or 0) * price.output) / _MILLION


def _table_cost(completion: Completion, spec: str) -> float:
    import genai_prices

    usage = genai_prices.Usage(
        input_tokens=completion.input_tokens,
        output_tokens=completion.output_tokens,
        cache_read_tokens=completion.cache_read_tokens or None,
        cache_write_tokens=completion.cache_write_tokens or None,
    )
    found = genai_prices.calc_price(usage, model_ref=_model(spec), provider_id=_provider(spec))
    return float(found.total_price)


def _model(spec: str) -> str:
    """The model's own name in a spec: of `command:PROGRAM:MODEL` the last part, which may be missing."""
    kind, _, name = spec.partition(":")
    return name.partition(":")[2] if kind == "command" else name


def _provider(spec: str) -> str | None:
    return _PROVIDERS.get(spec.removesuffix(f":{_model(spec)}"))


@lru_cache(maxsize=256)
def _table_prices(name: str, provider: str) -> tuple[Price, str] | None:
    import genai_prices

    try:
        usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
        table = genai_prices.calc_price(usage, model_ref=name, provider_id=provider).model_price
    except (LookupError, ValueError):
        return None
    prices = {name: _base(table, f"{name}_mtok") for name in Price.model_fields}
    if prices["input"] is None or prices["output"] is None:
        return None
    return Price.model_validate(prices), f"genai-prices {genai_prices.__version__}"


def _base(table: Any, name: str) -> float | None:
    """One price from the table; of a tiered one, the first tier."""
    value = getattr(table, name, None)
    return None if value is None else float(getattr(value, "base", value))

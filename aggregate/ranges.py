"""Which numbers a record can hold; others were not measured, whoever wrote them."""

from __future__ import annotations

Range = tuple[float, float]

_SCORE: Range = (0, 1)
_USD: Range = (0, 1e9)
COUNT: Range = (0, 1_000_000_000_000)
POINTS: Range = (0, 1e9)
_SECONDS: Range = (0, 1e9)
_MILLISECONDS: Range = (0, 1e12)

RECORD: dict[str, Range] = {
    "score": _SCORE,
    "model_ms": _MILLISECONDS,
    "judge_ms": _MILLISECONDS,
    "deliveries": COUNT,
    "retries": COUNT,
}
COMPLETION: dict[str, Range] = {
    "input_tokens": COUNT,
    "output_tokens": COUNT,
    "cache_read_tokens": COUNT,
    "cache_write_tokens": COUNT,
    "cost_usd": _USD,
    "turns": COUNT,
}
JUDGMENT: dict[str, Range] = {
    "score": _SCORE,
    "input_tokens": COUNT,
    "output_tokens": COUNT,
    "cost_usd": _USD,
}
CRITERION: dict[str, Range] = {"achieved": POINTS, "max_points": POINTS}
BENCHMARK: dict[str, Range] = {"nop_median": _SECONDS, "agent_median": _SECONDS, "oracle_median": _SECONDS}
TESTS: dict[str, Range] = {"passed": COUNT, "failed": COUNT, "errored": COUNT, "oracle_failed": COUNT}
SNAPSHOT: dict[str, Range] = {"pass_to_fail": COUNT}

"""What a model returned, what a judge said of it, and the shapes that judges share with their callers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

Sandbox = Literal["auto", "required", "off"]


class Completion(BaseModel):
    """What the model returned. None means unknown, never zero."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    text: str = ""
    truncated: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    cost_source: str | None = None
    unit_prices: dict[str, float] | None = None
    turns: int | None = None
    skill_invoked: bool | None = None
    agent_version: str | None = None
    warnings: tuple[str, ...] = ()


class Criterion(BaseModel):
    """Points that a judge gave for one named requirement; `achieved` is None where it gave none."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str
    achieved: float | None = None
    max_points: float | None = None


class Benchmark(BaseModel):
    """Median seconds of one benchmark for the original code (nop), the candidate's and the oracle's."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str
    nop_median: float | None = None
    agent_median: float | None = None
    oracle_median: float | None = None


class Tests(BaseModel):
    """Counts of a test run on the candidate's output, and of the oracle's own failures."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    passed: int = 0
    failed: int = 0
    errored: int = 0
    oracle_failed: int = 0


class Snapshot(BaseModel):
    """Whether recorded results still hold: `status` is "passed" when they do."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: str | None = None
    pass_to_fail: int = 0


class Judgment(BaseModel):
    """What a judge said of a completion; `passed` and `score` are None when no judgment could be made.

    A panel's consensus is one Judgment whose `panel` holds each member's own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    judge: str
    judge_model: str | None = None
    passed: bool | None = None
    score: float | None = None
    details: str = ""
    error: str | None = None
    matched: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    saw_cut_text: bool = False
    panel: tuple[Judgment, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    tests: Tests | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Workspace:
    """Where a judge finds files: the suite's folder (the parent of `fixtures/`) and what an agent left behind."""

    suite: Path | None = None
    left: Path | None = None
    sandbox: Sandbox = "auto"


class Ask(Protocol):
    """Anything that answers a prompt: a vendor client, a recording, a lambda in a test."""

    async def __call__(self, model: str, prompt: str, *, system: str = "") -> Completion: ...

"""What a person asks for when they start a run: every flag of `uplift evaluate`, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from judges.judgment import Sandbox
from workers.messages import ModelSettings, SkillMode

DEFAULT_THRESHOLD = 6.0
DEFAULT_MARGIN = 0.05
DEFAULT_EFFECT = 0.10


class InvalidOption(ValueError):
    """A flag, or a combination of flags, that makes no sense; one line with the remedy."""


@dataclass(frozen=True)
class Options:
    """Flags of one evaluation; see `uplift evaluate --help` for what each means."""

    task_suite: Path
    state_root: Path
    standalone: bool = False
    skill_path: Path | None = None
    baseline_path: Path | None = None
    baseline_artifact: Path | None = None
    no_baseline: bool = False
    ranking: Path | None = None
    candidate_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ("claude-code",)
    judge_model: str | None = None
    pass_k: int = 1
    skill_mode: SkillMode | None = None
    sandbox: Sandbox = "auto"
    baseline_cache_dir: Path | None = None
    eval_threshold: float = DEFAULT_THRESHOLD
    output: Path | None = None
    margin: float = DEFAULT_MARGIN
    gate: Literal["verdict", "decision"] = "verdict"
    weak_baseline: Literal["error", "warn"] = "error"
    stop_early: Literal["verdict", "decision"] | None = None
    effect: float = DEFAULT_EFFECT
    budget_usd: float | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    tasks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)

    def check(self) -> None:
        """Raise InvalidOption for what no later step would explain as well."""
        if self.standalone == (self.ranking is not None):
            raise InvalidOption("choose one: --standalone with --skill-path, or --input with --candidate-id")
        if self.standalone and self.skill_path is None:
            raise InvalidOption("--standalone needs --skill-path; give the skill's folder or its SKILL.md")
        if self.ranking is not None and not self.candidate_ids:
            raise InvalidOption("--input needs --candidate-id; give an id of the ranking, or all")
        if self.ranking is not None and (self.skill_path or self.baseline_path):
            raise InvalidOption(
                "--skill-path and --baseline-path belong to --standalone; the ranking names both"
            )
        if self.no_baseline and self.baseline_path:
            raise InvalidOption("--no-baseline and --baseline-path exclude each other")
        if self.baseline_artifact and (self.baseline_path or self.no_baseline):
            raise InvalidOption(
                "--baseline-artifact excludes --baseline-path and --no-baseline; it is the baseline"
            )
        if self.pass_k < 1:
            raise InvalidOption(f"--pass-k is {self.pass_k}; give a whole number from 1")
        if self.stop_early == "decision" and self.pass_k < 2:
            raise InvalidOption("--stop-early decision needs --pass-k 2 or more: it looks after each round")
        check_margin(self.margin)
        if not 0 < self.effect <= 1:
            raise InvalidOption(f"--effect is {self.effect}; give a number above 0 and up to 1")
        if self.stop_early is not None and self.no_baseline:
            raise InvalidOption(
                "--stop-early needs a baseline: without one there is no difference to be sure of"
            )
        if self.budget_usd is not None:
            check_budget(self.budget_usd)
        if len(set(self.models)) != len(self.models):
            raise InvalidOption("--model names the same model twice")


def check_margin(share: float) -> None:
    """Raise InvalidOption for a margin that is no share of tasks."""
    if not 0 <= share < 1:
        raise InvalidOption(f"--margin is {share:g}; give a number from 0 to 1")


def check_budget(usd: float) -> None:
    """Raise InvalidOption for a sum that nobody can spend."""
    if not 0 < usd < float("inf"):
        raise InvalidOption(f"--budget-usd is {usd:g}; give an amount above 0")


def one_of(flag: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """The value, if the flag allows it; raises InvalidOption that lists what is allowed."""
    if value not in allowed:
        words = ", ".join(word for word in allowed if word is not None)
        raise InvalidOption(f"{flag} is {value!r}; allowed: {words}")
    return value

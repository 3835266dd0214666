"""What a run comes to: the gate's literal verdict, what the statistics support, and the exit code of both."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aggregate.text.formats import level_text, size_in_points

if TYPE_CHECKING:
    from aggregate.formulas.intervals import Interval

VerdictName = Literal["pass", "fail", "skipped", "error"]
DecisionName = Literal["improved", "no_worse", "worse", "inconclusive"]
Status = Literal["complete", "cancelled", "over_budget", "hopeless", "weak_baseline"]
Gate = Literal["verdict", "decision", "regression"]
WeakBaseline = Literal["error", "warn"]

GATE_COST = r"\+[0-9]{1,6}([.][0-9]{1,6})?%"
WEAK_BASELINE = 0.2
SMALLEST_PASS_RATE = 0.5  # of a candidate that runs alone
MARGIN = 0.05
ERRORS_ALLOWED = 20  # one attempt in twenty may end in error

WEAK_CODES = frozenset({"weak_baseline", "weak_baseline_certain"})


@dataclass(frozen=True)
class Reason:
    """Why something was decided: a code, and the values that its words show (`aggregate/artifact/sentences.py`)."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmErrors:
    """How many of an arm's attempts were run, how many of those ended in `error`, and what they said."""

    attempts: int
    errors: int = 0
    messages: tuple[str, ...] = ()

    @property
    def too_many(self) -> bool:
        """More than 5 % of the attempts that were run."""
        return self.errors * ERRORS_ALLOWED > self.attempts


@dataclass(frozen=True)
class Verdict:
    """The gate's answer, why, and what a reader should know beside it."""

    verdict: VerdictName
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What the interval supports, and why."""

    decision: DecisionName
    reasons: tuple[Reason, ...]


def verdict(
    execution_pass_rate: float | None,
    baseline_pass_rate: float | None,
    *,
    arms: Mapping[str, ArmErrors] | None = None,
    status: Status = "complete",
    why: str = "",
    baseline_must_pass: bool = True,
    no_baseline: bool = False,
    candidate_score: float | None = None,
    eval_threshold: float = 6.0,
    n_pairs: int | None = None,
    skill_use: Sequence[Reason] = (),
) -> Verdict:
    """The literal rule of the gate, in this order: skipped, error, pass when delta >= 0, fail.

    `why` says more about a run that did not finish, `skill_use` what was wrong with who used the skill. A weak
    baseline that need not pass is a warning.
    """
    if candidate_score is not None and candidate_score < eval_threshold:
        score = {"score": candidate_score, "threshold": eval_threshold}
        return Verdict("skipped", (Reason("below_threshold", score),))
    if status == "hopeless":  # every other reason would only repeat this one
        return Verdict("error", (Reason("hopeless", {"why": why or "its model cannot answer"}),))
    if status == "weak_baseline":
        return Verdict("error", (Reason("weak_baseline_certain", {"why": why}),))
    candidate, baseline = _rate(execution_pass_rate), _rate(baseline_pass_rate)
    problems = [Reason(status, {"why": f" ({why})" if why else ""})] if status != "complete" else []
    problems += [*error_reasons(arms or {}), *skill_use]
    warnings: tuple[Reason, ...] = ()
    if not no_baseline and baseline < WEAK_BASELINE:
        values = {"rate": round(baseline, 4), "least": WEAK_BASELINE, "tasks": "tasks passed"}
        weak = Reason("weak_baseline", values)
        if baseline_must_pass:
            problems.append(weak)
        else:
            warnings = (weak,)
    unjudged = math.isnan(candidate) or (math.isnan(baseline) and not no_baseline)
    if unjudged:
        arm = "candidate" if math.isnan(candidate) else "baseline"
        counts = (arms or {}).get(arm, ArmErrors(0))
        # Rates are over pairs: an arm that has none may well have been judged.
        alone = counts.attempts > counts.errors
        problems.append(Reason("no_pairs") if alone else Reason("unjudged_arm", {"arm": arm}))
    elif n_pairs == 0 and not no_baseline:
        problems.append(Reason("no_pairs"))
    if problems:
        return Verdict("error", tuple(problems), warnings)
    if no_baseline:
        passes = candidate >= SMALLEST_PASS_RATE
        values = {"rate": round(candidate, 4), "least": SMALLEST_PASS_RATE, "tasks": "tasks passed"}
        reason = Reason("enough_alone" if passes else "too_few_alone", values)
    else:
        from aggregate.formulas.rates import rounded_delta

        delta = rounded_delta(candidate, baseline)
        passes = delta >= 0
        way = "rose" if delta > 0 else "fell"
        moved = f"{way} by {size_in_points(delta)}" if delta else "stayed the same"
        values = {"delta": delta, "tasks": "tasks passed", "moved": moved, "names": ""}
        reason = Reason("delta_no_worse" if passes else "delta_worse", values)
    return Verdict("pass" if passes else "fail", (reason,), warnings)


def error_reasons(arms: Mapping[str, ArmErrors]) -> list[Reason]:
    """For every arm with more than 5 % of its attempts in `error`: how many, and what most of them said."""
    return [
        Reason("errors", {**vars(counts), "arm": arm, "messages": _most_frequent(counts.messages)})
        for arm, counts in arms.items()
        if counts.too_many
    ]


def _most_frequent(messages: Iterable[str]) -> str:
    # By count, then by text, so that the order of arrival never shows.
    counted = sorted(Counter(messages).items(), key=lambda item: (-item[1], item[0]))[:3]
    return ": " + ", ".join(f"{text} ({times}×)" for text, times in counted) if counted else ""


def decision(
    interval: Interval, margin: float = MARGIN, arms: Mapping[str, ArmErrors] | None = None
) -> Decision:
    """What the delta interval supports; `no_worse` tolerates a loss of `margin`.

    With m candidates the interval must be at `decision_level(m)`. Too many errors in an arm decide nothing.
    """
    if not 0 <= margin <= 1:
        raise ValueError(f"margin: {margin} is not between 0 and 1")
    if reasons := error_reasons(arms or {}):
        return Decision("inconclusive", tuple(reasons))
    if math.isnan(interval.estimate):
        return Decision("inconclusive", (Reason("no_pairs"),))
    name: DecisionName = "inconclusive"
    code = "open"
    if interval.low > 0:
        name, code = "improved", "above_zero"
    elif interval.high < 0:
        name, code = "worse", "below_zero"
    elif interval.low > -margin:
        name, code = "no_worse", "loss_ruled_out"
    bounds = {"level": level_text(interval.level), "low": interval.low, "high": interval.high}
    return Decision(name, (Reason(code, {**bounds, "margin": margin}),))


def decision_level(candidates: int = 1, alpha: float = 0.05) -> float:
    """Level of each interval when this many candidates share a baseline (Bonferroni): 1 - alpha / m."""
    if candidates < 1:
        raise ValueError(f"candidates: {candidates}; at least 1 is compared")
    return 1 - alpha / candidates


def exit_code(
    verdict: VerdictName,
    decision: DecisionName | None = None,
    gate: Gate = "verdict",
    suite_decision: DecisionName | None = None,
) -> int:
    """0 pass or skipped, 1 fail, 3 error; under `--gate decision` improved and no_worse are 0, the others 1.

    Under `--gate regression` only harm on exactly this suite is 1. Without a decision (a candidate that ran
    alone) the verdict is all there is to follow.
    """
    if verdict == "error":
        return 3
    if verdict == "skipped":
        return 0
    if gate == "decision" and decision is not None:
        return 0 if decision in ("improved", "no_worse") else 1
    if gate == "regression" and suite_decision is not None:
        return 1 if suite_decision == "worse" else 0
    return 0 if verdict == "pass" else 1


def largest_ratio(gate_cost: str) -> float:
    """The ratio of costs that a cost gate allows: 1.1 for +10%; raises ValueError for what is no such share."""
    if not isinstance(gate_cost, str) or re.fullmatch(GATE_COST, gate_cost) is None:
        raise ValueError(
            f"{gate_cost!r} says not how much more it may cost; write it as in +10%, sign included"
        )
    return 1 + float(gate_cost[1:-1]) / 100


def _rate(rate: float | None) -> float:
    return math.nan if rate is None else float(rate)

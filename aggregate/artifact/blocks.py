"""Blocks of an artifact beside the comparison: costs, consistency, speedups, judges, skill loads, who answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aggregate.artifact.model import MEASURES, CheckResult
from aggregate.artifact.sentences import listed
from aggregate.formulas.agreement import judge_bias, krippendorff_alpha
from aggregate.formulas.consistency import concept_overlap, consistency_of, flaky_text, spread_of
from aggregate.formulas.intervals import Floats, Interval, ratio_interval
from aggregate.formulas.rates import compute_frontier_cop, cost_per_extra_pass, dominates, mean_known
from aggregate.formulas.speedups import ADVANTAGES, summarize_speedups, task_payload
from aggregate.formulas.verdict import Reason
from aggregate.records import metrics
from aggregate.records.frames import values
from aggregate.records.rows import Measured
from aggregate.records.run_info import BASELINE, CANDIDATE, RunInfo, TaskInfo
from aggregate.text.formats import Cleaned, cleaned_rows, counted, plain
from judges.judgment import SPARED


def costs_block(
    info: RunInfo,
    attempts: pd.DataFrame,
    arms: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]],
    gain: Mapping[str, Any],
) -> dict[str, Any]:
    """Cost per arm and model, cost of a pass and its frontier, and the price of an extra pass.

    `total_cost` adds up what is known; `n_cost_known` of `n` says how much that is. Cached attempts keep
    their cost here and count nothing towards `spent_usd`. The frontier is the cheapest pass that any tier or
    model of `groups` offers, in either arm. `gain` is what `extra` found.
    """
    known = attempts.dropna(subset=["cost_usd"])
    by_model = known.groupby("model", sort=True)["cost_usd"].sum()
    budget, paid = info.budget_usd, info.spent_usd
    over = None if budget is None or paid is None else max(0.0, paid - budget)
    return {
        "by_arm": {name: {key: values[key] for key in metrics.COSTS} for name, values in arms.items()},
        "cost_by_model": {str(model): float(total) for model, total in by_model.items()},
        "frontier_cop": compute_frontier_cop(
            arm["cop"]
            for name in ("by_tier", "by_model")
            for group in groups[name].values()
            for arm in group["arms"].values()
        ),
        **gain,
        "spent_usd": _bill(info, attempts),
        **info.model_dump(include={"wasted_usd", "wasted_attempts", "budget_usd", "assumed_usd"}),
        "over_budget_usd": over,  # what the attempts in flight spent beyond the budget
        "cost_sources": sorted(attempts["cost_source"].dropna().unique()),
    }


def _bill(info: RunInfo, attempts: pd.DataFrame) -> float:
    """What the run counted; NaN where it counted nothing only because nobody knows what its answers cost."""
    if info.spent_usd is None:
        return spent(attempts)
    answers = attempts[attempts["judged"]]  # what failed may have been for nothing
    return info.spent_usd if info.spent_usd or info.assumed_usd or answers.empty else spent(answers)


def extra(both: pd.DataFrame, attempt_delta: float | None) -> dict[str, Any]:
    """What the candidate's difference costs, over the tasks of both arms; unknown while an answer has no price."""
    mine, other = (_of_an_attempt(both, arm) for arm in (CANDIDATE, BASELINE))
    return {
        "cost_per_extra_pass": cost_per_extra_pass(mine, other, attempt_delta),
        "dominates": dominates(mine, other, attempt_delta),
    }


def _of_an_attempt(both: pd.DataFrame, arm: str) -> float:
    """As the difference is: a task's k attempts would make an extra pass k times as dear."""
    known = both[f"{arm}_n_cost_known"].sum()
    if not known or both[f"{arm}_n_unpriced"].any():
        return math.nan
    return float(both[f"{arm}_cost_usd"].sum() / known)


def spent(attempts: pd.DataFrame) -> float:
    """What models and judges billed for attempts that were not served from the cache; NaN when unknown."""
    fresh = attempts[~attempts["cached"]]
    # What a recording or an earlier run paid for its completions is not spent again.
    paid = fresh["cost_usd"].where(fresh["cost_source"] != "replay", 0.0)
    known = pd.concat([paid, fresh["judge_cost_usd"]]).dropna()
    if len(known) == 0:
        # All from the cache is a known nothing; attempts of unknown cost are unknown.
        return 0.0 if len(fresh) == 0 and len(attempts) else math.nan
    return float(known.sum())


def efficiency_block(attempts: pd.DataFrame, arm: str, level: float) -> dict[str, Any]:
    """Each measure of `MEASURES`, compared over all tasks (`all`) and over those that both arms passed."""
    mine, other = (_means(attempts, one) for one in (arm, BASELINE))
    cells = mine.index.union(other.index)
    mine, other = mine.reindex(cells), other.reindex(cells)
    tasks = pd.factorize(cells.get_level_values("task"))[0]
    passed = ((mine["passed"] > 0) & (other["passed"] > 0)).to_numpy()
    return {
        group: {
            name: _measure(
                mine[column].to_numpy()[chosen], other[column].to_numpy()[chosen], tasks[chosen], level
            )
            for name, (column, _) in MEASURES.items()
        }
        for group, chosen in (("all", np.ones(len(cells), bool)), ("both_passed", passed))
    }


def _means(attempts: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Means over the judged attempts of each (task, model), NaN where one of them is not known.

    A mean over what happens to be known would hide the dear attempts that ended without a bill.
    """
    judged = attempts["judged"] & (attempts["arm"] == arm)
    columns = [column for column, _ in MEASURES.values()]
    numbers = attempts.loc[judged, ["task", "model", "passed", *columns]]
    cells = numbers.groupby(["task", "model"], sort=True)
    return cells.mean().where(cells.count().eq(cells.size(), axis=0))


def _measure(mine: Floats, other: Floats, tasks: NDArray[np.intp], level: float) -> dict[str, Any]:
    """One measure of both arms for each (task, model); a task with several models counts once, with their mean."""
    known = ~np.isnan(mine + other)
    positive = known & (mine > 0) & (other > 0)
    logs = np.log(mine[positive]) - np.log(other[positive])
    models = np.bincount(tasks[positive])
    by_task = np.bincount(tasks[positive], logs)[models > 0] / models[models > 0]
    ratio, bill = ratio_interval(by_task, level), other[known].sum()
    with np.errstate(over="ignore"):
        of_totals = float(mine[known].sum() / bill) if bill > 0 else math.nan
    return {
        **vars(ratio),
        "ratio": ratio.estimate,
        "ratio_of_totals": of_totals,
        "n_tasks": len(by_task),
        "n_all": len(np.unique(tasks)),
        # Tasks that lack something: all of it, or that of a model whose price is zero or unknown.
        "n_zero": len(np.unique(tasks[known & ~positive])),
        "n_unknown": len(np.unique(tasks[~known])),
        "word": _word(ratio, of_totals),
    }


def _word(ratio: Interval, of_totals: float) -> str | None:
    """What tasks and bill both say; None where they do not, or where the interval holds 1."""
    if ratio.high < 1 and of_totals < 1:
        return "cheaper"
    return "dearer" if ratio.low > 1 and of_totals > 1 else None


def consistency_block(attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str) -> dict[str, Any] | None:
    """Spread over repeated attempts, with the range of each flaky task; None when nothing was repeated.

    With several models a task is named with its model. Per-task numbers of all others are in the tasks frame.
    """
    of_arm = (attempts["arm"] == arm) & attempts["score"].notna()
    scored = attempts.loc[of_arm, ["task", "model", "matched", "has_concepts"]]
    matched = _matched(scored)
    having = scored[scored["has_concepts"]]
    with_concepts = set(zip(values(having["task"]), values(having["model"]), strict=True))
    several = len({model for _, model in matched}) > 1
    repeated = tasks[(tasks["arm"] == arm) & (tasks["n_scored"] >= 2)]
    names = ("task", "model", "n_scored", "accuracy_std_dev", "accuracy_range")
    columns = (values(repeated[name]) for name in names)
    by_task = {}
    for task, model, n, std, spread in zip(*columns, strict=True):
        overlap = concept_overlap(matched[task, model], has_concepts=(task, model) in with_concepts)
        by_task[f"{task} ({model})" if several else task] = spread_of(n, std, spread, overlap)
    spreads = consistency_of(by_task)
    if spreads is None:
        return None
    agreeing, by_task = spreads["unseen_bound"], spreads.pop("tasks")
    # First those that widen the interval most: by the variance of a task's mean.
    order = sorted(spreads["flaky_tasks"], key=lambda task: -(by_task[task]["std"] ** 2) / by_task[task]["n"])
    flaky = {task: by_task[task] for task in order}
    return {
        **spreads,
        "flaky_tasks": order,
        "ranges": {task: spread["range"] for task, spread in flaky.items()},
        "attempts": {task: spread["n"] for task, spread in flaky.items()},
        "unseen_bound": {"tasks": len(agreeing), "bound": max(agreeing.values(), default=math.nan)},
    }


def _matched(scored: pd.DataFrame) -> dict[tuple[str, str], list[Iterable[str]]]:
    """What the attempts of each (task, model) matched."""
    by_unit: dict[tuple[str, str], list[Iterable[str]]] = {}
    columns = (values(scored[name]) for name in ("task", "model", "matched"))
    for task, model, matched in zip(*columns, strict=True):
        by_unit.setdefault((task, model), []).append(matched)
    return by_unit


def flaky_words(block: dict[str, Any] | None, most: int) -> list[str]:
    """Flaky tasks with their range, at most so many: "a: range 35 points over 5 attempts"."""
    if block is None:
        return []
    shown = block["flaky_tasks"][:most]
    return [f"{task}: {flaky_text(block['ranges'][task], block['attempts'][task])}" for task in shown]


_MEANS = (*ADVANTAGES, "task_speedup", "success", "trajectory_length")
_SUMS = ("num_benchmarks", "num_valid_benchmarks")


def speedup_block(measured: Iterable[Measured], arms: Iterable[str]) -> dict[str, Any] | None:
    """Speedups by arm, then model, with each attempt's payload under its task; None without benchmarks."""
    wanted = set(arms)
    grouped: dict[str, dict[str, dict[str, list[Measured]]]] = {}
    for one in measured:
        if one.arm in wanted:
            by_task = grouped.setdefault(one.arm, {}).setdefault(one.model, {})
            by_task.setdefault(one.task, []).append(one)
    return {
        arm: {model: _summary(tasks) for model, tasks in sorted(models.items())}
        for arm, models in sorted(grouped.items())
    } or None


def mean_advantage(speedups: dict[str, Any] | None, arm: str) -> float | None:
    """The arm's advantage over the oracle, mean over its models; None when the suite has no benchmarks."""
    if speedups is None or arm not in speedups:
        return None
    return mean_known(summary["agent_advantage"] for summary in speedups[arm].values())


def _summary(tasks: dict[str, list[Measured]]) -> dict[str, Any]:
    payloads = {task: [_payload(one) for one in attempts] for task, attempts in sorted(tasks.items())}
    return {**summarize_speedups(list(map(_task, payloads.values()))), "tasks": payloads}


def _payload(one: Measured) -> dict[str, Any]:
    payload = task_payload(
        one.benchmarks, one.tests, one.snapshot, one.cost_usd, one.turns, timed_out=one.timed_out
    )
    return {"attempt": one.attempt, "passed": one.passed, **payload}


def _task(payloads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One task over its attempts: means of ratios, sums of what was measured and paid."""
    costs = [payload["task_cost_usd"] for payload in payloads if payload["task_cost_usd"] is not None]
    return {
        **{name: mean_known(payload[name] for payload in payloads) for name in _MEANS},
        **{name: sum(payload[name] for payload in payloads) for name in _SUMS},
        "task_cost_usd": sum(costs) if costs else None,
        "attempts": len(payloads),
        "passes": sum(payload["passed"] for payload in payloads),
    }


def check_results(checks: pd.DataFrame, digits: int | None = None) -> Cleaned[CheckResult]:
    """Each check of each task in each arm, in order of the task's id, then of the arm, then as the suite has them."""
    key = ["task", "check", "arm"]
    first = {name: (name, "first") for name in ("judge", "by", "required", "weight")}
    found = checks.groupby(key, sort=False).agg(
        **first,
        n=("arm", "size"),
        judged=("passed", "count"),
        passes=("passed", "sum"),
        scored=("score", "count"),
        score=("score", "mean"),
    )
    found = found.reset_index().astype({"passes": int})
    found = found.assign(task_id=found["task"], missing=found["n"] - found["scored"])
    return cleaned_rows(
        CheckResult, {one.name: values(found[one.name]) for one in fields(CheckResult)}, digits
    )


def spared(checks: pd.DataFrame) -> list[str]:
    """How many checks were spared, whose scores are missing."""
    spared = int((checks["details"] == SPARED).sum())
    words = f"{counted(spared, 'check')} of {len(checks)} spared: no score there, nor of the whole"
    return [words] if spared else []


def panels_block(judgments: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, Any] | None:
    """Judges by type or model with their cost; agreement and bias where attempts had several."""
    if judgments.empty:
        return None
    named = judgments.assign(name=judgments["judge_model"].fillna(judgments["judge"]))
    sizes = attempts["panel_size"].to_numpy()
    named = named.assign(unit=np.repeat(np.arange(len(sizes)), sizes))
    if named["check"].notna().any():  # each check is judged by a panel of its own
        named["unit"] = named.groupby(["unit", "check"], dropna=False, sort=False).ngroup()
    sizes_of = named["unit"].value_counts().value_counts().sort_index()
    return {
        "judges": {str(name): _judge(part) for name, part in named.groupby("name", sort=True)},
        "panel_sizes": {str(size): int(count) for size, count in sizes_of.items()},
        "n_missing": int(judgments["score"].isna().sum()),
        "n_saw_cut_text": int(judgments["saw_cut_text"].sum()),
        "judge_cost": judgments["cost_usd"].sum(min_count=1),
        "agreement": _agreement(named[named.groupby("unit")["name"].transform("size") >= 2]),
    }


def _judge(part: pd.DataFrame) -> dict[str, Any]:
    return {
        "n": len(part),
        "n_scored": int(part["score"].count()),
        "mean_score": float(part["score"].mean()),
        "mean_impl_rate": float(part["judge_impl_rate"].mean()),
        "cost": part["cost_usd"].sum(min_count=1),
        "input_tokens": part["input_tokens"].sum(min_count=1),
        "output_tokens": part["output_tokens"].sum(min_count=1),
    }


def _agreement(shared: pd.DataFrame) -> dict[str, Any] | None:
    """Krippendorff's alpha over the attempts that several judges saw; each judge's lean against others."""
    if shared.empty:
        return None
    # Two members of one model are two judges; their number tells them apart.
    several = shared.groupby(["unit", "name"], sort=False).cumcount() + 1
    told = shared.assign(several=several)
    scores, passes = (
        told.pivot(index=["name", "several"], columns="unit", values=column).sort_index()
        for column in ("score", "passed")
    )
    names = [name if number == 1 else f"{name} #{number}" for name, number in scores.index]
    return {
        "n": scores.shape[1],
        "alpha_scores": krippendorff_alpha(scores.to_numpy(), level="interval"),
        "alpha_passes": krippendorff_alpha(passes.to_numpy(), level="nominal"),
        "bias": dict(zip(names, judge_bias(scores.to_numpy()), strict=True)),
    }


Loads = dict[str, dict[str, dict[str, int | None]]]


def triggers_block(attempts: pd.DataFrame, tasks: Iterable[TaskInfo], arm: str) -> dict[str, Any] | None:
    """Share of attempts that did right by `should_trigger`, and which tasks did not; None when unknown."""
    wanted = {task.id: task.should_trigger for task in tasks if task.should_trigger is not None}
    mine = attempts[(attempts["arm"] == arm) & attempts["task"].isin(list(wanted))]
    mine = mine[mine["skill_loaded"].notna()]
    if mine.empty:
        return None
    invoked = mine["skill_loaded"] > 0
    expected = mine["task"].map(wanted).astype(bool)
    missed, false = mine[expected & ~invoked], mine[~expected & invoked]
    return {
        "n": len(mine),
        "rate": float((invoked == expected).mean()),
        "trigger_rate": invoked[expected].mean(),
        "false_trigger_rate": invoked[~expected].mean(),
        "missed": len(missed),
        "false_triggers": len(false),
        "missed_tasks": sorted(missed["task"].unique()),
        "false_trigger_tasks": sorted(false["task"].unique()),
    }


def loads(attempts: pd.DataFrame, info: RunInfo, arms: Iterable[str]) -> Loads:
    """By arm and model, in how many answered attempts the skill was loaded, of those that tell and whose task may.

    Of a model for which skills are mounted and that never tells, the number is unknown.
    """
    unwanted = [task.id for task in info.tasks if task.should_trigger is False]
    answered = attempts[(attempts["outcome"] != "error") & ~attempts["task"].isin(unwanted)]
    made: Loads = {}
    for arm in arms:
        for model, invoked in answered[answered["arm"] == arm].groupby("model", sort=True)["skill_loaded"]:
            told = invoked.dropna()
            if len(told):
                one: dict[str, int | None] = {"loaded": int((told > 0).sum()), "n": len(told)}
            elif model in info.mounted:
                one = {"loaded": None, "n": len(invoked)}
            else:
                continue
            made.setdefault(arm, {})[str(model)] = one
    return made


def skill_misuse(
    info: RunInfo, attempts: pd.DataFrame, loads: dict[str, dict[str, int | None]]
) -> list[Reason]:
    """Why the numbers say nothing of the skill: nobody loaded it, or the bare baseline had it, too."""
    found = []
    told = [(one["loaded"], one["n"]) for one in loads.values() if one["loaded"] is not None]
    if told and not any(loaded for loaded, _ in told) and info.unloaded == "error":
        count = counted(sum(number or 0 for _, number in told), "attempt")
        found.append(Reason("never_loaded", {"attempts": count}))
    bare = attempts[(attempts["arm"] == BASELINE) & (attempts["skill_loaded"] > 0)]
    if info.baseline == "bare" and len(bare):
        found.append(Reason("baseline_loaded", {"attempts": counted(len(bare), "attempt")}))
    return found


def never_loaded(loads: Loads, words: Mapping[str, str]) -> list[str]:
    """A warning for each model that never loaded an arm's skill; `words` name the arms."""
    return [
        f"{plain(model, 80)} loaded the skill of {words[arm]} in 0 of {counted(one['n'] or 0, 'attempt')}: "
        "these answers came without it"
        for arm, models in loads.items()
        for model, one in models.items()
        if one["loaded"] == 0
    ]


Served = dict[str, dict[str, dict[str, list[str]]]]
_FIELDS = {"models": "served_model", "versions": "agent_version"}
_WORDS = {"models": "{} answered for", "versions": "its program was version {} for"}
_NAME = 80


def served_block(attempts: pd.DataFrame, arms: list[str]) -> Served:
    """By model and arm, what the answers say of themselves; nothing of models that do not tell."""
    made: Served = {}
    of_arms = attempts.loc[attempts["arm"].isin(arms), ["model", "arm", *_FIELDS.values()]]
    for field, column in _FIELDS.items():
        known = of_arms.dropna(subset=[column]).groupby(["model", "arm"], sort=False)[column]
        for (model, arm), found in known:
            made.setdefault(str(model), {}).setdefault(str(arm), {})[field] = sorted(found.unique())
    return made


def served_differences(served: Served, arm: tuple[str, str], other: tuple[str, str]) -> list[str]:
    """A warning for each model that others answered for in the two arms; each arm comes with its name in words."""
    (mine, my_name), (theirs, their_name) = arm, other
    warnings = []
    for model, sides in served.items():
        for field, words in _WORDS.items():
            here, there = (sides.get(side, {}).get(field) for side in (mine, theirs))
            if here and there and here != there:
                who = (
                    f"{words.format(listed(here, _NAME))} {my_name}, {listed(there, _NAME)} for {their_name}"
                )
                warnings.append(f"{plain(model, _NAME)}: {who}; a difference between them may come from that")
    return warnings

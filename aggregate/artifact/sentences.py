"""Say what the numbers mean: sentences for the terminal, the artifact's summary and the reports.

They read the artifact's own fields, so that they can be said again from the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from aggregate.artifact.model import Artifact, CostRatio, RunCost, RunsCompared
from aggregate.formulas.verdict import Reason, exit_code, largest_ratio
from aggregate.text.formats import counted, level_text, plain, points, rate, shown, size_in_points, times, usd

SIMULATED_KINDS = ("sim", "mock")
MOST_ADVISED_ATTEMPTS = 20
_MODEL = 40
# Every reason of a verdict, a decision or a look: its code, and its words with places for its values.
_WORDS = {
    "below_threshold": "score {score:g} is below the threshold of {threshold:g}",
    "cannot_be_run": "{why}",
    "not_run": "nothing was run",
    "hopeless": "the run was given up: {why}",
    "cancelled": "the run was cancelled{why}",
    "over_budget": "the budget ran out{why}",
    "errors": "{errors} of {attempts} {arm} attempts ended in error{messages}",
    "weak_baseline": "baseline pass rate {rate} < {least} ({tasks})",
    "never_loaded": "the skill was loaded in 0 of {attempts}: nothing here comes from it",
    "baseline_loaded": "the bare baseline read the candidate's skill in {attempts}",
    "ended": "the run ended before all its attempts were made: no decision",
    "weak_baseline_certain": "{why}",
    "no_pairs": "no task was judged in both arms",
    "unjudged_arm": "no attempt could be judged in the {arm}",
    "enough_alone": "{tasks}: {rate}, at least the {least} that are asked of a candidate alone",
    "too_few_alone": "{tasks}: {rate}, less than the {least} that are asked of a candidate alone",
    "delta_no_worse": "{tasks} {moved}{names}",
    "delta_worse": "{tasks} {moved}{names}",
    "no_baseline": "there is no baseline to compare with",
    "above_zero": "the {level} interval is {low} to {high} points: above 0",
    "below_zero": "the {level} interval is {low} to {high} points: below 0",
    "loss_ruled_out": "the {level} interval is {low} to {high} points: a loss above {margin} is ruled out",
    "open": "the {level} interval is {low} to {high} points: it holds 0 and a loss of {margin}",
    "futile": "a difference of {effect} would now be found with a chance of {power}",
    "more_rounds": "round {round} of {rounds} leaves it open",
    "no_round": "no round of attempts was finished",
}


def words(reasons: Iterable[Reason]) -> str:
    """Reasons as people read them. Programs read the codes."""
    return "; ".join(
        _WORDS[reason.code].format(**{name: _shown(name, value) for name, value in reason.values.items()})
        for reason in reasons
    )


def _shown(name: str, value: Any) -> Any:
    if name in ("low", "high"):
        return points(value)
    if name in ("power", "rate", "least"):
        return rate(value)
    return size_in_points(value) if name in ("margin", "effect") else value


def is_simulated(model: str) -> bool:
    """True for models that only pretend: `mock`, `sim` and their settings."""
    return model.partition(":")[0] in SIMULATED_KINDS


def short_models(models: Iterable[str]) -> dict[str, str]:
    """What people call each model: its kind alone where the rest is settings, numbered where several are alike."""
    short = {}
    for model in models:
        kind, _, rest = model.partition(":")
        if kind in SIMULATED_KINDS:
            short[model] = kind
        else:
            short[model] = plain(f"{kind}:{PurePath(rest).name}" if kind == "replay" else model, _MODEL)
    alike = sorted(model for model, name in short.items() if list(short.values()).count(name) > 1)
    return short | {model: f"{short[model]} {number}" for number, model in enumerate(alike, start=1)}


def with_short_model(name: str, artifact: Artifact) -> str:
    """The name of a task that ends in its model in brackets, with what people call the model."""
    for model, short in short_models(artifact.models).items():
        if name.endswith(f" ({model})"):
            return f"{name.removesuffix(f'({model})')}({short})"
    return name


def models_named(artifact: Artifact) -> str:
    """Which model each short name stands for, where it is not the model's own."""
    short = short_models(artifact.models)
    return ", ".join(f"{name} is {plain(model, 200)}" for model, name in short.items() if name != model)


def attempts_each(result: Artifact | RunsCompared) -> int | None:
    """How many attempts of each task were made: fewer than planned where the run stopped early."""
    if isinstance(result, RunsCompared):
        return None
    return (result.sequential and result.sequential.stopped_after) or result.pass_k


def by_model(artifact: Artifact | RunsCompared) -> bool:
    """Whether a task counts once for each model; not when two runs of a model each are compared."""
    return artifact.paired_by_model if isinstance(artifact, RunsCompared) else len(artifact.models) > 1


def cells(artifact: Artifact | RunsCompared, number: int) -> str:
    """What was judged in both arms or was not, counted: tasks, or pairs of task and model."""
    return counted(number, "pair of task and model" if by_model(artifact) else "task")


def triggered(artifact: Artifact) -> str:
    """How often the skill was invoked when it should be and when it should not; empty where nobody asked."""
    block = artifact.triggers
    if block is None:
        return ""
    parts = []
    if block.trigger_rate is not None:
        parts.append(f"in {rate(block.trigger_rate)} of attempts where it should be{_of(block.missed_tasks)}")
    if block.false_trigger_rate is not None:
        wrong = _of(block.false_trigger_tasks, "in")
        whose = "those" if parts else "attempts"
        parts.append(f"in {rate(block.false_trigger_rate)} of {whose} where it should not be{wrong}")
    return f"The skill was invoked {' and '.join(parts)}."


def _of(tasks: list[str], word: str = "not in") -> str:
    return f" ({word} {listed(tasks, 60)})" if tasks else ""


def listed(names: list[str], width: int) -> str:
    """The first three names, each cut at the width, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(plain(name, width) for name in names[:3])}{more}"


def found(result: RunsCompared) -> str:
    """The pass rates of two runs and their difference."""
    after, before = (shown(one, rate) for one in (result.execution_pass_rate, result.baseline_pass_rate))
    difference = shown(result.delta, points)
    return f"The second run passes {after} of its tasks, the first {before} ({difference} points)."


def decided(result: RunsCompared) -> str:
    """The decision about two runs in words, with the interval it rests on."""
    interval = result.interval
    if interval is None:
        return ""
    bounds = interval.tasks_like_these
    between = f"between {points(bounds.low)} and {points(bounds.high)} points ({level_text(interval.level)} interval)"
    what = "on tasks like these the true difference in attempts passed"
    if result.decision == "inconclusive":
        if bounds.low <= -result.margin and bounds.high >= 0:
            return f"Inconclusive: {what} may be anything {between}."
        return f"Inconclusive: {plain(result.decision_reason or '', 400)}."  # not for the interval's sake
    margin = f"No worse (a loss of {size_in_points(result.margin)} is ruled out)"
    named = {"improved": "Improved", "no_worse": margin, "worse": "Worse"}
    return f"{named[result.decision]}: {what} lies {between}."


def gated(artifact: Artifact) -> str:
    """What the gate says and why: the verdict in words, or what `--gate` follows in its place."""
    decision = artifact.decision
    code = exit_code(artifact.verdict, decision, artifact.gate, artifact.suite_decision)
    said = {0: "pass", 1: "fail", 3: "error"}[code]
    if artifact.gate == "verdict" or decision is None or code == 3:
        return f"{said}: {plain(artifact.reason, 400)}"
    if artifact.gate == "decision":
        return f"{said}: it follows the decision for tasks like these, {decision.replace('_', ' ')}"
    if code:
        return f"{said}: on exactly these tasks the candidate is worse"
    return f"{said}: it fails only on harm to exactly these tasks{_missed(artifact)}"


def _missed(artifact: Artifact) -> str:
    could = artifact.could_miss
    if could is None:
        return ""
    more, loss, then = counted(could.more_attempts, "more attempt"), could.loss, could.loss_then
    missed = f"; it may have missed a loss of up to {size_in_points(loss)}"
    return f"{missed}, and {more} a task would leave {size_in_points(then)}"


def efficiency(artifact: Artifact) -> str:
    """How many times the baseline's cost the candidate takes, or its tokens where no cost is known; else empty.

    "Same quality" is said where an interval of the difference holds 0 and lies within the margin on either side.
    """
    measures = artifact.efficiency.all if artifact.efficiency else {}
    told: list[str] = []
    for name, one in measures.items():
        if name in ("cost", "input_tokens", "output_tokens") and one.ratio is not None:
            level = f"{level_text(one.level)} interval " if one.low is not None and not told else ""
            told.append(f"{times(one.ratio)} times the {name.replace('_', ' ')} ({level}{between(one)})")
    if not told:
        return ""
    if measures["cost"].ratio is not None:  # it is the first, and says it all
        del told[1:]
    return ", ".join(filter(None, (_same_quality(artifact), *told))) + _bill(measures["cost"]) + "."


def between(measure: CostRatio) -> str:
    """The interval of a ratio, in words where there is none."""
    if measure.low is None:
        return "one task has no interval"
    return f"{times(measure.low)} to {shown(measure.high, times)}"


def _same_quality(artifact: Artifact) -> str:
    interval, margin = artifact.interval, artifact.margin
    if interval is None or artifact.verdict not in ("pass", "fail"):
        return ""
    suite = (interval.exactly_this_suite, " on exactly these tasks")
    for bounds, where in ((interval.tasks_like_these, ""), suite):
        if bounds and bounds.estimate is not None and -margin < bounds.low <= 0 <= bounds.high < margin:
            far = f"{points(bounds.low)} to {points(bounds.high)}"
            return f"Same quality{where} ({points(bounds.estimate)} points, {far})"
    return ""


def _bill(cost: CostRatio) -> str:
    """The ratio of totals where it lies on the other side of 1: a few dear tasks make the bill."""
    low, high, bill = cost.low, cost.high, cost.ratio_of_totals
    if low is None or high is None or bill is None or low <= 1 <= high or (high < 1) == (bill < 1):
        return ""
    return f", but {times(bill)} times the bill"


def cost_gated(artifact: Artifact) -> str:
    """What the cost gate says; empty without one, and for a candidate that was not run."""
    if artifact.gate_cost is None or not artifact.was_run:
        return ""
    code, gate = artifact.cost_code, f"The cost gate ({artifact.gate_cost})"
    if code == 3:
        one_task = artifact.efficiency and artifact.efficiency.all["cost"].n_tasks == 1
        why = "one task has no interval" if one_task else "no task has a known cost above 0 in both arms"
        return f"{gate} is closed: {why} (exit code 3)."
    most = largest_ratio(artifact.gate_cost)
    above = f"above {most:.2f}" if round(most, 2) == most else f"above {most:.9g}"
    if code:
        return f"{gate} is closed: the interval of the cost ratio lies {above} (exit code {code})."
    return f"{gate} is open: the interval of the cost ratio does not lie {above}."


def bill(artifact: Artifact) -> str:
    """What the run cost, and how sure that is."""
    cost = artifact.cost or RunCost()
    if cost.spent_usd is None:
        return "cost not known"
    outcomes = artifact.attempts.by_arm if artifact.attempts else {}
    unknown = any(
        arm.n_cost_known < arm.n - outcomes.get(name, {}).get("error", 0) for name, arm in cost.by_arm.items()
    )
    said = f"{'at least ' if unknown and not cost.assumed_usd else ''}{usd(cost.spent_usd)}"
    if cost.wasted_usd:
        said += f", of it {usd(cost.wasted_usd)} on {counted(cost.wasted_attempts, 'repeated attempt')}"
    if cost.assumed_usd:
        said += f", and {usd(cost.assumed_usd)} assumed for calls of unknown cost"
    return said


def bought(artifact: Artifact) -> str:
    """What the run's money bought; of this run only, and no promise. Empty where it bought nothing more."""
    cost = artifact.cost or RunCost()
    if cost.dominates:
        return "Here the candidate passed more and cost no more."
    if cost.cost_per_extra_pass is not None:
        return f"Each extra pass costs {usd(cost.cost_per_extra_pass)}."
    return ""


def power(result: Artifact | RunsCompared) -> str:
    """What so many tasks are likely to miss, and what would show the difference that was asked for.

    A run that stopped early has seen how little more attempts would help, and is told nothing that is only likely.
    """
    needed, smallest = result.needed, result.min_detectable_effect
    if needed is None or not needed.n_pairs:
        return ""
    made = attempts_each(result)
    early = isinstance(result, Artifact) and made is not None and made < result.pass_k
    if smallest is not None and smallest <= needed.effect and not early:
        tasks = counted(needed.n_pairs, "task")
        return f"{tasks} are likely to show a difference of {size_in_points(smallest)} or more."
    said = [] if early else [too_small(result)]
    told = "; ".join(filter(None, (*said, enough(result))))
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def too_small(result: Artifact | RunsCompared) -> str:
    """The differences that a suite of this size is likely to miss: it finds them in fewer than 80 % of runs."""
    needed, smallest = result.needed, result.min_detectable_effect
    tasks = counted(needed.n_pairs if needed else 0, "task")
    are = "is" if tasks.startswith("1 ") else "are"
    if smallest is None:
        return f"{tasks} {are} likely to miss any difference"
    return f"{tasks} {are} likely to miss a difference below {size_in_points(smallest)}"


def advised(result: Artifact | RunsCompared) -> tuple[int, int] | None:
    """How many tasks, and attempts of each, are likely to show what was asked for; None where no number is known.

    More attempts of the same tasks are advised only where they are more than were planned.
    """
    needed, made = result.needed, attempts_each(result)
    if needed is None:
        return None
    planned = result.pass_k if isinstance(result, Artifact) else 0
    more = needed.attempts is not None and planned < needed.attempts <= MOST_ADVISED_ATTEMPTS
    if more and needed.attempts is not None and made in (None, planned):
        return needed.n_pairs, needed.attempts
    if needed.tasks is not None and needed.tasks > needed.n_pairs:
        return needed.tasks, needed.tasks_at_attempts
    return None


def enough(result: Artifact | RunsCompared) -> str:
    """How many attempts or tasks are likely to show the difference that was asked for; empty where nobody knows."""
    needed, told = result.needed, advised(result)
    if needed is None:
        return ""
    target = size_in_points(needed.effect)
    if told is None:
        return "" if needed.tasks else f"no affordable number of such tasks would show {target}"
    tasks, attempts = told
    if tasks == needed.n_pairs:
        return f"{counted(attempts, 'attempt')} of each would show {target}"
    return f"{tasks} tasks × {counted(attempts, 'attempt')} would show {target}"


def simulated(artifact: Artifact | RunsCompared) -> str:
    """A warning that no real model was asked; empty when all were real."""
    names = short_models(artifact.models)
    fake = [names[model] for model in artifact.models if is_simulated(model)]
    if not fake:
        return ""
    return f"The model was simulated ({', '.join(fake)}): these numbers say nothing about a real model."


def reason(artifact: Artifact) -> str:
    """The verdict's reason, and the flag that lets it count where a weak baseline or an unused skill is the reason."""
    hint = "; if it is meant to be weak: --weak-baseline warn" if artifact.baseline_is_too_weak else ""
    if "never_loaded" in (artifact.reason_codes or []):
        hint += "; if it need not be loaded: --unloaded warn"
    return artifact.reason + hint


def loads(artifact: Artifact, arm: str) -> tuple[int | None, int]:
    """In how many attempts of an arm its skill was loaded, and of how many that is known; None where of none."""
    models = (artifact.skill_loads or {}).get(arm, {}).values()
    told = [one for one in models if one.loaded is not None]
    if not told:
        return None, sum(one.n for one in models)
    return sum(one.loaded or 0 for one in told), sum(one.n for one in told)

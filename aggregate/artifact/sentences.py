"""Say what the numbers mean: sentences for the terminal, the artifact's summary and the reports.

They read the artifact's own fields, so that they can be said again from the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from aggregate.artifact.model import Artifact, Bounds, CostRatio, Needed, RunCost, RunsCompared
from aggregate.formulas.verdict import Reason, exit_code, largest_ratio
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import counted, level_text, plain, points, shown, times, usd

SIMULATED_KINDS = ("sim", "mock")
MOST_ADVISED_ATTEMPTS = 20
# Every reason of a verdict, a decision or a look: its code, and its words with places for its values.
_WORDS = {
    "below_threshold": "score {score:g} is below the threshold of {threshold:g}",
    "cannot_be_run": "{why}",
    "not_run": "nothing was run",
    "hopeless": "the run was given up: {why}",
    "cancelled": "the run was cancelled{why}; numbers cover the pairs it has",
    "over_budget": "the budget ran out{why}; numbers cover the pairs it has",
    "errors": "{errors} of {attempts} {arm} attempts ended in error{messages}",
    "weak_baseline": "baseline pass rate {rate} < {least}",
    "weak_baseline_certain": "{why}",
    "no_pairs": "no task was judged in both arms",
    "unjudged_arm": "no attempt could be judged in the {arm}",
    "enough_alone": "pass rate {rate} >= {least} without a baseline",
    "too_few_alone": "pass rate {rate} < {least} without a baseline",
    "delta_no_worse": "delta {delta:+.4f}: no worse than the baseline",
    "delta_worse": "delta {delta:+.4f}: worse than the baseline",
    "no_baseline": "there is no baseline to compare with",
    "ended_by_weak_baseline": "the run ended once its baseline was too weak",
    "above_zero": "the {level} interval is {low:+.3f} to {high:+.3f}: above 0",
    "below_zero": "the {level} interval is {low:+.3f} to {high:+.3f}: below 0",
    "loss_ruled_out": "the {level} interval is {low:+.3f} to {high:+.3f}: a loss above {margin:g} is ruled out",
    "open": "the {level} interval is {low:+.3f} to {high:+.3f}: it holds 0 and a loss of {margin:g}",
    "futile": "an effect of {effect:.2g} would now be found with a chance of {power:.0%}",
    "more_rounds": "round {round} of {rounds} leaves it open",
    "no_round": "no round of attempts was finished",
}


def words(reasons: Iterable[Reason]) -> str:
    """Reasons as people read them. Programs read the codes."""
    return "; ".join(_WORDS[reason.code].format(**reason.values) for reason in reasons)


def is_simulated(model: str) -> bool:
    """True for models that only pretend: `mock`, `sim` and their settings."""
    return model.partition(":")[0] in SIMULATED_KINDS


def by_model(artifact: Artifact | RunsCompared) -> bool:
    """Whether a task counts once for each model; not when two runs of a model each are compared."""
    return artifact.paired_by_model if isinstance(artifact, RunsCompared) else len(artifact.models) > 1


def cells(artifact: Artifact | RunsCompared, number: int) -> str:
    """What was judged in both arms or was not, counted: tasks, or pairs of task and model."""
    return counted(number, "pair of task and model" if by_model(artifact) else "task")


def summary(artifact: Artifact) -> list[str]:
    """The result in a few sentences: what was found, how sure, what is needed, what to be careful of."""
    if not artifact.was_run:
        return [f"Nothing was run: {artifact.reason}."]
    said = [
        failed(artifact),
        found(artifact),
        partly(artifact),
        decided(artifact),
        suite_decided(artifact),
        gated(artifact),
        efficiency(artifact),
        cost_gated(artifact),
        power(artifact),
        loaded(artifact),
        triggered(artifact),
        saved(artifact),
        simulated(artifact),
    ]
    return [sentence for sentence in said if sentence]


def saved(artifact: Artifact) -> str:
    """How many attempts early stopping left out; empty where it was off or left out none."""
    attempts = artifact.attempts
    if artifact.stop_early is None or artifact.status != "finished" or not (attempts and attempts.skipped):
        return ""
    return f"Stopped early: {attempts.run} of {attempts.planned} attempts were made."


def loaded(artifact: Artifact) -> str:
    """In how many attempts the agents loaded the skill; empty where no model tells."""
    sums = {
        arm: (sum(one.loaded for one in models.values()), sum(one.n for one in models.values()))
        for arm, models in (artifact.skill_loads or {}).items()
    }
    if artifact.arm not in sums:
        return ""
    times, n = sums[artifact.arm]
    said = f"The skill was loaded in {times} of {counted(n, 'attempt')}"
    if BASELINE in sums:
        said += f", the baseline's in {sums[BASELINE][0]} of {sums[BASELINE][1]}"
    return f"{said}."


def triggered(artifact: Artifact) -> str:
    """How often the skill was invoked when it should be and when it should not; empty where nobody asked."""
    block = artifact.triggers
    if block is None:
        return ""
    parts = []
    if block.trigger_rate is not None:
        parts.append(f"in {_percent(block.trigger_rate)} of attempts that should{_of(block.missed_tasks)}")
    if block.false_trigger_rate is not None:
        wrong = _of(block.false_trigger_tasks, "in")
        whose = "those" if parts else "attempts"
        parts.append(f"in {_percent(block.false_trigger_rate)} of {whose} that should not{wrong}")
    return f"The skill was invoked {' and '.join(parts)}."


def _of(tasks: list[str], word: str = "not in") -> str:
    return f" ({word} {listed(tasks, 60)})" if tasks else ""


def listed(names: list[str], width: int) -> str:
    """The first three names, each cut at the width, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(plain(name, width) for name in names[:3])}{more}"


def failed(artifact: Artifact) -> str:
    """Why a run with an `error` verdict cannot be relied on; empty otherwise."""
    return f"No verdict: {reason(artifact)}." if artifact.verdict == "error" else ""


def found(artifact: Artifact | RunsCompared, one: str = "the candidate", other: str = "the baseline") -> str:
    """Both pass rates and their difference."""
    candidate, baseline = artifact.execution_pass_rate, artifact.baseline_pass_rate
    if candidate is None:
        return f"{_capital(one)} has no judged attempt."
    if baseline is None:
        return f"{_capital(one)} passes {_percent(candidate)} of its tasks; there is nothing to compare with."
    rates = f"{_capital(one)} passes {_percent(candidate)} of its tasks, {other} {_percent(baseline)}"
    if artifact.delta is None:
        return f"{rates}; no task was judged in both, so there is no difference to tell."
    return f"{rates} ({points(artifact.delta)} points)."


def partly(artifact: Artifact) -> str:
    """That the rates cover more tasks than the difference by attempts; empty where they cover the same."""
    judged, dropped = artifact.n_cells, artifact.n_dropped
    if not judged or not dropped:
        return ""
    covered = f"The difference by attempts covers the {cells(artifact, judged)} judged in both arms"
    return f"{covered}; {dropped} more {'was' if dropped == 1 else 'were'} not."


def decided(artifact: Artifact | RunsCompared) -> str:
    """The decision in words, with the interval it rests on."""
    interval = artifact.interval
    if interval is None or interval.tasks_like_these.estimate is None:
        return ""
    bounds = interval.tasks_like_these
    sure = level_text(interval.level)
    margin = f"{100 * artifact.margin:.3g} points"
    between = f"between {points(bounds.low)} and {points(bounds.high)} points ({sure} interval)"
    # With one attempt a task they are the same.
    one_attempt = isinstance(artifact, Artifact) and artifact.pass_k == 1
    what = "the true difference" if one_attempt else "the true difference by attempts"
    if artifact.decision == "inconclusive":
        if _leaves_open(bounds, artifact.margin):
            return f"Inconclusive: on tasks like these {what} may be anything {between}."
        return f"Inconclusive: {plain(artifact.decision_reason or '', 400)}."  # not for the interval's sake
    words = {"improved": "Improved", "no_worse": f"No worse (margin {margin})", "worse": "Worse"}
    return (
        f"{words[artifact.decision]}: on tasks like these {what} lies {between}." if artifact.decision else ""
    )


def _leaves_open(bounds: Bounds, margin: float) -> bool:
    """Whether an interval holds 0 and a loss of `margin`: then it decides nothing."""
    return bounds.low <= -margin and bounds.high >= 0


def suite_decided(artifact: Artifact) -> str:
    """What holds for exactly this suite, with its interval; empty where only the errors decide."""
    interval = artifact.interval
    bounds = interval and interval.exactly_this_suite
    decision = artifact.suite_decision
    if not bounds or bounds.estimate is None or decision is None:
        return ""
    if decision == "inconclusive" and not _leaves_open(bounds, artifact.margin):
        return ""
    words = {"improved": "better", "no_worse": "no worse", "worse": "worse", "inconclusive": "unclear"}
    between = f"{points(bounds.low)} to {points(bounds.high)} points"
    return f"On exactly this suite: {words[decision]}, {between}."


def gated(artifact: Artifact) -> str:
    """What the gate says where it follows a decision, which can differ from the verdict; empty otherwise."""
    decision = artifact.decision
    if artifact.gate == "verdict" or decision is None or artifact.verdict in ("error", "skipped"):
        return ""
    suite_decision = artifact.suite_decision
    closed = exit_code(artifact.verdict, decision, artifact.gate, suite_decision)
    if artifact.gate == "regression":
        if closed:
            return f"The gate is closed: on exactly this suite the candidate is worse (exit code {closed})."
        return f"The gate is open: it closes on harm to this suite only{_missed(artifact)}."
    state, code = ("closed", f" (exit code {closed})") if closed else ("open", "")
    return f"The gate is {state}: it follows the decision, which is {decision.replace('_', ' ')}{code}."


def _missed(artifact: Artifact) -> str:
    could = artifact.could_miss
    if could is None:
        return ""
    loss, then = (_whole(100 * one) for one in (could.loss, could.loss_then))
    more = counted(could.more_attempts, "more attempt")
    return (
        f"; a loss of up to {loss} points on these tasks could have been missed, and {more} a task "
        f"would leave {then}"
    )


def efficiency(artifact: Artifact) -> str:
    """How many times the baseline's cost the candidate takes, or its tokens where no cost is known; else empty.

    "Same quality" is said where an interval of the difference holds 0 and lies within the margin on either side.
    """
    measures = artifact.efficiency.all if artifact.efficiency else {}
    told = [
        f"{times(one.ratio)} times the {name.replace('_', ' ')} ({between(one)})"
        for name, one in measures.items()
        if name in ("cost", "input_tokens", "output_tokens") and one.ratio is not None
    ]
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
    interval = artifact.interval
    if interval is None or artifact.verdict not in ("pass", "fail"):
        return ""
    suite = (interval.exactly_this_suite, " on exactly these tasks")
    for bounds, where in ((interval.tasks_like_these, ""), suite):
        if bounds and bounds.estimate is not None and _within(bounds, artifact.margin):
            far = f"{points(bounds.low)} to {points(bounds.high)}"
            return f"Same quality{where} ({points(bounds.estimate)} points, {far})"
    return ""


def _within(bounds: Bounds, margin: float) -> bool:
    return bool(-margin < bounds.low <= 0 <= bounds.high < margin)


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


def spending(artifact: Artifact) -> str:
    """What the run cost, and what its money bought; of this run only, and no promise."""
    cost = artifact.cost or RunCost()
    if cost.spent_usd is None:
        return "What it cost is not known."
    outcomes = artifact.attempts.by_arm if artifact.attempts else {}
    unknown = any(
        arm.n_cost_known < arm.n - outcomes.get(name, {}).get("error", 0) for name, arm in cost.by_arm.items()
    )
    said = f"Spent {'at least ' if unknown and not cost.assumed_usd else ''}{usd(cost.spent_usd)}"
    if cost.wasted_usd:
        said += f", of it {usd(cost.wasted_usd)} on {counted(cost.wasted_attempts, 'repeated attempt')}"
    if cost.assumed_usd:
        said += f", and {usd(cost.assumed_usd)} assumed for calls of unknown cost"
    if cost.dominates:
        said += "; here the candidate passed more and cost no more"
    elif cost.cost_per_extra_pass is not None:
        said += f"; each extra pass costs {usd(cost.cost_per_extra_pass)}"
    return said + "."


def power(artifact: Artifact | RunsCompared) -> str:
    """What a suite of this size cannot see, and what would: fewer points need more tasks or attempts."""
    needed = artifact.needed
    if needed is None or not needed.n_pairs:
        return ""
    noun = counted(needed.n_pairs, "task")
    smallest, wanted = artifact.min_detectable_effect, needed.effect
    target = f"{100 * wanted:.3g} points"
    if smallest is not None and smallest <= wanted:
        return f"{noun} can show differences from ±{_whole(100 * smallest)} points on."
    if smallest is None:
        limit = f"{'is' if needed.n_pairs == 1 else 'are'} too few to count on a clear answer"
    else:
        limit = f"cannot be counted on to show less than ±{_whole(100 * smallest)} points"
    return f"{noun} {limit}; {_advice(needed, target)}."


def _advice(needed: Needed, target: str) -> str:
    attempts, tasks = needed.attempts, needed.tasks
    if attempts is not None and attempts <= MOST_ADVISED_ATTEMPTS:
        return f"run {counted(attempts, 'attempt')} on them to see {target}"
    if tasks is not None:
        return f"run {counted(needed.tasks_at_attempts, 'attempt')} on {tasks} tasks to see {target}"
    return f"no affordable number of tasks would see {target}"


def simulated(artifact: Artifact | RunsCompared) -> str:
    """A warning that no real model was asked; empty when all were real."""
    fake = [plain(model, 60) for model in artifact.models if is_simulated(model)]
    if not fake:
        return ""
    return f"The model was simulated ({', '.join(fake)}): these numbers say nothing about a real model."


def reason(artifact: Artifact) -> str:
    """The verdict's reason, and the flag that lets a weak baseline count where that is the reason."""
    hint = "; if it is meant to be weak: --weak-baseline warn" if artifact.baseline_is_too_weak else ""
    return artifact.reason + hint


def advice(artifact: Artifact) -> tuple[str, str]:
    """What a person may do now, and who."""
    match artifact.verdict:
        case "error" if not artifact.was_run:
            return "mend the candidate in the ranking, then run again", "skill author"
        case "pass" if artifact.decision == "inconclusive":
            return "add tasks or attempts before relying on the difference", "suite author"
        case "pass":
            return "review the candidate and adopt it", "reviewer"
        case "fail":
            return "read the failed tasks in the trace and revise the skill", "skill author"
        case "skipped":
            return "read why it was skipped; mend the candidate, or lower the threshold", "skill author"
        case _ if artifact.baseline_is_too_weak:
            return "mend the suite or the baseline skill, then run again", "suite author"
        case _ if artifact.status == "over_budget":
            return "resume the run with a larger budget", "operator"
        case _ if artifact.status == "cancelled":
            return "resume the run", "operator"
        case _:
            return "mend what failed, then resume the run", "operator"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _percent(rate: float) -> str:
    short = f"{100 * rate:.3g}"
    return f"{short if short != '100' or rate == 1 else f'{100 * rate:.5g}'} %"


def _whole(value: float) -> str:
    return f"{value:.0f}" if value >= 1 else f"{value:.1g}"

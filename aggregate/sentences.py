"""Say what the numbers mean: sentences for the terminal, the artifact's summary and the reports.

They read the artifact's own fields, so that they can be said again from the file alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregate.number_formats import counted, level_text, points, shown, usd
from aggregate.plain_text import plain
from aggregate.verdict import exit_code

SIMULATED_KINDS = ("sim", "mock")
MOST_ADVISED_ATTEMPTS = 20


def is_simulated(model: str) -> bool:
    """True for models that only pretend: `mock`, `sim` and their settings."""
    return model.partition(":")[0] in SIMULATED_KINDS


def by_model(artifact: Mapping[str, Any]) -> bool:
    """Whether a task counts once for each model; not when two runs of a model each are compared."""
    return bool(artifact.get("paired_by_model", len(artifact["models"]) > 1))


def units(artifact: Mapping[str, Any], number: int) -> str:
    """What is compared, counted: tasks, or pairs of task and model."""
    return counted(number, "pair of task and model" if by_model(artifact) else "task")


def summary(artifact: Mapping[str, Any]) -> list[str]:
    """The result in a few sentences: what was found, how sure, what is needed, what to be careful of."""
    if artifact["verdict"] == "skipped":
        return [f"Nothing was run: {artifact['reason']}."]
    said = [
        failed(artifact),
        found(artifact),
        partly(artifact),
        decided(artifact),
        gated(artifact),
        power(artifact),
        triggered(artifact),
        saved(artifact),
        simulated(artifact),
    ]
    return [sentence for sentence in said if sentence]


def saved(artifact: Mapping[str, Any]) -> str:
    """How many attempts early stopping left out; empty where it was off or left out none."""
    attempts = artifact["attempts"]
    if artifact["stop_early"] is None or artifact["status"] != "finished" or not attempts["skipped"]:
        return ""
    return f"Stopped early: {attempts['run']} of {attempts['planned']} attempts were enough."


def triggered(artifact: Mapping[str, Any]) -> str:
    """How often the skill was invoked when it should be and when it should not; empty where nobody asked."""
    block = artifact["triggers"]
    if block is None:
        return ""
    parts = []
    if block["trigger_rate"] is not None:
        parts.append(
            f"in {_percent(block['trigger_rate'])} of attempts that should{_of(block['missed_tasks'])}"
        )
    if block["false_trigger_rate"] is not None:
        wrong = _of(block["false_trigger_tasks"], "in")
        whose = "those" if parts else "attempts"
        parts.append(f"in {_percent(block['false_trigger_rate'])} of {whose} that should not{wrong}")
    return f"The skill was invoked {' and '.join(parts)}."


def _of(tasks: list[str], word: str = "not in") -> str:
    if not tasks:
        return ""
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return f" ({word} {', '.join(plain(task, 60) for task in tasks[:3])}{more})"


def failed(artifact: Mapping[str, Any]) -> str:
    """Why a run with an `error` verdict cannot be relied on; empty otherwise."""
    return f"No verdict: {artifact['reason']}." if artifact["verdict"] == "error" else ""


def found(artifact: Mapping[str, Any], one: str = "the candidate", other: str = "the baseline") -> str:
    """Both pass rates and their difference."""
    candidate, baseline = artifact["execution_pass_rate"], artifact["baseline_pass_rate"]
    if candidate is None:
        return f"{_capital(one)} has no judged attempt."
    if baseline is None:
        return f"{_capital(one)} passes {_percent(candidate)} of its tasks; there is nothing to compare with."
    rates = f"{_capital(one)} passes {_percent(candidate)} of its tasks, {other} {_percent(baseline)}"
    if artifact["delta"] is None:
        return f"{rates}; no task was judged in both, so there is no difference to tell."
    return f"{rates} ({points(artifact['delta'])} points)."


def partly(artifact: Mapping[str, Any]) -> str:
    """That the rates cover more tasks than the difference by attempts; empty where they cover the same."""
    pairs, dropped = artifact["n_pairs"], artifact["n_dropped"]
    if not pairs or not dropped:
        return ""
    covered = f"The difference by attempts covers the {units(artifact, pairs)} judged in both arms"
    return f"{covered}; {dropped} more {'was' if dropped == 1 else 'were'} not."


def decided(artifact: Mapping[str, Any]) -> str:
    """The decision in words, with the interval it rests on."""
    interval = artifact["interval"]
    if interval is None or interval["tasks_like_these"]["estimate"] is None:
        return ""
    bounds = interval["tasks_like_these"]
    sure = level_text(interval["level"])
    margin = f"{100 * artifact['margin']:.3g} points"
    between = f"between {points(bounds['low'])} and {points(bounds['high'])} points ({sure} interval)"
    where = "tasks like these" if interval["n"] > 1 else "this one task"
    # With one attempt a task they are the same.
    what = "the true difference" if artifact.get("pass_k") == 1 else "the true difference by attempts"
    words = {
        None: "",
        "improved": f"Improved: on {where} {what} lies {between}.",
        "no_worse": f"No worse (margin {margin}): {what} lies {between}.",
        "worse": f"Worse: on {where} {what} lies {between}.",
        "inconclusive": f"Inconclusive: {what} may be anything {between}.",
    }
    clear = bounds["low"] > -artifact["margin"] or bounds["high"] < 0
    if artifact["decision"] == "inconclusive" and clear:
        return f"Inconclusive: {plain(artifact['decision_reason'], 400)}."  # not for the interval's sake
    return words[artifact["decision"]]


def gated(artifact: Mapping[str, Any]) -> str:
    """What the gate says where it follows the decision, which can differ from the verdict; empty otherwise."""
    decision = artifact["decision"]
    if artifact["gate"] != "decision" or decision is None or artifact["verdict"] in ("error", "skipped"):
        return ""
    closed = exit_code(artifact["verdict"], decision, "decision")
    said = decision.replace("_", " ")
    if closed:
        return f"The gate is closed: it follows the decision, which is {said} (exit code {closed})."
    return f"The gate is open: it follows the decision, which is {said}."


def spending(artifact: Mapping[str, Any]) -> str:
    """What the run cost, and what its money bought; of this run only, and no promise."""
    cost = artifact["cost"]
    said = f"Spent {shown(cost['spent_usd'], usd)}"
    if cost["wasted_usd"]:
        said += f", of it {usd(cost['wasted_usd'])} on {counted(cost['wasted_attempts'], 'repeated attempt')}"
    if cost["dominates"]:
        said += "; here the candidate passed more and cost no more"
    elif cost["cost_per_extra_pass"] is not None:
        said += f"; each extra pass costs {usd(cost['cost_per_extra_pass'])}"
    return said + "."


def power(artifact: Mapping[str, Any]) -> str:
    """What a suite of this size cannot see, and what would: fewer points need more tasks or attempts."""
    needed = artifact["needed"]
    if needed is None or not needed["n_pairs"]:
        return ""
    noun = units(artifact, needed["n_pairs"])
    smallest, wanted = artifact["min_detectable_effect"], needed["effect"]
    target = f"{100 * wanted:.3g}"
    if smallest is not None and smallest <= wanted:
        return f"{noun} can show differences from ±{_whole(100 * smallest)} points on."
    if smallest is None:
        limit = f"{'is' if needed['n_pairs'] == 1 else 'are'} too few to count on a clear answer"
    elif _lucky(artifact, smallest):
        limit = f"cannot be counted on to show less than ±{_whole(100 * smallest)} points"
    else:
        limit = f"cannot show less than ±{_whole(100 * smallest)} points"
    return f"{noun} {limit}; {_advice(needed, target, many=by_model(artifact))}."


def _lucky(artifact: Mapping[str, Any], smallest: float) -> bool:
    """Whether a run has shown less than such a suite shows four times in five."""
    return artifact.get("decision") in ("improved", "worse") and abs(artifact["attempt_delta"]) < smallest


def _advice(needed: Mapping[str, Any], target: str, *, many: bool) -> str:
    attempts, tasks = needed["attempts"], needed["tasks"]
    if attempts is not None and attempts <= MOST_ADVISED_ATTEMPTS:
        return f"run {counted(attempts, 'attempt')} on them to see {target}"
    if tasks is not None:
        noun = "such pairs" if many else "tasks"
        return f"run {counted(needed['tasks_at_attempts'], 'attempt')} on {tasks} {noun} to see {target}"
    return f"no affordable number of tasks would see {target}"


def simulated(artifact: Mapping[str, Any]) -> str:
    """A warning that no real model was asked; empty when all were real."""
    fake = [plain(model, 60) for model in artifact["models"] if is_simulated(model)]
    if not fake:
        return ""
    return f"The model was simulated ({', '.join(fake)}): these numbers say nothing about a real model."


def next_step(artifact: Mapping[str, Any]) -> tuple[str, str]:
    """What to do now, and who does it."""
    match artifact["verdict"]:
        case "pass" if artifact["decision"] == "inconclusive":
            return "add tasks or attempts before relying on the difference", "suite author"
        case "pass":
            return "review the candidate and adopt it", "reviewer"
        case "fail":
            return "read the failed tasks in the trace and revise the skill", "skill author"
        case "skipped":
            return "raise the candidate's score to the threshold, or lower the threshold", "skill author"
        case _ if "baseline pass rate" in artifact["reason"]:
            return "mend the suite or the baseline skill, then run again", "suite author"
        case _ if artifact["status"] == "over_budget":
            return "resume the run with a larger budget", "operator"
        case _ if artifact["status"] == "cancelled":
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

"""The answer of a run: its state, a headline, a few lines with their figures, and what to do next.

Made once, from the artifact's own fields, and shown by every surface in the same words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Literal, get_args

from aggregate.artifact import sentences
from aggregate.artifact.diagnosis import are_of, compared_rates, pairs, task_rates
from aggregate.artifact.model import (
    AnswerLine,
    AnswerState,
    Artifact,
    Bounds,
    ComparedState,
    LineKind,
    NextStep,
    RunAnswer,
    RunCost,
    Values,
)
from aggregate.formulas.verdict import DecisionName
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import DIGITS, clean, counted, level_text, plain, points, rate, usd

_NAME = 40
_MESSAGE = 280  # a message may end in what to do
_DETAILS = 60
BROKEN = 0.5  # a task that lost or gained so much of its pass rate is named
_TOO_SURE = 0.999
_NOT_WRONG = ("one_task", "few_tasks", "floor")  # more tasks help, or reading; not against any other cause
_MORE_MONEY = 1.25  # than the attempts so far cost each
Scope = Literal["tasks_like_these", "exactly_this_suite"]

_DECIDED: dict[DecisionName, AnswerState] = {"improved": "better", "no_worse": "no_worse", "worse": "worse"}
_WORDS: dict[AnswerState, str] = {"better": "BETTER", "no_worse": "NO WORSE", "worse": "WORSE"}
_WHERE = {"tasks_like_these": "on tasks like these", "exactly_this_suite": "on exactly these tasks"}
_GATES: dict[int, Literal["pass", "fail", "error"]] = {0: "pass", 1: "fail", 3: "error"}
_COMPARED: tuple[AnswerState, ...] = get_args(ComparedState)


def answer_of(artifact: Artifact) -> RunAnswer:
    """The artifact's answer; that of an earlier version is made now."""
    if artifact.answer is not None:
        return artifact.answer
    state, scope, headline = _state(artifact)
    lines = (_LINES[kind](artifact, state) for kind in _SHOWN.get(state, _UNFINISHED))
    return RunAnswer(
        state=state,
        scope=scope,
        headline=headline + (" (simulated)" if artifact.simulated and artifact.was_run else ""),
        gate="skipped" if artifact.verdict == "skipped" else _GATES[artifact.exit_code()],
        simulated=artifact.simulated,
        stopped_early=(_stopped_after(artifact) or artifact.pass_k) < artifact.pass_k,
        lines=[line for line in lines if line is not None],
        next=_next(artifact, state),
    )


def brief(artifacts: Sequence[Artifact]) -> str:
    """The answer in a few words for a list of runs; ! marks a suite that could not answer. Several are counted."""
    if len(artifacts) != 1:
        answers = sorted(map(answer_of, artifacts), key=lambda one: get_args(AnswerState).index(one.state))
        counts = Counter(state_words(answer, " here") for answer in answers)
        return ", ".join(f"{count} {words}" for words, count in counts.items())
    (artifact,) = artifacts
    answer = answer_of(artifact)
    said = [state_words(answer, " here")]
    if (rates := answer.line("rates")) is not None:
        said.append(points(float(rates.values["difference"] or 0.0)))
    if artifact.diagnosis:
        said.append(f"! {artifact.diagnosis[0].code.replace('_', ' ')}")
    return " ".join(said)


def state_words(answer: RunAnswer, here: str = " on exactly these tasks") -> str:
    """The state in small letters, and where it holds if that is not on tasks like these."""
    return answer.state.replace("_", " ") + (here if answer.scope == "exactly_this_suite" else "")


def _state(artifact: Artifact) -> tuple[AnswerState, Scope | None, str]:
    if artifact.verdict == "skipped":
        return "skipped", None, "SKIPPED: nothing was run"
    if not artifact.was_run:
        return "no_result", None, "NO RESULT: the candidate cannot be run"
    if artifact.status == "cancelled":
        return "cancelled", None, f"CANCELLED after {_made(artifact)}"
    if artifact.verdict == "error":
        return "no_result", None, f"NO RESULT: {_why_not(artifact)}"
    if artifact.baseline == "none":
        share = artifact.metrics_of(artifact.arm).attempt_pass_rate
        passed = "an unknown share" if share is None else rate(share)
        return "alone", None, f"RAN ALONE: {passed} of attempts passed"
    decisions: tuple[tuple[Scope, DecisionName | None], ...] = (
        ("tasks_like_these", artifact.decision),
        ("exactly_this_suite", artifact.suite_decision),
    )
    for scope, decision in decisions:
        if decision in _DECIDED:
            state = _DECIDED[decision]
            return state, scope, f"{_WORDS[state]} {_WHERE[scope]}{_besides(artifact, scope)}"
    for cause in artifact.diagnosis:
        if cause.code == "saturated" and (artifact.attempt_delta or 0.0) >= 0:  # a loss would still show
            return "nothing_to_learn", None, "NOTHING TO LEARN: both arms pass nearly everything"
        if cause.code == "floor":
            return "nothing_to_learn", None, "NOTHING TO LEARN: both arms fail nearly everything"
    return "cannot_tell", None, "CANNOT TELL whether it is better or worse"


def _besides(artifact: Artifact, scope: Scope) -> str:
    """What holds for exactly these tasks, where that is more than what the headline says."""
    ours = artifact.suite_decision
    if scope == "tasks_like_these" and artifact.decision == "no_worse" and ours in ("improved", "worse"):
        return f", {_WORDS[_DECIDED[ours]].lower()} on exactly these"
    return ""


def _made(artifact: Artifact) -> str:
    counts = artifact.attempts
    if counts is None or counts.planned is None:
        return counted(counts.run, "attempt") if counts else "no attempt"
    return f"{counts.made} of {counts.planned} attempts"


def _why_not(artifact: Artifact) -> str:
    codes = artifact.reason_codes or []
    arms = [artifact.metrics_of(arm) for arm in (artifact.arm, BASELINE)]
    errors, run = sum(arm.n_errors for arm in arms), sum(arm.n for arm in arms)
    if artifact.status == "over_budget":
        return f"the budget ran out after {_made(artifact)}"
    if artifact.status == "hopeless":
        return f"given up after {_made(artifact)}"
    if artifact.baseline_is_too_weak and "errors" not in codes:
        return "the baseline passes too few tasks"
    if "errors" not in codes and (used := {"never_loaded", "baseline_loaded"}.intersection(codes)):
        return "the skill was never loaded" if "never_loaded" in used else "the baseline read the skill"
    if "errors" in codes or errors:
        return f"{errors} of {counted(run, 'attempt')} ended in error"
    return "no task was judged in both arms"


def _what(artifact: Artifact, state: AnswerState) -> AnswerLine:
    """What was compared; not how many tasks and attempts where those that were planned were not made."""
    against = {"skill": " against the baseline skill", "bare": " against the bare model", "none": " alone"}
    other = against[artifact.baseline]
    if artifact.baseline == "skill" and _only_records(artifact):  # they do not tell what it was given
        other = " against the baseline"
    if artifact.baseline_run_id:
        other = f" against the candidate of run {artifact.baseline_run_id}"
    tasks = len({one.task_id for one in (*artifact.candidate_results, *artifact.baseline_results)})
    if state in _COMPARED and artifact.n_pairs:
        tasks = artifact.n_pairs
    names = sentences.short_models(artifact.models)
    whole = artifact.was_run and artifact.status == "finished"
    made = (sentences.attempts_each(artifact) or artifact.pass_k) if whole else None
    parts = [counted(tasks, "task")] if tasks and made else []
    parts += [f"{len(names)} models"] if len(names) > 1 and artifact.was_run else []
    if made:
        parts += [counted(made, "attempt") + (f" of {artifact.pass_k}" if made < artifact.pass_k else "")]
    models = ", ".join(names.values()) if len(names) <= 3 and artifact.was_run else ""
    said = [f"{plain(artifact.name, _NAME)}{other}", " × ".join(parts), models]
    if state not in _SHOWN:  # elsewhere the line of costs says so
        said.append(_loaded(artifact))
    values: Values = {"skill": artifact.skill_id, "against": artifact.baseline}
    values |= {"tasks": tasks if made else None, "models": len(names)}
    values |= {"attempts": made, "planned_attempts": artifact.pass_k}
    return _line("what", " · ".join(filter(None, said)), values)


def _only_records(artifact: Artifact) -> bool:
    return artifact.attempts is not None and artifact.attempts.planned is None


def _rates(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """The headline figure; both rates are left out where early stopping made the difference one of fewer attempts."""
    difference, rates = artifact.attempt_delta, compared_rates(pairs(artifact))
    if difference is None or rates is None:
        return None
    mine, other = rates
    same = are_of(rates, difference)
    bounds = artifact.interval if not _is_too_early(artifact) else None
    like_these = bounds.tasks_like_these if bounds else None
    text = f"{rate(other)} → {rate(mine)} of attempts, {points(difference)} points"
    values: Values = {
        "baseline": other if same else None,
        "candidate": mine if same else None,
        "difference": difference,
        "low": like_these.low if like_these else None,
        "high": like_these.high if like_these else None,
    }
    return _line("rates", text if same else f"{points(difference)} points of attempts passed", values)


def _is_too_early(artifact: Artifact) -> bool:
    """Whether the run stopped at a look that asks for so much certainty that its interval tells nothing."""
    interval = artifact.interval
    return interval is not None and interval.repeated and interval.level > _TOO_SURE


def _ranges(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """Both intervals; not those of a look that came too early to show any."""
    interval = artifact.interval
    if interval is None or interval.tasks_like_these.estimate is None or _is_too_early(artifact):
        return None
    like_these, suite = interval.tasks_like_these, interval.exactly_this_suite
    level = level_text(interval.level)
    text = f"tasks like these {_between(like_these)}"
    values: Values = {"low": like_these.low, "high": like_these.high, "level": interval.level}
    if suite is not None:
        text += f" · exactly these tasks {_between(suite)}"
        values |= {"suite_low": suite.low, "suite_high": suite.high}
    text += f" ({level})"
    if suite is not None and like_these.high - like_these.low < suite.high - suite.low - 0.005:
        text += "; here the second is more careful, as these tasks moved alike"
    return _line("ranges", text, values)


def _between(bounds: Bounds) -> str:
    return f"{points(bounds.low)} to {points(bounds.high)}"


def _cost(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    cost = artifact.efficiency.all.get("cost") if artifact.efficiency else None
    said = [sentences.efficiency(artifact).rstrip(".")]
    values: Values = {"ratio": cost.ratio, "low": cost.low, "high": cost.high} if cost else {}
    if loads := _loaded(artifact):
        said.append(loads)
        loaded, number = sentences.loads(artifact, artifact.arm)
        values |= {"loaded": loaded, "loads": number}
    mine, other = artifact.metrics_of(artifact.arm), artifact.metrics_of(BASELINE)
    for name, noun in (("timeouts", "time-out"), ("errors", "error")):
        counts = [getattr(arm, f"n_{name}") for arm in (mine, other)]
        if sum(counts):
            each = f"baseline {counts[1]}, candidate {counts[0]}" if other.n else ""
            said.append(counted(sum(counts), noun) + (f" ({each})" if each else ""))
        values |= {name: sum(counts), f"candidate_{name}": counts[0], f"baseline_{name}": counts[1]}
    if artifact.n_dropped and state in _COMPARED:
        said.append(f"{sentences.cells(artifact, artifact.n_dropped)} left out: not judged in both arms")
        values["dropped"] = artifact.n_dropped
    text = " · ".join(filter(None, said))
    return _line("cost", text, values) if text else None


def _loaded(artifact: Artifact) -> str:
    """In how many attempts the mounted skill was loaded; empty where none was mounted."""
    (loaded, number), (also, of) = (sentences.loads(artifact, arm) for arm in (artifact.arm, BASELINE))
    if not number:
        return ""
    other = f" (baseline {'–' if also is None else also} of {of})" if of else ""
    return f"skill loaded in {'–' if loaded is None else loaded} of {counted(number, 'attempt')}{other}"


def _triggers(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    text = sentences.triggered(artifact).rstrip(".")
    return _line("triggers", text[:1].lower() + text[1:]) if text else None


def _why(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """What stood in the way, once, with how often it came."""
    if not artifact.was_run:
        return _line("why", plain(artifact.reason, _MESSAGE))
    counts: Counter[str] = Counter()
    for one in chain(*(artifact.errors or {}).values()):
        counts[one.message] += one.count
    codes = artifact.reason_codes or []
    misused = artifact.baseline_is_too_weak or {"never_loaded", "baseline_loaded"}.intersection(codes)
    weak = misused and "errors" not in codes
    if weak or artifact.status == "over_budget" or not counts:
        text = plain(sentences.reason(artifact), _MESSAGE)
        return _line("why", text) if state != "cancelled" else None
    message, count = max(counts.items(), key=lambda entry: (entry[1], entry[0]))
    others = f", and {counted(len(counts) - 1, 'other message')}" if len(counts) > 1 else ""
    text = f"{plain(message, _MESSAGE)} ({count}×){others}"
    return _line("why", text, {"message": message, "count": count})


def _stopped_after(artifact: Artifact) -> int | None:
    return artifact.sequential.stopped_after if artifact.sequential else None


def _stopped(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    looks, after = artifact.sequential, _stopped_after(artifact)
    if looks is None or after is None or after >= artifact.pass_k:
        return None
    why = plain(looks.looks[-1].reason.partition(";")[0], _MESSAGE)
    text = f"stopped early, after round {after} of {artifact.pass_k} ({_made(artifact)}): {why}"
    return _line("stopped", text, {"round": after, "rounds": artifact.pass_k})


def _needed(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """What it would take to tell, with its price; nothing where no number of attempts would help."""
    needed = artifact.needed
    if state != "cannot_tell" or needed is None or not needed.n_pairs:
        return None
    values: Values = {"detectable": artifact.min_detectable_effect, "effect": needed.effect}
    text = sentences.power(artifact).rstrip(".")
    if not text:
        return None
    text = text[:1].lower() + text[1:]
    if "would show" in text and (advised := sentences.advised(artifact)):
        tasks, attempts = advised
        values |= {"tasks": tasks, "attempts": attempts}
        prices = [artifact.metrics_of(arm).mean_cost_per_attempt for arm in (artifact.arm, BASELINE)]
        price = tasks * attempts * len(artifact.models) * sum(one or 0.0 for one in prices)
        if price and None not in prices:
            values["usd"] = price
            text += f", for about {usd(price)}"
    return _line("needed", text, values)


def _diagnosis(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """The worst cause; not the one that another line tells."""
    causes = [one for one in artifact.diagnosis if state != "cannot_tell" or one.code != "few_tasks"]
    if not causes:
        return None
    worst = causes[0]
    return _line("diagnosis", f"careful: {worst.text}; {worst.remedy}", {"code": worst.code, **worst.values})


def _tasks(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """The tasks that lost at least half of their attempts, worst first, and how many gained as much."""
    broke, mended = _moved(artifact)
    if not broke and not mended:
        return None
    said, values = [], Values(broke=len(broke), mended=len(mended))
    if broke:
        both = [pair for pair in pairs(artifact) if pair[0].task_id == broke[0]]
        before = " ".join(f"{other.passes}/{other.judged}" for _, other in both[:3])
        after = " ".join(f"{one.passes}/{one.judged}" for one, _ in both[:3])
        details = plain(next((one.said for one, _ in both if one.said), ""), _DETAILS)
        which = f"{', worst' if len(broke) > 1 else ','} {plain(broke[0], _NAME)}"
        told = f" ({details})" if details else ""
        said.append(f"broke {counted(len(broke), 'task')}{which}: {before} → {after}{told}")
        values["task"] = broke[0]
    if mended:
        said.append(f"mended {counted(len(mended), 'task')}")
    return _line("tasks", " · ".join(said), values)


def _moved(artifact: Artifact) -> tuple[list[str], list[str]]:
    """The tasks that lost and those that gained at least half of their attempts, largest difference first."""
    rates = task_rates(pairs(artifact)).items()
    far = [(mine - other, task) for task, (mine, other) in rates if abs(mine - other) >= BROKEN - 1e-9]
    lost = sorted(entry for entry in far if entry[0] < 0)
    gained = sorted((-difference, task) for difference, task in far if difference > 0)
    return [task for _, task in lost], [task for _, task in gained]


def _gate(artifact: Artifact, state: AnswerState) -> AnswerLine:
    cost = sentences.cost_gated(artifact).rstrip(".")
    text = "; ".join(filter(None, (f"gate {sentences.gated(artifact)}", cost[:1].lower() + cost[1:])))
    return _line("gate", text, {"gate": artifact.gate, "verdict": artifact.verdict})


def _warnings(artifact: Artifact, state: AnswerState) -> AnswerLine | None:
    """The first warning, and how many more there are; not what other lines tell."""
    told = ("flaky task", f"{artifact.n_dropped} pairs were dropped")
    untold = (one for one in artifact.warnings if not one.startswith(told))
    warnings = [one for one in untold if "loaded the skill of" not in one]
    if not warnings:
        return None
    more = f" (and {len(warnings) - 1} more: --details)" if len(warnings) > 1 else ""
    return _line("warnings", f"warning: {plain(warnings[0], _MESSAGE)}{more}", {"warnings": len(warnings)})


def _bill(artifact: Artifact, state: AnswerState) -> AnswerLine:
    cost = artifact.cost or RunCost()
    values: Values = {"spent_usd": cost.spent_usd, "wall_seconds": artifact.environment.wall_seconds}
    return _line("bill", sentences.bill(artifact), values)


def _line(kind: LineKind, text: str, values: Values | None = None) -> AnswerLine:
    return AnswerLine(kind=kind, text=plain(text), values=clean(values or {}, DIGITS))


_LINES: dict[LineKind, Callable[[Artifact, AnswerState], AnswerLine | None]] = {
    "what": _what,
    "why": _why,
    "rates": _rates,
    "ranges": _ranges,
    "cost": _cost,
    "triggers": _triggers,
    "stopped": _stopped,
    "needed": _needed,
    "diagnosis": _diagnosis,
    "tasks": _tasks,
    "gate": _gate,
    "warnings": _warnings,
    "bill": _bill,
}
_SHOWN: dict[AnswerState, tuple[LineKind, ...]] = {
    **dict.fromkeys(_COMPARED, tuple(kind for kind in _LINES if kind != "why")),
    "alone": ("what", "cost", "triggers", "gate", "warnings", "bill"),
    "skipped": ("what", "why", "warnings"),
}
_UNFINISHED: tuple[LineKind, ...] = ("what", "why", "warnings", "bill")


def _next(artifact: Artifact, state: AnswerState) -> NextStep:
    """What to do now. Records that came without a run have none that a command could go on with."""
    only_words = _only_records(artifact)
    steps = (step for step in _steps(artifact, state) if len(step) == 1 or not only_words)
    words, *command = next(steps, ("",))
    step = NextStep(words=words, command=command)
    return step.typed(" ".join(["uplift", *command]) if command else "")


def _steps(artifact: Artifact, state: AnswerState) -> Iterator[tuple[str, ...]]:
    """Words, and the words of a command after `uplift`; the first is taken."""
    run, codes = artifact.run_id, artifact.reason_codes or []
    match state:
        case "skipped" if "below_threshold" in codes:
            what = artifact.candidate_id or "it"
            yield (f"to run {what} all the same, add --eval-threshold {artifact.candidate_score:g}",)
        case "skipped" | "no_result" if not artifact.was_run:
            yield ("mend the candidate in the ranking, then run again",)
        case "cancelled":
            yield "go on with it", "resume", run
        case "no_result":
            yield _mend(artifact)
        case "alone":
            yield ("run it without --no-baseline, to see what the skill adds",)
    told = artifact.triggers
    astray = [*told.missed_tasks, *told.false_trigger_tasks] if told else []
    if astray and state in ("cannot_tell", "nothing_to_learn"):
        yield "read where the skill was not invoked as it should be", "show", run, astray[0]
    wrong = [one for one in artifact.diagnosis if one.code not in _NOT_WRONG]
    if wrong and state in ("cannot_tell", "nothing_to_learn"):
        if wrong[0].code == "errors":
            yield "mend what the errors say, then try those attempts again", "resume", run
        yield (f"first {wrong[0].remedy}, then run it again",)
    if state == "cannot_tell":
        yield _more(artifact)
    if state in _COMPARED:
        broke, mended = _moved(artifact)
        if broke:
            yield "read what broke", "show", run, broke[0]
        moved = [one.task_id for one in artifact.changes]  # losses first
        gained = mended or moved or [one.task_id for one, _ in pairs(artifact)]
        if state in ("better", "no_worse") and not artifact.simulated and artifact.rejudged_from is None:
            named = ("--candidate-id", artifact.candidate_id) if artifact.candidate_id else ()
            yield "make it the baseline of later runs", "bless", run, *named
        if gained:
            yield "read its attempts", "show", run, gained[0]


def _mend(artifact: Artifact) -> tuple[str, ...]:
    run, cost = artifact.run_id, artifact.cost or RunCost()
    if artifact.status == "over_budget":
        counts = artifact.attempts
        paid = (cost.spent_usd or 0.0) + cost.assumed_usd
        share = counts.planned / counts.made if counts and counts.planned and counts.made else 2.0
        budget = max(paid * share, artifact.cost.budget_usd or 0.0 if artifact.cost else 0.0) * _MORE_MONEY
        return "go on with a larger budget", "resume", run, "--budget-usd", f"{budget:.2g}"
    if artifact.baseline_is_too_weak and "errors" not in (artifact.reason_codes or []):
        remedy = (
            "mend the suite or the baseline; if it is meant to be weak, run again with --weak-baseline warn"
        )
        return (remedy,)
    if "never_loaded" in (artifact.reason_codes or []):
        return ("make the skill's description say when to use it, then run again; or add --unloaded warn",)
    if _stopped_after(artifact) is not None:
        return ("mend what the errors say, then run again",)
    return "mend that, then try those attempts again", "resume", run


def _more(artifact: Artifact) -> tuple[str, ...]:
    tasks, attempts = sentences.advised(artifact) or (0, 0)
    if artifact.needed and tasks == artifact.needed.n_pairs and attempts:
        return (f"run it again with --pass-k {attempts}",)
    if tasks:
        return (f"add tasks like these, {tasks} in all, and run them with --pass-k {attempts}",)
    return ("run it again with more tasks like these",)

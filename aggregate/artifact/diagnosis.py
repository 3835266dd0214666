"""Could this suite have answered? The causes why not, worst first, from the artifact alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from math import isclose
from statistics import fmean

from aggregate.artifact import sentences
from aggregate.artifact.model import Artifact, CandidateResult, Cause, CauseCode, TaskResult, Values
from aggregate.formulas.verdict import ERRORS_ALLOWED
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import counted, plain, points, rate, size_in_points

# A pass rate this near to 1 or 0 leaves hardly anything to gain, or nothing that was ever met.
HEADROOM = 0.10
_RARELY = 0.5
_ONE_SIDED = 0.05  # more attempts of one arm than of the other that ended without an answer
_FEWEST = 3  # attempts
_FEWEST_TASKS = 5
_LARGE = 0.5  # of a single task
_MOST_OF_IT = 0.75


Pair = tuple[CandidateResult, TaskResult]


def pairs(artifact: Artifact) -> list[Pair]:
    """The tasks with each model that were judged in both arms, in order."""
    others = {(one.task_id, one.model): one for one in artifact.baseline_results if one.judged}
    both = ((one, others.get((one.task_id, one.model))) for one in artifact.candidate_results if one.judged)
    return [(one, other) for one, other in both if other is not None]


def task_rates(both: Iterable[Pair]) -> dict[str, tuple[float, float]]:
    """Each task judged in both arms: the share of attempts passed, candidate first; its models count alike."""
    by_task: dict[str, list[tuple[float, float]]] = {}
    for one, other in both:
        by_task.setdefault(one.task_id, []).append((one.passes / one.judged, other.passes / other.judged))
    return {task: rates[0] if len(rates) == 1 else _means(rates) for task, rates in by_task.items()}


def _means(rates: Collection[tuple[float, float]]) -> tuple[float, float]:
    mine, theirs = map(fmean, zip(*rates, strict=True))
    return mine, theirs


def compared_rates(both: Iterable[Pair]) -> tuple[float, float] | None:
    """The two rates that `attempt_delta` is the difference of, candidate first; None where nothing was compared."""
    rates = task_rates(both).values()
    return _means(rates) if rates else None


def are_of(rates: tuple[float, float], difference: float | None) -> bool:
    """Whether a difference is that of both rates; after an early stop it may be one of fewer attempts."""
    return difference is not None and isclose(rates[0] - rates[1], difference, abs_tol=1e-4)


def causes(artifact: Artifact) -> list[Cause]:
    """Every cause that the run shows, worst first; none where all is well, or nothing was compared."""
    if not artifact.was_run or artifact.baseline == "none" or artifact.status in ("cancelled", "over_budget"):
        return []
    return [cause for look in _LOOKS for cause in look(artifact)]


def _lost(code: CauseCode, words: str, remedy: str, artifact: Artifact) -> Iterator[Cause]:
    """Attempts without an answer: errors are left out, time-outs count as failed; of one arm they may decide."""
    mine, other = artifact.metrics_of(artifact.arm), artifact.metrics_of(BASELINE)
    lost, also = (getattr(arm, f"n_{code}") for arm in (mine, other))
    if not mine.n or not other.n:
        return
    gap = abs(lost / mine.n - also / other.n)
    one_sided = abs(lost - also) >= _FEWEST and gap >= max(_ONE_SIDED, abs(artifact.attempt_delta or 0.0) / 2)
    many = code == "errors" and (lost * ERRORS_ALLOWED > mine.n or also * ERRORS_ALLOWED > other.n)
    if one_sided or many:
        text = f"{lost} of {mine.n} candidate and {also} of {other.n} baseline attempts {words}"
        if one_sided and not many:
            text += ": that alone could make the difference"
        values = {"candidate": lost, "baseline": also, "of_candidate": mine.n, "of_baseline": other.n}
        yield Cause(code=code, text=text, remedy=remedy, values=values)


def _loads(code: CauseCode, artifact: Artifact) -> Iterator[Cause]:
    """The model that loaded the candidate's skill least often."""
    models = (artifact.skill_loads or {}).get(artifact.arm, {})
    known = {model: one for model, one in models.items() if one.n and one.loaded is not None}
    told = [((one.loaded or 0) / one.n, one, model) for model, one in known.items()]
    if not told:
        return
    share, one, model = min(told, key=lambda entry: entry[0])
    if share < _RARELY and (share == 0) == (code == "never_loaded"):
        yield Cause(
            code=code,
            text=f"{sentences.short_models(artifact.models).get(model, plain(model, 40))} loaded the skill in "
            f"{one.loaded} of {counted(one.n, 'attempt')}",
            remedy="make its description say when to use it, or try --skill-mode prepend",
            values={"loaded": one.loaded, "attempts": one.n, "model": model},
        )


def _rates(artifact: Artifact) -> Iterator[Cause]:
    """Both arms near the top leave nothing to gain, and both near the bottom show nothing that any skill moved."""
    rates = compared_rates(pairs(artifact))
    if rates is None or {artifact.decision, artifact.suite_decision} & {"improved", "worse"}:
        return
    near = min(HEADROOM, artifact.needed.effect if artifact.needed else HEADROOM)
    values: Values = {"candidate": rates[0], "baseline": rates[1]}
    if min(rates) > 1 - near:
        room = "nothing" if isclose(rates[1], 1) else size_in_points(1 - rates[1])
        text = f"{room} left to gain: the baseline passes {rate(rates[1])} of attempts"
        yield Cause(code="saturated", text=text, remedy="add harder tasks", values=values)
    elif max(rates) < near:
        text = f"hardly a task can be passed (candidate {rate(rates[0])} of attempts)"
        remedy = "read a failed one: does its judge ask for what its prompt asks for?"
        yield Cause(code="floor", text=text, remedy=remedy, values=values)


def _quotes(artifact: Artifact) -> Iterator[Cause]:
    """A prompt that holds the skill's own text gives the baseline what only the candidate should have."""
    quoting = artifact.quoting_tasks
    if quoting:
        number = len({one.task_id for one in artifact.candidate_results})
        yield Cause(
            code="quotes_skill",
            text=f"{counted(len(quoting), 'prompt')} of {number} "
            f"{'quotes' if len(quoting) == 1 else 'quote'} the skill ({sentences.listed(quoting, 30)}), so the "
            "baseline reads it too",
            remedy="take the skill's words out of those prompts",
            values={"tasks": len(quoting), "of": number, "task": quoting[0]},
        )


def _one_task(artifact: Artifact) -> Iterator[Cause]:
    """Without its largest task, next to nothing is left of the difference."""
    differences = {task: mine - other for task, (mine, other) in task_rates(pairs(artifact)).items()}
    if len(differences) < _FEWEST_TASKS:
        return
    task, most = max(differences.items(), key=lambda entry: abs(entry[1]))
    whole = sum(map(abs, differences.values()))
    if abs(most) >= _LARGE and abs(most) >= _MOST_OF_IT * whole:
        yield Cause(
            code="one_task",
            text=f"one task of {len(differences)} makes nearly all of the difference: {plain(task, 40)}, "
            f"{points(most)} points",
            remedy="add tasks that ask for the same in other ways",
            values={"task": task, "difference": most, "tasks": len(differences)},
        )


def _few_tasks(artifact: Artifact) -> Iterator[Cause]:
    needed, smallest = artifact.needed, artifact.min_detectable_effect
    if needed is None or not needed.n_pairs or artifact.decision != "inconclusive":
        return
    if smallest is None or smallest > needed.effect:
        text, remedy = sentences.too_small(artifact), sentences.enough(artifact) or "add tasks like these"
        values: Values = {"tasks": needed.n_pairs, "detectable": smallest, "effect": needed.effect}
        yield Cause(code="few_tasks", text=text, remedy=remedy, values=values)


_LOOKS: tuple[Callable[[Artifact], Iterator[Cause]], ...] = (
    partial(_lost, "errors", "ended in error", "mend what they say, and try them again"),
    partial(_loads, "never_loaded"),
    partial(_lost, "timeouts", "ran out of time", "give tasks a longer timeout_seconds"),
    _rates,
    _quotes,
    partial(_loads, "rarely_loaded"),
    _one_task,
    _few_tasks,
)

"""What the two modes of early stopping cost in errors and save in attempts, on simulated runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from aggregate.formulas.intervals import differences_interval
from aggregate.formulas.power_and_stopping import PlannedLook, look_at_decision, plan_looks
from aggregate.formulas.verdict import decision
from bench.simulated_tasks import POPULATIONS, Array, Bits, Population, Setting, of_kind, shares_below

SIZES = ((10, 3), (40, 2), (40, 5), (100, 5))  # tasks, attempts: as many looks as attempts
SHARED_SIZES = ((10, 3), (40, 2), (40, 3), (40, 5))
MODELS = 3
BASES = (0.3, 0.4, 0.5)
EFFECTS = (0.0, 0.1, 0.3)
LOOKS = (2, 3, 5)
# Skills that change nothing, or much in single tasks and nothing on average.
UNMOVED = tuple(population for population in POPULATIONS if population.truth == 0)
CHECKED = 2  # draws per setting that are put through the public function
LOOKS_EVERY = 10  # attempts, in verdict mode: batches come in groups


@dataclass(frozen=True)
class Crossed:
    """Share of simulated runs whose repeated interval left 0 at some look, on either side; none ended as futile."""

    setting: Setting
    above: float
    below: float


@dataclass(frozen=True)
class Saved:
    """Of simulated runs in one setting: share of each outcome, attempts left out, and disagreements."""

    setting: Setting
    outcomes: dict[str, float]
    full_outcomes: dict[str, float]
    saved: float
    differs: float


def decision_mode(draws: int, setting: Setting) -> Saved:
    rng = setting.generator()
    candidate_rates, baseline_rates = setting.population.rates((draws, setting.tasks, 1), rng)
    names = [f"task {number}" for number in range(setting.tasks) for _ in range(setting.models)]
    plan = plan_looks(setting.attempts)
    stopped: Counter[str] = Counter()
    full: Counter[str] = Counter()
    used = differs = 0
    for draw in range(draws):
        candidate = _rounds(candidate_rates[draw], setting, rng)
        baseline = _rounds(baseline_rates[draw], setting, rng)
        for number in range(1, setting.attempts + 1):
            made = np.full(len(names), float(number))
            look = look_at_decision(
                plan, number, candidate[number - 1], made, baseline[number - 1], made, tasks=names
            )
            if look.stop:
                break
        used += look.round
        differences = (candidate[-1] - baseline[-1]).reshape(setting.tasks, setting.models).mean(axis=1)
        whole = decision(differences_interval(differences / setting.attempts)).decision
        stopped[str(look.decision)] += 1
        full[whole] += 1
        differs += look.decision != whole
    saved = 1 - used / (draws * setting.attempts)
    return Saved(setting, _shares(stopped, draws), _shares(full, draws), saved, differs / draws)


def _rounds(true_rates: Array, setting: Setting, rng: np.random.Generator) -> Array:
    """Passes after each round, rounds × cells; the models of a task stand side by side."""
    passed = rng.random((setting.attempts, setting.tasks, setting.models)) < true_rates
    return np.cumsum(passed.reshape(setting.attempts, -1), axis=0).astype(np.float64)


def crossings(draws: int, setting: Setting) -> Crossed:
    """Whole sequential runs at once. Futility is left out: it can only make an error of this sort rarer."""
    rng = setting.generator()
    rates = setting.population.rates((draws, setting.tasks), rng)
    passes = np.zeros((2, draws, setting.tasks))
    side = np.zeros(draws)
    plan = plan_looks(setting.attempts)
    for number, look in enumerate(plan, start=1):
        # The models of a task share its rates, so one draw gives what they pass together.
        passes += [rng.binomial(setting.models, rate) for rate in rates]
        attempts = number * setting.models
        gained = passes[0] - passes[1]
        (below,) = shares_below((0.0,), gained, attempts)
        tail = (1 - look.level) / 2
        above_zero = (below < tail) & (gained.sum(axis=1) > 0)
        below_zero = (below > 1 - tail) & (gained.sum(axis=1) < 0)
        _check(plan, number, passes, attempts, above_zero, below_zero)
        side = np.where(side == 0, above_zero.astype(float) - below_zero, side)
    return Crossed(setting, float((side > 0).mean()), float((side < 0).mean()))


def _check(
    plan: Sequence[PlannedLook], number: int, passes: Array, attempts: int, above: Bits, below: Bits
) -> None:
    """Compare with the public function, which must agree."""
    made = np.full(passes.shape[2], float(attempts))
    for draw in range(min(CHECKED, passes.shape[1])):
        found = look_at_decision(plan, number, passes[0, draw], made, passes[1, draw], made).interval
        near = min(abs(found.low), abs(found.high)) < 1e-9
        if not near and (found.low > 0, found.high < 0) != (above[draw], below[draw]):
            raise SystemExit(f"look_at_decision disagrees with the simulation at look {number}, draw {draw}")


def _shares(counts: Counter[str], draws: int) -> dict[str, float]:
    return {name: count / draws for name, count in counts.items()}


@dataclass(frozen=True)
class Results:
    single: list[Saved]
    shared: list[Saved]
    crossed: list[Crossed]


def simulate(pool: Executor, draws: int) -> Results:
    """Looks go through the public function, one run after the other, with a tenth of the draws; errors in batches."""
    varied = [of_kind("varied", base, effect) for effect in EFFECTS for base in BASES]
    sizes = [(tasks, looks) for tasks in (10, 40) for looks in LOOKS]
    unmoved = [*_settings(UNMOVED, sizes), *_settings(UNMOVED, sizes, MODELS)]
    fewer = max(1, draws // 10)
    return Results(
        list(pool.map(partial(decision_mode, fewer), _settings(varied, SIZES))),
        list(pool.map(partial(decision_mode, fewer), _settings(varied, SHARED_SIZES, MODELS))),
        list(pool.map(partial(crossings, 2 * draws), unmoved)),
    )


def _settings(
    populations: Sequence[Population], sizes: Sequence[tuple[int, int]], models: int = 1
) -> list[Setting]:
    return [Setting(population, *size, models) for size in sizes for population in populations]


def show(results: Results) -> None:
    print("Whole runs, varied tasks, base rates " + ", ".join(map(str, BASES)) + ".\n")
    _show_decisions("--stop-early", results.single)
    _show_decisions(f"the same, {MODELS} models per task", results.shared)
    _show_crossed(results.crossed)


def _show_decisions(title: str, found: list[Saved]) -> None:
    print(f"| {title} | effect | improved | worse | improved in full | worse in full | saved |")
    print("|---|---|---|---|---|---|---|")
    for size, effect, rows in _pooled(found):
        shares = [_mean(rows, "outcomes", "improved"), _mean(rows, "outcomes", "worse")]
        shares += [_mean(rows, "full_outcomes", "improved"), _mean(rows, "full_outcomes", "worse")]
        saved = np.mean([row.saved for row in rows])
        printed = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {size} | {effect:g} | {printed} | {saved:.0%} |")
    print()


def _show_crossed(found: list[Crossed]) -> None:
    """The errors of the looks, over the populations whose true difference is 0."""
    print("| errors a side where the truth is 0 | 2 looks | 3 looks | 5 looks |")
    print("|---|---|---|---|")
    for tasks, models in dict.fromkeys((row.setting.tasks, row.setting.models) for row in found):
        columns = []
        for looks in LOOKS:
            size = (tasks, looks, models)
            rows = [r for r in found if (r.setting.tasks, r.setting.attempts, r.setting.models) == size]
            sides = [side for row in rows for side in (row.above, row.below)]
            columns.append(f"mean {np.mean(sides):.1%}, largest {max(sides):.1%}")
        print(f"| {tasks} tasks, {models} model{'s' if models > 1 else ''} | " + " | ".join(columns) + " |")
    worst = max(found, key=lambda row: max(row.above, row.below))
    print(
        "\n2.5 % a side is planned for; futility never ends a run here, and the populations are all those above whose\n"
        f"true difference is 0. The largest: {worst.setting}.\n"
    )


def _pooled(found: list[Saved]) -> list[tuple[str, float, list[Saved]]]:
    """Rows of one size and effect together, whatever their base rate."""
    pooled: dict[tuple[str, float], list[Saved]] = {}
    for row in found:
        size = f"{row.setting.tasks} × {row.setting.attempts}"
        pooled.setdefault((size, row.setting.population.truth), []).append(row)
    return [(size, effect, rows) for (size, effect), rows in pooled.items()]


def _mean(rows: list[Saved], field: str, outcome: str) -> float:
    return float(np.mean([getattr(row, field).get(outcome, 0.0) for row in rows]))

"""What the two modes of early stopping cost in errors and save in attempts, on simulated runs."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from aggregate.stats import delta_interval
from aggregate.stopping import TaskProgress, look_at_decision, look_at_verdict, plan_looks
from aggregate.verdict import decision, verdict
from bench.simulated_tasks import Array, Setting, rates

SIZES = ((10, 3), (40, 2), (40, 5), (100, 5))
BASES = (0.3, 0.4, 0.5)
EFFECTS = (0.0, 0.1, 0.3)
LOOKS_EVERY = 10  # attempts, in verdict mode: batches come in groups


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
    candidate_rates, baseline_rates = rates(setting, draws, rng)
    plan = plan_looks(setting.attempts)
    stopped: Counter[str] = Counter()
    full: Counter[str] = Counter()
    used = differs = 0
    for draw in range(draws):
        candidate = _rounds(candidate_rates[draw], setting.attempts, rng)
        baseline = _rounds(baseline_rates[draw], setting.attempts, rng)
        for number in range(1, setting.attempts + 1):
            made = np.full(setting.tasks, float(number))
            look = look_at_decision(plan, number, candidate[number - 1], made, baseline[number - 1], made)
            if look.stop:
                break
        used += look.round
        made = np.full(setting.tasks, float(setting.attempts))
        whole = decision(delta_interval(candidate[-1], made, baseline[-1], made)).decision
        stopped[str(look.decision)] += 1
        full[whole] += 1
        differs += look.decision != whole
    saved = 1 - used / (draws * setting.attempts)
    return Saved(setting, _shares(stopped, draws), _shares(full, draws), saved, differs / draws)


def _rounds(true_rates: Array, attempts: int, rng: np.random.Generator) -> Array:
    """Passes per task after each round, rounds × tasks."""
    return np.cumsum(rng.random((attempts, len(true_rates))) < true_rates, axis=0).astype(float)


def verdict_mode(draws: int, setting: Setting) -> Saved:
    rng = setting.generator()
    candidate_rates, baseline_rates = rates(setting, draws, rng)
    stopped: Counter[str] = Counter()
    full: Counter[str] = Counter()
    used = differs = 0
    for draw in range(draws):
        passes = rng.random((setting.attempts, 2, setting.tasks)) < np.stack(
            [candidate_rates[draw], baseline_rates[draw]]
        )
        found, made = _curtailed(passes)
        whole = verdict(*(float(arm.mean()) for arm in passes.any(axis=0))).verdict
        stopped[found] += 1
        full[whole] += 1
        used += made
        differs += found != whole
    saved = 1 - used / (draws * setting.attempts * setting.tasks * 2)
    return Saved(setting, _shares(stopped, draws), _shares(full, draws), saved, differs / draws)


def _curtailed(passes: np.ndarray) -> tuple[str, int]:
    """Verdict and attempts made when the run is looked at every few attempts, in the order of a plan."""
    attempts, _, tasks = passes.shape
    passed = np.zeros((2, tasks), dtype=bool)
    judged = np.zeros((2, tasks), dtype=int)
    made = 0
    look = None
    for number, task, arm in itertools.product(range(attempts), range(tasks), range(2)):
        if passed[arm, task]:
            continue
        made += 1
        judged[arm, task] += 1
        passed[arm, task] = passes[number, arm, task]
        if made % LOOKS_EVERY == 0:
            look = look_at_verdict(*(_progress(passed[a], judged[a], attempts) for a in range(2)))
            if look.stop:
                break
    look = look_at_verdict(*(_progress(passed[a], judged[a], attempts) for a in range(2)))
    candidate, baseline = (float(passed[a].sum() / max(1, (judged[a] > 0).sum())) for a in range(2))
    if look.verdict is not None:
        return look.verdict, made
    return verdict(candidate, baseline).verdict, made


def _progress(passed: np.ndarray, judged: np.ndarray, attempts: int) -> list[TaskProgress]:
    return [TaskProgress(bool(p), int(j), int(attempts - j)) for p, j in zip(passed, judged, strict=True)]


def _shares(counts: Counter[str], draws: int) -> dict[str, float]:
    return {name: count / draws for name, count in counts.items()}


def simulate(pool: Executor, draws: int) -> dict[str, list[Saved]]:
    chosen = [
        Setting(tasks, attempts, base, effect, "varied")
        for (tasks, attempts), base, effect in itertools.product(SIZES, BASES, EFFECTS)
    ]
    return {
        "decision": list(pool.map(partial(decision_mode, draws), chosen)),
        "verdict": list(pool.map(partial(verdict_mode, max(1, draws // 10)), chosen)),
    }


def show(results: dict[str, list[Saved]]) -> None:
    """Two tables: each row pools the base rates."""
    print("Early stopping, varied tasks, base rates " + ", ".join(map(str, BASES)) + ".\n")
    print("| --stop-early decision | effect | improved | worse | improved in full | worse in full | saved |")
    print("|---|---|---|---|---|---|---|")
    for tasks, attempts, effect, rows in _pooled(results["decision"]):
        shares = [_mean(rows, "outcomes", "improved"), _mean(rows, "outcomes", "worse")]
        shares += [_mean(rows, "full_outcomes", "improved"), _mean(rows, "full_outcomes", "worse")]
        saved = np.mean([row.saved for row in rows])
        printed = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {tasks} × {attempts} | {effect} | {printed} | {saved:.0%} |")
    unmoved = [row.outcomes for row in results["decision"] if row.setting.effect == 0]
    sides = [outcomes.get(side, 0.0) for outcomes in unmoved for side in ("improved", "worse")]
    print(f"\nType I error a side: mean {np.mean(sides):.1%}, largest {max(sides):.1%}; 2.5 % is allowed.\n")
    print("| --stop-early verdict | effect | pass | verdict differs from the full run | saved |")
    print("|---|---|---|---|---|")
    for tasks, attempts, effect, rows in _pooled(results["verdict"]):
        passes, saved = _mean(rows, "outcomes", "pass"), np.mean([row.saved for row in rows])
        differs = np.mean([row.differs for row in rows])
        print(f"| {tasks} × {attempts} | {effect} | {passes:.1%} | {differs:.1%} | {saved:.0%} |")


def _pooled(rows: list[Saved]) -> list[tuple[int, int, float, list[Saved]]]:
    pooled = []
    for (tasks, attempts), effect in itertools.product(SIZES, EFFECTS):
        group = [
            row
            for row in rows
            if (row.setting.tasks, row.setting.attempts, row.setting.effect) == (tasks, attempts, effect)
        ]
        pooled.append((tasks, attempts, effect, group))
    return pooled


def _mean(rows: list[Saved], field: str, outcome: str) -> float:
    return float(np.mean([getattr(row, field).get(outcome, 0.0) for row in rows]))

"""Turn suite, skills and flags into a plan: which arms, which models, which attempts. Reads files, changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aggregate.run_info import Baseline, CandidateInfo, RunInfo, TaskInfo
from producer import ranking as rankings
from producer import skills
from producer import suite as suites
from producer.options import InvalidOption, Options
from producer.skills import Skill
from producer.suite import Suite
from workers import bundles
from workers.bundles import Bundle
from workers.grid import Grid
from workers.messages import Arm, Manifest, Task
from workers.models import replay, sim
from workers.models.choose import graders, is_agent, is_simulated, parse
from workers.models.prices import first_estimate

if TYPE_CHECKING:
    from producer.blessing import Blessed


@dataclass(frozen=True)
class PlannedArm:
    """An arm and what it is given; `score` is the ranking's for a candidate of a pipeline."""

    name: str
    skill: Skill | None = None
    bundle: Bundle | None = None
    candidate_id: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a run starts.

    `skipped` candidates are below the threshold and not run; `whole_suite` has the tasks that flags left out, too.
    `rejudged_from` is the run whose completions are judged again; `baseline_kind` is what its baseline was.
    `blessed` holds the baseline's records where a file has them all, so that none is run.
    """

    run_id: str
    created_at: str
    options: Options
    suite: Suite
    arms: tuple[PlannedArm, ...]
    skipped: tuple[PlannedArm, ...] = ()
    fixtures: Bundle | None = None
    replays: Mapping[str, Bundle] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    whole_suite: tuple[Task, ...] = ()
    rejudged_from: str | None = None
    baseline_kind: Baseline | None = None
    blessed: Blessed | None = None

    @property
    def grid(self) -> Grid:
        return Grid(len(self.suite.tasks), len(self.options.models), len(self.arms), self.options.pass_k)

    @property
    def baseline(self) -> PlannedArm | None:
        return next((arm for arm in self.arms if arm.name == "baseline"), None)

    @property
    def bundles(self) -> list[Bundle]:
        """Everything that travels beside the manifest: fixtures, skills and recordings."""
        found = (self.fixtures, *(arm.bundle for arm in self.arms), *self.replays.values())
        return [bundle for bundle in found if bundle is not None]

    def manifest(self, lane: str) -> Manifest:
        return Manifest(
            run_id=self.run_id,
            created_at=self.created_at,
            task_count=len(self.suite.tasks),
            arms=tuple(_message(arm) for arm in self.arms),
            models=self.options.models,
            pass_k=self.options.pass_k,
            skill_mode=self.options.skill_mode,
            judge_model=self.options.judge_model,
            sandbox=self.options.sandbox,
            fixtures=self.fixtures.digest if self.fixtures else None,
            replays={spec: bundle.digest for spec, bundle in self.replays.items()},
            settings=self.options.settings,
            budget_usd=self.options.budget_usd,
            stop_early=self.options.stop_early,
            rejudged_from=self.rejudged_from,
            lane=lane,
            priority=self.options.priority,
        )

    def info(self, lane: str | None, *, baseline_reuse_count: int = 1) -> RunInfo:
        options = self.options
        arms = self.arms or self.skipped
        return RunInfo(
            run_id=self.run_id,
            created_at=self.created_at,
            lane=lane,
            skill_id=self.suite.skill_id,
            task_suite=str(self.suite.path),
            pass_k=options.pass_k,
            models=options.models,
            tasks=tuple(
                TaskInfo(
                    id=task.id,
                    tier=task.tier,
                    tags=task.tags,
                    judge=task.judge.type,
                    should_trigger=task.should_trigger,
                )
                for task in self.suite.tasks
            ),
            candidates=tuple(
                CandidateInfo(arm=arm.name, candidate_id=arm.candidate_id, score=arm.score)
                for arm in arms
                if arm.name != "baseline"
            ),
            baseline=self._baseline_kind(),
            margin=options.margin,
            gate=options.gate,
            weak_baseline=options.weak_baseline,
            baseline_reuse_count=baseline_reuse_count,
            eval_threshold=options.eval_threshold,
            stop_early=options.stop_early,
            effect=options.effect,
            budget_usd=options.budget_usd,
            planned_attempts=self.grid.attempts,
            rejudged_from=self.rejudged_from,
            baseline_run_id=self.blessed.run_id if self.blessed else None,
            warnings=self.warnings,
        )

    def _baseline_kind(self) -> Baseline:
        if self.baseline_kind is not None:
            return self.baseline_kind
        if self.baseline is None:
            return "none" if self.arms else "skill"
        return "skill" if self.baseline.skill else "bare"


def make(
    options: Options, *, now: datetime | None = None, run_id: str | None = None, suite: Suite | None = None
) -> Plan:
    """Read and check everything that the flags name; raises before anything is written or sent.

    A `suite` that is given is not read from its file.
    """
    options.check()
    for spec in (*options.models, *filter(None, [options.judge_model])):
        parse(spec)
    whole = suite or suites.load(options.task_suite)
    suite = suites.select(whole, tasks=options.tasks, tags=options.tags, tiers=options.tiers)
    hidden = _not_for_agents(options, whole)
    arms, skipped = _standalone(options, hidden) if options.standalone else _pipeline(options, hidden)
    moment = now or datetime.now(UTC)
    warnings = [*suite.warnings, *(text for arm in arms if arm.skill for text in arm.skill.warnings)]
    _check_simulation(options, suite)
    _check_commands(options)
    check_prices(options, suite)
    plan = Plan(
        run_id=run_id or new_run_id(moment),
        created_at=moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        options=options,
        suite=suite,
        arms=tuple(arms),
        skipped=tuple(skipped),
        fixtures=fixtures_of(suite.folder),
        replays=_replays(options),
        warnings=tuple(dict.fromkeys(warnings)),
        whole_suite=whole.tasks,
    )
    if options.baseline_artifact is None:
        return plan
    from producer import blessing  # it builds on plans

    return blessing.compared_with(plan, options.baseline_artifact)


def new_run_id(now: datetime) -> str:
    """Sorts by time, and is unlike any other."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _standalone(options: Options, hidden: Collection[Path]) -> tuple[list[PlannedArm], list[PlannedArm]]:
    assert options.skill_path is not None
    arms = []
    if not options.no_baseline:
        baseline = skills.load(options.baseline_path) if options.baseline_path else None
        arms.append(_arm("baseline", baseline, hidden))
    candidate = _arm("candidate", skills.load(options.skill_path), hidden)
    if arms and arms[0].bundle and arms[0].bundle.digest == candidate.bundle.digest:  # type: ignore[union-attr]  # a loaded skill has a bundle
        raise InvalidOption(
            f"--baseline-path {options.baseline_path} and --skill-path {options.skill_path} hold the same skill"
        )
    return [*arms, candidate], []


def _pipeline(options: Options, hidden: Collection[Path]) -> tuple[list[PlannedArm], list[PlannedArm]]:
    assert options.ranking is not None
    ranking = rankings.load(options.ranking)
    chosen = rankings.select(ranking, options.candidate_ids)
    target = rankings.baseline(ranking)
    arms, skipped = [], []
    for candidate in chosen:
        name = "candidate" if len(chosen) == 1 else f"candidate:{candidate.id}"
        if candidate.score < options.eval_threshold:
            skipped.append(PlannedArm(name, candidate_id=candidate.id, score=candidate.score))
            continue
        arm = _arm(name, rankings.skill(ranking, candidate, target), hidden)
        arms.append(replace(arm, candidate_id=candidate.id, score=candidate.score))
    if arms and not options.no_baseline:
        arms.insert(0, _arm("baseline", target, hidden))
    return arms, skipped


def _not_for_agents(options: Options, suite: Suite) -> tuple[Path, ...]:
    """What no agent may read, should it lie in a skill's folder: what it is judged by, and what others answered."""
    ours = (options.state_root, options.baseline_cache_dir, options.baseline_artifact, options.output)
    return (suite.path, suite.folder / "fixtures", *(path for path in ours if path is not None))


def _arm(name: str, skill: Skill | None, hidden: Collection[Path]) -> PlannedArm:
    return PlannedArm(name, skill, skills.bundle(skill, without=hidden) if skill else None)


def _message(arm: PlannedArm) -> Arm:
    if arm.skill is None or arm.bundle is None:
        return Arm(name=arm.name)
    return Arm(name=arm.name, bundle=arm.bundle.digest, folder=skills.folder_name(arm.skill))


def fixtures_of(folder: Path) -> Bundle | None:
    """A suite's fixtures as workers get them; None where it has none."""
    fixtures = folder / "fixtures"
    return bundles.pack(fixtures, under="fixtures") if fixtures.is_dir() else None


def _replays(options: Options) -> dict[str, Bundle]:
    """Recordings, read once here so that a broken one is found now, and packed for workers elsewhere."""
    found = {}
    for spec in options.models:
        parsed = parse(spec)
        if parsed.kind == "replay":
            path = Path(parsed.name)
            replay.load(path)
            found[spec] = bundles.pack_files({path.name: replay.content(path)})
    return found


def _check_commands(options: Options) -> None:
    for spec in (*options.models, *filter(None, [options.judge_model])):
        is_agent(spec, options.settings)  # raises for a program that nobody declared


def check_prices(options: Options, suite: Suite) -> None:
    """Refuse a budget where a model's price is unknown: nobody could say when it is spent."""
    if options.budget_usd is None:
        return
    judging = {
        judge
        for task in suite.tasks
        for spec in options.models
        for judge in graders(task, spec, options.judge_model)
    }
    for spec in dict.fromkeys([*options.models, *sorted(judging)]):
        if first_estimate(spec, 0, options.settings) is None:
            name = "; or name the model, as in claude-code:NAME" if spec == "claude-code" else ""
            raise InvalidOption(
                f"--budget-usd needs the price of {spec}, which is unknown; give it in uplift.toml as "
                f'[prices."{spec}"] with input and output in USD per million tokens{name}'
            )


def _check_simulation(options: Options, suite: Suite) -> None:
    if any(parse(spec).kind == "sim" for spec in options.models):
        problems = [problem for task in suite.tasks if (problem := sim.missing_reply(task))]
        if problems:
            raise InvalidOption("; ".join(problems[:5]))


def simulated(options: Options) -> bool:
    """Whether no model of this run is real, so that its numbers say nothing about a skill."""
    return all(is_simulated(spec) for spec in options.models)

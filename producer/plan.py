"""Turn suite, skills and flags into a plan: which arms, which models, which attempts. Reads files, changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aggregate.artifact.sentences import words
from aggregate.formulas.verdict import verdict
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import STANDALONE, Baseline, CandidateInfo, RunInfo, TaskInfo
from aggregate.records.settings import ResultSettings
from aggregate.text.files import is_folder
from aggregate.text.formats import plain
from judges.spec import Files
from producer.importers import evals_json
from producer.settings.run_settings import InvalidOption, RunSettings, part
from producer.skills import ranking as rankings
from producer.skills import skill as skills
from producer.skills.ranking import Entry, InvalidRanking, NobodyCanApply, Ranking
from producer.skills.skill import InvalidSkill, Skill
from producer.suites import suite as suites
from producer.suites.suite import Suite
from workers.models import replay, sim
from workers.models.choose import asked, is_agent, is_simulated, mounts_skills, parse
from workers.models.prices import first_estimate
from workers.store import bundles
from workers.store.bundles import Bundle
from workers.store.messages import Arm, Cell, Grid, Manifest, Task, WorkerSettings

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from producer.baselines.bless import Blessed

_SHOWN_FILES = 3


@dataclass(frozen=True)
class PlannedArm:
    """An arm and what it is given; `score` is the ranking's for a candidate of a pipeline.

    A candidate that is not run has the verdict for that, and why. A baseline that git has, has its `commit`.
    """

    name: str
    skill: Skill | None = None
    bundle: Bundle | None = None
    candidate_id: str | None = None
    score: float | None = None
    verdict: Literal["skipped", "error"] | None = None
    reason: str = ""
    commit: str = ""


# Makes a baseline that lies in no folder; it is told which files no agent may read.
MakeArm = Callable[[Collection[Path]], PlannedArm]


@dataclass(frozen=True)
class Source:
    """Where the candidates come from: the pipeline's lane, and the ranking's run id and path where there is one."""

    lane: str = STANDALONE
    run_id: str | None = None
    ranking: str | None = None

    @classmethod
    def of(cls, artifact: Artifact) -> Source:
        """The source of an earlier run; 0.1.0 noted none and wrote a queue's name as the lane."""
        if "source_run_id" not in artifact.model_fields_set:
            return cls()
        return cls(artifact.lane, artifact.source_run_id, artifact.source_ranking_artifact)


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a run starts.

    `not_run` are the candidates that were asked for and get a verdict without being run; `whole_suite` has the tasks
    that flags left out, too.
    `rejudged_from` is the run whose completions are judged again; `baseline_kind` is what its baseline was, and
    `mounted` the models for which it mounted skills.
    `recorded` has the answers of `replay:` models.
    `blessed` holds the baseline's records where a file has them all, so that none is run. `environment` says which
    commit and branch the skill is at, and from which commit the baseline is.
    """

    run_id: str
    options: RunSettings
    suite: Suite
    arms: tuple[PlannedArm, ...]
    not_run: tuple[PlannedArm, ...] = ()
    source: Source = Source()
    fixtures: Bundle | None = None
    recorded: tuple[AttemptRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    whole_suite: tuple[Task, ...] = ()
    rejudged_from: str | None = None
    baseline_kind: Baseline | None = None
    mounted: tuple[str, ...] | None = None
    blessed: Blessed | None = None
    environment: dict[str, str] = field(default_factory=dict)
    created_at: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")

    @property
    def grid(self) -> Grid:
        return Grid(len(self.suite.tasks), len(self.options.models), len(self.arms), self.options.pass_k)

    @property
    def baseline(self) -> PlannedArm | None:
        return next((arm for arm in self.arms if arm.name == "baseline"), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said before the run: the commit that the baseline is from, and all warnings."""
        commit = self.environment.get("baseline_commit")
        said = [f"the baseline is the skill at {plain(str(self.options.baseline), 80)}, commit {commit}"]
        return (*(said if commit else ()), *self.warnings)

    @property
    def bundles(self) -> list[Bundle]:
        """Folders that travel beside the manifest: fixtures and skills."""
        every = (self.fixtures, *(arm.bundle for arm in self.arms))
        return [bundle for bundle in every if bundle is not None]

    def manifest(self, lane: str) -> Manifest:
        return Manifest(
            **part(self.options, WorkerSettings),
            run_id=self.run_id,
            created_at=self.created_at,
            task_count=len(self.suite.tasks),
            arms=tuple(_message(arm) for arm in self.arms),
            fixtures=self.fixtures.digest if self.fixtures else None,
            settings=self.options.settings,
            rejudged_from=self.rejudged_from,
            lane=lane,
        )

    def info(self, *, baseline_reuse_count: int = 1) -> RunInfo:
        return RunInfo(
            **part(self.options, ResultSettings),
            run_id=self.run_id,
            created_at=self.created_at,
            lane=self.source.lane,
            source_run_id=self.source.run_id,
            source_ranking_artifact=self.source.ranking,
            skill_id=self.suite.skill_id,
            task_suite=str(self.suite.path),
            tasks=tuple(
                TaskInfo(**{**part(task, TaskInfo), "judge": task.judged_by}) for task in self.suite.tasks
            ),
            candidates=tuple(
                CandidateInfo(
                    arm=arm.name,
                    candidate_id=arm.candidate_id,
                    score=arm.score,
                    verdict=arm.verdict,
                    reason=arm.reason,
                    quoting=self._quoting.get(arm.name, ()),
                )
                for arm in (*self.arms, *self.not_run)
                if arm.name != "baseline"
            ),
            baseline=self._baseline_kind(),
            baseline_reuse_count=baseline_reuse_count,
            planned_attempts=self.grid.attempts,
            mounted=self._mounted() if self.mounted is None else self.mounted,
            rejudged_from=self.rejudged_from,
            baseline_run_id=self.blessed.run_id if self.blessed else None,
            environment=self.environment,
            warnings=self.warnings,
        )

    def placed(self, records: Iterable[AttemptRecord]) -> Iterator[tuple[int, AttemptRecord]]:
        """The records of a recording or another run that are of attempts of this plan, each with its index here."""
        tasks = {task.id: number for number, task in enumerate(self.suite.tasks)}
        arms = {arm.name: number for number, arm in enumerate(self.arms)}
        models = {model: number for number, model in enumerate(self.options.models)}
        for record in records:
            model = record.model or ""
            known = record.task in tasks and record.arm in arms and model in models
            if known and record.attempt <= self.options.pass_k:
                cell = Cell(tasks[record.task], models[model], arms[record.arm], record.attempt)
                yield self.grid.index(cell), record

    def _mounted(self) -> tuple[str, ...]:
        if self.options.skill_mode == "prepend":
            return ()
        return tuple(model for model in self.options.models if mounts_skills(model, self.options.settings))

    @cached_property
    def _quoting(self) -> dict[str, tuple[str, ...]]:
        """By arm, the tasks whose prompts quote its skill."""
        prompts = {task.id: task.prompt for task in self.suite.tasks}
        baseline = self.baseline.skill if self.baseline else None
        return {arm.name: skills.quoting(arm.skill, prompts, baseline) for arm in self.arms if arm.skill}

    def _baseline_kind(self) -> Baseline:
        if self.baseline_kind is not None:
            return self.baseline_kind
        if self.baseline is None:
            return "none" if self.arms else "skill"
        return "skill" if self.baseline.skill else "bare"


def make(
    options: RunSettings,
    *,
    run_id: str | None = None,
    suite: Suite | None = None,
    baseline: MakeArm | None = None,
) -> Plan:
    """Read and check everything that the flags name; raises before anything is written or sent.

    A `suite` that is given is not read from its file.
    """
    options.check()
    assert options.task_suite is not None
    for spec in (*options.models, *filter(None, [options.judge_model])):
        is_agent(spec, options.settings)  # raises for a model, or a program, that nobody knows
    whole = suite or evals_json.load(options.task_suite)
    suite = suites.select(whole, tasks=options.tasks, tags=options.tags, tiers=options.tiers)
    # What no agent may read, should it lie in a skill's folder: what it is judged by, and what others answered.
    ours = (options.state_root, options.baseline_cache_dir, options.baseline_artifact, options.output)
    hidden = (whole.path, whole.folder / "fixtures", *filter(None, ours))
    if options.ranking:
        arms, not_run, source = _pipeline(options, hidden)
    else:
        arms, not_run, source = _standalone(options, hidden, baseline)
    of_skills = (text for arm in arms if arm.skill for text in arm.skill.warnings)
    warnings = [*suite.warnings, *of_skills, *_unseen(options, arms, hidden)]
    for words_of_refusal in _refused(options, suite):
        raise InvalidOption(words_of_refusal)
    return Plan(
        run_id=run_id or new_run_id(),
        options=options,
        suite=suite,
        arms=tuple(arms),
        not_run=tuple(not_run),
        source=source,
        fixtures=fixtures_of(suite.folder),
        recorded=tuple(_recorded(options)),
        warnings=tuple(dict.fromkeys(warnings)),
        whole_suite=whole.tasks,
    )


def new_run_id() -> str:
    """Sorts by time, and is unlike any other."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


_Arms = tuple[list[PlannedArm], list[PlannedArm], Source]


def _standalone(options: RunSettings, hidden: Collection[Path], baseline: MakeArm | None) -> _Arms:
    assert options.skill_path is not None
    arms = []
    if baseline is not None:
        arms.append(baseline(hidden))
    elif not options.no_baseline:
        skill = skills.load(options.baseline_path) if options.baseline_path else None
        arms.append(_arm("baseline", skill, hidden))
    candidate = _arm("candidate", skills.load(options.skill_path), hidden)
    if arms and arms[0].bundle and arms[0].bundle.digest == candidate.bundle.digest:  # type: ignore[union-attr]  # a loaded skill has a bundle
        named = options.baseline or options.baseline_path
        raise InvalidOption(
            f"--baseline {named} and the skill {options.skill_path} are the same; edit the skill, or name another"
        )
    return [*arms, candidate], [], Source()


def _pipeline(options: RunSettings, hidden: Collection[Path]) -> _Arms:
    assert options.ranking is not None
    ranking = rankings.load(options.ranking)
    chosen = rankings.select(ranking, options.candidate_ids)
    target = rankings.baseline(ranking)
    # First: what is wrong with the target is no candidate's fault.
    baseline = _arm("baseline", None if options.baseline == "bare" else target, hidden)
    names = ["candidate"] if len(chosen) == 1 else [f"candidate:{entry.id}" for entry in chosen]
    named = zip(names, chosen, strict=True)
    candidates = [_candidate(name, entry, ranking, target, options, hidden) for name, entry in named]
    arms = [arm for arm in candidates if arm.verdict is None]
    if arms and not options.no_baseline:
        arms.insert(0, baseline)
    source = Source(ranking.lane, ranking.run_id, str(options.ranking.absolute()))
    return arms, [arm for arm in candidates if arm.verdict is not None], source


def _candidate(
    name: str, entry: Entry, ranking: Ranking, target: Skill, options: RunSettings, hidden: Collection[Path]
) -> PlannedArm:
    """A candidate of a ranking; what is wrong with it is its own verdict and keeps no other from being run."""
    arm = PlannedArm(name, candidate_id=entry.id)
    try:
        arm = replace(arm, score=rankings.score(ranking, entry))
        assert arm.score is not None
        if arm.score < options.eval_threshold:
            gate = verdict(None, None, candidate_score=arm.score, eval_threshold=options.eval_threshold)
            return replace(arm, verdict="skipped", reason=words(gate.reasons))
        skill = rankings.skill(ranking, entry, target)
        return replace(arm, skill=skill, bundle=skills.bundle(skill, without=hidden))
    except NobodyCanApply as why:
        return replace(arm, verdict="skipped", reason=str(why))
    except (InvalidRanking, InvalidSkill) as why:
        return replace(arm, verdict="error", reason=str(why))


def _unseen(options: RunSettings, arms: Collection[PlannedArm], hidden: Collection[Path]) -> Iterator[str]:
    """What of a skill no model of the run is given that gets the SKILL.md alone: edited files first, then others."""
    blind = [spec for spec in options.models if not mounts(spec, options)]
    alone = f"in prepend mode a skill is its {skills.FILE_NAME} alone"
    for arm in arms:
        if blind and arm.skill is not None and arm.skill.edited is not None:
            yield (
                f"candidate {arm.candidate_id!r} edits {arm.skill.edited[0].name}, which {', '.join(blind)} never "
                f"sees: {alone} (--skill-mode mount gives all of it)"
            )
    blind = [spec for spec in blind if not is_simulated(spec)]
    for skill in (arm.skill for arm in arms if blind and arm.skill is not None):
        if others := skills.other_files(skill, without=hidden):
            shown = ", ".join(plain(name, 40) for name in others[:_SHOWN_FILES])
            more = f" and {len(others) - _SHOWN_FILES} more" if len(others) > _SHOWN_FILES else ""
            yield f"{plain(', '.join(blind), 60)} never sees {shown}{more} of skill {skill.name}: {alone}"


def mounts(spec: str, options: RunSettings) -> bool:
    """Whether a model finds the skill's whole folder, and not only the SKILL.md's text in front of the prompt."""
    if options.skill_mode is not None:
        return options.skill_mode == "mount"
    return mounts_skills(spec, options.settings)


def _arm(name: str, skill: Skill | None, hidden: Collection[Path]) -> PlannedArm:
    return PlannedArm(name, skill, skills.bundle(skill, without=hidden) if skill else None)


def _message(arm: PlannedArm) -> Arm:
    if arm.skill is None or arm.bundle is None:
        return Arm(name=arm.name)
    return Arm(name=arm.name, bundle=arm.bundle.digest, folder=skills.folder_name(arm.skill))


def fixtures_of(folder: Path) -> Bundle | None:
    """A suite's fixtures as workers get them; None where it has none."""
    fixtures = folder / "fixtures"
    return bundles.pack(fixtures, under="fixtures") if is_folder(fixtures) else None


def _recorded(options: RunSettings) -> Iterator[AttemptRecord]:
    """The answers in recordings: workers elsewhere cannot read them, and a broken one is found now."""
    for spec in options.models:
        parsed = parse(spec)
        if parsed.kind == "replay":
            yield from replay.read(Path(parsed.name), spec)


def _refused(options: RunSettings, suite: Suite) -> Iterator[str]:
    """What these models cannot do with these tasks: it is said before anything is paid for."""
    kinds = {spec: parse(spec).kind for spec in options.models}
    if "sim" in kinds.values():
        problems = [problem for task in suite.tasks if (problem := sim.missing_reply(task))]
        if problems:
            yield "; ".join(problems[:5])
    prompted = [spec for spec, kind in kinds.items() if kind in ("claude-code", "command")]
    why = f"messages are for API models (anthropic:, openai:); {', '.join(prompted)} needs a prompt"
    if prompted and (remarks := {task.id: why for task in suite.tasks if task.messages}):
        yield "\n".join(suites.located(suite.path, remarks))
    live = [spec for spec, kind in kinds.items() if not is_simulated(spec) and kind != "replay"]
    blind = [spec for spec in live if not is_agent(spec, options.settings)]
    judged = [task.id for task in suite.tasks if any(isinstance(leaf, Files) for leaf in task.leaves)]
    if blind and judged:
        yield (
            f"task {judged[0]} is judged by the files that an agent leaves, and {', '.join(blind)} leaves none; "
            "ask an agent such as claude-code, or choose other tasks with --task"
        )
    # Without a price nobody could say when the budget is spent.
    for spec in (
        asked(options.models, suite.tasks, options.judge_model) if options.budget_usd is not None else ()
    ):
        if first_estimate(spec, 0, options.settings) is None:
            name = "; or name the model, as in claude-code:NAME" if spec == "claude-code" else ""
            yield (
                f"--budget-usd needs the price of {spec}, which is unknown; give it in uplift.toml as "
                f'[prices."{spec}"] with input and output in USD per million tokens{name}'
            )

"""The artifact, typed: what a run ends in, one per candidate, and what `compare` says of two runs.

The order of fields is the order of keys in the file. A field that an earlier version did not write has a default, and
one that only an earlier version wrote is ignored. None is unknown, never zero. Rows of tasks are dataclasses: a large
run has tens of thousands of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema

from aggregate.formulas.verdict import (
    WEAK_CODES,
    DecisionName,
    Gate,
    VerdictName,
    WeakBaseline,
    exit_code,
    largest_ratio,
)
from aggregate.records.run_info import Baseline, Status
from aggregate.text.formats import dumps, schema_of

SCHEMA_VERSION = "1.0"

# A whole number stays one, so that an artifact that is read and written again keeps its bytes.
_Read = TypeVar("_Read")
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
Values = dict[str, Number | str | None]


class NotAnArtifact(ValueError):
    """JSON that is no artifact; the message says which field is wrong."""


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class Bounds(_Block):
    """An estimate with the ends of its interval."""

    estimate: Number | None
    low: Number
    high: Number


class DeltaIntervals(_Block):
    """Both intervals of `attempt_delta`, each under the question it answers; `repeated` where a run may stop early."""

    of: str = "attempt_delta"
    level: Number
    n: int | None = None
    tasks_like_these: Bounds
    exactly_this_suite: Bounds | None = None
    repeated: bool = False


class Needed(_Block):
    """What it takes to see `effect`: attempts on these tasks, or tasks; None where no affordable number would do."""

    effect: Number
    n_pairs: int
    attempts: int | None
    tasks: int | None
    tasks_at_attempts: int


class Rates(_Block):
    """Shares of tasks that each arm passed."""

    execution_pass_rate: Number | None = None
    baseline_pass_rate: Number | None = None
    delta: Number | None = None


class Sizes(_Block):
    """How many tasks, and pairs of task and model, were judged in both arms or were not."""

    n_pairs: int | None = None
    n_cells: int | None = None
    n_dropped: int | None = None


class Differences(_Block):
    """How two arms differ, how sure that is, and what would be needed to be surer."""

    attempt_delta: Number | None = None
    score_delta: Number | None = None
    impl_rate_delta: Number | None = None
    normalized_gain: Number | None = None
    interval: DeltaIntervals | None = None
    p_value: Number | None = None
    p_value_greater: Number | None = None
    suite_p_value: Number | None = None
    sign_flip_p_value: Number | None = None
    sign_flip_p_value_greater: Number | None = None
    mcnemar_p_value: Number | None = None
    only_candidate_passed: int | None = None
    only_baseline_passed: int | None = None
    min_detectable_effect: Number | None = None
    needed: Needed | None = None


class ArmCost(_Block):
    """What the attempts of an arm cost."""

    n: int
    n_cost_known: int
    total_cost: Number | None
    mean_cost_per_task: Number | None
    mean_cost_per_attempt: Number | None
    cop: Number | None
    no_pass: bool
    judge_cost: Number | None
    mean_trajectory_length: Number | None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


class ArmMetrics(_Block):
    """Every metric of one arm: those of `records.metrics`, of which a new one needs no field here."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | None] = Field(init=False)

    n: int = 0
    n_judged: int = 0
    n_scored: int = 0
    n_errors: int = 0
    n_timeouts: int = 0
    n_tasks: int = 0
    n_tasks_judged: int = 0
    pass_rate: Number | None = None
    first_attempt_rate: Number | None = None
    attempt_pass_rate: Number | None = None
    mean_score: Number | None = None
    median_score: Number | None = None
    std_score: Number | None = None
    min_score: Number | None = None
    max_score: Number | None = None
    mean_impl_rate: Number | None = None
    median_impl_rate: Number | None = None
    std_impl_rate: Number | None = None
    min_impl_rate: Number | None = None
    max_impl_rate: Number | None = None
    cop: Number | None = None
    consistency: Number | None = None
    mean_cost_per_attempt: Number | None = None
    mean_cost_per_task: Number | None = None
    total_cost: Number | None = None
    n_cost_known: int = 0
    judge_cost: Number | None = None
    mean_trajectory_length: Number | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    mean_model_ms: Number | None = None
    no_pass: bool = False
    pass_at: dict[str, Number | None] = {}
    pass_hat: dict[str, Number | None] = {}


class GroupNumbers(Differences, Rates, Sizes):
    """One model, tier or judge type: the arms compared, and the metrics of each."""

    arms: dict[str, ArmMetrics] = {}


class AttemptCounts(_Block):
    """How many attempts were planned and made; `by_arm` counts outcomes."""

    planned: int | None
    run: int
    skipped: int | None
    cached: int = 0
    by_arm: dict[str, dict[str, int]] = {}

    @property
    def made(self) -> int:
        """How many of `planned` were made; `run` counts only the baseline's and this candidate's."""
        return self.run if self.planned is None or self.skipped is None else self.planned - self.skipped


class CommonError(_Block):
    """A message that attempts ended in, and how many did."""

    message: str
    count: int


class MissedLoss(_Block):
    """How large a loss on exactly these tasks the interval leaves open, and what more attempts would leave."""

    loss: Number
    more_attempts: int
    loss_then: Number


class LookPlan(_Block):
    """A look that a run may stop at."""

    round: int
    spent_alpha: Number
    bound: Number | None


class LookTaken(_Block):
    """A look that was taken, and what it showed."""

    round: int
    estimate: Number | None
    low: Number | None
    high: Number | None
    level: Number
    spent_alpha: Number
    conditional_power: Number | None
    stop: bool
    reason: str


class Looks(_Block):
    """The looks of a run that may stop early."""

    mode: str
    effect: Number | None = None
    plan: list[LookPlan] = []
    looks: list[LookTaken] = []
    stopped_after: int | None = None
    spent_alpha: Number | None = None


class UnseenBound(_Block):
    """How much tasks whose attempts all agree may vary unseen."""

    tasks: int
    bound: Number | None


class ArmConsistency(_Block):
    """How steady an arm's repeated attempts are; `ranges` and `attempts` are those of flaky tasks."""

    n: int
    accuracy_std_dev: Number | None
    accuracy_range: Number | None
    consistency_score: Number | None
    concept_overlap: Number | None
    flaky_tasks: list[str]
    flaky_by_sigma: list[str] = []
    ranges: dict[str, Number]
    attempts: dict[str, int] = {}
    unseen_bound: UnseenBound | None = None


class RunCost(_Block):
    """What the run cost, what a pass costs in each arm, and what the difference costs."""

    by_arm: dict[str, ArmCost] = {}
    cost_by_model: dict[str, Number] = {}
    frontier_cop: Number | None = None
    cost_per_extra_pass: Number | None = None
    dominates: bool | None = None
    spent_usd: Number | None = None
    wasted_usd: Number | None = None
    wasted_attempts: int = 0
    budget_usd: Number | None = None
    over_budget_usd: Number | None = None
    assumed_usd: Number = 0.0
    cost_sources: list[str] = []


class CostRatio(_Block):
    """One measure, candidate over baseline: the ratio over tasks with its interval, and the ratio of totals."""

    ratio: Number | None
    low: Number | None
    high: Number | None
    level: Number
    ratio_of_totals: Number | None
    n_tasks: int
    n_all: int
    n_zero: int
    n_unknown: int
    word: Literal["cheaper", "dearer"] | None


# Measures of the artifact: the attempts' column that each is made of, and what tables call it.
MEASURES = {
    "cost": ("cost_usd", "Cost"),
    "input_tokens": ("input_tokens", "Tokens in"),
    "output_tokens": ("output_tokens", "Tokens out"),
    "cache_read_tokens": ("cache_read_tokens", "Cache reads"),
    "cache_write_tokens": ("cache_write_tokens", "Cache writes"),
    "model_calls": ("turns", "Model calls"),
    "model_seconds": ("model_ms", "Model time"),
}


class Efficiency(_Block):
    """Each measure over all tasks, and over those that both arms passed."""

    all: dict[str, CostRatio]
    both_passed: dict[str, CostRatio]


class BenchmarkSpeedup(_Block):
    """One benchmark of an attempt."""

    name: str
    agent_speedup: Number | None
    oracle_speedup: Number | None
    advantage: Number | None
    valid: bool


class SpeedupAttempt(_Block):
    """All that is kept of one attempt of a benchmark task."""

    attempt: int
    passed: bool | None
    agent_advantage: Number | None
    agent_advantage_level1: Number | None
    agent_advantage_level2: Number | None
    agent_advantage_level3: Number | None
    agent_advantage_level4: Number | None
    task_speedup: Number | None
    num_benchmarks: int
    num_valid_benchmarks: int
    fallback_to_baseline: bool
    per_benchmark_speedups: list[BenchmarkSpeedup]
    pytest_summary: dict[str, Any] | None
    snapshot_summary: dict[str, Any] | None
    pytest_failed: bool
    snapshot_failed: bool
    success: bool
    task_cost_usd: Number | None
    trajectory_length: Number | None


class SpeedupSummary(_Block):
    """The speedups of one arm and model over its benchmark tasks."""

    n: int
    mean_speedup: Number | None
    mean_success_rate: Number | None
    agent_advantage: Number | None
    agent_advantage_level1: Number | None
    agent_advantage_level2: Number | None
    agent_advantage_level3: Number | None
    agent_advantage_level4: Number | None
    num_benchmarks: int
    num_valid_benchmarks: int
    mean_cost_per_task: Number | None
    cost_weighted_advantage: Number | None
    mean_trajectory_length: Number | None
    accuracy: Number | None
    pass_at_k: dict[str, Number | None]
    tasks: dict[str, list[SpeedupAttempt]] = {}


class JudgeNumbers(_Block):
    """How one judge did."""

    n: int
    n_scored: int
    mean_score: Number | None
    mean_impl_rate: Number | None = None
    cost: Number | None
    input_tokens: Number | None = None
    output_tokens: Number | None = None


class Agreement(_Block):
    """Whether the judges of a panel agree: Krippendorff's alpha, and each judge's lean against the others."""

    n: int
    alpha_scores: Number | None
    alpha_passes: Number | None
    bias: dict[str, Number | None] = {}


class JudgePanels(_Block):
    """What judges cost, how often they gave no score, and whether panels agree."""

    judges: dict[str, JudgeNumbers]
    panel_sizes: dict[str, int] = {}
    n_missing: int = 0
    n_saw_cut_text: int = 0
    judge_cost: Number | None = None
    agreement: Agreement | None = None


class SkillLoads(_Block):
    """In how many of `n` attempts the skill was loaded; None where the program does not tell."""

    loaded: int | None
    n: int


class Triggers(_Block):
    """How often the skill was invoked when it should be and when it should not."""

    n: int
    rate: Number | None
    trigger_rate: Number | None
    false_trigger_rate: Number | None
    missed: int
    false_triggers: int
    missed_tasks: list[str]
    false_trigger_tasks: list[str]


class Pair(_Block):
    """A task with a model."""

    task_id: str
    model: str


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A task whose pass rate differs between the arms, with Fisher's p and its correction."""

    task_id: str
    model: str
    change: Literal["better", "worse"]
    baseline_pass_rate: Number
    candidate_pass_rate: Number
    difference: Number
    p_value: Number | None
    adjusted_p_value: Number | None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How often one check of a task passed in an arm, over all models; `missing` counts judgments without a score."""

    task_id: str
    check: str
    arm: str
    judge: str
    by: Literal["program", "model"]
    required: bool
    weight: Number
    n: int
    judged: int
    passes: int
    missing: int
    score: Number | None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended in an arm, with one model."""

    task_id: str
    model: str
    tier: str | None
    judge: str | None
    passed: bool | None
    score: Number | None
    outcome: str | None
    details: str | None
    duration_ms: Number | None
    error: str | None
    attempts: int
    judged: int
    passes: int
    errors: int
    accuracy_std_dev: Number | None
    accuracy_range: Number | None
    cost_usd: Number | None
    failure: str | None = None  # what the judge said of the first attempt that did not pass
    missed: list[str] = field(default_factory=list)  # strings and criteria that this attempt did not meet

    @property
    def said(self) -> str:
        """What was said of a failed attempt; of an earlier version's only where all of them failed."""
        return self.failure or (self.details if not self.passes else None) or ""


@dataclass(frozen=True, slots=True)
class TaskBounds:
    """The ends of an interval of a task's difference."""

    low: Number | None
    high: Number | None


@dataclass(frozen=True, slots=True)
class CandidateResult(TaskResult):
    """The same with the interval of its difference; None unless both arms were judged."""

    interval: TaskBounds | None = None


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """How a task of the candidate ended, in the pipeline's fields; text is empty where there is none."""

    task_id: str
    passed: bool | None
    score: Number | None
    duration_ms: Number | None
    details: str
    error: str


class PipelineEvaluation(_Block):
    """The verdict with its rates, and how many tasks of the candidate passed and failed."""

    execution_pass_rate: Number | None
    baseline_pass_rate: Number | None
    delta: Number | None
    verdict: VerdictName
    reason: str
    pass_rate: Number | None
    total_tasks: int
    passed: int
    failed: int


class Environment(_Block):
    """Where the run took place, how long it took, and what else it says of that."""

    model_config = ConfigDict(extra="allow")

    wall_seconds: Number | None = None
    attempts_per_second: Number | None = None


class RunHead(_Block):
    """Which run and which candidate this is."""

    schema_version: str
    run_id: str
    stage: str = "evaluated"
    status: Status
    created_at: str | None = None
    lane: str = ""
    source_run_id: str | None = None
    source_ranking_artifact: str | None = None
    skill_id: str
    task_suite: str
    pass_k: int
    models: list[str]
    simulated: bool = False
    arm: str
    candidate_id: str | None = None
    candidate_score: Number | None = None


class RunVerdict(_Block):
    """The gate's literal verdict, and what the statistics support for tasks like these and for exactly this suite."""

    verdict: VerdictName
    reason: str
    reason_codes: list[str] | None = None
    decision: DecisionName | None = None
    decision_reason: str | None = None
    suite_decision: DecisionName | None = None
    suite_decision_reason: str | None = None
    could_miss: MissedLoss | None = None


ComparedState = Literal["better", "no_worse", "worse", "cannot_tell", "nothing_to_learn"]
AnswerState = Literal[ComparedState, "no_result", "cancelled", "skipped", "alone"]
LineKind = Literal[
    "what",
    "why",
    "rates",
    "ranges",
    "cost",
    "triggers",
    "stopped",
    "needed",
    "diagnosis",
    "tasks",
    "gate",
    "warnings",
    "bill",
]
CauseCode = Literal[
    "errors",
    "never_loaded",
    "timeouts",
    "saturated",
    "floor",
    "quotes_skill",
    "rarely_loaded",
    "one_task",
    "few_tasks",
]


class Cause(_Block):
    """Why a suite could not answer, or answered doubtfully: with its figures, and one remedy."""

    code: CauseCode
    text: str
    remedy: str
    values: Values = {}


class AnswerLine(_Block):
    """One line of the answer, and the figures that its words round."""

    kind: LineKind
    text: str
    values: Values = {}

    def figure(self, name: str) -> float | None:
        """A number of the line; None where it is unknown."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) else None


class NextStep(_Block):
    """What to do now: in words, and as the words of a command after `uplift`; `text` is all of it, as it is typed."""

    words: str = ""
    command: list[str] = []
    text: str = ""

    def typed(self, command: str) -> Self:
        """The same with the command as it is typed, flags that say where the run lies included."""
        return self.model_copy(update={"text": ": ".join(filter(None, (self.words, command)))})


class RunAnswer(_Block):
    """What a run says, for people: every surface shows these words. `scope` is what a decision holds for."""

    state: AnswerState
    scope: Literal["tasks_like_these", "exactly_this_suite"] | None = None
    headline: str
    gate: Literal["pass", "fail", "error", "skipped"]
    simulated: bool = False
    stopped_early: bool = False
    lines: list[AnswerLine] = []
    next: NextStep = NextStep()

    def line(self, kind: LineKind) -> AnswerLine | None:
        """The line of a kind, of which there is at most one."""
        return next((one for one in self.lines if one.kind == kind), None)

    def figure(self, kind: LineKind, name: str) -> float | None:
        """A number of the line of a kind; None where there is no such line, or no such number."""
        line = self.line(kind)
        return line.figure(name) if line else None


# Pydantic takes the fields of the last base first.
class Artifact(Differences, Sizes, RunVerdict, Rates, RunHead):
    """What a run found for one candidate; a candidate that was not run has no `attempts` and no number."""

    dropped_pairs: list[Pair] = []
    attempts: AttemptCounts | None = None
    errors: dict[str, list[CommonError]] | None = None
    sequential: Looks | None = None
    consistency: dict[str, ArmConsistency | None] | None = None
    cost: RunCost | None = None
    cost_weighted_advantage: Number | None = None
    efficiency: Efficiency | None = None
    speedups: dict[str, dict[str, SpeedupSummary]] | None = None
    judges: JudgePanels | None = None
    served: dict[str, dict[str, dict[str, list[str]]]] | None = None
    skill_loads: dict[str, dict[str, SkillLoads]] | None = None
    triggers: Triggers | None = None
    arms: dict[str, ArmMetrics] | None = None
    by_model: dict[str, GroupNumbers] | None = None
    by_tier: dict[str, GroupNumbers] | None = None
    by_judge: dict[str, GroupNumbers] | None = None
    changes: list[TaskChange] = []
    candidate_results: list[CandidateResult] = []
    baseline_results: list[TaskResult] = []
    checks: list[CheckResult] = []
    p_value_adjusted: Number | None = None
    comparisons: int = 1
    baseline: Baseline
    baseline_reuse_count: int = 1
    stop_early: Literal["decision", "verdict"] | None = None  # the latter in artifacts of version 0.1.0
    rejudged_from: str | None = None
    baseline_run_id: str | None = None
    margin: Number
    gate: Gate
    gate_cost: str | None = None
    weak_baseline: WeakBaseline | None = None
    unloaded: WeakBaseline | None = None
    eval_threshold: Number | None = None
    warnings: list[str] = []
    environment: Environment = Environment()
    truth_anchor: str | None = None
    summary: str = ""
    next_step: str = ""
    next_owner: str = ""
    evaluation: PipelineEvaluation | None = None
    task_results: list[PipelineResult] = []
    quoting_tasks: list[str] = []
    diagnosis: list[Cause] = []
    answer: RunAnswer | None = None

    @property
    def was_run(self) -> bool:
        """Whether the candidate was run at all; one that was skipped, or that nobody could run, has no number."""
        return self.attempts is not None

    @property
    def baseline_is_too_weak(self) -> bool:
        """Whether the verdict is `error` because the baseline passes too few tasks."""
        if self.reason_codes is None:  # an earlier version wrote only the sentence
            return self.verdict == "error" and "baseline pass rate" in self.reason
        return not WEAK_CODES.isdisjoint(self.reason_codes)

    @property
    def name(self) -> str:
        """What people call the candidate."""
        return self.candidate_id or self.skill_id or self.run_id

    def metrics_of(self, arm: str) -> ArmMetrics:
        """The metrics of an arm; `n` is 0 where it has no attempt."""
        return (self.arms or {}).get(arm) or ArmMetrics()

    @property
    def groupings(self) -> dict[str, dict[str, GroupNumbers]]:
        """The groups by model, tier and judge type, each grouping under its name."""
        return {"model": self.by_model or {}, "tier": self.by_tier or {}, "judge": self.by_judge or {}}

    @property
    def cost_code(self) -> int:
        """1 where the interval of the cost ratio lies above what the cost gate allows, 3 without an interval, else 0.

        0 too without a cost gate, and for a candidate that was skipped.
        """
        if self.gate_cost is None or self.verdict == "skipped":
            return 0
        low = self.efficiency.all["cost"].low if self.efficiency else None
        return 3 if low is None else int(low > largest_ratio(self.gate_cost))

    def exit_code(self) -> int:
        """The larger exit code of both gates: the run's, and the cost gate."""
        return max(exit_code(self.verdict, self.decision, self.gate, self.suite_decision), self.cost_code)

    def with_warning(self, warning: str) -> Self:
        return self.model_copy(update={"warnings": [*self.warnings, warning]})


class SideRates(_Block):
    """What the differences are differences of: means over the tasks for which both runs have a number."""

    attempt_pass_rate: Number | None = None
    mean_score: Number | None = None


class RunsCompared(Differences, Rates, Sizes):
    """Two runs of one suite: the second's candidate against the first's."""

    first_run: SideRates
    second_run: SideRates
    decision: DecisionName
    decision_reason: str
    margin: Number
    models: list[str]
    paired_by_model: bool
    changes: list[TaskChange]
    summary: str = ""


def loads(data: bytes) -> Artifact:
    """Read an artifact; raises NotAnArtifact for everything else."""
    return _checked(Artifact.model_validate_json, data)


def loads_all(data: bytes) -> list[Artifact]:
    """Read the artifacts of a run, as `dumps_all` wrote them."""
    return _checked(_all().validate_json, data)


def dumps_all(artifacts: list[Artifact]) -> bytes:
    """The artifacts of a run as JSON, each with the fields that were set."""
    return _all().dump_json(artifacts, exclude_unset=True)


@cache
def _all() -> TypeAdapter[list[Artifact]]:
    return TypeAdapter(list[Artifact])


def _checked(read: Callable[[bytes], _Read], data: bytes) -> _Read:
    try:
        return read(data)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:200] or "file"
        raise NotAnArtifact(f"{place}: {first['msg'][:200]}") from None


def schema_text() -> str:
    """The JSON Schema of an artifact, as the text of a file."""
    return dumps(schema_of(Artifact, f"Uplift artifact, version {SCHEMA_VERSION}"), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())

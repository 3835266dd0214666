"""Uplift as a library: run a suite from Python, in plain or asynchronous code, and get a typed result.

Nothing is printed, no signal handler is installed and nothing exits. What goes wrong is raised: invalid input before
anything has run (InvalidSuite, InvalidSkill, InvalidOption, …), NoServer or redis errors for infrastructure, and
Interrupted when the run was stopped and can be resumed. A run that failed its gate is a result, not an exception.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast

from aggregate.records import AttemptRecord
from judges.judgment import Sandbox
from producer.view import View
from producer.watch import Interrupted
from workers.messages import ModelSettings, SkillMode

if TYPE_CHECKING:
    from producer.plan import Plan
    from producer.suite import Suite


@dataclass(frozen=True)
class Interval:
    """Where the true difference lies, at a level such as 0.95, for tasks like those of the suite."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Result:
    """What a run ended in. Rates and differences are shares, not percent; None is unknown, never zero.

    `ok` is what the exit code would say: it follows the gate that was chosen. `artifact` holds everything else.
    """

    run_id: str
    verdict: Literal["pass", "fail", "skipped", "error"]
    reason: str
    decision: Literal["improved", "no_worse", "worse", "inconclusive"] | None
    ok: bool
    execution_pass_rate: float | None
    baseline_pass_rate: float | None
    delta: float | None
    interval: Interval | None
    spent_usd: float | None
    warnings: tuple[str, ...]
    artifact_path: Path
    records_path: Path
    artifact: Mapping[str, Any]

    def records(self) -> Iterator[AttemptRecord]:
        """Every attempt of the run, read from the state root one by one."""
        from aggregate.reading import read_jsonl

        return read_jsonl(self.records_path)


class Keywords(TypedDict, total=False):
    """What can be asked for beside suite and skill; as the flags of `uplift evaluate`, with the same defaults.

    `model` is one spec or several. `folder` holds the `fixtures/` of a suite that is given as a mapping. Without a
    `broker`, a private server and a worker are started for this run and ended with it; variables such as
    UPLIFT_BROKER and config files are not looked at. `on_progress` and `on_message` are called while the run goes
    on. `stop` is asked several times a second; once it says True no attempt is started and Interrupted is raised.
    """

    baseline: str | Path | None
    baseline_artifact: str | Path | None
    no_baseline: bool
    model: str | Sequence[str]
    judge_model: str | None
    pass_k: int
    skill_mode: SkillMode | None
    sandbox: Sandbox
    margin: float
    gate: Literal["verdict", "decision"]
    weak_baseline: Literal["error", "warn"]
    stop_early: Literal["verdict", "decision"] | None
    effect: float
    budget_usd: float | None
    baseline_cache_dir: str | Path | None
    output: str | Path | None
    tasks: Sequence[str]
    tags: Sequence[str]
    tiers: Sequence[str]
    settings: ModelSettings
    state_root: str | Path
    folder: str | Path
    broker: str | None
    insecure: bool
    in_flight: int | None
    on_progress: Callable[[View], None]
    on_message: Callable[[str], None]
    stop: Callable[[], bool]


def evaluate(
    suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, **options: Unpack[Keywords]
) -> Result:
    """Run every task of a suite with a skill and with its baseline, wait for the end, and say which is better.

    The suite is a path, or its content as a mapping. Call it from any thread.
    """
    return _run(_plan(suite, skill, options), options, options.get("stop", _never))


async def aevaluate(
    suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, **options: Unpack[Keywords]
) -> Result:
    """The same without holding up the event loop; callbacks are called on it.

    Cancelling stops the run at once, keeps what it has, and leaves nothing running; `uplift resume` goes on with it.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = loop.create_future()
    cancelled = threading.Event()
    ours = _on_loop(options, loop)

    def settle(result: Result | None, problem: BaseException | None) -> None:
        if problem is not None:
            ended.set_exception(problem)
        else:
            ended.set_result(cast(Result, result))

    def work() -> None:
        outcome: tuple[Result | None, BaseException | None]
        try:
            plan = _plan(suite, skill, ours)
            stop = _Hurried(plan.run_id, cancelled, ours.get("stop", _never))
            outcome = (_run(plan, ours, stop), None)
        except BaseException as problem:  # raised again where it is awaited
            outcome = (None, problem)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    # A thread of its own: it must outlive the private server, which the kernel ends with the thread that started it.
    threading.Thread(target=work, name="uplift-evaluate").start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([ended])
        ended.exception()  # seen, so that nobody complains that it was not
        raise


def _plan(suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, options: Keywords) -> Plan:
    from producer import plan as plans
    from producer import suite as suites
    from producer.options import Options

    given: Suite | None = suite if isinstance(suite, suites.Suite) else None
    if isinstance(suite, Mapping):
        given = suites.from_values(suite, Path(options.get("folder", ".")))
    model = options.get("model", "claude-code")
    plain = {name: options[name] for name in _AS_THEY_ARE if name in options}  # type: ignore[literal-required]  # names of Keywords
    return plans.make(
        Options(
            task_suite=given.path if given else Path(cast("str | Path", suite)),
            state_root=Path(options.get("state_root", ".uplift")),
            standalone=True,
            skill_path=Path(skill),
            baseline_path=_path(options.get("baseline")),
            baseline_artifact=_path(options.get("baseline_artifact")),
            baseline_cache_dir=_path(options.get("baseline_cache_dir")),
            output=_path(options.get("output")),
            models=(model,) if isinstance(model, str) else tuple(model),
            tasks=tuple(options.get("tasks", ())),
            tags=tuple(options.get("tags", ())),
            tiers=tuple(options.get("tiers", ())),
            **plain,
        ),
        suite=given,
    )


_AS_THEY_ARE = (
    *("no_baseline", "judge_model", "pass_k", "skill_mode", "sandbox", "margin", "gate", "weak_baseline"),
    *("stop_early", "effect", "budget_usd", "settings"),
)


def _run(plan: Plan, options: Keywords, stop: Callable[[], bool]) -> Result:
    from producer import evaluation
    from producer.places import Places
    from workers.settings import checked_broker

    places, url = Places(plan.options.state_root), options.get("broker")
    display = _Callbacks(options.get("on_progress", _ignore), options.get("on_message", _ignore))
    where = evaluation.Surroundings(
        places,
        checked_broker(url, insecure=options.get("insecure", False)) if url else None,
        display,
        options.get("in_flight"),
        stop=stop,
    )
    (artifact,) = evaluation.evaluate(plan, where)
    return _result(artifact, places)


def _result(artifact: dict[str, Any], places: Any) -> Result:
    from aggregate.verdict import exit_code

    interval = artifact["interval"] or {}
    bounds = interval.get("tasks_like_these") or {}
    known = bounds.get("low") is not None and bounds.get("high") is not None
    return Result(
        run_id=artifact["run_id"],
        verdict=artifact["verdict"],
        reason=artifact["reason"],
        decision=artifact["decision"],
        ok=exit_code(artifact["verdict"], artifact["decision"], artifact["gate"]) == 0,
        execution_pass_rate=artifact["execution_pass_rate"],
        baseline_pass_rate=artifact["baseline_pass_rate"],
        delta=artifact["delta"],
        interval=Interval(bounds["low"], bounds["high"], interval["level"]) if known else None,
        spent_usd=(artifact["cost"] or {}).get("spent_usd"),
        warnings=tuple(artifact["warnings"]),
        artifact_path=Path(artifact["truth_anchor"]),
        records_path=places.records(artifact["run_id"]),
        artifact=artifact,
    )


class _Callbacks:
    """A display that shows nothing itself."""

    def __init__(self, show: Callable[[View], None], say: Callable[[str], None]) -> None:
        self.show = show
        self.say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Hurried:
    """Stops a run at once when it is cancelled: new attempts first, then waiting for those in flight."""

    def __init__(self, run_id: str, cancelled: threading.Event, patient: Callable[[], bool]) -> None:
        self._run_id = run_id
        self._cancelled = cancelled
        self._patient = patient
        self._told = False

    def __call__(self) -> bool:
        if not self._cancelled.is_set():
            return self._patient()
        if self._told:
            raise Interrupted(self._run_id)
        self._told = True
        return True


def _on_loop(options: Keywords, loop: asyncio.AbstractEventLoop) -> Keywords:
    """The same options with callbacks that reach the event loop from any thread."""

    def there(callback: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(value: Any) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(callback, value)

        return call

    ours = options.copy()
    if "on_progress" in options:
        ours["on_progress"] = there(options["on_progress"])
    if "on_message" in options:
        ours["on_message"] = there(options["on_message"])
    return ours


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _ignore(_: object) -> None:
    pass


def _never() -> bool:
    return False

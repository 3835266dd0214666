"""Uplift as a library: run a suite from Python, in plain or asynchronous code, and get a typed result.

Nothing is printed, no signal handler is installed and nothing exits. What goes wrong is raised: invalid input before
anything has run (InvalidSuite, InvalidSkill, InvalidOption, …), NoServer or redis errors for infrastructure, and
Interrupted when the run was stopped and can be resumed. A run that failed its gate is a result, not an exception.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aggregate.formulas.intervals import Interval
from aggregate.records.record import AttemptRecord
from judges.errors import did_you_mean
from producer.display.progress import Display
from producer.display.snapshot import View
from producer.runs.watch import Interrupted
from producer.state_root import Places

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact
    from producer.plan import Plan
    from producer.suites.suite import Suite


@dataclass(frozen=True)
class Result:
    """What a run ended in. Rates and differences are shares, not percent; None is unknown, never zero.

    `ok` is what the exit code would say: it follows the gates that were chosen. `artifact` holds everything else.
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
    artifact: Artifact

    def records(self) -> Iterator[AttemptRecord]:
        """Every attempt of the run, read from the state root one by one."""
        from aggregate.records.jsonl import read_jsonl

        return read_jsonl(self.records_path)


_RATES = ("execution_pass_rate", "baseline_pass_rate", "delta")
_AS_IN_ARTIFACT = ("run_id", "verdict", "reason", "decision", *_RATES)
_CALLBACKS = ("on_progress", "on_message", "stop")
# Suite and skill are arguments, and rankings are for the command line.
_NO_KEYWORDS = (
    *("task_suite", "skill_path", "standalone", "ranking", "candidate_ids", "eval_threshold"),
    "baseline_path",  # `baseline` takes a path, too
)


def keywords() -> dict[str, str]:
    """Every keyword of `evaluate` that is a setting of a run, with the setting's name."""
    from producer.settings.run_settings import RunSettings, described
    from workers.store.messages import ServeSettings

    settings = {name: setting for name, setting in described().items() if name in RunSettings.model_fields}
    others = {*_NO_KEYWORDS, *ServeSettings.model_fields}
    return {setting.keyword: name for name, setting in settings.items() if name not in others}


def evaluate(suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, **options: Any) -> Result:
    """Run every task of a suite with a skill and with its baseline, wait for the end, and say which is better.

    The suite is a path, or its content as a mapping; `folder` then holds its `fixtures/`. Call it from any thread.
    Options have the names, the meaning and the defaults of the flags of `uplift evaluate`, see docs/library.md;
    any other raises TypeError. `model` is one spec or several. Without a `broker`, a private server and a worker are
    started for this run and ended with it; variables such as UPLIFT_BROKER and config files are not looked at.
    `on_progress` and `on_message` are called while the run goes on. `stop` is asked several times a second; once it
    says True no attempt is started and Interrupted is raised.
    """
    _check_keywords(options)
    return _run(_plan(suite, skill, options), options, options.get("stop", lambda: False))


async def aevaluate(
    suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, **options: Any
) -> Result:
    """The same without holding up the event loop; callbacks are called on it.

    Cancelling stops the run at once, keeps what it has, and leaves nothing running; `uplift resume` goes on with it.
    """
    _check_keywords(options)
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()
    shown = ("on_progress", "on_message")
    on_loop = {name: _on_loop(callback, loop) for name, callback in options.items() if name in shown}
    stop = _stop_now(cancelled, options.get("stop", lambda: False))
    # A thread of its own: it must outlive the private server, which the kernel ends with the thread that started it.
    thread = ThreadPoolExecutor(1, "uplift-evaluate")
    ended = loop.run_in_executor(thread, lambda: _run(_plan(suite, skill, options), on_loop, stop))
    thread.shutdown(wait=False)  # it ends with the run
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([ended])
        ended.exception()  # seen, so that nobody complains that it was not
        raise


def _check_keywords(options: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that nothing would come of."""
    known = [*keywords(), *_CALLBACKS, "folder", "settings"]
    for name in options:
        if name not in known:
            raise TypeError(f"unexpected keyword {name!r}{did_you_mean(name, known)}")


def _plan(
    suite: str | Path | Mapping[str, Any] | Suite, skill: str | Path, options: Mapping[str, Any]
) -> Plan:
    from producer.runs.evaluate import planned
    from producer.settings.run_settings import RunSettings, of_model_settings
    from producer.suites import suite as suites

    given: Suite | None = suite if isinstance(suite, suites.Suite) else None
    if isinstance(suite, Mapping):
        given = suites.from_values(suite, Path(options.get("folder", ".")))
    values = of_model_settings(options["settings"]) if "settings" in options else {}
    values |= {name: options[word] for word, name in keywords().items() if word in options}
    if isinstance(values.get("models"), str):
        values["models"] = (values["models"],)
    if isinstance(values.get("baseline"), Path):
        values["baseline"] = str(values["baseline"])
    where = {"task_suite": given.path if given else suite, "skill_path": skill}
    return planned(RunSettings.checked({**values, **where}), suite=given)


def _run(plan: Plan, callbacks: Mapping[str, Any], stop: Callable[[], bool]) -> Result:
    from producer.runs import evaluate as evaluation
    from workers.store.keys import checked_broker

    places, url = Places(plan.options.state_root), plan.options.broker
    where = evaluation.RunContext(
        places,
        checked_broker(url, insecure=plan.options.insecure) if url else None,
        _Callbacks(callbacks),
        plan.options.private_worker,
        stop=stop,
    )
    (artifact,) = evaluation.evaluate(plan, where)
    return _result(artifact, places)


def _result(artifact: Artifact, places: Places) -> Result:
    interval = None
    if artifact.interval is not None:
        ends = artifact.interval.tasks_like_these
        estimate = math.nan if ends.estimate is None else ends.estimate
        interval = Interval(estimate, ends.low, ends.high, artifact.interval.level)
    return Result(
        **{name: getattr(artifact, name) for name in _AS_IN_ARTIFACT},
        ok=artifact.exit_code() == 0,
        interval=interval,
        spent_usd=artifact.cost.spent_usd if artifact.cost else None,
        warnings=tuple(artifact.warnings),
        artifact_path=Path(artifact.truth_anchor or ""),
        records_path=places.records(artifact.run_id),
        artifact=artifact,
    )


class _Callbacks(Display):
    """A display that hands on what it is given."""

    def __init__(self, callbacks: Mapping[str, Any]) -> None:
        self.shows = "on_progress" in callbacks
        self._callbacks = callbacks

    def show(self, view: View) -> None:
        self._callbacks["on_progress"](view)

    def say(self, text: str) -> None:
        if "on_message" in self._callbacks:
            self._callbacks["on_message"](text)


def _stop_now(cancelled: threading.Event, graceful: Callable[[], bool]) -> Callable[[], bool]:
    """Stops a run at once when it is cancelled: new attempts first, then waiting for those in flight.

    Until then `graceful` says whether new attempts are to stop.
    """
    asked_before = False

    def stop() -> bool:
        nonlocal asked_before
        if not cancelled.is_set():
            return graceful()
        if asked_before:
            raise Interrupted("")  # nobody reads it: whoever cancelled gets CancelledError
        asked_before = True
        return True

    return stop


def _on_loop(callback: Callable[[Any], None], loop: asyncio.AbstractEventLoop) -> Callable[[Any], None]:
    """The callback, to be called from any thread and run on the event loop."""

    def call(value: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(callback, value)

    return call

"""One evaluation from plan to artifact, without the command line: what `uplift evaluate` and `resume` both do.

The first Ctrl-C or SIGTERM stops new attempts, the second ends the command at once.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from aggregate.artifact.model import Artifact
from aggregate.text.files import exists, is_file, make_folder, open_to_write
from producer.baselines import fingerprints, git
from producer.baselines.bless import with_baseline
from producer.baselines.cache import Reuse, look_up
from producer.display.progress import Display
from producer.plan import Plan, make
from producer.runs.collect import collect, write
from producer.runs.submit import check_models, submit
from producer.runs.watch import Watch
from producer.server import connect
from producer.server.connect import Server, ServerNotRunning
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Notes, Places, check_output, finished
from producer.suites.suite import Suite
from workers.store.redis_client import AWAY
from workers.store.run_store import Store, StoredRun


@contextmanager
def stopper(
    say: Callable[[str], None], resume: str, ask: Callable[[], bool] | None = None
) -> Iterator[Callable[[], bool]]:
    """Handle both signals for as long as the block runs, and give it a function that says whether to stop.

    With somebody to `ask`, signals are left alone. The handler itself prints nothing: a signal that comes while a line
    is being printed must not print another one inside of it.
    """
    if ask is not None:
        yield ask
        return
    asked = said = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def is_asked() -> bool:
        nonlocal said
        if asked and not said:
            said = True
            say(
                "stopping: no new attempts, waiting for those in flight; press again to stop at once. "
                f"Go on later with: {resume}"
            )
        return asked

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class RunContext:
    """Where a run takes place, apart from what is run. Without a `stop` to ask, signals stop it.

    `worker` has the variables that a private worker is started with.
    """

    places: Places
    broker: str | None
    display: Display
    worker: Mapping[str, str] = field(default_factory=dict)
    stop: Callable[[], bool] | None = None

    def resume(self, run_id: str) -> str:
        """What to type to go on with a run."""
        return self.places.command("resume", run_id, self.broker)


def planned(options: RunSettings, *, run_id: str | None = None, suite: Suite | None = None) -> Plan:
    """The plan that flags ask for, with a baseline from git or the blessed one of a file where they name one."""
    options.check()
    options = _with_baseline_named(options)
    named, place = options.baseline or "", options.skill_path or options.ranking or Path()
    baseline = partial(git.arm, named, place) if named.startswith(git.PREFIX) else None
    plan = make(options, run_id=run_id, suite=suite, baseline=baseline)
    environment = git.facts(place if place.is_dir() else place.parent)
    if plan.baseline and plan.baseline.commit:
        environment["baseline_commit"] = plan.baseline.commit
    plan = replace(plan, environment=environment)
    return with_baseline(plan, options.baseline_artifact) if options.baseline_artifact else plan


def _with_baseline_named(options: RunSettings) -> RunSettings:
    """What `--baseline` says, by the flags that it replaces; `bare` and commits stay as they are."""
    named = options.baseline
    if named is None or named == "bare" or named.startswith(git.PREFIX):
        return options
    if named == "none":
        return options.model_copy(update={"baseline": None, "no_baseline": True})
    path = Path(named)
    try:
        # A blessed baseline is JSON, which no skill begins like.
        kind = "baseline_artifact" if is_file(path) and _begins(path) == b"{" else "baseline_path"
        there = exists(path)
    except OSError as problem:
        raise InvalidOption(f"--baseline {path} cannot be read: {problem.strerror}") from None
    if not there:
        raise InvalidOption(
            f"--baseline {named}: there is no such file or folder; give bare, none, a skill, the file of "
            f"`uplift bless`, or a commit as git:{named if re.fullmatch(r'[A-Z0-9a-z-]+', named) else 'REF'}"
        )
    return options.model_copy(update={"baseline": None, kind: path})


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1024).lstrip()[:1]


def evaluate(plan: Plan, where: RunContext, bring: Callable[[Store], Reuse] | None = None) -> list[Artifact]:
    """Run a plan to its end and bring everything home; raises Interrupted when it was stopped.

    `bring` puts answers of an earlier run on the server, and returns what needs no attempt.
    """
    if not plan.arms:
        return nothing_run(plan, where.places)
    reuse = prepare(plan, where)
    where.display.begin(plan.run_id, where.resume(plan.run_id))
    with connect.for_new_run(where.places, plan.run_id, where.broker, where.worker) as server:
        if bring is not None:
            reuse = bring(server.store)
        run = submit(server, plan, reuse, say=where.display.say, resume=where.resume(plan.run_id))
        return follow(run, server, where)


def detach(plan: Plan, where: RunContext, arguments: list[str]) -> None:
    """Start a run and leave it to a broker's workers or, without a broker, to a process with these arguments."""
    if where.broker is None:
        check_models(plan, None)
        supervise([*arguments, "--quiet", "--run-id", plan.run_id], plan.run_id, where.places)
        return
    reuse = prepare(plan, where)
    with connect.for_new_run(where.places, plan.run_id, where.broker, where.worker) as server:
        submit(server, plan, reuse, say=where.display.say, resume=where.resume(plan.run_id))


def prepare(plan: Plan, where: RunContext) -> Reuse:
    """Everything that can fail before the run is on a server: its models' needs, folders, cache, notes."""
    check_models(plan, where.broker)
    where.places.check_writable()
    check_output(plan.options.output, several=len(plan.info().candidates) > 1)
    reuse = look_up(plan, time.time())
    where.places.write_notes(
        Notes(
            run_id=plan.run_id,
            embedded=where.broker is None,
            worker=dict(where.worker),
            output=_output(plan),
            baseline_cache_dir=str(reuse.folder) if reuse.folder else None,
            cache_keys=reuse.keys,
            answer_keys=reuse.answer_keys,
        )
    )
    if plan.rejudged_from is None:
        fingerprints.write(where.places, plan.run_id, fingerprints.of(plan))
    return reuse


def _output(plan: Plan) -> str | None:
    return str(plan.options.output.resolve()) if plan.options.output else None


def follow(run: StoredRun, server: Server, where: RunContext) -> list[Artifact]:
    """Watch a run that is ours to its end and collect it; a signal stops it."""
    if server.local is not None:
        server.local.say = where.display.say
    with stopper(where.display.say, where.resume(run.run_id), where.stop) as stop:
        return watch(run, server, where, stop=stop)


def watch(run: StoredRun, server: Server, where: RunContext, **how: Any) -> list[Artifact]:
    """Watch a run to its end and collect it; a private server's data is not needed then, unless to resume the run.

    If another process owns the private server, it may stop it while we read; then its files are the answer.
    """
    display = where.display
    show = display.show if display.shows else None
    with display.drawing():
        watching = Watch(server, run, show, display.say, resume=where.resume(run.run_id), **how)
        artifacts = watching.follow()
    try:
        written = collect(server.store, run, artifacts, where.places, where.broker)
    except AWAY:
        written = finished(where.places, run.run_id) if server.joined is not None else []
        if not written:
            raise
    if server.local is not None:
        going_on = (
            artifact.answer and artifact.answer.next.command[:1] == ["resume"] for artifact in written
        )
        server.local.forget = not any(going_on)
    return written


def nothing_run(plan: Plan, places: Places) -> list[Artifact]:
    """Artifacts of candidates of which none can be run, or is worth it."""
    from aggregate.artifact import build

    places.check_writable()
    info = plan.info().model_copy(update={"status": "skipped", "planned_attempts": 0})
    notes = Notes(run_id=plan.run_id, output=_output(plan))
    places.write_notes(notes)  # the list of runs goes by them
    return write(build.build(info, []), notes, places)


def supervise(arguments: list[str], run_id: str, places: Places) -> None:
    """Start the same command in a session of its own, and return once it has submitted the run.

    It owns the private server and the worker, writes the artifact and exits.
    """
    import subprocess

    from producer.server.private_server import NoServer

    places.check_writable()
    folder = places.run(run_id)
    make_folder(folder)
    log = folder / "supervisor.log"
    with open_to_write(log, "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "producer.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while not _is_submitted(places, run_id):
        if child.poll() is not None:
            if finished(places, run_id):
                return
            lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no message"]
            raise NoServer(f"the supervisor ended at once: {lines[-1]}")
        time.sleep(0.05)


def _is_submitted(places: Places, run_id: str) -> bool:
    try:
        with connect.joining(places, run_id, None) as server:
            state = server.store.state(run_id)
    except ServerNotRunning:
        return False
    return state is not None and state.generation > 0

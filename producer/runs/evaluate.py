"""A run from plan to artifact, without the command line: start it, or join one from any terminal and go on with it.

The first Ctrl-C or SIGTERM stops new attempts, the second ends the command at once.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from aggregate.artifact.model import Artifact
from aggregate.text.files import exists, is_file, make_folder, open_to_write
from producer import server as servers
from producer.baselines import fingerprints, git
from producer.baselines.bless import with_baseline
from producer.baselines.cache import Reuse, look_up
from producer.display.progress import Display
from producer.plan import Plan, make
from producer.runs import submit as submitting
from producer.runs.collect import collect, write
from producer.runs.submit import check_models, submit
from producer.runs.watch import Interrupted, Watch
from producer.server import NoServer, NoTrace, Server, ServerNotRunning
from producer.settings.run_settings import InvalidOption, RunSettings
from producer.state_root import Notes, Places, check_output, check_run_id, finished
from producer.suites.suite import Suite
from workers.models.choose import asked
from workers.store.redis_client import AWAY
from workers.store.run_store import Store, StoredRun, UnknownRun

_LAST = re.compile(r"last(?:~(\d{1,6}))?")
_SHOWN = 5


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
    with servers.for_new_run(where.places, plan.run_id, where.broker, where.worker) as server:
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
    with servers.for_new_run(where.places, plan.run_id, where.broker, where.worker) as server:
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
        return _watch(run, server, where, stop=stop)


def _watch(run: StoredRun, server: Server, where: RunContext, **how: Any) -> list[Artifact]:
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
        next_commands = [artifact.answer.next.command for artifact in written if artifact.answer]
        server.local.forget = not any(command[:1] == ["resume"] for command in next_commands)
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
        with servers.joining(places, run_id, None) as server:
            state = server.store.state(run_id)
    except ServerNotRunning:
        return False
    return state is not None and state.generation > 0


# Runs that were started before


def named(where: RunContext, text: str | None) -> str:
    """The id of the run that is meant: `last`, `last~1`, how it begins, or nothing for the latest.

    The latest is the latest of this state root, and of the broker where nothing was run here: that may be used by
    many. An id that nobody knows stays what it is, for whoever looks for the run to say so. Raises UnknownRun.
    """
    wanted, known = text or "last", where.places.latest_first()
    if wanted in known:
        return wanted
    last = _LAST.fullmatch(wanted)
    if where.broker is not None and (not known or not last):
        with closing(servers.open_server(where.broker)) as server:
            known = list(dict.fromkeys([*known, *sorted(server.store.runs(), reverse=True)]))
    if last:
        number = int(last[1] or 0)
        if number < len(known):
            return known[number]
        there = f"there are only {len(known)}" if known else "there is none; start one: uplift evaluate"
        raise UnknownRun(f"no run {wanted} under {where.places.root}: {there}")
    if wanted in known or not (begin := [run_id for run_id in known if run_id.startswith(wanted)]):
        return check_run_id(wanted)
    if len(begin) > 1:
        listed = ", ".join(begin[:_SHOWN]) + (", …" if len(begin) > _SHOWN else "")
        raise UnknownRun(f"{len(begin)} runs begin with {wanted!r}: {listed}; type more of the id")
    return begin[0]


def watch(run_id: str, where: RunContext) -> list[Artifact]:
    """Follow a run; its owner, if it has one, writes the artifact, else we do."""
    while True:
        try:
            with servers.joining(where.places, run_id, where.broker) as server:
                return _watch(server.store.run(run_id), server, where)
        except ServerNotRunning:
            # Its owner has finished it, or has died and another process has taken it over.
            if servers.settled_address(where.places.embedded(run_id)) is None:
                return _at_home(run_id, where.places)


def _at_home(run_id: str, places: Places) -> list[Artifact]:
    """What the owner of a private server has left there; raises Interrupted or UnknownRun."""
    artifacts = finished(places, run_id)
    if not artifacts and servers.has_data(places.embedded(run_id)):
        raise Interrupted(places.command("resume", run_id))
    if not artifacts:
        raise UnknownRun(f"no run {run_id!r} under {places.root}; `{places.command('runs')}` lists them")
    return artifacts


def cancel(run_id: str, where: RunContext) -> list[Artifact]:
    """Stop new attempts for good and wait for the artifact that says so."""
    halted = False

    def halt_and_watch(server: Server) -> list[Artifact]:
        nonlocal halted
        run = server.store.run(run_id)
        server.store.halt(run_id, "cancelled")
        halted = True
        return _watch(run, server, where)

    try:
        with servers.joining(where.places, run_id, where.broker) as server:
            return halt_and_watch(server)
    except ServerNotRunning:
        artifacts = finished(where.places, run_id)
        if artifacts and not halted:
            raise UnknownRun(f"run {run_id!r} is over already; nothing to cancel") from None
    if artifacts:
        return artifacts
    with servers.taking_over(where.places, run_id) as server:
        return halt_and_watch(server)


def resume(run_id: str, where: RunContext, budget_usd: float | None = None) -> list[Artifact]:
    """Publish what has no final record and follow the run to its end.

    Of a run whose result is at home, what ended in `error` is tried again: somebody has seen why, and mended that.
    """
    where.places.check_writable()
    try:
        with servers.joining(where.places, run_id, where.broker) as server:
            return _go_on(server.store.run(run_id), server, where, budget_usd)
    except ServerNotRunning:
        worker = {**where.places.notes(run_id).worker, **where.worker}
    try:
        with servers.taking_over(where.places, run_id, worker=worker) as server:
            return _go_on(server.store.run(run_id), server, where, budget_usd)
    except NoTrace:
        if artifacts := finished(where.places, run_id):  # nothing is left to do
            return artifacts
        raise


def _go_on(run: StoredRun, server: Server, where: RunContext, budget_usd: float | None) -> list[Artifact]:
    if finished(where.places, run.run_id):
        server.store.try_errors_again(run.run_id)
    _check_models(run, server)
    if budget_usd is not None:
        run = _with_budget(server.store, run, budget_usd)
    # A private server that goes away does not come back; its owner's run is taken over.
    insist = 0.0 if server.joined else submitting.INSIST_SECONDS
    left = submitting.go_on(server, run, resume=where.resume(run.run_id), insist_seconds=insist)
    where.display.say(f"{left} attempts left to run")
    return follow(run, server, where)


def _check_models(run: StoredRun, server: Server) -> None:
    """Raise CannotAsk where attempts are left and nobody could make them; what is recorded stays."""
    store, manifest = server.store, run.manifest
    if not submitting.is_anything_left(store, run):
        return
    rejudged = manifest.rejudged_from is not None
    specs = asked(manifest.models, store.tasks(run), manifest.judge_model, rejudged=rejudged)
    if server.local is not None:
        submitting.check_here(specs, manifest.settings)
    else:
        submitting.check_there(specs, manifest.settings, store.client)


def _with_budget(store: Store, run: StoredRun, usd: float) -> StoredRun:
    if run.manifest.budget_usd is None:
        raise InvalidOption(f"run {run.run_id} has no budget that --budget-usd could change")
    state = store.state(run.run_id)
    spent = state.spent + state.assumed if state else 0.0
    if usd <= spent:
        raise InvalidOption(
            f"--budget-usd is {usd:g}, but run {run.run_id} has spent {spent:.6g} already; give more"
        )
    return store.set_budget(run, usd)

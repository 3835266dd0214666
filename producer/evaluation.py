"""One evaluation from plan to artifact, without the command line: what `uplift evaluate` and `resume` both do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from aggregate.records import AttemptRecord
from producer import grounds, session
from producer.collect import collect, finished, write
from producer.display import Display
from producer.places import Notes, Places, check_output
from producer.plan import Plan
from producer.reuse import Reuse, look_up
from producer.session import NotServed, Session
from producer.stopping import stopper
from producer.submit import submit
from producer.watch import Interrupted, Watch
from workers.server import check


@dataclass(frozen=True)
class Surroundings:
    """Where a run takes place, apart from what is run. Without a `stop` to ask, signals stop it."""

    places: Places
    broker: str | None
    display: Display
    in_flight: int | None = None
    stop: Callable[[], bool] | None = None


def evaluate(plan: Plan, where: Surroundings) -> list[dict[str, Any]]:
    """Run a plan to its end and bring everything home; raises Interrupted when it was stopped."""
    if not plan.arms:
        return skipped(plan, where.places)
    reuse = prepare(plan, where)
    with session.for_new_run(where.places, plan.run_id, where.broker, in_flight=where.in_flight) as opened:
        begin(plan, reuse, opened, where.display.say)
        return follow(plan.run_id, opened, where)


def prepare(plan: Plan, where: Surroundings) -> Reuse:
    """Everything that can fail before a server is needed: folders, cache, notes."""
    where.places.check_writable()
    check_output(plan.options.output, several=len(plan.info(None).candidates) > 1)
    reuse = look_up(plan, time.time())
    where.places.write_notes(
        Notes(
            run_id=plan.run_id,
            embedded=where.broker is None,
            output=str(plan.options.output.resolve()) if plan.options.output else None,
            baseline_cache_dir=str(reuse.folder) if reuse.folder else None,
            cache_keys=reuse.keys,
        )
    )
    if plan.rejudged_from is None:
        grounds.write(where.places, plan.run_id, grounds.of(plan))
    return reuse


def begin(plan: Plan, reuse: Reuse, opened: Session, say: Callable[[str], None]) -> None:
    """Submit the run; what the server or the skills make doubtful is said first."""
    for warning in (*check(opened.server.store.client), *plan.warnings):
        say(warning)
    cached: dict[int, AttemptRecord] = reuse.cached
    if cached:
        say(f"{len(cached)} {reuse.told}")
    submit(opened.server, plan, cached, baseline_reuse_count=reuse.comparisons)


def follow(run_id: str, opened: Session, where: Surroundings) -> list[dict[str, Any]]:
    """Watch a run to its end and collect it; what a private server holds is not needed then.

    A cancelled run keeps it, to be resumed.
    """
    go_on = where.places.command("resume", run_id)
    with where.display as display, stopper(display.say, go_on, where.stop) as stop:
        if opened.local is not None:
            opened.local.say = display.say
        watch = Watch(
            opened.server, run_id, show=display.show, say=display.say, check=opened.check, stop=stop
        )
        try:
            made = watch.follow()
        except Interrupted:
            raise Interrupted(run_id, go_on) from None
    return bring_home(run_id, opened, made, where.places)


def bring_home(
    run_id: str, opened: Session, made: list[dict[str, Any]], places: Places
) -> list[dict[str, Any]]:
    """Collect a run that is over; another's private server may go meanwhile, once its owner has done the same."""
    try:
        written = collect(opened.server.store, run_id, made, places)
    except (redis.ConnectionError, redis.TimeoutError):
        written = finished(places, run_id) if opened.joined is not None else []
        if not written:
            raise
    if opened.local is not None:
        opened.local.forget = all(artifact["status"] == "finished" for artifact in written)
    return written


def skipped(plan: Plan, places: Places) -> list[dict[str, Any]]:
    """Artifacts of candidates that the ranking puts below the threshold: nothing is run."""
    from aggregate import artifact

    places.check_writable()
    info = plan.info(None).model_copy(update={"status": "skipped", "planned_attempts": 0})
    notes = Notes(run_id=plan.run_id, output=str(plan.options.output) if plan.options.output else None)
    made = artifact.build(info, [])
    return [write(one, notes, places, several=len(made) > 1) for one in made]


def supervise(arguments: list[str], run_id: str, places: Places) -> None:
    """Start the same command in a session of its own, and return once it has submitted the run.

    It owns the private server and the worker, writes the artifact and exits.
    """
    import subprocess

    from producer.local import NoServer

    places.check_writable()
    folder = places.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "supervisor.log"
    with log.open("wb") as output:
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
            raise NoServer(f"the supervisor ended at once: {_last_line(log)}")
        time.sleep(0.05)


def _is_submitted(places: Places, run_id: str) -> bool:
    try:
        with session.joining(places, run_id, None) as opened:
            state = opened.server.store.state(run_id)
    except NotServed:
        return False
    return state is not None and state.generation > 0


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no message"

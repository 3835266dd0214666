"""A producer that dies at any single step of submitting or collecting, twice in a row, loses and doubles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import redis.connection

from producer import plan as plans
from producer.baselines.cache import Reuse
from producer.runs.collect import collect
from producer.runs.submit import go_on, submit
from producer.runs.watch import Watch
from producer.server import Server, open_server
from producer.settings.run_settings import RunSettings
from producer.state_root import Places
from workers.store.keys import Keys

from .stage import SHORT, Stage, a_folder, remove

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACE = replace(SHORT, tasks=2, pass_k=1, latency=0.0)


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing may catch it."""


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[list[str]]:
    """This process's step-th command to the server is its last; yields the commands that were sent."""
    sent: list[str] = []
    real = redis.connection.Connection.send_packed_command

    def counted(self, command, *args, **kwargs):
        sent.append(str(command)[:60])
        if len(sent) == step:
            raise Killed
        return real(self, command, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
        yield sent


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage(a_folder(), PACE, "sim:latency=0,cost=0.01")
    made.start_worker()
    yield made
    made.close()
    remove(made.folder)


def a_plan(stage: Stage, name: str) -> plans.Plan:
    options = RunSettings(
        task_suite=stage.suite,
        state_root=stage.folder / "state",
        standalone=True,
        skill_path=stage.folder / "skill",
        models=(stage.model,),
    )
    return plans.make(options, run_id=name)


def steps_of_submitting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> int:
    with dying_at(monkeypatch, 0) as sent:
        submit(open_server(stage.url), a_plan(stage, "counted"), Reuse())
    return len(sent)


def begin_or_go_on(stage: Stage, plan: plans.Plan) -> Server:
    """What a person does: start the run, or resume it where it exists already."""
    server = open_server(stage.url)
    if stage.client.exists(Keys(plan.run_id).state):
        go_on(server, server.store.run(plan.run_id))
    else:
        submit(server, plan, Reuse())
    return server


def test_at_every_step_of_submitting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    steps = steps_of_submitting(stage, monkeypatch)
    assert steps > 20
    stride = 1 if request.config.getoption("--long", default=False) else 20
    for step in range(1, steps + 1, stride):
        run_id = f"dies-at-{step}"
        plan = a_plan(stage, run_id)
        for _ in range(2):  # the one who comes to help dies in the same place
            with dying_at(monkeypatch, step), suppress(Killed):
                begin_or_go_on(stage, plan)
        server = begin_or_go_on(stage, plan)
        (artifact,) = Watch(server, server.store.run(run_id)).follow()
        records = list(stage.store.records(run_id))
        assert len({(r.task, r.arm) for r in records}) == len(records) == 4, step
        assert artifact.attempts.run == 4, step
        state = stage.store.state(run_id)
        assert state is not None
        assert state.spent - state.wasted == pytest.approx(0.04), step


def test_at_every_file_of_collecting(stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = open_server(stage.url)
    run = submit(server, a_plan(stage, "collected"), Reuse())
    made = Watch(server, run).follow()
    whole = Places(tmp_path / "whole")
    written = collect(server.store, run, made, whole)
    files = _files(whole.root)
    for step in range(1, 20):
        places = Places(tmp_path / str(step))
        renamed = 0
        real = Path.replace

        def replace_some(self, target, step=step, real=real):
            nonlocal renamed
            renamed += 1
            if renamed == step:
                raise Killed
            return real(self, target)

        for _ in range(2):
            renamed = 0
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace_some)
                try:
                    collect(server.store, run, made, places)
                except Killed:
                    continue
        again = collect(server.store, run, made, places)
        assert [one.delta for one in again] == [one.delta for one in written]
        assert _files(places.root) == files, step
        if renamed < step:
            break
    else:
        pytest.fail("collecting never ends")


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

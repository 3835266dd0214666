"""Seeded schedules of faults against a simulated run: whatever happens, the six promises hold afterwards."""

from __future__ import annotations

import json
import shutil
from functools import cache
from typing import Any

import pytest

from .checker import INVARIANTS, check, check_left_behind, queues_are_empty
from .faults import strike
from .stage import PRODUCTION, SHORT, Pace, Stage, a_folder, remove

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IN_MAKE_TEST = (8,)
PRODUCTION_SEEDS = range(1000, 1040)
STALL_SECONDS = 10  # beyond the lease, once the server answers again
GUISES = ("", "skewed", "namesakes", "programs", "stranger", "tls", "rights", "far", "foreign")
DISTANCES = (0, 25, 100)  # milliseconds there and back


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--seed", default=None)
    long = metafunc.config.getoption("--long", default=False)
    seeds = chosen or ([*range(200), *PRODUCTION_SEEDS] if long else IN_MAKE_TEST)
    metafunc.parametrize("seed", seeds)


def model(seed: int, pace: Pace) -> str:
    """Few different models, so that few undisturbed runs serve many schedules."""
    if guise_of(seed) == "programs":
        return "command:slow"
    settings = f"latency={pace.latency},spread=exp,cost=0.01,error=0.05"
    return f"sim:baseline=0.5,candidate=0.7,{settings},seed={seed % 4}"


def guise_of(seed: int) -> str:
    """The same for two seeds in a row, or watched and detached runs would each meet only some of the guises."""
    return GUISES[seed // 2 % len(GUISES)]


@cache
def undisturbed(spec: str, pace: Pace) -> dict[str, Any]:
    """The artifact of the same run when nobody hurts it."""
    stage = Stage(a_folder(), pace, spec)
    try:
        stage.start_worker()
        stage.evaluate()
        stage.await_end()
        return json.loads(stage.artifact_path().read_text())
    finally:
        stage.close()
        remove(stage.folder)


def test_whatever_happens_the_promises_hold(seed: int, record_property: Any) -> None:
    pace = PRODUCTION if seed in PRODUCTION_SEEDS else SHORT
    record_property("schedule", f"--seed {seed}")
    spec = model(seed, pace)
    reference = undisturbed(spec, pace)
    guise, distance = guise_of(seed), DISTANCES[seed // (2 * len(GUISES)) % 3]
    if guise == "tls" and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, to make a certificate with")
    stage = Stage(a_folder(), pace, spec, detached=seed % 2 == 1, guise=guise, milliseconds=distance)
    try:
        stage.start_worker()
        stage.start_worker()
        if stage.guise == "stranger":
            stage.start_stranger()
        if stage.guise == "foreign":
            stage.start_foreign()
        stage.evaluate()
        if stage.detached:
            assert stage.producer is not None
            assert stage.producer.wait(timeout=60) == 0
        strike(stage, seed)
        stage.heal()
        with stage.longest_stall() as stall:
            stage.await_end()
        record_property("stall", (pace.lease, stall[0]))
        violations = check(stage, reference)
        stage.until(lambda: queues_are_empty(stage), 10 * pace.lease)
        disturbed = stage.others_disturbed()
        stage.stop_workers()
        violations += check_left_behind(stage)
        record_property("violated", sorted({number for number, _ in violations}))
        words = "\n".join(f"({number}) {INVARIANTS[number]}: {text}" for number, text in violations)
        assert not violations, f"seed {seed}\n{words}\n{stage.story()}"
        assert not disturbed, f"seed {seed}\n{disturbed}\n{stage.story()}"
        # With leases of 2 s the time that processes take to start on a busy machine is most of it.
        longest = pace.lease + STALL_SECONDS if pace is PRODUCTION else pace.ends_within
        assert stall[0] <= longest, f"seed {seed}: nothing happened for {stall[0]:.1f} s\n{stage.story()}"
    finally:
        stage.close()
        remove(stage.folder)

"""The faults, and how a seed becomes a schedule of them.

A fault waits for its share of the run's records, so that a slow machine sees the same schedule as a fast one.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import redis

from workers.store.keys import UNACKED, Keys, waiting_keys
from workers.store.messages import Manifest

from .stage import Stage

Fault = Callable[[Stage, random.Random], None]
WAIT_SECONDS = 8.0


def kill_worker(stage: Stage, draw: random.Random) -> None:
    """kill -9; somebody starts another one, sometimes only later."""
    victim = _victim(stage, draw)
    victim.kill()
    victim.wait()  # or it would count as alive a moment longer
    stage.hurt.add("killed")
    stage.deaths += 1
    if draw.random() < 0.7:
        stage.start_worker()


def stop_worker(stage: Stage, draw: random.Random) -> None:
    """A worker that hangs for a while, shorter or longer than its lease, and then goes on as if nothing happened."""
    victim = _victim(stage, draw)
    victim.send_signal(signal.SIGSTOP)
    time.sleep(draw.uniform(0.3, 2.0) * min(stage.pace.lease, 20.0))
    victim.send_signal(signal.SIGCONT)


def terminate_worker(stage: Stage, draw: random.Random) -> None:
    """What `docker stop` does, and a replacement."""
    _victim(stage, draw).terminate()
    stage.start_worker()


def terminate_storm(stage: Stage, draw: random.Random) -> None:
    """Every worker is told to leave, again and again, as by a deployment that cannot make up its mind."""
    for _ in range(3):
        for worker in stage.living_workers():
            worker.terminate()
        stage.start_worker()
        stage.start_worker()
        time.sleep(draw.uniform(0.2, 2.0))


def interrupt_worker(stage: Stage, draw: random.Random) -> None:
    """Ctrl-C."""
    _victim(stage, draw).send_signal(signal.SIGINT)
    stage.start_worker()


def kill_producer(stage: Stage, draw: random.Random) -> None:
    """kill -9, then once more while it resumes."""
    for _ in range(2):
        assert stage.producer is not None
        stage.producer.kill()
        stage.producer.wait()
        stage.resume() if stage.exists() else stage.evaluate()
        time.sleep(draw.uniform(0.0, 2.0))


def interrupt_producer(stage: Stage, draw: random.Random) -> None:
    assert stage.producer is not None
    with suppress(ProcessLookupError):
        stage.producer.send_signal(draw.choice([signal.SIGINT, signal.SIGTERM]))


def two_producers(stage: Stage, draw: random.Random) -> None:
    """Somebody resumes a run that is being watched already."""
    if stage.exists():
        other = stage.start_command("resume")
        time.sleep(draw.uniform(0.5, 2.5))
        other.kill()
        other.wait()


def restart_server(stage: Stage, draw: random.Random) -> None:
    stage.hurt.add("server")
    stage.server.terminate()
    _bring_server_back(stage, draw)


def crash_server(stage: Stage, draw: random.Random) -> None:
    stage.hurt.add("server")
    stage.server.kill()
    _bring_server_back(stage, draw)


def freeze_server(stage: Stage, draw: random.Random) -> None:
    stage.hurt.add("server")
    stage.server.send_signal(signal.SIGSTOP)
    time.sleep(10.0 if stage.pace.lease >= 10 else draw.uniform(0.5, 2.5) * stage.pace.lease)
    stage.server.send_signal(signal.SIGCONT)


def cut_connections(stage: Stage, draw: random.Random) -> None:
    """Five times within three seconds, every client loses its connection."""
    stage.hurt.add("server")
    for _ in range(5):
        stage.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.6)


def deliver_twice(stage: Stage, draw: random.Random) -> None:
    """Every batch, waiting or taken, is published once more with the same identity."""
    keys = _waiting(stage)
    for key in keys:
        for message in stage.client.lrange(key, 0, -1):
            stage.client.lpush(key, message)
    for held in stage.client.hvals(UNACKED):
        payload, _, lane = json.loads(held)
        if lane in keys:
            stage.client.lpush(lane, json.dumps(payload))


def lose_message(stage: Stage, draw: random.Random) -> None:
    """A worker that dies between taking a message and noting that it has it: kombu has that gap."""
    for key in _waiting(stage):
        if stage.client.rpop(key):
            return


NEED_A_PRODUCER = (kill_producer, interrupt_producer, two_producers)

WEIGHTS: dict[Fault, int] = {
    kill_worker: 5,
    stop_worker: 3,
    terminate_worker: 2,
    terminate_storm: 2,
    interrupt_worker: 1,
    kill_producer: 3,
    interrupt_producer: 1,
    two_producers: 1,
    restart_server: 2,
    crash_server: 2,
    freeze_server: 2,
    cut_connections: 2,
    deliver_twice: 2,
    lose_message: 2,
}


@dataclass(frozen=True)
class Step:
    """A fault that strikes once this share of the records is there."""

    share: float
    fault: Fault


def schedule(seed: int) -> list[Step]:
    """One to four faults; the first twice as many seeds as there are faults meet each of them for certain."""
    draw = random.Random(seed)
    faults = list(WEIGHTS)
    chosen = draw.choices(faults, weights=list(WEIGHTS.values()), k=draw.randint(1, 4))
    chosen[0] = faults[seed % len(faults)]
    return sorted((Step(draw.uniform(0.0, 0.9), fault) for fault in chosen), key=lambda step: step.share)


def strike(stage: Stage, seed: int) -> None:
    """Let the schedule happen."""
    draw = random.Random(f"strike {seed}")
    for step in schedule(seed):
        wanted = int(step.share * stage.attempts)
        stage.until(lambda wanted=wanted: stage.recorded() >= wanted or _over(stage), WAIT_SECONDS)
        time.sleep(draw.uniform(0.0, 0.3))
        if _over(stage):
            stage.note("the run was over before the next fault")
            return
        fault = kill_worker if stage.detached and step.fault in NEED_A_PRODUCER else step.fault
        stage.note(f"{fault.__name__} at {stage.recorded()} of {stage.attempts} records")
        try:
            fault(stage, draw)
        except redis.RedisError as problem:
            stage.note(f"the harness's own connection was hit: {problem}")


def _over(stage: Stage) -> bool:
    return stage.has_ended() if stage.detached else stage.artifact_path().exists()


def _victim(stage: Stage, draw: random.Random):
    living = stage.living_workers()
    return draw.choice(living) if living else stage.start_worker()


def _bring_server_back(stage: Stage, draw: random.Random) -> None:
    stage.server.wait()
    time.sleep(draw.uniform(0.0, 1.5) * min(stage.pace.lease, 6.0))
    stage.start_server()


def _waiting(stage: Stage) -> list[str]:
    """The lists in which this run's batches wait."""
    data = stage.client.get(Keys(stage.run_id).manifest)
    return waiting_keys(Manifest.model_validate_json(data).lane) if data else []

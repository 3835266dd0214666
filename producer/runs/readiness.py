"""Whether the models of a run can be asked at all, looked at before anything of it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import redis

from judges.errors import INFRASTRUCTURE, UpliftError
from producer.plan import Plan
from workers.models.choose import Need, asked, lacking, needs
from workers.store import redis_client as servers
from workers.store.messages import ModelSettings


class CannotAsk(UpliftError):
    """A model of the run cannot be asked: one line says what is missing, the next what to type."""

    exit_code = INFRASTRUCTURE


def asked_by(plan: Plan) -> list[str]:
    """The models that a plan asks; none where nothing is run."""
    options = plan.options
    if not plan.arms:
        return []
    return asked(
        options.models, plan.suite.tasks, options.judge_model, rejudged=plan.rejudged_from is not None
    )


def missing(plan: Plan) -> list[Need]:
    """What a private worker would lack here for the models of a plan."""
    return lacking(asked_by(plan), plan.options.settings, os.environ)


def check(plan: Plan, broker: str | None) -> None:
    """Look for everything that a new run's models need; raises CannotAsk before anything is written or sent."""
    specs, settings = asked_by(plan), plan.options.settings
    if broker is None:
        check_here(
            specs, settings, instead="" if plan.rejudged_from else "; or try it without a model: --mock"
        )
    elif specs:
        with closing(servers.connect(broker)) as client:
            check_there(specs, settings, client)


def check_here(specs: Sequence[str], settings: ModelSettings, *, instead: str = "") -> None:
    """For a private worker, whose surroundings are ours; raises CannotAsk."""
    lacks = {spec: found for spec in specs if (found := lacking([spec], settings, os.environ))}
    if lacks:
        words = dict.fromkeys(need.found for found in lacks.values() for need in found)
        raise CannotAsk(
            f"{', '.join(lacks)} cannot be asked here: {'; '.join(words)}\ntype: {_remedies(lacks)}{instead}"
        )


def check_there(specs: Sequence[str], settings: ModelSettings, client: redis.Redis) -> None:
    """For the workers of a broker, as they say of themselves; raises CannotAsk where none can ask a model.

    Where no worker is alive, the run may wait for one. A program of the config is known only where it is started.
    """
    alive = [_lacks(worker) for worker in servers.workers(client)]
    lacks = {}
    for spec in specs if alive else ():
        wanted = [need for need in needs([spec], settings, {}) if need.wanted and need.vital]
        if all(any(need.name in absent for need in wanted) for absent in alive):
            lacks[spec] = [need for need in wanted if any(need.name in absent for absent in alive)]
    if lacks:
        words = dict.fromkeys(need.name for found in lacks.values() for need in found)
        who = "the broker's only worker" if len(alive) == 1 else f"any of the broker's {len(alive)} workers"
        raise CannotAsk(
            f"{', '.join(lacks)} cannot be asked by {who}; missing there: {', '.join(words)}\n"
            f"type, where workers run: {_remedies(lacks)}; then start them again"
        )


def _lacks(worker: dict[str, Any]) -> set[str]:
    """What a worker says that it lacks; an older one says nothing, and may have it all."""
    told = worker.get("lacks")
    return set(map(str, told)) if isinstance(told, list) else set()


def _remedies(lacks: Mapping[str, Sequence[Need]]) -> str:
    return "; ".join(dict.fromkeys(need.remedy for found in lacks.values() for need in found))

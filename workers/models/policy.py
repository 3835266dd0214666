"""What a worker does for a run and what it leaves to others: its owner's policy, held against what the run asks.

Whoever can write to the broker can write a manifest. So a worker starts no program that its own config does not declare
in the same words, sends no key to an address that is not its own or a vendor's, and runs nothing less confined than it
would by itself. A private worker has no policy: only its owner can reach its server.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from judges.spec import JudgeSpec
from workers.models.choose import asked, lacking, parse, usable
from workers.models.command import PRESETS
from workers.models.model import UnknownModel
from workers.store.messages import Manifest, ModelSettings, Policy, Task

VENDORS = ("https://api.anthropic.com", "https://api.openai.com/v1")
_OWN_ADDRESSES = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")


def refuses(policy: Policy | None, manifest: Manifest, task: Task | None = None) -> str | None:
    """Why this worker leaves the run to others, for what its manifest asks or what a task of it asks; None if not."""
    reasons = _of_run(policy, manifest) if task is None else _of_task(policy, manifest, task)
    try:
        return next(reasons, None)
    except UnknownModel as problem:
        return str(problem)


def serves(policy: Policy | None) -> str:
    """What the policy allows, in one line, for whoever looks for a worker."""
    if policy is None:
        return "whatever is asked"
    own = [f"command:{name}" for name in policy.commands]
    here = [
        "mock",
        "sim",
        "replay",
        *(found.partition(" ")[0] for found in usable(ModelSettings(), os.environ)),
    ]
    parts = [", ".join(here + own if policy.serve_models is None else policy.serve_models) or "no model"]
    parts += [f"judges {', '.join(policy.serve_judges)}"] if policy.serve_judges is not None else []
    parts += [f"hosts {', '.join(policy.serve_hosts)}"] if policy.serve_hosts else []
    return "; ".join([*parts, f"sandbox {policy.least_sandbox}"])


def _of_run(policy: Policy | None, manifest: Manifest) -> Iterator[str]:
    for arm in manifest.arms:
        if "/" in arm.folder or arm.folder == "..":
            yield f"the skill's folder {arm.folder!r} leaves its bundle"
    if policy is None:
        return
    if manifest.grid.attempts > policy.largest_run:
        yield f"it has {manifest.grid.attempts:,} attempts, and {policy.largest_run:,} are allowed"
    if manifest.sandbox == "off" and policy.least_sandbox != "off":
        yield f"it asks for no sandbox, and {policy.least_sandbox} is the least"
    if manifest.settings.params.keys() & {"model", "models"}:
        yield "its parameters name another model than those that it says it asks"
    if manifest.settings.network == "open" and "*" not in policy.serve_hosts:
        yield "it asks for an open network, which serve_hosts does not allow"
    rejudged = manifest.rejudged_from is not None
    yield from _models(policy, manifest, asked(manifest.models, (), None, rejudged=rejudged))


def _of_task(policy: Policy | None, manifest: Manifest, task: Task) -> Iterator[str]:
    for path in _files(task):
        if posixpath.normpath(path) != path or not path.startswith("fixtures/"):
            yield f"task {task.id} names {path!r}, which is no file under fixtures/"
    if policy is None:
        return
    for kind in dict.fromkeys(leaf.kind for leaf in task.leaves):
        if policy.serve_judges is not None and kind not in policy.serve_judges:
            yield f"judge {kind} of task {task.id} is not among serve_judges"
    for host in task.network:
        if not any(fnmatchcase(host.lower(), allowed.lower()) for allowed in policy.serve_hosts):
            yield f"host {host} of task {task.id} is not among serve_hosts"
    if task.rubrics:
        yield from _models(
            policy, manifest, asked(manifest.models, [task], manifest.judge_model, rejudged=True)
        )


def _models(policy: Policy, manifest: Manifest, specs: Iterable[str]) -> Iterator[str]:
    settings = manifest.settings.model_copy(update={"commands": policy.commands})
    address = settings.params.get("base_url") or None
    addresses = (None, *VENDORS, *policy.serve_base_urls, *map(os.environ.get, _OWN_ADDRESSES))
    for spec in specs:
        model = parse(spec)
        allowed = policy.serve_models
        if allowed is not None and not any(model.kind == one or fnmatchcase(spec, one) for one in allowed):
            yield f"{spec} is not among serve_models"
        if address not in addresses and model.kind not in ("mock", "sim", "replay"):
            yield f"base_url {address!r} is neither a vendor's nor one of serve_base_urls"
        if model.kind == "command":
            wanted, own = (
                commands.get(model.program) or PRESETS.get(model.program)
                for commands in (manifest.settings.commands, policy.commands)
            )
            if own is None or own != wanted:
                yield f"{spec} is not declared, in the same words, in the config of this worker"
        if lacks := [need.found for need in lacking([spec], settings, os.environ)]:
            yield f"{spec} cannot be asked here: {'; '.join(lacks)}"


def _files(task: Task) -> Iterator[str]:
    """The suite's files that a task names; producers see to it that they are there, and nobody to what is forged."""
    yield from task.files
    if task.replies is not None:
        yield from filter(None, (task.replies.passing, task.replies.failing))
    for leaf in task.leaves:
        yield from _of_judge(leaf)


def _of_judge(judge: JudgeSpec) -> Iterator[str]:
    for name, value in judge:
        if name == "function":
            yield value.rpartition(":")[0]
        elif name == "argv":
            yield from (word for word in value if word.startswith("fixtures/"))
        elif name.endswith("_file") and value is not None:
            yield value

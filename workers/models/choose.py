"""Every kind of model: how its name is written, which client asks it, and what it needs on the machine that asks.

A name is a kind and what follows, such as `anthropic:NAME` or `sim:candidate=0.8`. A need is a program, a package or a
key; keys are looked for, never read out. What to type where an optional package is missing is right for a checkout and
for an installed wheel alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from shlex import quote
from typing import Literal, assert_never, cast, get_args

from packaging.requirements import Requirement

from judges.errors import did_you_mean
from workers.models import sim
from workers.models.model import KEYS, UNBILLED, Model, ModelFailed, UnknownModel
from workers.store.messages import CommandSpec, ModelSettings, Task

Kind = Literal["claude-code", "anthropic", "openai", "command", "mock", "sim", "replay"]
_KINDS = ("claude-code", "anthropic:", "openai:", "command:", "mock", "sim", "replay:")  # as they are written
_FAMILIES = {
    **dict.fromkeys(("gpt-", "chatgpt-", "o1", "o3", "o4-"), "openai"),
    **dict.fromkeys(
        ("claude-opus", "claude-sonnet", "claude-haiku", "claude-1", "claude-2", "claude-3"), "anthropic"
    ),
    **dict.fromkeys(("sonnet", "opus", "haiku"), "claude-code"),
    "gemini-": "command:gemini",
}
_EXAMPLES = {"command": "codex", "replay": "records.jsonl", "sim": "candidate=0.8"}


@dataclass(frozen=True)
class ModelSpec:
    """A spec taken apart: what kind of client, and the name or settings after the colon."""

    kind: Kind
    name: str = ""

    @property
    def program(self) -> str:
        """Of a `command:PROGRAM:MODEL`, what the config or a preset declares."""
        return self.name.partition(":")[0]


@lru_cache(maxsize=256)
def parse(spec: str) -> ModelSpec:
    """Take a spec apart and check all of it that needs no config; raises UnknownModel."""
    word, colon, name = spec.partition(":")
    if word not in get_args(Kind):
        hint = (
            f" (did you mean {found}?)" if (found := _full_name(spec)) else did_you_mean(word, get_args(Kind))
        )
        raise UnknownModel(f"unknown model {spec!r}; known kinds: {', '.join(_KINDS)}{hint}")
    kind = cast(Kind, word)
    example = f"{kind}:{_EXAMPLES.get(kind, 'MODEL')}"
    if f"{kind}:" in _KINDS and not name.strip():
        raise UnknownModel(f"model {spec!r} lacks a name; write {example}")
    if colon and (not name.strip() or name.endswith(":")):
        raise UnknownModel(f"model {spec!r} ends in a colon; write {kind} or {example}")
    if kind == "mock" and name:
        raise UnknownModel(f"model {spec!r}: mock takes no name; write mock")
    if kind == "sim":
        try:
            sim.parse(name)
        except ValueError as problem:
            raise UnknownModel(f"model {spec!r}: {problem}") from None
    return ModelSpec(kind, name)


def _full_name(spec: str) -> str:
    """The spec of a model that is named without its kind, as `gpt-4o` or `openai/gpt-4o`; empty for any other."""
    vendor, slash, name = spec.partition("/")
    if slash and vendor in PACKAGES and name.strip():
        return f"{vendor}:{name}"
    for start, kind in _FAMILIES.items():
        if spec.startswith(start) and spec != "claude-code":
            return f"{kind}:{spec}"
    return f"command:{spec}" if spec in ("codex", "gemini") else ""


def is_simulated(spec: str) -> bool:
    """Whether no real model answers, so that the numbers say nothing about a skill."""
    return parse(spec).kind in ("mock", "sim")


def graders(task: Task, spec: str, judge_model: str | None) -> list[str]:
    """The models that judge an answer of `spec`, one call each; none where the answer itself is not real."""
    if is_simulated(spec):
        return []
    return [judge or judge_model or spec for rubric in task.rubrics for judge in rubric.judges or [""]]


def asked(
    models: Sequence[str], tasks: Iterable[Task], judge_model: str | None, *, rejudged: bool = False
) -> list[str]:
    """Every model that a run asks, its judges' included; a run that only judges asks no other."""
    judging = {judge for task in tasks for spec in models for judge in graders(task, spec, judge_model)}
    return list(dict.fromkeys([*(() if rejudged else models), *sorted(judging)]))


def model_for(spec: str, settings: ModelSettings) -> Model:
    """The client for a spec; vendors' SDKs are imported only here, only when asked for.

    Raises UnknownModel for a bad spec, ModelFailed for a missing extra or a recording that is to judge.
    """
    parsed = parse(spec)
    try:
        return _client(spec, parsed, settings)
    except ImportError as missing:
        install = how_to_install(parsed.kind)
        raise ModelFailed(
            f"{parsed.kind}: {missing.name} is not installed; install it where workers run: {install}",
            hopeless=True,
        ) from None


def _client(spec: str, parsed: ModelSpec, settings: ModelSettings) -> Model:
    match parsed.kind:
        case "mock":
            return sim.Mock()
        case "sim":
            return sim.Sim(sim.parse(parsed.name))
        case "replay":
            # Its answers to tasks are in the store; whoever judges asks something that no recording holds.
            raise ModelFailed(f"{parsed.name} holds no completion of what a judge asks", completion=UNBILLED)
        case "anthropic":
            from workers.models.anthropic_api import Anthropic

            return Anthropic(parsed.name, settings)
        case "openai":
            from workers.models.openai_api import OpenAI

            return OpenAI(parsed.name, settings)
        case "command":
            from workers.models.command import Command, declared

            return Command(parsed.name, declared(parsed.name, settings), settings)
        case "claude-code":
            from workers.models.claude_code import ClaudeCode

            return ClaudeCode(parsed.name, settings)
        case _:
            assert_never(parsed.kind)


def is_agent(spec: str, settings: ModelSettings) -> bool:
    """Whether the model is a program with a workspace, so that skills are mounted and cores bound it."""
    program = _declared(spec, settings)
    return program.agent if program else parse(spec).kind == "claude-code"


def mounts_skills(spec: str, settings: ModelSettings) -> bool:
    """Whether the model can be given a skill's folder; the others get its text in front of the prompt."""
    if (program := _declared(spec, settings)) is None:
        return parse(spec).kind == "claude-code"
    from workers.models.command import mounts

    return mounts(program)


def _declared(spec: str, settings: ModelSettings) -> CommandSpec | None:
    """What the config or a preset declares of a `command:`; None for models of other kinds. Raises UnknownModel."""
    if (parsed := parse(spec)).kind != "command":
        return None
    from workers.models.command import declared

    return declared(parsed.name, settings)


def agent_version(spec: str) -> str | None:
    """The version of the program behind a model, where one is installed here; answers depend on it."""
    if parse(spec).kind != "claude-code":
        return None
    from workers.models import claude_code

    return claude_code.version()


OURS = "skill-uplift"
PROGRAMS = {
    "claude": ("claude-code", "npm install -g @anthropic-ai/claude-code"),
    "codex": ("command:codex", "npm install -g @openai/codex"),
    "gemini": ("command:gemini", "npm install -g @google/gemini-cli"),
}
PACKAGES = ("anthropic", "openai")


@dataclass(frozen=True)
class Need:
    """A program, package or key; `wanted` where one of the models asked about needs it, `remedy` is what to type.

    A model whose need is not `vital` may answer without it.
    """

    name: str
    met: bool
    wanted: bool
    found: str
    remedy: str = ""
    vital: bool = True


def needs(specs: Sequence[str], settings: ModelSettings, environment: Mapping[str, str]) -> Iterator[Need]:
    """Programs, packages and keys, those that none of these models needs included; then the config's own programs."""
    kinds = {_kind(spec, settings) for spec in specs}
    for name, (kind, install) in PROGRAMS.items():
        called = (environment.get("UPLIFT_CLAUDE") if name == "claude" else None) or name
        path = shutil.which(called, path=environment.get("PATH"))
        yield Need(name, path is not None, kind in kinds, path or f"{called} not found", install)
    for package in PACKAGES:
        yield _package(package, wanted=package in kinds)
    for kind, names in KEYS.items():
        present = [name for name in names if environment.get(name)]
        own_server = kind == "openai" and bool(environment.get("OPENAI_BASE_URL"))
        wanted = kind in kinds and not (kind == "openai" and settings.params.get("base_url"))
        none = f"{names[0]} is not set" if len(names) == 1 else f"none of {', '.join(names)} is set"
        found = f"{', '.join(present)} set" if present else none
        yield Need(f"key for {kind}", bool(present) or own_server, wanted, found, f"export {names[0]}=…")
    for spec in specs:
        yield from _program_needs(spec, settings, environment)


def lacking(specs: Sequence[str], settings: ModelSettings, environment: Mapping[str, str]) -> list[Need]:
    """The unmet needs without which one of these models cannot answer."""
    return [
        need for need in needs(specs, settings, environment) if need.wanted and need.vital and not need.met
    ]


def usable(settings: ModelSettings, environment: Mapping[str, str]) -> list[str]:
    """The kinds of models that can be asked here, each with the program or the key that it has."""
    specs = [*(spec for spec, _ in PROGRAMS.values()), *(f"{kind}:NAME" for kind in PACKAGES)]
    found = []
    for spec in specs:
        wanted = [need for need in needs([spec], settings, environment) if need.wanted and need.vital]
        if wanted and all(need.met for need in wanted):
            found.append(f"{spec} ({wanted[-1].found})")
    return found


def absent(environment: Mapping[str, str]) -> list[str]:
    """The names of all needs that are not met here, of those that do not depend on a run's config."""
    return [need.name for need in needs((), ModelSettings(), environment) if not need.met]


def _kind(spec: str, settings: ModelSettings) -> str:
    """A kind whose needs are known; a program that the config declares has its own, even under a preset's name."""
    parsed = parse(spec)
    if parsed.kind != "command":
        return parsed.kind
    return "" if parsed.program in settings.commands else f"command:{parsed.program}"


@lru_cache  # a worker asks with every sign of life, and packages do not come while a process runs
def _package(name: str, *, wanted: bool) -> Need:
    missing = ", ".join(missing_packages(name))
    found = f"not installed, or too old: {missing}" if missing else version(name)
    return Need(f"{name} package", not missing, wanted, found, how_to_install(name))


def _program_needs(spec: str, settings: ModelSettings, environment: Mapping[str, str]) -> Iterator[Need]:
    """The needs of a program that the config declares: the program itself, and the variables that it may see."""
    if _kind(spec, settings) in KEYS:
        return
    table = f"[commands.{parse(spec).program}]"
    try:
        program = _declared(spec, settings)
    except UnknownModel as problem:
        yield Need(spec, False, True, str(problem), f"declare it as {table}")
        return
    if program is None:
        return
    called = program.argv[0]
    path = shutil.which(called, path=environment.get("PATH"))
    # One that is named by a path below the attempt's folder may come with the task's files.
    met = path is not None or ("/" in called and not called.startswith("/"))
    remedy = f"install {called}, or correct argv in {table}"
    yield Need(spec, met, True, path or f"{called} not found", remedy)
    if unset := [name for name in program.environment if not environment.get(name)]:
        exports = "; ".join(f"export {name}=…" for name in unset)
        yield Need(f"variables of {spec}", False, True, f"not set: {', '.join(unset)}", exports, vital=False)


def how_to_install(extra: str) -> str:
    """The command that installs what an extra asks for, package by package, as our own metadata names them."""
    return (
        f"pip install {' '.join(quote(str(package).split(';')[0].strip()) for package in _asked_by(extra))}"
    )


def missing_packages(extra: str, package: str = OURS) -> list[str]:
    """The packages that an extra asks for, and that are not here or too old; what those ask for in turn included."""
    missing = []
    for asked in _asked_by(extra, package):
        try:
            usable = asked.specifier.contains(version(asked.name), prereleases=True)
        except PackageNotFoundError:
            usable = False
        if usable:
            missing += [name for inner in asked.extras for name in missing_packages(inner, asked.name)]
        else:
            missing.append(asked.name)
    return missing


def _asked_by(extra: str, package: str = OURS) -> Iterator[Requirement]:
    for requirement in map(Requirement, requires(package) or ()):
        marker = requirement.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            yield requirement

"""What models need on the machine that asks them: a program, a package, a key. Keys are looked for, never read out.

What to type where an optional package is missing is right for a checkout and for an installed wheel alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from shlex import quote

from packaging.requirements import Requirement

from workers.models.names import UnknownModel, parse
from workers.store.messages import ModelSettings

OURS = "skill-uplift"


def how_to_install(extra: str) -> str:
    """The command that installs what an extra asks for, package by package, as our own metadata names them."""
    return f"pip install {' '.join(quote(str(one).split(';')[0].strip()) for one in _asked_by(extra))}"


def missing_packages(extra: str, package: str = OURS) -> list[str]:
    """The packages that an extra asks for, and that are not here or too old; what those ask for in turn included."""
    found = []
    for one in _asked_by(extra, package):
        try:
            if one.specifier.contains(version(one.name), prereleases=True):
                found += [name for inner in one.extras for name in missing_packages(inner, one.name)]
                continue
        except PackageNotFoundError:
            pass
        found.append(one.name)
    return found


def _asked_by(extra: str, package: str = OURS) -> Iterator[Requirement]:
    for one in map(Requirement, requires(package) or ()):
        marker = one.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            yield one


PROGRAMS = {
    "claude": ("claude-code", "npm install -g @anthropic-ai/claude-code"),
    "codex": ("command:codex", "npm install -g @openai/codex"),
    "gemini": ("command:gemini", "npm install -g @google/gemini-cli"),
}
KEYS = {
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "command:codex": ("CODEX_API_KEY",),
    "command:gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
PACKAGES = ("anthropic", "openai")


@dataclass(frozen=True)
class Need:
    """Something that a model may need; `wanted` where one of the models does, and `remedy` is what to type.

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
        yield from _declared(spec, settings, environment)


def lacking(specs: Sequence[str], settings: ModelSettings, environment: Mapping[str, str]) -> list[Need]:
    """What is not there and without which one of these models cannot answer."""
    return [
        need for need in needs(specs, settings, environment) if need.wanted and need.vital and not need.met
    ]


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


def _declared(spec: str, settings: ModelSettings, environment: Mapping[str, str]) -> Iterator[Need]:
    """A program of the config: is it there, and are the variables set that it may see?"""
    from workers.models.command import declared

    parsed = parse(spec)
    if parsed.kind != "command" or _kind(spec, settings) in KEYS:
        return
    try:
        program = declared(parsed.name, settings)
    except UnknownModel as problem:
        yield Need(spec, False, True, str(problem), f"declare it as [commands.{parsed.program}]")
        return
    called = program.argv[0]
    path = shutil.which(called, path=environment.get("PATH"))
    # One that is named by a path below the attempt's folder may come with the task's files.
    met = path is not None or ("/" in called and not called.startswith("/"))
    remedy = f"install {called}, or correct argv in [commands.{parsed.program}]"
    yield Need(spec, met, True, path or f"{called} not found", remedy)
    if unset := [name for name in program.environment if not environment.get(name)]:
        exports = "; ".join(f"export {name}=…" for name in unset)
        yield Need(f"variables of {spec}", False, True, f"not set: {', '.join(unset)}", exports, vital=False)

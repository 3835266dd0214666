"""What models need on the machine that asks them: a program, a package, a key. Keys are looked for, never read out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from workers.messages import ModelSettings
from workers.models.choose import UnknownModel, parse
from workers.models.output import message

PROGRAMS = {
    "claude": ("claude-code", "npm install -g @anthropic-ai/claude-code, or use --mock"),
    "codex": ("command:codex", "npm install -g @openai/codex"),
    "gemini": ("command:gemini", "npm install -g @google/gemini-cli"),
}
KEYS = {
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "command:codex": ("CODEX_API_KEY", "OPENAI_API_KEY"),
    "command:gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
PACKAGES = ("anthropic", "openai")
VERSION_SECONDS = 15


@dataclass(frozen=True)
class Need:
    """Something that a model may need; `wanted` where a model of the run does."""

    name: str
    met: bool
    wanted: bool
    found: str
    remedy: str = ""


def models(specs: Sequence[str], settings: ModelSettings, environment: Mapping[str, str]) -> Iterator[Need]:
    """Packages and keys, those that no model of the run needs included; then programs of the config."""
    kinds = {_kind(spec) for spec in specs}
    for package in PACKAGES:
        yield _package(package, wanted=package in kinds)
    for kind, names in KEYS.items():
        present = [name for name in names if environment.get(name)]
        own_server = kind == "openai" and bool(environment.get("OPENAI_BASE_URL"))
        found = f"{', '.join(present)} set" if present else f"none of {', '.join(names)} is set"
        remedy = f"export {names[0]} where the workers are started"
        yield Need(f"key for {kind}", bool(present) or own_server, kind in kinds, found, remedy)
    for spec in specs:
        yield from _declared(spec, settings, environment)


def programs(specs: Sequence[str], environment: Mapping[str, str]) -> Iterator[Need]:
    """The agents' programs and their versions."""
    kinds = {_kind(spec) for spec in specs}
    for name, (kind, install) in PROGRAMS.items():
        wanted = environment.get("UPLIFT_CLAUDE") or name if name == "claude" else name
        path = shutil.which(wanted, path=environment.get("PATH"))
        if path is None:
            yield Need(name, False, kind in kinds, f"{wanted} not found", f"install it: {install}")
        else:
            yield Need(name, True, kind in kinds, f"{_version(path)} ({path})")


def _kind(spec: str) -> str:
    parsed = parse(spec)
    return f"command:{parsed.name}" if parsed.kind == "command" else parsed.kind


def _package(name: str, *, wanted: bool) -> Need:
    try:
        return Need(f"{name} package", True, wanted, version(name))
    except PackageNotFoundError:
        return Need(f"{name} package", False, wanted, "not installed", f"install it: pip install '.[{name}]'")


def _declared(spec: str, settings: ModelSettings, environment: Mapping[str, str]) -> Iterator[Need]:
    """A program of the config: is it there, and are the variables set that it may see?"""
    from workers.models.command import declared

    parsed = parse(spec)
    if parsed.kind != "command" or f"command:{parsed.name}" in KEYS:
        return
    try:
        program = declared(parsed.name, settings)
    except UnknownModel as problem:
        yield Need(spec, False, True, str(problem), f"declare it as [commands.{parsed.name}]")
        return
    path = shutil.which(program.argv[0], path=environment.get("PATH"))
    unset = [name for name in program.environment if not environment.get(name)]
    found = path or f"{program.argv[0]} not found"
    if unset:
        found += f"; not set: {', '.join(unset)}"
    yield Need(spec, path is not None and not unset, True, found, "install the program and set its variables")


def _version(path: str) -> str:
    """What a program says of itself, on one line; it is started outside any project."""
    try:
        said = subprocess.run(
            [path, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=os.path.sep,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not tell its version"
    return message(said.stdout.decode("utf-8", "replace"))[:80] or "does not tell its version"

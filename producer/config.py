"""What is set beside the flags: `uplift.toml`, or `[tool.uplift]` in pyproject.toml, and UPLIFT_* variables.

Flags win over variables, variables over the file. Everything is checked before anything is used, and every
value knows where it came from.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producer.config_rules import Values, checked, looks_secret, place, suggestion
from producer.options import InvalidOption
from workers.messages import CommandSpec, Limits, ModelSettings

FILE_NAME = "uplift.toml"
# Variables with a meaning of their own elsewhere: workers, private programs, compose.yaml.
OTHER_VARIABLES = (
    *("UPLIFT_CONFIG", "UPLIFT_CLAUDE", "UPLIFT_DEBUG", "UPLIFT_LEASE_SECONDS", "UPLIFT_VISIBILITY_SECONDS"),
    *("UPLIFT_DRAIN_SECONDS", "UPLIFT_REDIS_PASSWORD", "UPLIFT_REDIS_MEMORY", "UPLIFT_MONITOR_PASSWORD"),
    *("UPLIFT_MONITOR_PORT", "UPLIFT_WORKER_MEMORY", "UPLIFT_FOLDER", "UPLIFT_USER"),
)
_IN_TABLES = {
    "UPLIFT_RPM": ("limits", "rpm"),
    "UPLIFT_TPM": ("limits", "tpm"),
    "UPLIFT_MAX_IN_FLIGHT": ("limits", "max_in_flight"),
}
_NAMES = {"agents": "UPLIFT_AGENT_IN_FLIGHT"}
_TEXTS = ("broker", "state_root", "judge_model", "skill_mode", "sandbox", "baseline_cache_dir")
_PATHS = ("state_root", "baseline_cache_dir")
_WORDS = ("gate", "weak_baseline", "stop_early")
_TABLES = ("params", "limits", "prices", "commands")
# Flags of the same name take these as they are.
_FLAGS = (
    *("broker", "state_root", "in_flight", "agents", "judge_model", "pass_k", "skill_mode", "sandbox"),
    *("baseline_cache_dir", "eval_threshold", "margin", "gate", "weak_baseline", "stop_early", "effect"),
    "budget_usd",
)


class InvalidConfig(ValueError):
    """The config cannot be used; one line for each mistake, with file and key."""


@dataclass(frozen=True)
class Config:
    """What is set; `origins` has a file or a variable for each key, `file` the file that was read."""

    values: Values = field(default_factory=Values)
    origins: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def flag_defaults(self) -> dict[str, Any]:
        """Values for flags that were not given."""
        set_here = {name: getattr(self.values, name) for name in _FLAGS}
        return {name: value for name, value in set_here.items() if value is not None}

    def model_settings(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        tools: tuple[str, ...] | None = None,
        retry: bool | None = None,
    ) -> ModelSettings:
        """How models are to be asked; what is given here, by flags, wins, also over limits of single models."""
        values, ours = self.values, (limits or Limits()).model_dump(exclude_none=True)
        common = Limits.model_validate({**_plain(values.limits), **ours})
        return ModelSettings(
            params={**values.params, **(params or {})},
            commands={
                name: CommandSpec.model_validate(one.model_dump()) for name, one in values.commands.items()
            },
            prices=values.prices,
            limits={
                spec: Limits.model_validate({**common.model_dump(), **_plain(one), **ours})
                for spec, one in values.limits.__pydantic_extra__.items()
            },
            default_limits=common,
            tools=values.tools if tools is None else tools,
            retry=(values.retry is not False) if retry is None else retry,
        )


def load(
    given: Path | None = None, *, start: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """The config from the file that is given, named by UPLIFT_CONFIG or found, and from variables.

    Raises InvalidConfig with every mistake of the file, or of the variables.
    """
    named = given or (Path(environment["UPLIFT_CONFIG"]) if environment.get("UPLIFT_CONFIG") else None)
    path = named or find(start or Path.cwd())
    raw: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if path is not None:
        raw = _of_file(path)
        origins = dict.fromkeys(_keys(raw), str(path))
    for variable, steps, value in _of_environment(environment):
        _check_variable(variable, steps, value)
        _put(raw, steps, value)
        origins.update(dict.fromkeys(_keys(_nested(steps, value)), variable))
    values, broken = checked(raw, secrets_allowed=True)
    if values is None:
        raise InvalidConfig("\n".join(f"config: {place(steps)}: {words}" for steps, words in broken))
    return Config(values, origins, path)


def find(start: Path) -> Path | None:
    """The nearest config at or above a folder, up to the repository's root or the user's home.

    Outside both, only the folder itself is looked at: whoever can write to a shared folder above must not
    decide what is run here.
    """
    for folder in _folders(start.resolve()):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
        project = folder / "pyproject.toml"
        if project.is_file() and _mentions_us(project):
            return project
    return None


def parse_param(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON where it can be read as such, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or key != key.strip():
        raise InvalidOption(f"--param is {text!r}; write KEY=VALUE, for example temperature=0")
    if looks_secret(key, value):
        raise InvalidOption(f"--param {key} looks like a secret; set it in the environment of the workers")
    return key, _as_json(value)


def params_of(texts: Iterable[str]) -> dict[str, Any]:
    """Parameters from flags; naming one twice is a mistake."""
    params: dict[str, Any] = {}
    for key, value in map(parse_param, texts):
        if key in params:
            raise InvalidOption(f"--param {key} is given twice; give it once")
        params[key] = value
    return params


def limits_of(*, rpm: float | None, tpm: float | None, max_in_flight: int | None) -> Limits:
    """Limits from flags."""
    given = {"rpm": rpm, "tpm": tpm, "max_in_flight": max_in_flight}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise InvalidOption(f"--{name.replace('_', '-')} is {value:g}; give a number above 0")
    return Limits.model_validate(given)


def parse_tools(text: str) -> tuple[str, ...]:
    """Names between commas; a comma between parentheses belongs to its tool, as in Bash(ls, git *)."""
    tools, depth, current = [], 0, ""
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            tools.append(current)
            current = ""
        else:
            current += letter
    return tuple(tool.strip() for tool in (*tools, current) if tool.strip())


def variables() -> dict[str, str]:
    """Every variable that a config value can come from, with its key."""
    names = {_NAMES.get(key, f"UPLIFT_{key.upper()}"): key for key in Values.model_fields}
    return {**names, **{name: ".".join(steps) for name, steps in _IN_TABLES.items()}}


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """UPLIFT_* variables that mean nothing, each with the name that may have been meant."""
    known = [*variables(), *OTHER_VARIABLES]
    found = [name for name in environment if name.startswith("UPLIFT_") and name not in known]
    return {name: suggestion(name, known) for name in sorted(found)}


def _folders(start: Path) -> list[Path]:
    above = [start, *start.parents]
    home = Path.home().resolve()
    for number, folder in enumerate(above):
        if (folder / ".git").exists() or folder == home:
            return above[: number + 1]
    return [start]


def _mentions_us(project: Path) -> bool:
    try:
        return b"tool.uplift" in project.read_bytes()
    except OSError:
        return False


def _of_file(path: Path) -> dict[str, Any]:
    prefix = ""
    try:
        raw = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as problem:
        raise InvalidConfig(f"{path}: cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidConfig(f"{path}: not valid TOML: {problem}") from None
    if path.name == "pyproject.toml":
        prefix, tool = "tool.uplift.", raw.get("tool", {})
        raw = tool.get("uplift", {}) if isinstance(tool, dict) else {}
    _, broken = checked(raw)
    if broken:
        raise InvalidConfig("\n".join(f"{path}: {prefix}{place(steps)}: {words}" for steps, words in broken))
    return _rooted(raw, path.parent)


def _rooted(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths in a file are relative to it, so that they mean the same in every folder below."""
    paths: dict[str, Any] = {key: str(folder / raw[key]) for key in _PATHS if key in raw}
    return {**raw, **paths}


def _of_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Each variable that is set, with the place of its value; shorthands come after the tables they are in."""
    for key in Values.model_fields:
        name = _NAMES.get(key, f"UPLIFT_{key.upper()}")
        if text := environment.get(name):
            yield name, (key,), _value(key, text)
    for name, steps in _IN_TABLES.items():
        if text := environment.get(name):
            yield name, steps, _as_json(text)


def _value(key: str, text: str) -> Any:
    if key in (*_TEXTS, *_WORDS):
        return text
    if key in ("models", "tools") and not text.lstrip().startswith("["):
        return text.split() if key == "models" else list(parse_tools(text))
    return _as_json(text)


def _check_variable(variable: str, steps: tuple[str, ...], value: Any) -> None:
    # A broker's password may come from the environment: that is where it belongs.
    _, broken = checked(_nested(steps, value), secrets_allowed=steps == ("broker",))
    if broken:
        lines = []
        for where, words in broken:
            inner = place(where[len(steps) :])
            lines.append(f"{variable}: {f'{inner}: ' if inner else ''}{words}")
        raise InvalidConfig("\n".join(lines))


def _nested(steps: Sequence[str], value: Any) -> dict[str, Any]:
    for step in reversed(steps):
        value = {step: value}
    return dict(value)


def _put(raw: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    """Set a value; a table is laid over the one that is there, key by key."""
    *above, last = steps
    for step in above:
        raw = raw.setdefault(step, {})
    if last in _TABLES and not above:
        for key, inner in value.items():
            together = isinstance(inner, dict) and last == "limits"
            raw.setdefault(last, {})[key] = {**raw.get(last, {}).get(key, {}), **inner} if together else inner
    else:
        raw[last] = value


def _keys(raw: Mapping[str, Any]) -> Iterator[str]:
    """Places of all values, tables of a model or a program as a whole."""
    for key, value in raw.items():
        if key in _TABLES and isinstance(value, dict):
            yield from (place((key, inner)) for inner in value)
        else:
            yield key


def _plain(limits: Limits) -> dict[str, Any]:
    return {name: value for name in Limits.model_fields if (value := getattr(limits, name)) is not None}


def _as_json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text

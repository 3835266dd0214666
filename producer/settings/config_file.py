"""The config: `uplift.toml`, or `[tool.uplift]` in pyproject.toml, and UPLIFT_* variables.

Flags win over variables, variables over the file. Everything is checked before anything is used, and every
value knows where it came from. Secrets have no place in a config: it is committed, and its settings travel to every
worker.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aggregate.text import files
from judges.errors import UpliftError, did_you_mean
from judges.safe_text import NotJson, strict_json
from producer.settings import run_settings
from producer.settings.run_settings import (
    Broken,
    InvalidOption,
    RunSettings,
    Steps,
    described,
    kind_of,
    place,
)
from producer.state_root import folders_above, nearest_state_root
from workers.models.model import secrets
from workers.store.messages import Limits

_SECRET_KEY = re.compile(
    r"(api|access|secret|private|auth|bearer|session|refresh)[_-]?(key|token)$|^(key|token|auth|authorization)$"
    r"|(secret|password|passwd|credentials?)$|(?-i:[A-Z0-9]_(KEY|TOKEN)$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(sk|pk|rk)-[\w-]{12,}|\bAIza[\w-]{20,}|\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}"
)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def checked(
    raw: Mapping[str, Any], name_of: Callable[[Steps], str], *, secrets_allowed: bool = False
) -> RunSettings:
    """The values; raises InvalidConfig with everything that is wrong, each thing after the name of its place."""
    broken = [] if secrets_allowed else list(_secrets(raw, ()))
    broken += [
        ((key,), run_settings.unknown_key((key,))) for key in raw if key not in run_settings.config_keys()
    ]
    places = {steps for steps, _ in broken}
    try:
        # As JSON, because lists must become tuples while text must not become numbers.
        values = RunSettings.model_validate_json(json.dumps(raw, default=str), strict=True)
        broken += _misnamed(values)
    except ValidationError as invalid:
        broken += [problem for problem in run_settings.problems(invalid) if problem[0] not in places]
    if broken:
        raise InvalidConfig("\n".join(f"{name_of(steps)}: {words}" for steps, words in broken))
    return values


def looks_secret(key: str, value: object) -> bool:
    """Whether a setting holds a secret, by its name, its look, or because the environment calls it one."""
    if not isinstance(value, str) or not value:
        return False
    looks = _SECRET_KEY.search(key) or _SECRET_VALUE.search(value) or _PASSWORD_IN_URL.search(value)
    return bool(looks) or any(secret in value for secret in secrets(os.environ))


def _secrets(value: object, steps: Steps) -> Iterator[Broken]:
    parts = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for step, part in parts:
        yield from _secrets(part, (*steps, step))
    if looks_secret(str(next((step for step in reversed(steps) if isinstance(step, str)), "")), value):
        if steps == ("broker",):
            yield steps, "holds a password; set UPLIFT_BROKER instead"
        else:
            yield steps, "looks like a secret; set it in the environment of the workers"


def _misnamed(values: RunSettings) -> Iterator[Broken]:
    """Model specs, parameters and programs that no worker could use."""
    from workers.models.choose import parse
    from workers.models.command import declared
    from workers.models.model import UnknownModel

    specs: list[tuple[Steps, str]] = [(("models", n), spec) for n, spec in enumerate(values.models)]
    specs += [(("limits", spec), spec) for spec in values.limits.__pydantic_extra__]
    specs += [(("judge_model",), values.judge_model)] if values.judge_model is not None else []
    for steps, spec in specs:
        try:
            parse(spec)
        except UnknownModel as problem:
            yield steps, str(problem)
    for name in values.params:
        if (why := run_settings.refused_param(name)) is not None:
            yield ("params", name), why
    for name in values.commands:
        try:
            declared(name, values.settings)
        except UnknownModel as problem:
            yield ("commands", name), str(problem)


FILE_NAME = "uplift.toml"
MAX_BYTES = 1024 * 1024
# Variables with a meaning of their own elsewhere: workers, private programs, compose.yaml.
OTHER_VARIABLES = (
    *("UPLIFT_CONFIG", "UPLIFT_CLAUDE", "UPLIFT_DEBUG", "UPLIFT_LEASE_SECONDS"),
    *("UPLIFT_PREFIX", "UPLIFT_BROKER_CA", "UPLIFT_POLICY"),
    *("UPLIFT_DRAIN_SECONDS", "UPLIFT_REDIS_PASSWORD", "UPLIFT_REDIS_MEMORY", "UPLIFT_MONITOR_PASSWORD"),
    *("UPLIFT_MONITOR_PORT", "UPLIFT_WORKER_MEMORY", "UPLIFT_FOLDER", "UPLIFT_USER", "UPLIFT_RESTARTS"),
    *("UPLIFT_METRICS_PORT", "UPLIFT_METRICS_ADDRESS", "UPLIFT_METRICS_TOKEN"),
)


class InvalidConfig(UpliftError, ValueError):
    """The config cannot be used; one line for each mistake, with file and key."""


@dataclass(frozen=True)
class Config:
    """What is set; `origins` has a file or a variable for each key, `file` the file that was read.

    `raw` has what is set as it was given, `values` the same with all defaults.
    """

    raw: Mapping[str, Any] = field(default_factory=dict)
    values: RunSettings = field(default_factory=RunSettings)
    origins: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def with_flags(self, given: Mapping[str, Any], *, without: Collection[str] = ()) -> RunSettings:
        """What a command is to do: flags win, also over limits of single models; `without` some keys of the config."""
        values = {name: deepcopy(value) for name, value in self.raw.items() if name not in without}
        for name, value in given.items():
            if name == "params":
                values[name] = {**values.get(name, {}), **params_of(value)}
            elif name in Limits.model_fields:
                limits = values.setdefault("limits", {})
                for table in (limits, *(own for own in limits.values() if isinstance(own, dict))):
                    table[name] = value
            else:
                values[name] = parse_tools(value) if name == "tools" else value
        values.setdefault("state_root", nearest_state_root())
        return RunSettings.checked(values)


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
    for name, steps in variables().items():
        if text := environment.get(name):
            table = _of_variable(name, steps, text)
            raw = _laid_over(raw, table, levels=2 if steps[0] == "limits" else 1)
            origins.update(dict.fromkeys(_keys(table), name))
    values = checked(raw, lambda steps: f"config: {place(steps)}", secrets_allowed=True)
    return Config(raw, values, origins, path)


def find(start: Path) -> Path | None:
    """The nearest config at or above a folder, see `folders_above`."""
    for folder in folders_above(start.resolve()):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
        with suppress(OSError):  # most folders have none
            if b"tool.uplift" in files.read(project := folder / "pyproject.toml", MAX_BYTES):
                return project
    return None


def params_of(texts: Iterable[str]) -> dict[str, Any]:
    """Parameters from flags, KEY=VALUE each; a value is JSON where it can be read as such, else text."""
    params: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or key != key.strip():
            raise InvalidOption(f"--param is {text!r}; write KEY=VALUE, for example temperature=0")
        if looks_secret(key, value):
            raise InvalidOption(
                f"--param {key} looks like a secret; set it in the environment of the workers"
            )
        if key in params:
            raise InvalidOption(f"--param {key} is given twice; give it once")
        params[key] = _as_json(value)
    return params


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


def variables() -> dict[str, tuple[str, ...]]:
    """Every variable that a config value can come from, with its key; what is in a table comes after the table."""
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in run_settings.config_keys()}
    names |= {name: ("limits", name) for name in Limits.model_fields}
    return {described()[name].variable: steps for name, steps in names.items()}


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """UPLIFT_* variables that mean nothing, each with the name that may have been meant."""
    known = [*variables(), *OTHER_VARIABLES]
    unknown = [name for name in environment if name.startswith("UPLIFT_") and name not in known]
    return {name: did_you_mean(name, known) for name in sorted(unknown)}


def _of_file(path: Path) -> dict[str, Any]:
    prefix = ""
    try:
        raw = tomllib.loads(files.read(path, MAX_BYTES, pipes=True).decode("utf-8-sig"))
    except OSError as problem:
        raise InvalidConfig(f"{path}: cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidConfig(f"{path}: not valid TOML: {problem}") from None
    if path.name == "pyproject.toml":
        prefix, tool = "tool.uplift.", raw.get("tool", {})
        raw = tool.get("uplift", {}) if isinstance(tool, dict) else {}
    checked(raw, lambda steps: f"{path}: {prefix}{place(steps)}")
    # Paths in a file are relative to it, so that they mean the same in every folder below.
    return {key: str(path.parent / value) if kind_of(key) is Path else value for key, value in raw.items()}


def _of_variable(name: str, steps: Sequence[str], text: str) -> dict[str, Any]:
    """The table that a variable stands for, with its value at the end of the steps."""
    value = _value(steps[-1], text)
    for step in reversed(steps):
        value = {step: value}

    def name_of(inside: Steps) -> str:
        return ": ".join(filter(None, (name, place(inside[len(steps) :]))))

    # A broker's password may come from the environment: that is where it belongs.
    checked(value, name_of, secrets_allowed=steps == ("broker",))
    return dict(value)


def _value(key: str, text: str) -> Any:
    kind = kind_of(key)
    if kind in (str, Path):
        return text
    if kind is tuple and not text.lstrip().startswith("["):
        return text.split() if key == "models" else list(parse_tools(text))
    return _as_json(text)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """Both tables as one: `above` wins, and tables that both have are laid over each other for so many levels."""
    together = {**below, **above}
    for key, value in above.items():
        if levels and isinstance(value, dict) and isinstance(below.get(key), dict):
            together[key] = _laid_over(below[key], value, levels - 1)
    return together


def _keys(raw: Mapping[str, Any]) -> Iterator[str]:
    """Places of all values, tables of a model or a program as a whole."""
    for key, value in raw.items():
        if kind_of(key) is dict and isinstance(value, dict):
            yield from (place((key, inner)) for inner in value)
        else:
            yield key


def _as_json(text: str) -> Any:
    try:
        return strict_json(text)
    except NotJson:
        return text

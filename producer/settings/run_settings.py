"""Every setting of a run in one frozen model; flags, `uplift.toml`, variables, keywords and docs are made from it.

A setting that workers or numbers need is inherited from the class where they find it: see `workers.store.messages` and
`aggregate.records.settings`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from aggregate.records.settings import Panel, ResultSettings, Setting
from judges.errors import UpliftError, did_you_mean
from judges.safe_text import allowed_keys, requirement
from producer.state_root import DEFAULT_STATE_ROOT
from workers.store.messages import CallSettings, Limits, ModelSettings, Policy, ServeSettings, WorkerSettings

Steps = tuple[str | int, ...]
Broken = tuple[Steps, str]


class InvalidOption(UpliftError, ValueError):
    """A flag, or a combination of flags, that makes no sense; one line with the remedy."""


class LimitsTable(Limits):
    """Limits for every model, and tables of a model's own under its spec."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Limits]


# What one run compares is no habit of a project: flags say it, and no config does.
_by_flag = partial(Setting, "What to compare", in_config=False)


class RunSettings(CallSettings, WorkerSettings, ResultSettings, ServeSettings):
    """What a person asks for when they start a run; see `uplift evaluate --help` for what each means."""

    model_config = ConfigDict(defer_build=True)  # `--help` needs the fields alone

    task_suite: Annotated[
        Path | None, Setting("What to compare", "The suite: a YAML file of tasks and judges; needed.")
    ] = None
    standalone: Annotated[
        bool,
        _by_flag(
            "Evaluate the skill at --skill-path, without a ranking; may be left out where there is no --input."
        ),
    ] = False
    skill_path: Annotated[
        Path | None, Setting("What to compare", "The candidate: a skill folder or a SKILL.md.")
    ] = None
    baseline: Annotated[
        str | None,
        _by_flag(
            "bare (the model alone), none, a skill, a blessed baseline's file, or the skill as git has it: "
            "git:REF, git:merge-base, git:last-tag.",
            "WHAT",
            default="bare; with --input, the ranking's target",
        ),
    ] = None
    baseline_path: Annotated[Path | None, _by_flag("The same as --baseline with a skill.")] = None
    baseline_artifact: Annotated[
        Path | None,
        _by_flag("The same as --baseline with the file of `uplift bless`: compared with, not run.", "FILE"),
    ] = None
    no_baseline: Annotated[
        bool, _by_flag("The same as --baseline none: the candidate alone, which passes at a rate of 0.5.")
    ] = False
    ranking: Annotated[
        Path | None, _by_flag("A ranking artifact (JSON) with candidates; pipeline mode.", flag="--input")
    ] = None
    candidate_ids: Annotated[
        tuple[str, ...], _by_flag("A candidate of the ranking, or `all`; may repeat.", "ID", "--candidate-id")
    ] = ()
    tasks: Annotated[tuple[str, ...], _by_flag("Only this task; may repeat.", "ID", "--task")] = ()
    tags: Annotated[tuple[str, ...], _by_flag("Only tasks with this tag; may repeat.", "TAG", "--tag")] = ()
    tiers: Annotated[tuple[str, ...], _by_flag("Only tasks of this tier; may repeat.", "TIER", "--tier")] = ()
    limits: Annotated[
        LimitsTable,
        Setting(
            "Limits and money",
            "rpm, tpm and max_in_flight for each model, and tables of a model's own under its spec.",
            in_evaluate=False,
        ),
    ] = Field(default_factory=lambda: LimitsTable.model_validate({}))
    baseline_cache_dir: Annotated[
        Path | None, Setting("Limits and money", "Reuse baseline attempts for 7 days.")
    ] = None
    state_root: Annotated[
        Path, Setting("Where it runs", "Folder for artifacts, traces, records and private servers.")
    ] = DEFAULT_STATE_ROOT
    broker: Annotated[
        str | None,
        Setting(
            "Where it runs",
            "Redis that workers share: redis://, rediss:// or unix://. Also UPLIFT_BROKER.",
            "URL",
            default="a private server is started",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting(
            "Where it runs", "Allow a broker on another machine without password and TLS.", in_config=False
        ),
    ] = False
    in_flight: Annotated[
        int | None,
        Field(ge=1),
        Setting("Where it runs", "Model calls at once in one worker process.", "NUMBER", default="100"),
    ] = None
    agents: Annotated[
        int | None,
        Field(ge=1),
        Setting(
            "Where it runs",
            "Agent programs at once in one worker process.",
            "NUMBER",
            default="number of cores",
            variable="UPLIFT_AGENT_IN_FLIGHT",
            in_evaluate=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        Setting(
            "Output",
            "Where the artifact goes; a folder with several candidates.",
            default="<state-root>/evaluations/RUN.json",
            in_config=False,
        ),
    ] = None

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Settings from flags or keywords; raises InvalidOption for values that no field takes."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as invalid:
            found = [(_flag_at(steps), words) for steps, words in problems(invalid)]
            lines = [f"{flag}{' ' if words.startswith('is ') else ': '}{words}" for flag, words in found]
            raise InvalidOption("; ".join(lines)) from None

    @cached_property
    def settings(self) -> ModelSettings:
        """How models are to be called, as workers are told; a model's own limits win over the common ones."""
        common = self.limits.model_dump(include=set(Limits.model_fields))
        return ModelSettings(
            **part(self, CallSettings),
            default_limits=Limits(**common),
            limits={
                spec: Limits(**{**common, **own.model_dump(exclude_none=True)})
                for spec, own in self.limits.__pydantic_extra__.items()
            },
        )

    @property
    def private_worker(self) -> dict[str, str]:
        """The variables that tell a private worker how much to do at once."""
        given = {name: getattr(self, name) for name in ("in_flight", "agents")}
        return {described()[name].variable: str(value) for name, value in given.items() if value is not None}

    @property
    def policy(self) -> Policy:
        """What a worker of this config serves: its own programs, and its own address where it has one."""
        own, address = part(self, Policy), self.params.get("base_url")
        urls = (*self.serve_base_urls, *([str(address)] if address else []))
        return Policy.model_validate({**own, "serve_base_urls": urls})

    def check(self) -> None:
        """Raise InvalidOption for combinations that make no sense."""
        for words in self._contradictions():
            raise InvalidOption(words)

    def _contradictions(self) -> Iterator[str]:
        if self.task_suite is None:
            yield "--task-suite is missing; give the suite, or set task_suite in uplift.toml"
        nothing = not (self.ranking or self.standalone or self.skill_path)
        if nothing or (self.ranking and self.standalone):
            yield "choose one: --standalone with --skill-path, or --input with --candidate-id"
        if self.baseline is not None and (self.baseline_path or self.no_baseline or self.baseline_artifact):
            yield "--baseline says it all: leave out --baseline-path, --no-baseline and --baseline-artifact"
        if self.ranking is None and self.skill_path is None:
            yield "--standalone needs --skill-path; give the skill's folder or its SKILL.md"
        if self.ranking and not self.candidate_ids:
            yield "--input needs --candidate-id; give an id of the ranking, or all"
        from_git = self.baseline is not None and self.baseline.startswith("git:")
        if self.ranking and (self.skill_path or self.baseline_path or from_git):
            yield "--skill-path and a skill as baseline belong to --standalone; the ranking names both"
        if self.no_baseline and self.baseline_path:
            yield "--no-baseline and --baseline-path exclude each other"
        if self.baseline_artifact and (self.baseline_path or self.no_baseline):
            yield "--baseline-artifact excludes --baseline-path and --no-baseline; it is the baseline"
        if self.stop_early and self.pass_k < 2:
            yield "--stop-early needs --pass-k 2 or more: it looks after each round"
        if self.gate_cost is not None and self.no_baseline:
            yield "--gate-cost and --no-baseline exclude each other: no ratio of costs is left to tell"
        if self.gate == "regression" and self.stop_early:
            yield "--gate regression needs every attempt: leave out --stop-early"
        if self.stop_early and self.no_baseline:
            yield "--stop-early needs a baseline: without one there is no difference to be sure of"
        for name in self.params:
            if (why := refused_param(name)) is not None:
                yield f"--param {name} {why}"
        if len(set(self.models)) != len(self.models):
            yield "--model names the same model twice"


def part(settings: BaseModel, kind: type[BaseModel]) -> dict[str, Any]:
    """The values of those settings that `kind` has."""
    return {name: getattr(settings, name) for name in kind.model_fields}


def of_model_settings(settings: ModelSettings) -> dict[str, Any]:
    """The values of a run's settings that say the same as a worker's `settings`."""
    limits = {**settings.default_limits.model_dump(), **settings.limits}
    return {**part(settings, CallSettings), "limits": limits}


# To flags and variables, limits for all models are settings like others; a config has them in a table.
_FIELDS = {**RunSettings.model_fields, **Limits.model_fields}


@cache
def described() -> dict[str, Setting]:
    """Every setting, in the order of the headings of `--help`."""
    settings = {
        name: replace(
            setting,
            flag=setting.flag or f"--{name.replace('_', '-')}",
            variable=setting.variable or f"UPLIFT_{name.upper()}",
            keyword=setting.keyword or name,
        )
        for name, field in _FIELDS.items()
        for setting in field.metadata
        if isinstance(setting, Setting)
    }
    panels = get_args(Panel)
    return dict(sorted(settings.items(), key=lambda item: panels.index(item[1].panel)))


def config_keys() -> list[str]:
    """The keys of `uplift.toml`."""
    own = RunSettings.model_fields
    return [name for name, setting in described().items() if setting.in_config and name in own]


def default_text(name: str) -> str:
    """What happens without the setting, in a few words; empty where that is nothing."""
    value = _FIELDS[name].default
    if isinstance(value, tuple):
        value = ", ".join(value)
    has_words = isinstance(value, str | int | float | Path) and not isinstance(value, bool)
    return described()[name].default or (str(value) if has_words else "")


def kind_of(name: str) -> type:
    """The type of a setting's values: bool, int, float, str, Path, tuple or dict."""
    inner: Any = _FIELDS[name].annotation
    if get_origin(inner) in (Union, UnionType):
        inner = next(kind for kind in get_args(inner) if kind is not type(None))
    if get_origin(inner) is Literal:
        return str
    kind = get_origin(inner) or inner
    return dict if issubclass(kind, BaseModel) else cast("type", kind)


def refused_param(name: str) -> str | None:
    """Why a parameter is refused: a provider would read it in the place of what we send; None for any other."""
    match name:
        case "model" | "models":
            return "is no parameter; the model is named by --model, or by models in uplift.toml"
        case "messages" | "prompt" | "input" | "contents":
            return "is no parameter; what a model is asked is the task's prompt, in the suite"
        case "n" | "stream":
            return "is no parameter; an attempt is one call with one answer, and --pass-k is for more of them"
    return None


# What is wrong with a value, in words


def problems(invalid: ValidationError) -> list[Broken]:
    """Everything that is wrong with values, by place."""
    return [(error["loc"], _message(error["loc"], error)) for error in invalid.errors(include_url=False)]


def place(steps: Steps) -> str:
    """A key as TOML writes it: limits."openai:m".rpm, commands.x.argv[0]."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        shown = step if re.fullmatch(r"[\w-]+", step) else json.dumps(step, ensure_ascii=False)
        text += f".{shown}" if text else shown
    return text


def _flag_at(steps: Steps) -> str:
    """How a value is named to somebody who gave it by flag or keyword."""
    name = str(steps[-1] if steps[0] == "limits" else steps[0])
    known = described().get(name)
    return known.flag if known is not None and (known.in_evaluate or len(steps) == 1) else place(steps)


def _message(steps: Steps, error: ErrorDetails) -> str:
    kind, context, given = error["type"], error.get("ctx", {}), error["input"]
    match kind:
        case "extra_forbidden":
            return unknown_key(steps)
        case "model_type" | "model_attributes_type" if steps[:1] == ("limits",) and len(steps) == 2:
            allowed = list(Limits.model_fields)
            hint = did_you_mean(str(steps[-1]), allowed)
            return f"unknown key; allowed: {', '.join(allowed)}, and tables named after models{hint}"
        case "missing" | "value_error":
            return requirement(error)
        case "literal_error":
            words = context["expected"].replace("'", "").replace(" or ", ", ")
            hint = did_you_mean(given, words.split(", ")) if isinstance(given, str) else ""
            return f"is {_shown(given)}; allowed: {words}{hint}"
        case "string_type" if steps == ("gate_cost",):
            return f'is {_shown(given)}; must be text such as "+10%"'
    words = _MUST[kind].format(**context) if kind in _MUST else requirement(error)
    return f"is {_shown(given)}; {words}"


# Where a config, or a flag, is told it in other words than other files.
_MUST = {
    "path_type": "must be text",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "greater_than": "must be above {gt:g}",
    "less_than": "must be below {lt:g}",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must be the name of an environment variable, without a value",
}


def unknown_key(steps: Steps) -> str:
    allowed = allowed_keys(RunSettings, steps[:-1]) if steps[1:] else config_keys()
    return f"unknown key; allowed: {', '.join(allowed)}{did_you_mean(str(steps[-1]), allowed)}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"

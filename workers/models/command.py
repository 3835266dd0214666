"""Ask any program that the config declares: prompt by stdin or file, answer as text, JSON or JSON lines.

The program is started without a shell, in the attempt's workspace, with a new home and only the environment
that is allowed by name. A spec may name the model that the program is to ask: `command:codex:gpt-5`.

Values are found in its JSON by a path, as the config writes it: `a.b.0` walks names and list indices; `*` takes every
value of an object or list and `a|b` those of several names, and numbers found that way are added up. `PATH where
KEY=VALUE and KEY=VALUE` looks only where those paths have those values.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aggregate.records import atif
from aggregate.text import files
from judges.errors import did_you_mean
from judges.judgment import Completion
from judges.sandbox.bubblewrap import SandboxDescription
from workers.models import steps
from workers.models.agent_network import AgentNetwork, network_of
from workers.models.agent_view import confined, hint, is_confined
from workers.models.model import (
    Model,
    ModelBusy,
    ModelError,
    ModelFailed,
    ModelTimedOut,
    Request,
    UnknownModel,
    capped,
    count,
    decoded,
    message,
    without_secrets,
)
from workers.models.prices import priced, provider_cost
from workers.models.program import (
    MAX_LINE_BYTES,
    AgentFolders,
    EndedProgram,
    clean_environment,
    folders,
    mount,
    own_deadline,
    run,
)
from workers.models.steps import CodexEvents, Trace
from workers.store.messages import CommandSpec, ModelSettings


class BadPath(ValueError):
    """A path that cannot be read."""


@dataclass(frozen=True)
class JsonPath:
    """A parsed path: the steps to walk, and the conditions on the object they start from."""

    steps: tuple[str, ...]
    conditions: tuple[tuple[tuple[str, ...], str], ...] = ()

    def find(self, value: Any) -> Any:
        """The value at the path, a sum where several numbers were found, or None."""
        if any(_shown(next(_walk(value, steps), None)) != wanted for steps, wanted in self.conditions):
            return None
        found = [one for one in _walk(value, self.steps) if one is not None]
        if len(found) > 1 and all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in found
        ):
            return sum(found)
        return found[0] if found else None


def parse(text: str) -> JsonPath:
    path, _, rest = text.partition(" where ")
    conditions = []
    for condition in rest.split(" and ") if rest else []:
        key, equals, wanted = condition.partition("=")
        if not equals or not key.strip():
            raise BadPath(f"condition {condition!r} of path {text!r} is not KEY=VALUE")
        conditions.append((_steps(key, text), wanted.strip()))
    return JsonPath(_steps(path, text), tuple(conditions))


def _steps(path: str, text: str) -> tuple[str, ...]:
    steps = tuple(path.strip().split("."))
    if not all(steps):
        raise BadPath(f"path {text!r} has an empty step")
    return steps


def _walk(value: Any, steps: tuple[str, ...]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict):
        chosen = list(value.values()) if step == "*" else [value.get(name) for name in step.split("|")]
    elif isinstance(value, list):
        index = int(step) if step.lstrip("-").isdecimal() else None
        inside = index is not None and -len(value) <= index < len(value)
        chosen = value if step == "*" else [value[index]] if inside and index is not None else []
    else:
        return
    for one in chosen:
        yield from _walk(one, rest)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


PRESETS = {
    "codex": CommandSpec(
        argv=(
            *("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "{own_sandbox}"),
            *("--config", "openai_base_url={base_url}"),
            # What it asks of other hosts before it asks the model, which is none of the task's doing.
            *("--config", "analytics.enabled=false", "--config", "features.plugins=false", "-"),
        ),
        output="jsonl",
        text_path="item.text where type=item.completed and item.type=agent_message",
        input_tokens_path="usage.input_tokens where type=turn.completed",
        output_tokens_path="usage.output_tokens where type=turn.completed",
        cache_read_tokens_path="usage.cached_input_tokens where type=turn.completed",
        error_path="error.message where type=turn.failed",
        environment=("CODEX_API_KEY",),
        hosts=("chatgpt.com",),
        skill_folder="{home}/.agents/skills",
        model_argv=("--model", "{model}"),
    ),
    "gemini": CommandSpec(
        argv=("gemini", "--output-format", "json", "--approval-mode", "yolo", "--skip-trust"),
        output="json",
        text_path="response",
        input_tokens_path="stats.models.*.tokens.prompt|tool",
        output_tokens_path="stats.models.*.tokens.candidates|thoughts",
        cache_read_tokens_path="stats.models.*.tokens.cached",
        turns_path="stats.models.*.api.totalRequests",
        error_path="error.message",
        environment=(
            *("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_VERTEX_BASE_URL"),
        ),
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        skill_folder="{home}/.gemini/skills",
        model_argv=("--model", "{model}"),
    ),
}
_LAST_WORDS = 400
_OPENAI = "https://api.openai.com/v1"


def declared(whole: str, settings: ModelSettings) -> CommandSpec:
    """What `PROGRAM` or `PROGRAM:MODEL` names, from the config first; raises UnknownModel for none or a broken one."""
    name, _, model = whole.partition(":")
    spec = settings.commands.get(name) or PRESETS.get(name)
    if spec is None:
        known = sorted({*settings.commands, *PRESETS})
        hint = did_you_mean(name, known)
        raise UnknownModel(f"unknown command {name!r}; declared: {', '.join(known)}{hint}")
    if model and not spec.model_argv:
        raise UnknownModel(f"command {name} takes no model such as {model!r}: it declares no model_argv")
    if spec.prompt == "file" and not any("{prompt_file}" in part for part in spec.argv):
        raise UnknownModel(f"command {name}: prompt is 'file', but argv has no {{prompt_file}}")
    if spec.output != "text" and spec.text_path is None:
        raise UnknownModel(f"command {name}: output is {spec.output!r}, so text_path is needed")
    try:
        _parsed_paths(spec)
    except BadPath as problem:
        raise UnknownModel(f"command {name}: {problem}") from None
    return spec


class Command(Model):
    """One process per question."""

    def __init__(self, name: str, spec: CommandSpec, settings: ModelSettings) -> None:
        self.name = name
        self.spec = spec
        self.settings = settings
        self._paths = _parsed_paths(spec)

    async def complete(self, request: Request) -> Completion:
        network = network_of(self.settings, request, self._providers())
        return await network.told(self._complete(request, network))

    def _providers(self) -> list[str]:
        """The hosts that the program needs: those that are declared, and where its addresses lead."""
        addresses = [os.environ.get(name, "") for name in self.spec.environment]
        if any("{base_url}" in part for part in self.spec.argv):
            addresses.append(self._base_url())
        return [*self.spec.hosts, *(one for one in addresses if one.startswith(("http://", "https://")))]

    async def _complete(self, request: Request, network: AgentNetwork) -> Completion:
        if request.skill is not None and not mounts(self.spec):
            raise ModelFailed(
                f"command {self.name} says neither skill_folder nor skill_argv; use --skill-mode prepend",
                hopeless=True,
            )
        async with folders(request) as places:
            argv, view = await asyncio.to_thread(self._prepared, request, places)
            found: dict[str, Any] = {}
            trace = await steps.begun(request, f"command:{self.name}")
            events = CodexEvents(trace)
            prompt = _whole_prompt(request).encode("utf-8", "replace")
            read = partial(self._read_line, found, events) if self.spec.output == "jsonl" else None
            finished = None
            with suppress(TimeoutError):
                async with asyncio.timeout(own_deadline(request)):
                    finished = await run(
                        argv,
                        stdin=prompt if self.spec.prompt == "stdin" else b"",
                        cwd=places.workspace,
                        environment=clean_environment(places.home, self.spec.environment),
                        description=view,
                        network=network,
                        seconds=request.timeout_seconds,
                        on_line=read,
                    )
            if self.spec.trajectory is not None:
                await asyncio.to_thread(self._read_trajectory, trace, places)
            if finished is None:
                raise ModelTimedOut(events.paid(self._priced(self._completion(found, request, cut=True))))
            trace.ended = finished.exit_code in self.spec.ok_exit_codes
        try:
            return events.paid(self._priced(self._answer(finished, found, request)))
        except ModelError as failed:
            if found:  # a program that fails may well say what it has used
                failed.completion = events.paid(self._priced(self._completion(found, request, cut=True)))
            raise

    def _prepared(
        self, request: Request, places: AgentFolders
    ) -> tuple[list[str], SandboxDescription | None]:
        """Lay out prompt and skill, and return the command line and what it may see."""
        prompt_file = places.home / "prompt.txt"
        prompt_file.write_text(_whole_prompt(request), "utf-8", "replace")
        values = {"workspace": places.workspace, "home": places.home, "prompt_file": prompt_file}
        _, _, model = self.name.partition(":")
        # A sandbox cannot make another one inside.
        own = "danger-full-access" if is_confined(request.sandbox) else "workspace-write"
        texts = {"base_url": self._base_url(), "model": model, "own_sandbox": own}
        given = (*self.spec.argv, *(self.spec.model_argv if model else ()))
        argv = [_filled(part, {**values, **texts}) for part in given]
        readable = [Path(path).expanduser() for path in self.spec.readable]
        if request.skill is not None:
            if self.spec.skill_folder is not None:
                mount(request.skill, places.workspace / _filled(self.spec.skill_folder, values), places)
            argv += [
                _filled(part, {**values, "skill": request.skill.resolve()}) for part in self.spec.skill_argv
            ]
        return confined(argv, request, places, readable)

    def _read_trajectory(self, trace: Trace, places: AgentFolders) -> None:
        """Note the steps in the file that the program has left, which is as hostile as its output."""
        values = {"workspace": places.workspace, "home": places.home}
        path = (places.workspace / _filled(self.spec.trajectory or "", values)).resolve()
        with suppress(OSError, ValueError, RecursionError):
            if any(path.is_relative_to(own) for own in (places.workspace, places.home)):
                atif.note(json.loads(files.read(path, MAX_LINE_BYTES, links=False)), trace)

    def _base_url(self) -> str:
        """Where a program that speaks OpenAI's API is to send its requests, as for `openai:` models."""
        return str(self.settings.params.get("base_url") or os.environ.get("OPENAI_BASE_URL") or _OPENAI)

    def _read_line(self, found: dict[str, Any], events: CodexEvents, line: bytes) -> bool:
        # Programs mix notes of their own into their output.
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            found.update(self._found(event))
            events.read(event)
        return False

    def _found(self, value: Any) -> dict[str, Any]:
        """What the paths lead to in one JSON value; of several lines, the last that has it counts."""
        values = {name: path.find(value) for name, path in self._paths.items()}
        return {name: one for name, one in values.items() if one is not None}

    def _answer(self, finished: EndedProgram, found: dict[str, Any], request: Request) -> Completion:
        if self.spec.output == "json" and not finished.cut:
            try:
                found.update(self._found(json.loads(finished.output or b"null")))
            except (ValueError, RecursionError):
                # A program that failed is quoted for its exit code, not for its missing JSON.
                self._check_exit(finished, request)
                start = message(finished.output[:200].decode("utf-8", "replace"))
                raise ModelFailed(f"{self.name}: unreadable JSON: {start}") from None
        if told := found.get("error"):
            raise ModelFailed(message(f"{self.name}: {told if isinstance(told, str) else json.dumps(told)}"))
        if not finished.cut:
            self._check_exit(finished, request)
        if self.spec.output == "text":
            text, cut = decoded(finished.output)
            return Completion(text=text, truncated=cut)
        if not isinstance(found.get("text"), str):
            raise ModelFailed(f"{self.name}: no text at {self.spec.text_path!r} in its output")
        return self._completion(found, request, cut=False)

    def _check_exit(self, finished: EndedProgram, request: Request) -> None:
        if finished.exit_code in self.spec.ok_exit_codes:
            return
        # Programs warn first, and say last what went wrong.
        last = without_secrets(finished.errors).strip()[-_LAST_WORDS:]
        words = message(f"{self.name} ended with exit code {finished.exit_code}: {last}")
        words += hint(finished.errors, request.sandbox)
        raise ModelBusy(words) if finished.exit_code in self.spec.busy_exit_codes else ModelFailed(words)

    def _priced(self, completion: Completion) -> Completion:
        return priced(completion, f"command:{self.name}", self.settings)

    def _completion(self, found: dict[str, Any], request: Request, *, cut: bool) -> Completion:
        text, capped_off = capped(str(found.get("text", "")))
        cost = provider_cost(found)
        tells = request.skill is not None and self.spec.skill_invoked_path is not None
        return Completion(
            text=text,
            truncated=cut or capped_off,
            input_tokens=count(found.get("input_tokens")),
            output_tokens=count(found.get("output_tokens")),
            cache_read_tokens=count(found.get("cache_read_tokens")),
            cost_usd=cost,
            cost_source=None if cost is None else "provider",
            turns=count(found.get("turns")),
            # A program that says where it tells, and tells nothing, has not invoked it.
            skill_loaded=bool(found.get("skill_invoked")) if tells else steps.of(request).loaded,
        )


def mounts(spec: CommandSpec) -> bool:
    """Whether the program can be given a skill's folder."""
    return spec.skill_folder is not None or bool(spec.skill_argv)


def _parsed_paths(spec: CommandSpec) -> dict[str, JsonPath]:
    """The paths of a program's settings, by what they lead to: `cost_path` leads to `cost`."""
    given = {name.removesuffix("_path"): path for name, path in spec if name.endswith("_path")}
    return {name: parse(path) for name, path in given.items() if path is not None}


def _filled(part: str, values: Mapping[str, object]) -> str:
    # Not str.format: arguments may hold JSON, whose braces are their own.
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", str(value))
    return part


def _whole_prompt(request: Request) -> str:
    return f"{request.system}\n\n{request.prompt}" if request.system else request.prompt

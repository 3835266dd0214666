"""Ask any program that the config declares: prompt by stdin or file, answer as text, JSON or JSON lines.

The program is started without a shell, in the attempt's workspace, with a new home and only the environment
that is allowed by name. The presets follow the programs' documentation; docs/models.md says what was tried.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from pathlib import Path
from typing import Any

from judges.judgment import Completion
from workers.messages import CommandSpec, ModelSettings
from workers.models import ModelBusy, ModelFailed, ModelTimedOut, Request, json_path
from workers.models.agent_folders import Folders, folders, mount, own_deadline
from workers.models.choose import UnknownModel
from workers.models.confine import confined
from workers.models.output import capped, decoded, message
from workers.models.prices import priced
from workers.models.process import Finished, clean_environment, run

PRESETS = {
    "codex": CommandSpec(
        argv=("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write", "-"),
        output="jsonl",
        text_path="item.text where type=item.completed and item.type=agent_message",
        input_tokens_path="usage.input_tokens where type=turn.completed",
        output_tokens_path="usage.output_tokens where type=turn.completed",
        cache_read_tokens_path="usage.cached_input_tokens where type=turn.completed",
        error_path="error.message where type=turn.failed",
        environment=("OPENAI_API_KEY", "CODEX_API_KEY", "OPENAI_BASE_URL"),
        skill_folder="{home}/.agents/skills",
    ),
    "gemini": CommandSpec(
        argv=("gemini", "--output-format", "json", "--approval-mode", "yolo"),
        output="json",
        text_path="response",
        input_tokens_path="stats.models.*.tokens.prompt",
        output_tokens_path="stats.models.*.tokens.candidates",
        cache_read_tokens_path="stats.models.*.tokens.cached",
        error_path="error.message",
        environment=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
        skill_folder="{home}/.gemini/skills",
    ),
}
_PATHS = (
    *("text", "input_tokens", "output_tokens", "cache_read_tokens", "cost", "turns"),
    *("skill_invoked", "error"),
)


def declared(name: str, settings: ModelSettings) -> CommandSpec:
    """The program of that name, from the config first; raises UnknownModel for none or a broken one."""
    spec = settings.commands.get(name) or PRESETS.get(name)
    if spec is None:
        known = sorted({*settings.commands, *PRESETS})
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UnknownModel(f"unknown command {name!r}; {hint}declared: {', '.join(known)}")
    if spec.prompt == "file" and not any("{prompt_file}" in part for part in spec.argv):
        raise UnknownModel(f"command {name}: prompt is 'file', but argv has no {{prompt_file}}")
    if spec.output != "text" and spec.text_path is None:
        raise UnknownModel(f"command {name}: output is {spec.output!r}, so text_path is needed")
    try:
        _parsed_paths(spec)
    except json_path.BadPath as problem:
        raise UnknownModel(f"command {name}: {problem}") from None
    return spec


class Command:
    """One process per question."""

    def __init__(self, name: str, spec: CommandSpec, settings: ModelSettings) -> None:
        self.name = name
        self.spec = spec
        self.settings = settings
        self.agent = spec.agent
        self._paths = _parsed_paths(spec)

    async def complete(self, request: Request) -> Completion:
        if request.skill is not None and not mounts(self.spec):
            raise ModelFailed(
                f"command {self.name} says neither skill_folder nor skill_argv; use --skill-mode prepend",
                hopeless=True,
            )
        async with folders(request) as places:
            argv = await asyncio.to_thread(self._prepared, request, places)
            found: dict[str, Any] = {}
            prompt = _whole_prompt(request).encode("utf-8", "replace")
            try:
                async with asyncio.timeout(own_deadline(request)):
                    finished = await run(
                        argv,
                        stdin=prompt if self.spec.prompt == "stdin" else b"",
                        cwd=places.workspace,
                        environment=clean_environment(places.home, self.spec.environment),
                        on_line=self._line_reader(found) if self.spec.output == "jsonl" else None,
                    )
            except TimeoutError:
                raise ModelTimedOut(self._completion(found, cut=True)) from None
        return priced(self._answer(finished, found), f"command:{self.name}", self.settings)

    async def close(self) -> None:
        pass

    def _prepared(self, request: Request, places: Folders) -> list[str]:
        """Lay out prompt and skill, and return the command line."""
        prompt_file = places.home / "prompt.txt"
        prompt_file.write_text(_whole_prompt(request), "utf-8", "replace")
        values = {"workspace": places.workspace, "home": places.home, "prompt_file": prompt_file}
        argv = [_filled(part, values) for part in self.spec.argv]
        readable = [Path(path).expanduser() for path in self.spec.readable]
        if request.skill is not None:
            if self.spec.skill_folder is not None:
                mount(request.skill, places.workspace / _filled(self.spec.skill_folder, values))
            argv += [
                _filled(part, {**values, "skill": request.skill.resolve()}) for part in self.spec.skill_argv
            ]
            readable.append(request.skill)
        return confined(
            argv, sandbox=request.sandbox, workspace=places.workspace, home=places.home, readable=readable
        )

    def _line_reader(self, found: dict[str, Any]) -> Any:
        def read(line: bytes) -> bool:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                return False  # programs mix notes of their own into their output
            found.update(self._found(value))
            return False

        return read

    def _found(self, value: Any) -> dict[str, Any]:
        """What the paths lead to in one JSON value; of several lines, the last that has it counts."""
        values = {name: path.find(value) for name, path in self._paths.items()}
        return {name: one for name, one in values.items() if one is not None}

    def _answer(self, finished: Finished, found: dict[str, Any]) -> Completion:
        if self.spec.output == "json" and not finished.cut:
            try:
                found = self._found(json.loads(finished.output or b"null"))
            except (ValueError, RecursionError):
                # A program that failed is quoted for its exit code, not for its missing JSON.
                self._check_exit(finished)
                raise ModelFailed(f"{self.name}: unreadable JSON: {_start(finished.output)}") from None
        if told := found.get("error"):
            raise ModelFailed(message(f"{self.name}: {told if isinstance(told, str) else json.dumps(told)}"))
        if not finished.cut:
            self._check_exit(finished)
        if self.spec.output == "text":
            text, cut = decoded(finished.output)
            return Completion(text=text, truncated=cut)
        if not isinstance(found.get("text"), str):
            raise ModelFailed(f"{self.name}: no text at {self.spec.text_path!r} in its output")
        return self._completion(found, cut=False)

    def _check_exit(self, finished: Finished) -> None:
        if finished.exit_code in self.spec.ok_exit_codes:
            return
        words = message(f"{self.name} ended with exit code {finished.exit_code}: {finished.errors}")
        raise ModelBusy(words) if finished.exit_code in self.spec.busy_exit_codes else ModelFailed(words)

    def _completion(self, found: dict[str, Any], *, cut: bool) -> Completion:
        text, capped_off = capped(str(found.get("text", "")))
        cost = found.get("cost")
        known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < float("inf")
        return Completion(
            text=text,
            truncated=cut or capped_off,
            input_tokens=_count(found.get("input_tokens")),
            output_tokens=_count(found.get("output_tokens")),
            cache_read_tokens=_count(found.get("cache_read_tokens")),
            cost_usd=float(cost) if known and cost is not None else None,
            cost_source="provider" if known else None,
            turns=_count(found.get("turns")),
            # A program that says where it tells, and tells nothing, has not invoked it.
            skill_invoked=bool(found.get("skill_invoked")) if self.spec.skill_invoked_path else None,
        )


def mounts(spec: CommandSpec) -> bool:
    """Whether the program can be given a skill's folder."""
    return spec.skill_folder is not None or bool(spec.skill_argv)


def _parsed_paths(spec: CommandSpec) -> dict[str, json_path.JsonPath]:
    given = {name: getattr(spec, f"{name}_path") for name in _PATHS}
    return {name: json_path.parse(path) for name, path in given.items() if path is not None}


def _filled(part: str, values: dict[str, Path]) -> str:
    # Not str.format: arguments may hold JSON, whose braces are their own.
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", str(value))
    return part


def _whole_prompt(request: Request) -> str:
    return f"{request.system}\n\n{request.prompt}" if request.system else request.prompt


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _start(output: bytes) -> str:
    return message(output[:200].decode("utf-8", "replace"))

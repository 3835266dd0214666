"""Ask Claude Code: `claude -p` in a fresh home and workspace, read from its stream of JSON events.

Both arms get identical flags; in mount mode the candidate's skill is added with --plugin-dir. The switches
below keep the user's settings, memories, bundled skills and CLAUDE.md files out of both arms.

Of its stream, `is_error` says that a run failed, and `subtype` does not: API errors come with "success" and odd exit
codes. The model's own ends, a refusal or an answer that was cut, also come as errors but are answers. A run that is
killed leaves no result, so everything is also collected on the way; partial messages alone tell what each call said.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Any, TypeGuard

from judges.judgment import Completion, usage
from workers.models import steps
from workers.models.agent_network import AgentNetwork, network_of
from workers.models.agent_view import confined
from workers.models.model import (
    CUT,
    KEYS,
    MAX_OUTPUT_BYTES,
    MESSAGE_USAGE,
    UNBILLED,
    Model,
    ModelError,
    ModelFailed,
    ModelTimedOut,
    Request,
    capped,
    count,
    message,
    named,
    tokens,
)
from workers.models.prices import priced
from workers.models.program import AgentFolders, EndedProgram, clean_environment, folders, own_deadline, run
from workers.models.retries import HOPELESS, RETRIES
from workers.models.steps import MOST_STEPS, Trace
from workers.store.messages import ModelSettings

_NO_ACCESS = ("Invalid API key", "There's an issue with the selected model", "Credit balance is too low")
_LONGEST_NAME, _MOST_NAMES = (
    200,
    50,
)  # of what the CLI calls things, and of tools and models that are told apart
_SYNTHETIC = "<synthetic>"  # the "model" of what the CLI says itself


class Stream:
    """One run's events so far, and its steps."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = Trace() if trace is None else trace
        self.version: str | None = None
        self.result: dict[str, Any] | None = None
        self.hopeless_status: int | None = None
        self._model: str | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        self._running: dict[Any, dict[str, Any]] = {}
        self._waiting = False
        self._served: set[str | None] = set()
        self._begun = ""
        self._said = ""
        self._complaint: Any = None

    def read(self, line: bytes) -> bool:
        """Read one event; returns True when the run cannot succeed any more and should be stopped."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict):
            return False
        kind = event.get("type")
        self.trace.observed = self.trace.observed or kind in ("assistant", "system", "stream_event")
        if kind == "system":
            self._system(event)
        elif kind == "stream_event" and isinstance(event.get("event"), dict):
            self._partial(event["event"], event.get("parent_tool_use_id"))
        elif kind == "assistant" and isinstance(event.get("message"), dict):
            self._assistant(event["message"], event)
        elif kind == "user" and isinstance(event.get("message"), dict):
            self._user(event["message"], event)
        elif kind == "result":
            self.result = event
            self.trace.ended = True
        return self.hopeless_status is not None

    def _system(self, event: dict[str, Any]) -> None:
        if event.get("subtype") == "init":
            version, model = event.get("claude_code_version"), event.get("model")
            self.version = self.trace.version = named(version)
            self._model = model if isinstance(model, str) else None
        if event.get("subtype") == "compact_boundary":
            how = json.dumps(_mapping(event.get("compact_metadata")))
            self.trace.step("system", f"the conversation was compacted: {how}")
        self._waiting = self._waiting or event.get("status") == "requesting"
        # The CLI would try a wrong key again and again.
        if event.get("subtype") == "api_retry" and event.get("error_status") in HOPELESS:
            self.hopeless_status = event["error_status"]

    def _partial(self, event: dict[str, Any], parent: Any) -> None:
        """Note the begin of a call, or its end with its final usage. `parent` is the tool that a sub-agent runs in."""
        said = event.get("message")
        if event.get("type") == "message_start" and isinstance(said, dict):
            self._call(said, parent)
        call = self._running.get(parent) if isinstance(parent, str | None) else None
        if event.get("type") == "message_delta" and call is not None:
            counts, delta = event.get("usage"), event.get("delta")
            call["usage"] |= _known_tokens(counts)
            reason = _mapping(delta).get("stop_reason")
            call["stop_reason"] = reason if _is_name(reason) else None

    def _call(self, said: dict[str, Any], parent: Any) -> None:
        name = said.get("id")
        if not _is_name(name) or name in self._calls or not (parent is None or _is_name(parent)):
            return
        if len(self._calls) >= MOST_STEPS:
            return
        if parent is None:
            # The CLI has an answer that was cut continued, so the next one is the rest of it.
            if len(self._served) < _MOST_NAMES:
                self._served.add(named(said.get("model")))
            self._begun = self._said[:MAX_OUTPUT_BYTES] if self._last.get("stop_reason") in CUT else ""
        self._waiting = False
        model, told = str(said.get("model"))[:_LONGEST_NAME], _known_tokens(said.get("usage"))
        self._calls[name] = self._running[parent] = {"model": model, "usage": told, "stop_reason": None}
        self.trace.step("agent", key=name, parent=parent, model=named(said.get("model")))

    @property
    def _last(self) -> dict[str, Any]:
        return self._running.get(None, {})

    def _assistant(self, said: dict[str, Any], event: dict[str, Any]) -> None:
        if said.get("model") == _SYNTHETIC:
            self._complaint = event.get("error")
            return
        parent = _parent(event)
        self._call(said, event.get("parent_tool_use_id"))
        key = said.get("id")
        step = self.trace.step("agent", key=key if isinstance(key, str) else None, parent=parent)
        for block in _blocks(said):
            if block.get("type") == "text":
                self._said = self._begun + str(block.get("text", ""))
                self.trace.say(step, str(block.get("text", "")))
            elif block.get("type") == "thinking":
                self.trace.say(step, str(block.get("thinking", "")), "reasoning")
            elif block.get("type") == "tool_use":
                name, asked = str(block.get("name")), block.get("input")
                self.trace.call(step, str(block.get("id")), name, asked, parent)

    def _user(self, said: dict[str, Any], event: dict[str, Any]) -> None:
        """What tools gave back, and what the CLI said in the user's place, as it does with a skill's text."""
        parent = _parent(event)
        for block in _blocks(said):
            if block.get("type") == "tool_result":
                text, failed = _plain(block.get("content")), bool(block.get("is_error"))
                self.trace.result(str(block.get("tool_use_id")), text, failed=failed, parent=parent)
            elif block.get("type") == "text":
                source = "system" if event.get("isSynthetic") else "user"
                self.trace.step(source, str(block.get("text", "")), parent=parent)

    @property
    def text(self) -> str:
        """The final answer; of a run that did not get there, the last thing that the model said."""
        final = self.result.get("result") if self.result and not self.failed else None
        return final if isinstance(final, str) and not self._begun else self._said

    @property
    def turns(self) -> int | None:
        """How many times a model was called; what the CLI calls turns leaves some out and adds others."""
        return len(self._calls) or None

    @property
    def failed(self) -> bool:
        """Whether the CLI says that it gave no answer."""
        return self.result is not None and bool(self.result.get("is_error"))

    @property
    def _out_of_turns(self) -> bool:
        return self.result is not None and self.result.get("subtype") == "error_max_turns"

    @property
    def _answered(self) -> bool:
        """Whether there is an answer to judge; refusals and cut answers are, though the CLI calls them errors."""
        if self.result is None or not self.failed or self._out_of_turns:
            return self.result is not None
        return self.result.get("stop_reason") == "refusal" or self._complaint == "max_output_tokens"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Tools that were denied: such a run ends well, but could not do what it wanted."""
        denials = self.result.get("permission_denials") if self.result else None
        denied = [one for one in denials if isinstance(one, dict)] if isinstance(denials, list) else []
        names = Counter(str(one.get("tool_name"))[:_LONGEST_NAME] for one in denied).most_common(_MOST_NAMES)
        return tuple(f"tool {message(name)} was denied {times} times" for name, times in sorted(names))

    @property
    def used(self) -> list[tuple[str | None, str, Completion]] | None:
        """Tokens of each call, by its id and model; empty where none was billed, None where nobody tells.

        Long prompts have prices of their own, so calls are not added up. What the result counts beside them, such
        as calls that the stream does not show, is one more. Where a call was cut off with the run, nobody knows
        what it said.
        """
        told = self.result.get("modelUsage") if self.result else None
        if not isinstance(told, dict) or len(told) > _MOST_NAMES or not (told or self.failed):
            calls = [(key, self._asked(call), _counted(call)) for key, call in self._calls.items()]
            return [
                *calls,
                *([(None, str(self._model), _NOT_TOLD)] if calls and self._waiting else []),
            ] or None
        totals = {
            name: Completion.model_validate(tokens(counts, _RESULT_NAMES))
            for name, counts in told.items()
            if isinstance(counts, dict)
        }
        ended = {key: call for key, call in self._calls.items() if call["stop_reason"] is not None}
        return [
            (key, name, part)
            for name, total in totals.items()
            for key, part in _parts(
                total, {k: _counted(call) for k, call in ended.items() if self._asked(call, totals) == name}
            )
        ]

    def _asked(self, call: dict[str, Any], known: Collection[str] = ()) -> str:
        """The model that a call was for: the run's, unless the result counts the one that answered apart."""
        served = str(call.get("model"))
        return served if served in known else self._model or served

    def completion(self, settings: ModelSettings) -> Completion:
        """What was said and spent; the CLI's own cost is not used, it prices unknown models like Opus."""
        text, cut = capped(self.text)
        # Out of turns, out of tokens, or stopped from outside.
        unfinished = self.result is None or self._out_of_turns or self._last.get("stop_reason") in CUT
        used = self.used
        specs = [f"claude-code:{model.partition('[')[0]}" for _, model, _ in used or ()]
        parts = [priced(spent, spec, settings) for spec, (*_, spent) in zip(specs, used or (), strict=True)]
        self._note_spending(used or [], parts)
        total = usage([UNBILLED] if used == [] else parts)
        known = bool(parts) and total["cost_usd"] is not None
        return Completion(
            text=text,
            truncated=cut or unfinished,
            **total,
            cost_source=parts[0].cost_source if known else None,
            unit_prices=parts[0].unit_prices if known and len(set(specs)) == 1 else None,
            turns=self.turns,
            skill_loaded=self.trace.loaded,
            agent_version=self.version,
            # By the replies' own words; sub-agents may have models of their own.
            served_model=", ".join(sorted(filter(None, self._served))) or None,
            warnings=self.warnings,
        )

    def _note_spending(self, used: list[tuple[str | None, str, Completion]], parts: list[Completion]) -> None:
        for key, call in self._calls.items():
            self.trace.step("agent", key=key).facts["stop_reason"] = named(call["stop_reason"])
        spent = zip(used, parts, strict=True)
        self.trace.bill((key, model, part) for (key, model, raw), part in spent if raw is not _NOT_TOLD)

    def error(self, finished: EndedProgram) -> ModelError | None:
        """Why the run gave no answer, or None where it did."""
        if self.result is None and self.hopeless_status is None:
            how = f"exit code {finished.exit_code}"
            return ModelFailed(message(f"claude ended without a result ({how}): {finished.errors}"))
        if self._answered:
            return None
        result = self.result or {}
        final = result.get("result")
        complaint = final if isinstance(final, str) and final else str(result.get("errors", ""))
        status = self.hopeless_status or result.get("api_error_status")
        hopeless = status in HOPELESS or any(sign in complaint for sign in _NO_ACCESS)
        words = f"claude failed{f' with HTTP {status}' if status else ''}: {complaint or self._said}"
        return ModelFailed(message(words), hopeless=hopeless)


_RESULT_NAMES = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_NOT_TOLD = UNBILLED.model_copy(update={"output_tokens": None, "cost_usd": None})


def _known_tokens(told: Any) -> dict[str, int]:
    counts = {name: count(_mapping(told).get(name)) for name in MESSAGE_USAGE}
    return {name: known for name, known in counts.items() if known is not None}


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


def _counted(call: dict[str, Any]) -> Completion:
    """A call's tokens; the output tokens are None until the call has ended."""
    counts = call["usage"]
    if call["stop_reason"] is None:
        counts = {**counts, "output_tokens": None}
    return Completion.model_validate(tokens(counts))


def _parts(total: Completion, calls: dict[str, Completion]) -> list[tuple[str | None, Completion]]:
    """The calls that make up a total, and what is left of it; the total alone where they are no parts of it."""
    spent = usage(list(calls.values()))
    if None in (spent["input_tokens"], spent["output_tokens"], total.input_tokens, total.output_tokens):
        return [(None, total)]
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    left: dict[str, Any] = {name: (getattr(total, name) or 0) - (spent[name] or 0) for name in names}
    if min(left.values()) < 0:
        return [(None, total)]
    return [*calls.items(), *([(None, Completion(**left))] if any(left.values()) else [])]


def _blocks(said: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = said.get("content")
    return [block for block in (blocks if isinstance(blocks, list) else []) if isinstance(block, dict)]


def _plain(content: Any) -> str:
    """A tool's result as text; of images and the like, only what they are."""
    blocks = content if isinstance(content, list) else [content]
    parts = [
        block.get("text", f"({block.get('type')})") if isinstance(block, dict) else block for block in blocks
    ]
    return "\n".join(str(part) for part in parts if part is not None)


def _parent(event: dict[str, Any]) -> str | None:
    """The tool call that a sub-agent's event belongs to."""
    parent = event.get("parent_tool_use_id")
    return parent if isinstance(parent, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


DEFAULT_TOOLS = ("Bash", "Edit", "Glob", "Grep", "Read", "Skill", "Write")
DEFAULT_MAX_TURNS = 50
_ANTHROPIC = "https://api.anthropic.com"
_ALLOWED = (*KEYS["claude-code"], "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS")
_SWITCHES = {
    "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS": "1",
    "CLAUDE_CODE_DISABLE_POLICY_SKILLS": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
_FLAGS = (
    *("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
    *("--setting-sources", "", "--strict-mcp-config", "--no-session-persistence"),
)
_NO_KEY = "claude-code has no key; set ANTHROPIC_API_KEY, or CLAUDE_CODE_OAUTH_TOKEN by `claude setup-token`"


class ClaudeCode(Model):
    """One agent run per question, each a process of its own."""

    def __init__(self, name: str, settings: ModelSettings) -> None:
        self.name = name
        self.settings = settings

    async def complete(self, request: Request) -> Completion:
        provider = self.settings.params.get("base_url") or os.environ.get("ANTHROPIC_BASE_URL") or _ANTHROPIC
        network = network_of(self.settings, request, [str(provider)])
        return await network.told(self._complete(request, network))

    async def _complete(self, request: Request, network: AgentNetwork) -> Completion:
        program = executable()
        if not any(os.environ.get(name) for name in KEYS["claude-code"]):
            raise ModelFailed(_NO_KEY, hopeless=True)
        async with folders(request) as places:
            argv, view = await asyncio.to_thread(
                confined, [program, *self.arguments(request)], request, places
            )
            trace = await steps.begun(request, f"claude-code:{self.name}".rstrip(":"))
            stream = Stream(trace)
            try:
                async with asyncio.timeout(own_deadline(request)):
                    finished = await run(
                        argv,
                        stdin=request.prompt.encode("utf-8", "replace"),
                        cwd=places.workspace,
                        environment=self._environment(request, places),
                        description=view,
                        network=network,
                        seconds=request.timeout_seconds,
                        on_line=stream.read,
                    )
            except TimeoutError:
                raise ModelTimedOut(stream.completion(self.settings)) from None
            if (error := stream.error(finished)) is not None:
                if stream.used is not None:
                    error.completion = stream.completion(self.settings)
                raise error
            return stream.completion(self.settings)

    def arguments(self, request: Request) -> list[str]:
        """The CLI's arguments; only --plugin-dir tells the arms apart, and nothing in prepend mode."""
        tools = self.settings.tools if self.settings.tools is not None else DEFAULT_TOOLS
        # Without a workspace it is a plain question, such as a rubric judge's: no tools.
        allowed = ",".join(tools) if request.workspace is not None else ""
        # A tool may be allowed for some uses only, as in Bash(git *); it is offered by its bare name.
        offered = ",".join(dict.fromkeys(tool.partition("(")[0] for tool in tools)) if allowed else ""
        params = self._params(request)
        flags = [*_FLAGS, "--max-turns", str(params.get("max_turns", DEFAULT_MAX_TURNS)), "--tools", offered]
        if allowed:
            flags += ["--allowedTools", allowed]
        if self.name:
            flags += ["--model", self.name]
        if system := request.system or params.get("system"):
            flags += ["--append-system-prompt", str(system)]
        if request.skill is not None:
            flags += ["--plugin-dir", str(request.skill.resolve())]
        return flags

    def _params(self, request: Request) -> dict[str, Any]:
        return {**self.settings.params, **request.params}

    def _environment(self, request: Request, places: AgentFolders) -> dict[str, str]:
        environment = {
            **clean_environment(places.home, _ALLOWED),
            **_SWITCHES,
            "CLAUDE_CONFIG_DIR": str(places.home / ".claude"),
            # An agent that is asked again starts from nothing, so the CLI itself retries a call, as often as we would.
            "CLAUDE_CODE_MAX_RETRIES": str(RETRIES if self.settings.retry else 0),
        }
        if base_url := self.settings.params.get("base_url"):
            environment["ANTHROPIC_BASE_URL"] = str(base_url)
        if max_tokens := self._params(request).get("max_tokens"):
            environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max_tokens)
        return environment


def executable() -> str:
    """The CLI's path: UPLIFT_CLAUDE, or `claude` on PATH; raises ModelFailed where there is none."""
    wanted = os.environ.get("UPLIFT_CLAUDE") or "claude"
    found = shutil.which(wanted)
    if found is None:
        raise ModelFailed(
            f"{wanted} not found; install it (npm install -g @anthropic-ai/claude-code) or use --mock",
            hopeless=True,
        )
    return found


@lru_cache(maxsize=1)
def version() -> str | None:
    """The CLI's version as it says itself, or None where it does not; takes about half a second, once."""
    try:
        said = subprocess.run([executable(), "--version"], capture_output=True, timeout=30, check=False)
    except (ModelFailed, OSError, subprocess.TimeoutExpired):
        return None
    return message(said.stdout.decode("utf-8", "replace")) or None

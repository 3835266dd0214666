"""Ask Claude Code: `claude -p` in a fresh home and workspace, read from its stream of JSON events.

Both arms get identical flags; in mount mode the candidate's skill is added with --plugin-dir. The switches
below keep the user's settings, memories, bundled skills and CLAUDE.md files out of both arms.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from functools import lru_cache
from typing import TypeVar

from judges.judgment import Completion
from workers.messages import ModelSettings
from workers.models import ModelFailed, ModelTimedOut, Request
from workers.models.agent_folders import Folders, folders, own_deadline
from workers.models.claude_stream import Stream
from workers.models.confine import confined
from workers.models.output import capped, message
from workers.models.prices import priced
from workers.models.process import clean_environment, run

Number = TypeVar("Number", int, float)

DEFAULT_TOOLS = ("Bash", "Edit", "Glob", "Grep", "Read", "Skill", "Write")
DEFAULT_MAX_TURNS = 50
# An agent that is asked again starts from nothing, so the CLI itself retries a call, as often as we would.
RETRIES = 5
CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_ALLOWED = (*CREDENTIALS, "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS")
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
    *("-p", "--output-format", "stream-json", "--verbose"),
    *("--setting-sources", "", "--strict-mcp-config", "--no-session-persistence"),
)
_NO_KEY = "claude-code has no key; set ANTHROPIC_API_KEY, or CLAUDE_CODE_OAUTH_TOKEN by `claude setup-token`"


class ClaudeCode:
    """One agent run per question, each a process of its own."""

    agent = True

    def __init__(self, name: str, settings: ModelSettings) -> None:
        self.name = name
        self.settings = settings

    async def complete(self, request: Request) -> Completion:
        program = executable()
        if not any(os.environ.get(name) for name in CREDENTIALS):
            raise ModelFailed(_NO_KEY, hopeless=True)
        async with folders(request) as places:
            argv = await asyncio.to_thread(self._confined, program, request, places)
            stream = Stream()
            try:
                async with asyncio.timeout(own_deadline(request)):
                    finished = await run(
                        argv,
                        stdin=request.prompt.encode("utf-8", "replace"),
                        cwd=places.workspace,
                        environment=self._environment(places),
                        on_line=stream.read,
                    )
            except TimeoutError:
                raise ModelTimedOut(self._completion(stream)) from None
            if (error := stream.error(finished)) is not None:
                raise error
            return self._completion(stream)

    async def close(self) -> None:
        pass

    def arguments(self, request: Request) -> list[str]:
        """The CLI's arguments; only --plugin-dir tells the arms apart, and nothing in prepend mode."""
        tools = self.settings.tools if self.settings.tools is not None else DEFAULT_TOOLS
        # Without a workspace it is a plain question, such as a rubric judge's: no tools.
        allowed = ",".join(tools) if request.workspace is not None else ""
        # A tool may be allowed for some uses only, as in Bash(git *); it is offered by its bare name.
        offered = ",".join(dict.fromkeys(tool.partition("(")[0] for tool in tools)) if allowed else ""
        params = {**self.settings.params, **request.params}
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

    def _confined(self, program: str, request: Request, places: Folders) -> list[str]:
        return confined(
            [program, *self.arguments(request)],
            sandbox=request.sandbox,
            workspace=places.workspace,
            home=places.home,
            readable=[request.skill] if request.skill is not None else [],
        )

    def _environment(self, places: Folders) -> dict[str, str]:
        environment = {
            **clean_environment(places.home, _ALLOWED),
            **_SWITCHES,
            "CLAUDE_CONFIG_DIR": str(places.home / ".claude"),
            "CLAUDE_CODE_MAX_RETRIES": str(RETRIES if self.settings.retry else 0),
        }
        if base_url := self.settings.params.get("base_url"):
            environment["ANTHROPIC_BASE_URL"] = str(base_url)
        return environment

    def _completion(self, stream: Stream) -> Completion:
        """What was said and spent; the CLI's own cost is not used, it prices unknown models like Opus."""
        text, cut = capped(stream.text)
        parts = [
            priced(used, f"claude-code:{model.partition('[')[0]}", self.settings)
            for model, used in stream.used.items()
        ]
        cost = _total([part.cost_usd for part in parts])
        return Completion(
            text=text,
            truncated=cut or stream.unfinished,
            input_tokens=_total([part.input_tokens for part in parts]),
            output_tokens=_total([part.output_tokens for part in parts]),
            cache_read_tokens=_total([part.cache_read_tokens for part in parts]),
            cache_write_tokens=_total([part.cache_write_tokens for part in parts]),
            cost_usd=cost,
            cost_source=None if cost is None else parts[0].cost_source,
            unit_prices=parts[0].unit_prices if cost is not None and len(parts) == 1 else None,
            turns=stream.turns,
            skill_invoked=stream.skill_invoked,
            agent_version=stream.version,
            warnings=stream.warnings,
        )


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


def _total(values: list[Number | None]) -> Number | None:
    """The sum over models; unknown where one is, or where there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None

"""Note an attempt's steps while they happen, from a program's events or an exchange with a model; ready at any time.

Everything noted comes from strangers: secrets are masked, long texts are cut in the middle and say so, and all texts
together have a bound. Beyond that bound or too many steps, what is left out is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from judges.judgment import Completion
from judges.safe_text import storable_text
from judges.trajectory import Step, ToolCall, Trajectory
from workers.models.model import Request, count, named, without_secrets

MOST_STEPS = 5000
MOST_CALLS = 200  # of one step
MOST_DEPTH = 20  # of sub-agents; those of deeper ones stand beside each other
LONGEST_TEXT = 100_000
LONGEST_RESULT = 20_000
MOST_CHARACTERS = 4 << 20  # of all texts; what comes later is cut to a few words
FEW_WORDS = 200
_LONGEST_NAME = 80
_LONGEST_KEY = 200
_SHORTEST_LINE = 8
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


@dataclass(frozen=True)
class Marks:
    """How one knows that a skill was loaded: what it may be called, and the lines of its file."""

    names: frozenset[str]
    lines: frozenset[str]

    def in_call(self, call: _Call, result: str) -> bool:
        """Whether a call that succeeded loaded the skill: a tool for skills named it, or its SKILL.md was read."""
        asked = call.arguments.get("skill") or call.arguments.get("name")
        if call.name in ("Skill", "activate_skill") and isinstance(asked, str):
            return skill_name(asked) in self.names
        if not call.mentions_skill_file:
            return False
        return any(line in result for line in self.lines)


def skill_name(text: str) -> str:
    """A skill's name as agents write it, whether it is asked for as `name`, `/name` or `plugin:name`."""
    bare = text.rpartition(":")[2].removeprefix("/")
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in bare
    )


@dataclass
class _Call:
    number: int
    key: str
    parent: str | None
    step: _Made
    name: str
    arguments: dict[str, Any]
    mentions_skill_file: bool = False
    result: str | None = None
    failed: bool = False


@dataclass
class _Made:
    """A step that may still grow; `depth` is how many sub-agents it is in."""

    facts: dict[str, Any]
    calls: list[_Call] = field(default_factory=list)
    depth: int = 0


class Trace:
    """The steps of one attempt so far; `skill` is the text that the arm was given, kept once for all attempts."""

    def __init__(self, skill: str = "") -> None:
        self.agent = ""
        self.version: str | None = None
        self.ended = False
        self.observed = False  # whether whoever answers tells its steps
        self._loaded = False
        self._marks: Sequence[Marks] = ()
        self._skill = skill
        self._cut_skill = False
        self._steps: list[_Made] = []
        self._calls: list[_Call] = []
        # What is looked for again and again, by what its program calls it: a line may name a million.
        self._keys: dict[str, _Made] = {}
        self._named: dict[str, _Call] = {}
        self._waiting: dict[tuple[str, str | None], list[_Call]] = {}
        self._unshown: list[_Made] = []
        self._room = MOST_CHARACTERS
        self._left_out = 0

    @property
    def is_empty(self) -> bool:
        return not self._steps

    def watch(self, marks: Sequence[Marks]) -> None:
        """Notice from now on whether one of these skills is loaded."""
        self._marks = marks

    @property
    def loaded(self) -> bool | None:
        """Whether one of the skills that are watched was loaded; None where nobody can tell."""
        return self._loaded if self._marks and self.observed else None

    def step(
        self, source: str, text: str = "", *, key: str | None = None, parent: str | None = None, **facts: Any
    ) -> _Made:
        """Add a step, or find the one with this key; `parent` is what its program calls the sub-agent's call."""
        if key is not None and (known := self._keys.get(key[:_LONGEST_KEY])) is not None:
            return known
        within = self._within(parent)
        depth = 0 if within is None else self._calls[within - 1].step.depth + 1
        made = _Made({"source": source, "at": _now(), "within": within, **facts}, depth=depth)
        if len(self._steps) < MOST_STEPS:
            self._steps.append(made)
            if key is not None:
                self._keys[key[:_LONGEST_KEY]] = made
        else:
            self._left_out += 1
        if text:
            self.say(made, text)
        return made

    def _within(self, parent: str | None) -> int | None:
        """The call that a sub-agent works for: the last of this name that is not a step of its own."""
        call = self._named.get(_short(parent) or "")
        if call is None:
            return None
        return call.number if call.step.depth < MOST_DEPTH else call.step.facts["within"]

    def say(self, step: _Made, text: str, name: str = "text") -> None:
        """Add to what a step says, or to another of its texts."""
        if name == "text" and step.facts["source"] != "agent":
            text = self._without_skill(step, text)
        before = step.facts.get(name, "")
        if len(before) > (LONGEST_TEXT if self._room > 0 else FEW_WORDS):
            self._left_out += 1
            return
        step.facts[name] = before + self._cut(text, LONGEST_TEXT)

    def _without_skill(self, step: _Made, text: str) -> str:
        """The text without the skill's, which is noted once; an agent's program shows it without its front matter."""
        _, _, body = self._skill.removeprefix("---\n").partition("\n---\n")
        for part in (self._skill, body):
            at = text.find(part) if len(part) > FEW_WORDS else -1
            if 0 <= at <= LONGEST_RESULT and "skill_at" not in step.facts:
                self._cut_skill = True
                before = self._cut(text[:at], LONGEST_TEXT)
                step.facts |= {"skill_at": len(before), "skill_from": len(self._skill) - len(part)}
                step.facts["text"] = before
                return text[at + len(part) :]
        return text

    def call(self, step: _Made, key: str, name: str, arguments: Any, parent: str | None = None) -> None:
        """Note that a step uses a tool."""
        if len(step.calls) >= MOST_CALLS or len(self._calls) >= MOST_STEPS:
            self._left_out += 1
            return
        told = named(name) or "?"
        key, parent = key[:_LONGEST_KEY], _short(parent)
        call = _Call(
            len(self._calls) + 1, key, parent, step, told[:_LONGEST_NAME], self._arguments(arguments)
        )
        # Whoever writes such a file has not read one.
        writes = told in ("Write", "Edit", "MultiEdit", "file_change")
        call.mentions_skill_file = not writes and "SKILL.md" in str(arguments)
        self._calls.append(call)
        self._waiting.setdefault((key, parent), []).append(call)
        if parent != key:
            self._named[key] = call
        step.calls.append(call)

    def _arguments(self, arguments: Any) -> dict[str, Any]:
        given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        try:
            text = without_secrets(storable_text(json.dumps(given, ensure_ascii=False)))
            if len(text) <= min(LONGEST_RESULT, self._room):
                self._room -= len(text)
                return dict(json.loads(text))
            shorter = {
                name: self._cut(str(value), LONGEST_RESULT // 4) for name, value in list(given.items())[:20]
            }
            return dict(json.loads(without_secrets(storable_text(json.dumps(shorter, ensure_ascii=False)))))
        except (ValueError, RecursionError, TypeError):
            return {}

    def result(self, key: str, text: str, *, failed: bool, parent: str | None = None) -> None:
        """Note what a tool gave back to the last call of this name that waits for it."""
        waiting = self._waiting.get((key[:_LONGEST_KEY], _short(parent)))
        if not waiting:
            return
        call = waiting.pop()
        call.failed = failed
        if not failed and any(marks.in_call(call, text) for marks in self._marks):
            self._loaded = True
        call.result = self._cut(text, LONGEST_RESULT)

    def spent(self, step: _Made, used: Completion) -> None:
        """Note what a step used and cost."""
        step.facts |= {name: getattr(used, name) for name in (*_TOKENS, "cost_usd")}

    def bill(self, parts: Iterable[tuple[str | None, str, Completion]]) -> None:
        """Note what each call used, by its step's key; what no step shows is a step of its own."""
        self._unshown = []
        for key, model, used in parts:
            known = self._keys.get(key[:_LONGEST_KEY]) if key is not None else None
            if known is None:
                known = _Made({"source": "agent", "model": named(model), "text": UNSHOWN})
                self._unshown.append(known)
            self.spent(known, used)

    def _cut(self, text: str, longest: int) -> str:
        """The text without secrets, cut in its middle where it is long; half a secret would be one, too."""
        longest = min(longest, max(self._room, FEW_WORDS))
        text = without_secrets(storable_text(text))
        if len(text) > longest:
            half = longest // 2
            text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters cut …]\n{text[-half:]}"
        self._room -= len(text)
        return text

    def trajectory(self) -> Trajectory | None:
        """The steps so far; None where whoever answered does not tell them."""
        if not self.observed:
            return None
        return Trajectory(
            agent=self.agent,
            version=self.version,
            ended=self.ended,
            left_out=self._left_out,
            skill=hashlib.sha256(self._skill.encode()).hexdigest() if self._cut_skill else None,
            steps=tuple(_step(made) for made in (*self._steps, *self._unshown)),
        )


def of(request: Request) -> Trace:
    """Where the steps of a request are noted; nobody reads them where nobody asked for them."""
    return request.trace if isinstance(request.trace, Trace) else Trace()


async def begun(request: Request, agent: str) -> Trace:
    """The request's trace with what a program is asked, which notices loads of its skill, or of those it lacks."""
    trace = of(request)
    trace.agent = agent
    folders = (request.skill,) if request.skill is not None else request.others
    trace.watch(await asyncio.to_thread(lambda: [marks(folder) for folder in folders]))
    if trace.is_empty:
        for source, text in (("system", request.system), ("user", request.prompt)):
            if text:
                trace.step(source, text)
    return trace


UNSHOWN = "(calls of which the program tells only what they used)"


def _short(key: str | None) -> str | None:
    return None if key is None else key[:_LONGEST_KEY]


def _step(made: _Made) -> Step:
    names = ToolCall.model_fields
    calls = tuple(ToolCall(**{name: getattr(call, name) for name in names}) for call in made.calls)
    return Step(**{**made.facts, "calls": calls})


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def marks(folder: Path) -> Marks:
    """How a mounted skill is known: by the name in its front matter and its folder's, and by the lines of its file."""
    file = folder / "SKILL.md"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    matter = text.removeprefix("---\n").partition("\n---")[0].splitlines() if text.startswith("---\n") else []
    said = [
        line.partition(":")[2].partition(" #")[0].strip().strip("'\"")
        for line in matter
        if line.startswith("name:")
    ]
    lines = (line.strip() for line in text.splitlines())
    return Marks(
        frozenset(skill_name(name) for name in (folder.name, *said[:1])),
        frozenset(line for line in lines if len(line) >= _SHORTEST_LINE),
    )


class CodexEvents:
    """The steps in what `codex exec --json` prints; other programs' lines hold none of its events."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._last: _Made | None = None
        self._reasoning_tokens: int | None = None

    def read(self, event: Any) -> None:
        kind, item = (event.get("type"), event.get("item")) if isinstance(event, dict) else (None, None)
        if kind in ("item.started", "item.completed") and isinstance(item, dict):
            self._item(item, done=kind == "item.completed")
        usage = event.get("usage") if kind == "turn.completed" else None
        if isinstance(usage, dict):
            self._reasoning_tokens = count(usage.get("reasoning_output_tokens"))

    def paid(self, completion: Completion) -> Completion:
        """Note what the whole turn used, which is told at its end, and return it."""
        if self._last is not None:
            self._trace.spent(self._last, completion)
            self._last.facts["reasoning_tokens"] = self._reasoning_tokens
        return completion

    def _item(self, item: Mapping[str, Any], *, done: bool) -> None:
        key, kind, trace = str(item.get("id")), item.get("type"), self._trace
        trace.observed = trace.observed or kind in _KNOWN
        if kind == "error":
            trace.step("system", str(item.get("message")), key=key)
            return
        if kind not in _KNOWN:
            return
        show = _ITEMS.get(str(kind))
        step = self._last = trace.step("agent", key=key)
        if show is None:
            if done:
                trace.say(step, str(item.get("text", "")), "text" if kind == "agent_message" else "reasoning")
            return
        name, arguments, result = show(item)
        if not step.calls:
            trace.call(step, key, name, arguments)
        if done:
            failed = item.get("status") in ("failed", "declined") or item.get("exit_code") not in (None, 0)
            trace.result(key, result, failed=failed or bool(item.get("error")))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_ITEMS: dict[str, Callable[[Mapping[str, Any]], tuple[str, Any, str]]] = {
    "command_execution": lambda item: (
        "command_execution",
        {"command": item.get("command")},
        str(item.get("aggregated_output", "")),
    ),
    "file_change": lambda item: ("file_change", {"changes": item.get("changes")}, str(item.get("status"))),
    "mcp_tool_call": lambda item: (
        f"{item.get('server')}.{item.get('tool')}",
        item.get("arguments"),
        _shown(item.get("error") or item.get("result")),
    ),
    "web_search": lambda item: ("web_search", {"query": item.get("query")}, ""),
}
_KNOWN = ("agent_message", "reasoning", *_ITEMS)

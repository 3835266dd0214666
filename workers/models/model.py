"""What all model clients share: request and errors, and cleaning answers and messages for storage.

Safe is valid Unicode, at most 4 MiB, and no secret in an error's text.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

from judges.errors import UpliftError
from judges.judgment import COUNT, Completion, Sandbox
from workers.store.messages import Task

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
UNBILLED = Completion(
    input_tokens=0, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0, cost_usd=0.0
)


class ModelError(UpliftError):
    """The model gave no answer; `completion` is what the call used and cost, None where nobody knows."""

    def __init__(self, message: str, *, completion: Completion | None = None) -> None:
        super().__init__(message)
        self.completion = completion


class ModelFailed(ModelError):
    """Asking again will not help: wrong key, unknown model, refused request.

    `hopeless` means that no other attempt of this model can succeed either; whoever lets nobody in bills nothing.
    """

    def __init__(self, message: str, *, hopeless: bool = False, completion: Completion | None = None) -> None:
        super().__init__(message, completion=completion or (UNBILLED if hopeless else None))
        self.hopeless = hopeless


class ModelBusy(ModelError):
    """Asking again later may help: rate limit, overload, dropped connection.

    `refused` means that the model is asked too often. One that refused all retries of a call is `hopeless`, as above.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        completion: Completion | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(message, completion=completion)
        self.retry_after = retry_after
        self.refused = refused
        self.hopeless = False


@dataclass(frozen=True)
class Room:
    """What a provider says is left of a model's limit: a share, of how many calls a minute (0: of something else).

    It is whole again after so many seconds.
    """

    share: float
    limit: float = 0.0
    seconds: float = 0.0


class UnknownModel(UpliftError, ValueError):
    """A model spec that names no model; the message says what is allowed."""


class ModelTimedOut(TimeoutError):
    """An agent was stopped at its deadline; `completion` holds what it had said and spent by then."""

    def __init__(self, completion: Completion) -> None:
        super().__init__("stopped at its deadline")
        self.completion = completion


class Request(NamedTuple):
    """One question, with what agents and simulated models need beside the prompt.

    `prompt` already holds the skill's text in prepend mode; `skill` is the folder to mount in mount mode.
    `workspace` is the agent's working folder and holds the task's files. `others` are skills of other arms, which
    whoever has none must not find; `trace` is where the steps are noted (`workers/models/steps.py`).
    """

    prompt: str
    system: str = ""
    task: Task | None = None
    arm: str = ""
    attempt: int = 1
    earlier_errors: int = 0
    skill: Path | None = None
    others: tuple[Path, ...] = ()
    workspace: Path | None = None
    suite: Path | None = None
    trace: object = None
    params: Mapping[str, Any] = MappingProxyType({})
    timeout_seconds: float = 300.0
    sandbox: Sandbox = "auto"


class Model(Protocol):
    """Anything that completes a request; `close` lets go of connections, which most models have none of."""

    async def complete(self, request: Request) -> Completion: ...

    async def close(self) -> None:
        return


# Which environment variables hold a model's key, by kind; any of them will do.
KEYS = {
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "command:codex": ("CODEX_API_KEY",),
    "command:gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
CUT = ("max_tokens", "model_context_window_exceeded")  # how Anthropic's models end an answer that is cut
_SECRET_NAME = re.compile(
    r"(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PASS|_PAT|CREDENTIALS?)(_?[0-9]+)?$"
)
_HEADERS_NAME = re.compile(r"HEADERS?$")
_HEADER = re.compile(r"\s*([\w-]+)\s*[:=]\s*(\S.*)")
# They say what is spoken, and their values are words that any answer may hold.
_OPEN_HEADERS = frozenset({"accept", "anthropic-beta", "anthropic-version", "content-type", "user-agent"})
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORTEST_SECRET = 8
_MESSAGE_CHARACTERS = 500
_MOST_CHARACTERS = 100_000  # of a text that are looked at for a message


def capped(text: str) -> tuple[str, bool]:
    """The text with lone surrogates replaced, cut at 4 MiB of UTF-8, and whether it was cut."""
    if len(text) * 3 <= MAX_OUTPUT_BYTES and text.isascii():
        return text, False
    return decoded(_SURROGATE.sub("\ufffd", text).encode())


def decoded(data: bytes) -> tuple[str, bool]:
    """Bytes as text, cut at 4 MiB; bytes that are no UTF-8 become the replacement character."""
    if len(data) <= MAX_OUTPUT_BYTES:
        return data.decode("utf-8", "replace"), False
    # A character that the cut went through is dropped, not replaced: the model did not say it.
    return data[:MAX_OUTPUT_BYTES].decode("utf-8", "ignore"), True


def secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the secrets in an environment, longest first; short values would match by chance.

    That is the values that their names call secret, those of headers, and passwords in addresses; each also as
    JSON and as an address would spell it.
    """
    plain = {
        secret.strip()
        for name, value in environment.items()
        for secret in _secret_parts(name.upper(), value)
        if len(secret.strip()) >= _SHORTEST_SECRET
    }
    found = {form for secret in plain for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
    return sorted(found, key=len, reverse=True)


def _secret_parts(name: str, value: str) -> Iterator[str]:
    if _SECRET_NAME.search(name):
        yield value
    for password in _PASSWORD_IN_URL.findall(value):
        yield from (password, unquote(password))
    if _HEADERS_NAME.search(name):
        for line in re.split(r"[\r\n,]", value):
            header = _HEADER.fullmatch(line)
            if header and header[1].lower() not in _OPEN_HEADERS:
                # After a word such as Bearer, the part by itself is the secret.
                yield from (header[2], *header[2].split())


def own_secrets() -> list[str]:
    """List the secrets in this process's environment, which is read again when it grows."""
    return _secrets_among(len(os.environ))


@lru_cache(maxsize=1)
def _secrets_among(names: int) -> list[str]:
    return secrets()


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with every secret that the environment holds replaced."""
    for value in secrets(environment) if environment is not None else own_secrets():
        text = text.replace(value, "[redacted]")
    return text


def named(value: object) -> str | None:
    """The name that a reply gives to the model that wrote it, on one short line; None where it gives none."""
    return (message(value) or None) if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """A token count from a provider's reply; None where it is missing or impossible."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value in COUNT else None


MESSAGE_USAGE = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def tokens(
    usage: Mapping[str, Any], names: tuple[str, str, str, str] = MESSAGE_USAGE
) -> dict[str, int | None]:
    """Read token counts as Anthropic writes them: its input count leaves out cached tokens, ours includes them."""
    plain, output, read, written = (count(usage.get(name)) for name in names)
    return {
        "input_tokens": None if plain is None else plain + (read or 0) + (written or 0),
        "output_tokens": output,
        "cache_read_tokens": read,
        "cache_write_tokens": written,
    }


def message(text: str, environment: Mapping[str, str] | None = None) -> str:
    """An error's text on one short line, without any secret that the environment holds."""
    text = without_secrets(text, environment)[:_MOST_CHARACTERS]
    line = " ".join(re.sub(r"[^\S\n]|[\x00-\x1f\x7f-\x9f]", " ", text).split())
    line = _SURROGATE.sub("\ufffd", line)
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"


running: set[Callable[[], None]] = (
    set()
)  # each ends a program that stands for a model, and all it has started


def kill_programs() -> None:
    """Kill every running program; for a worker that must stop at once."""
    for kill in list(running):
        kill()


def kill_group(group: int) -> None:
    """Kill all processes of a group, where there are any that we may kill."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)

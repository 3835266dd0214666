"""What a model said, made safe to store: valid Unicode, at most 4 MiB, and no secret in an error's text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache

from workers.models import MAX_OUTPUT_BYTES

_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORTEST_SECRET = 8
_MESSAGE_CHARACTERS = 500


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
    """The values in the environment that its names call secret, longest first; short ones would hit by chance."""
    found = {
        value
        for name, value in environment.items()
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name.upper())
    }
    return sorted(found, key=len, reverse=True)


@lru_cache(maxsize=1)
def _own_secrets(names: int) -> list[str]:
    return secrets()


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with every secret that the environment holds replaced; our own is read again when it grows."""
    for value in secrets(environment) if environment is not None else _own_secrets(len(os.environ)):
        text = text.replace(value, "[redacted]")
    return text


def message(text: str, environment: Mapping[str, str] | None = None) -> str:
    """An error's text on one short line, without any secret that the environment holds."""
    text = without_secrets(text, environment)
    line = " ".join(re.sub(r"[^\S\n]|[\x00-\x1f\x7f-\x9f]", " ", text).split())
    line = _SURROGATE.sub("\ufffd", line)
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"

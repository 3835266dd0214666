"""Make text from models, tasks and judges safe to print: one line, no control characters, no tricks."""

from __future__ import annotations

import re
import unicodedata

# CSI and OSC sequences go as a whole; what is left of any other escape loses its control characters below.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]")
# Cc control, Cf format (bidi overrides, zero-width), Cs lone surrogates, Co private use, Cn unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def plain(text: str, limit: int | None = None) -> str:
    """The text on one line without escapes, control or bidi characters; cut with … at `limit` characters."""
    if not text.isascii() or not text.isprintable():
        text = _ESCAPES.sub("", text)
        text = "".join(map(_visible, text))
    text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        return text[: max(limit - 1, 0)] + "…"
    return text


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _HIDDEN else character

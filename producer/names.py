"""Names of files: where they go by default, and ids from outside, made safe before they become one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

DEFAULT_STATE_ROOT = Path(".uplift")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_REMAINS = 80


class InvalidId(ValueError):
    """An id that cannot name a run."""


def file_name(text: str) -> str:
    """A file name for any id: the id itself where that is safe, else what remains of it and a short digest.

    The digest follows a `~`, which no safe id holds, so that no two ids share a name.
    """
    if _SAFE.fullmatch(text):
        return text
    remains = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_LONGEST_REMAINS]
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{remains or 'id'}~{digest}"


def check_run_id(text: str) -> str:
    """The run id unchanged; InvalidId when it is not one that Uplift could have given."""
    if _SAFE.fullmatch(text):
        return text
    shown = text if len(text) <= _LONGEST_REMAINS else text[:_LONGEST_REMAINS] + "…"
    raise InvalidId(
        f"run id {shown!r} is not valid; use letters, digits, '.', '_' and '-', at most 128, "
        "starting with a letter or digit"
    )

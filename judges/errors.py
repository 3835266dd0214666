"""The base of all errors that users see, with the command's exit code, and "did you mean …?" for their texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

USAGE = 2  # what was asked for must change
INFRASTRUCTURE = 3  # the machine, the server or the provider must
INTERRUPTED = 130
_LONGEST_NAME = 80


class UpliftError(Exception):
    """An error that a user or operator can fix; its text reads `what is wrong; what to do`.

    `code` names the kind for programs, `exit_code` is what the command ends with.
    """

    exit_code = USAGE

    @property
    def code(self) -> str:
        """The kind in lower case: UnknownModel is `unknown_model`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def message(self) -> str:
        """What is wrong, without the remedy."""
        return self._parts()[0]

    @property
    def remedy(self) -> str:
        """What to do about it; empty where the text names nothing, or lists several mistakes."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str]:
        text = str(self)
        wrong, _, remedy = text.rpartition("; ") if "\n" not in text else ("", "", "")
        return (wrong, remedy) if wrong else (text, "")


class InfrastructureError(UpliftError):
    """What was asked for is right: the machine, the server or the provider must change."""

    exit_code = INFRASTRUCTURE


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a misspelt one; None where none is."""
    near = get_close_matches(name[:_LONGEST_NAME], [one[:_LONGEST_NAME] for one in known], n=1)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` where a known name is near, to be put behind a message; else nothing."""
    near = near_name(name, known)
    if near is None:
        return ""
    return f" (did you mean {near if near.isprintable() else repr(near)}?)"

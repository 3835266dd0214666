"""The base of all errors that users see: one line with the problem and the remedy, and the command's exit code."""

from __future__ import annotations

import re

USAGE = 2  # what was asked for must change
INFRASTRUCTURE = 3  # the machine, the server or the provider must
INTERRUPTED = 130


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

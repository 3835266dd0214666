"""Call a suite's function with an output's text, inside the sandbox, and report what it returned in one line of JSON.

The function judges in the way that tests do (`pytest_plugin`): the line carries the judgment's nonce, and code that the
function runs by `uplift_judge` is in another process.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import uplift_judge
from judges.inside import pytest_plugin
from judges.inside.drop_rights import REPORT_FD

MAX_REASON_CHARACTERS = 2000


def main() -> None:
    """Arguments: the suite's fixtures, the file, the function's name, folders of packages."""
    root, file, function, *packages = sys.argv[1:]
    sys.argv = [file]
    del sys.path[0]
    report = pytest_plugin.Reporter(pytest_plugin.become_examiner(), REPORT_FD)
    pytest_plugin.make_importable(root, packages)
    report.tell("start")
    try:
        facts = _facts(runpy.run_path(file, run_name="checks")[function](uplift_judge.output()))
    except BaseException as problem:  # SystemExit too: whatever ends the call, the output has not passed
        facts = {"problem": f"{type(problem).__name__}: {problem}"[:MAX_REASON_CHARACTERS]}
    report.tell("end", **facts)
    os._exit(0)


def _facts(returned: Any) -> dict[str, Any]:
    value, reason = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
    if not isinstance(value, bool | int | float):
        kind = type(value).__name__
        return {"problem": f"returned {kind}; must be True or False, a score, or (score, reason)"}
    plain = value if isinstance(value, bool) else float(value)
    return {"value": plain, "reason": str(reason)[:MAX_REASON_CHARACTERS]}

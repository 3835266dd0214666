"""Call a suite's function with an output's text, inside the sandbox, and write what it returned as one line of JSON.

The line carries the judgment's nonce, which stops accidents, not a forger. Standard library only.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

REPORT_FD = 3
MAX_REASON_CHARACTERS = 2000


def main() -> None:
    """Arguments: the nonce, the suite's fixtures, the file, the function's name, the output, folders of packages."""
    nonce, root, file, function, output, *packages = sys.argv[1:]
    sys.argv = [file]
    sys.path[:0] = [root]
    sys.path += [folder for folder in packages if folder not in sys.path]
    _tell(nonce, event="start")
    try:
        text = Path(output).read_text("utf-8", "replace")
        returned = runpy.run_path(file, run_name="checks")[function](text)
        facts = _facts(returned)
    except BaseException as problem:  # SystemExit too: whatever ends the call, the output has not passed
        facts = {"problem": f"{type(problem).__name__}: {problem}"[:MAX_REASON_CHARACTERS]}
    _tell(nonce, event="end", **facts)


def _facts(returned: Any) -> dict[str, Any]:
    value, reason = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
    if not isinstance(value, bool | int | float):
        kind = type(value).__name__
        return {"problem": f"returned {kind}; must be True or False, a score, or (score, reason)"}
    plain = value if isinstance(value, bool) else float(value)
    return {"value": plain, "reason": str(reason)[:MAX_REASON_CHARACTERS]}


def _tell(nonce: str, **facts: Any) -> None:
    rest = (json.dumps({"nonce": nonce, **facts}) + "\n").encode()
    while rest:
        rest = rest[os.write(REPORT_FD, rest) :]


if __name__ == "__main__":
    main()
    os._exit(0)

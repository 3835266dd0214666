"""Draw docs/screenshots/live-view.svg from the example run while it is under way: `python docs/make_live_view.py`.

The run is simulated; its draws are fixed, but not which of its attempts happen to be in flight.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from producer.display.progress import LiveView
from producer.display.snapshot import Looker, View
from producer.server import address, open_server
from producer.state_root import Places
from workers.store.redis_client import workers

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "screenshots" / "live-view.svg"
EXAMPLE = DOCS.parent / "examples" / "release-notes"
FAST = "sim:baseline=0.45,candidate=0.85,cost=0.002,latency=1,spread=exp,seed=7"
SLOW = "sim:baseline=0.6,candidate=0.9,cost=0.01,latency=4,spread=exp,error=0.01,seed=9"
WIDTH, HEIGHT = 100, 24


def main() -> None:
    """Run the example, look at it when 60 % are done, and end it."""
    with tempfile.TemporaryDirectory(prefix="uplift-live-") as name:
        folder = Path(name)
        words = ["evaluate", "--standalone", "--task-suite", EXAMPLE / "suite.yaml", "--detach"]
        words += ["--skill-path", EXAMPLE / "skill", "--baseline-path", EXAMPLE / "baseline"]
        words += ["--model", FAST, "--model", SLOW, "--pass-k", "10", "--in-flight", "24"]
        run_id = uplift(folder, *words)
        try:
            PICTURE.write_text(drawn(halfway(Places(folder), run_id)), "utf-8")
        finally:
            uplift(folder, "cancel", run_id, "--quiet")


def uplift(folder: Path, *words: str | Path) -> str:
    """Run a command to its end; returns what it printed."""
    command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words), "--state-root", str(folder)]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()


def halfway(places: Places, run_id: str) -> View:
    """Watch the run, as `uplift watch` does, until enough of it is done."""
    url = address(places.embedded(run_id))
    assert url is not None, "the run is not under way"
    store = open_server(url).store
    looker = Looker(store, store.manifest(run_id))
    while True:
        view = looker.view(store.progress(run_id), len(workers(store.client)))
        if view.progress.recorded > 0.6 * view.total:
            return view
        time.sleep(0.25)


def drawn(view: View) -> str:
    """The view as SVG, in the reader's own monospace font: nothing is loaded from anywhere."""
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(LiveView(view))
    frame = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    picture = console.export_svg(title="uplift evaluate", code_format=frame, unique_id="live")
    return re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE).rstrip() + "\n"


if __name__ == "__main__":
    main()

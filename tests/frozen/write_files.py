"""Let an installed Uplift write a state root, a baseline cache and a blessed baseline, to be read by later versions.

    python tests/frozen/write_files.py .venv/bin/uplift tests/frozen/files/VERSION.zip

What a version has written is never written again: give every version a file of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

# Paths stand in artifacts: this one is of nobody's machine, and is gone afterwards.
FOLDER = Path("/tmp/uplift-frozen")
SUITE = Path(__file__).parent / "suite"
MODEL = "sim:baseline=0.6,candidate=0.9,cost=0.01,seed=3"
KEPT = ("state", "cache", "baseline.json")


def main(program: Path, target: Path) -> None:
    """Three runs that share a cache, the first of them blessed: two to compare, and one of a declared program."""
    if target.exists():
        sys.exit(f"{target} is there already; what a version has written stays as it is")
    shutil.copytree(SUITE, FOLDER)
    common = ("evaluate", "--standalone", "--task-suite", "suite.yaml", "--baseline-path", "old")
    common += ("--state-root", "state", "--baseline-cache-dir", "cache", "--quiet")
    simulated = ("--model", MODEL, "--pass-k")
    try:
        for words in (
            (*common, "--skill-path", "skill", *simulated, "2"),
            (*common, "--skill-path", "new", *simulated, "3"),
            (*common, "--skill-path", "skill", "--model", "command:echo", "--tag", "echo"),
        ):
            subprocess.run([program.absolute(), *words], cwd=FOLDER, check=True)
        first = min(path.name for path in (FOLDER / "state" / "runs").iterdir())
        blessing = [program.absolute(), "bless", first, "--output", "baseline.json", "--state-root", "state"]
        subprocess.run(blessing, cwd=FOLDER, check=True)
        for page in FOLDER.glob("state/runs/*/report.html"):
            page.unlink()  # large, and nobody reads a page back
        kept = FOLDER / "kept"
        kept.mkdir()
        for name in KEPT:
            shutil.move(FOLDER / name, kept / name)
        shutil.make_archive(str(target.with_suffix("")), "zip", kept)
    finally:
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

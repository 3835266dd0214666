"""Make the pictures in docs/screenshots from the example run: `python docs/make_screenshots.py`.

Needs Playwright and a Chromium on PATH. The run is simulated with a fixed seed, so that the numbers stay the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import make_live_view
from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).resolve().parent
EXAMPLE = DOCS.parent / "examples" / "release-notes"
MODEL = "sim:baseline=0.45,candidate=0.85,cost=0.002,seed=7"
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = (1280, 900), (390, 844)
PICTURES = (
    ("report-light", "light", DESKTOP, ""),
    ("report-dark", "dark", DESKTOP, ""),
    ("report-phone", "light", PHONE, ""),
    ("report-tasks", "light", DESKTOP, "#tasks"),
    ("report-task", "light", DESKTOP, "#task=heading-has-version-and-iso-date&b=2&c=1"),
)


def main() -> None:
    """Run the example, then photograph its page."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium on PATH; install it, for example with: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="uplift-shots-") as folder, sync_playwright() as driver:
        page = example_run(Path(folder))
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=[*QUIET, *sandbox])
        for name, scheme, size, fragment in PICTURES:
            photograph(browser, page, DOCS / "screenshots" / f"{name}.png", scheme, size, fragment)
        browser.close()
    make_live_view.main()


def example_run(folder: Path) -> Path:
    """Evaluate the example skill and return the page that the run left."""
    words = ["evaluate", "--standalone", "--task-suite", str(EXAMPLE / "suite.yaml")]
    words += ["--skill-path", str(EXAMPLE / "skill"), "--baseline-path", str(EXAMPLE / "baseline")]
    words += [
        "--model",
        MODEL,
        "--pass-k",
        "3",
        "--run-id",
        "example",
        "--quiet",
    ]
    # The page names the command to type next, which says where the run lies unless that is the usual place.
    program = [sys.executable, "-P", "-m", "producer.cli"]
    subprocess.run([*program, *words], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return folder / ".uplift" / "runs" / "example" / "report.html"


def photograph(
    browser: Browser, page: Path, picture: Path, scheme: str, size: tuple[int, int], fragment: str
) -> None:
    """One view of the page as a PNG file."""
    view = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if scheme == "dark" else "light"
    )
    view.goto(page.as_uri() + (fragment if "task=" in fragment else ""))
    view.locator("dialog[open]" if "task=" in fragment else "#rows li").first.wait_for()
    if fragment == "#tasks":
        view.evaluate("document.getElementById('tasks').scrollIntoView()")
    picture.parent.mkdir(exist_ok=True)
    view.screenshot(path=picture)
    view.close()


if __name__ == "__main__":
    main()

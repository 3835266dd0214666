"""The system's Chromium through Playwright, watched: what it loads, complains of and pops up is collected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without these the browser asks its maker for updates, and a test must ask nobody.
_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def path() -> str | None:
    """Where the browser is; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window; skips the test, with the reason, where Playwright or Chromium is absent."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = path()
    if program is None:
        pytest.skip("no Chromium on PATH")
    # Chromium's own sandbox refuses to start as root.
    arguments = [*_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with ExitStack() as stack:
        with _on_one_processor():  # here starts the process that starts the browser
            driver = stack.enter_context(playwright.sync_playwright())
        started = driver.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


@contextmanager
def _on_one_processor() -> Iterator[None]:
    """What is started here stays on one processor: virtual machines may have clocks some milliseconds apart on each,
    and Chromium's page processes crash when time runs backwards between two looks."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def expect(shown: Any) -> Any:
    """Playwright's assertions, which wait: a page answers a key or a click only a moment later."""
    from playwright.sync_api import expect as patiently

    patiently.set_options(timeout=30_000)
    return patiently(shown)


@dataclass
class Watched:
    """A page and what happened on it behind the reader's back."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def watch(page: Any) -> Watched:
    """Collect console errors, exceptions, dialogs, new windows and every request."""
    seen = Watched(page)
    note = seen.problems.append
    page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: note(str(error)))
    page.on("dialog", lambda dialog: (note(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("popup", lambda popup: note(f"popup {popup.url}"))
    page.on("request", lambda request: seen.requests.append(request.url))
    return seen

"""Write docs/cli.md from what `uplift --help` and `uplift COMMAND --help` print at 80 columns.

Run it from the repository after a change to the command line: python docs/make_cli_reference.py
"""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from producer.cli import app

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# The command line

<!-- Made by docs/make_cli_reference.py; tests/test_docs.py fails when it is out of date. Do not edit. -->

Results go to standard output, progress and tables to standard error. Exit codes: 0 pass or skipped, 1 fail, 2 usage or
invalid input, 3 verdict `error` or infrastructure, 130 interrupted (`uplift resume RUN` goes on). Most flags can be set
in a file or by a variable: see [configuration](configuration.md). `uplift --install-completion` teaches your shell the
commands and flags: see [how to](how-to.md#complete-commands-in-the-shell).
"""


def reference() -> str:
    """The whole page."""
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group, as it has commands
    parts = [INTRODUCTION, _section("uplift", [])]
    parts += [_section(f"uplift {name}", [name]) for name in names]
    return "\n".join(parts)


def _section(title: str, words: list[str]) -> str:
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="uplift", env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    return f"## {title}\n\n```text\n{shown.output.strip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")

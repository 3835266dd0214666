"""Write what the docs say of flags and settings: docs/cli.md, and the tables in configuration.md and library.md.

docs/cli.md is what `uplift --help` and `uplift COMMAND --help` print at 80 columns; the tables follow the settings of a
run. Run it from the repository after a change to either: python docs/make_cli_reference.py
"""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from producer.cli import app
from producer.library import keywords
from producer.settings.config_file import variables
from producer.settings.run_settings import config_keys, default_text, described

DOCS = Path(__file__).parent
MARKS = ("<!-- table: made by docs/make_cli_reference.py -->", "<!-- end of table -->")
BY_FLAG = {"limits": "`--rpm`, `--tpm`, `--max-in-flight`"}
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


def config_table() -> str:
    """Every key of `uplift.toml` with its variables, its flag and what it means."""
    rows = ["| key | variable | flag | meaning |", "|---|---|---|---|"]
    for key in config_keys():
        names = ", ".join(f"`{name}`" for name, steps in variables().items() if steps[0] == key)
        by_flag = BY_FLAG.get(key, f"`{described()[key].flag}`" if described()[key].in_evaluate else "")
        rows.append(f"| `{key}` | {names} | {by_flag} | {_meaning(key)} |")
    return "\n".join(rows)


def keyword_table() -> str:
    """Every keyword of `evaluate` that is a setting, and what it means."""
    rows = ["| keyword | meaning |", "|---|---|"]
    rows += [f"| `{keyword}` | {_meaning(name)} |" for keyword, name in keywords().items()]
    return "\n".join(rows)


def _meaning(name: str) -> str:
    default = default_text(name)
    words = "`false`: " if name == "retry" else ""
    return f"{words}{described()[name].help}{f' Default: {default}.' if default else ''}".replace("|", "\\|")


def with_table(page: str, table: str) -> str:
    """A page with the table between its marks."""
    before, rest = page.split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def pages() -> dict[Path, str]:
    """Every page that is made here, whole or in part, as it should be."""
    tables = {DOCS / "configuration.md": config_table(), DOCS / "library.md": keyword_table()}
    made = {path: with_table(path.read_text(encoding="utf-8"), table) for path, table in tables.items()}
    return {DOCS / "cli.md": reference(), **made}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")

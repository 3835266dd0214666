"""Write what the docs say of flags and settings: docs/cli.md, and the tables in configuration.md and library.md.

docs/cli.md is what `uplift --help` and `uplift COMMAND --help` print at 80 columns; an option that an earlier command
explains in the same words is only named. The tables follow the settings of a run; library.md leaves out those in
configuration.md. Run it from the repository after a change to either: python docs/make_cli_reference.py
"""

from __future__ import annotations

import re
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

What `uplift --help` and `uplift COMMAND --help` print. Options that a command above explains in the same words are only
named, below the block; every command has `--help`.

Results go to standard output, progress and tables to standard error. Exit codes: 0 pass or skipped, 1 fail, 2 usage or
invalid input, 3 verdict `error` or infrastructure, 130 interrupted (`uplift resume RUN` goes on). Most flags can be set
in a file or by a variable: see [configuration](configuration.md). `uplift --install-completion` teaches your shell the
commands and flags: see [how to](how-to.md#complete-commands-in-the-shell).
"""
# A line of help that begins an option, and the lines that go on with it.
OPTION = re.compile(r"^  (-\S[^\n]*)(?:\n {10,}[^\n]*)*\n", re.MULTILINE)


def reference() -> str:
    """The whole page."""
    told: dict[str, str] = {}
    parts = [INTRODUCTION]
    for name, text in help_texts().items():
        kept, again = _without(told, name, text)
        lines = [f"As in [`{one}`](#{one.replace(' ', '-')}): {', '.join(again[one])}.\n" for one in again]
        same = "".join(["\n", *lines]) if lines else ""
        parts.append(f"## {name}\n\n```text\n{kept.strip()}\n```\n{same}")
    return "\n".join(parts)


def help_texts() -> dict[str, str]:
    """What each command prints when it is asked for help, by its name; first that of `uplift` itself."""
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group, as it has commands
    texts = {}
    for words in ([], *([name] for name in names)):
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="uplift", env={"COLUMNS": "80"})
        assert shown.exit_code == 0, shown.output
        texts[" ".join(["uplift", *words])] = shown.output
    return texts


def _without(told: dict[str, str], name: str, text: str) -> tuple[str, dict[str, list[str]]]:
    """A help text without the options that were told before, and the flags of these by the command that tells them."""
    again: dict[str, list[str]] = {}

    def kept(found: re.Match[str]) -> str:
        words = " ".join(found[0].split())
        if (where := told.setdefault(words, name)) == name:
            return found[0]
        if (flag := re.findall(r"--[\w-]+", words)[0]) != "--help":
            again.setdefault(where, []).append(f"`{flag}`")
        return ""

    text = OPTION.sub(kept, text)
    return re.sub(r"^[A-Z]\w+:\n+(?=\S|\Z)", "", text, flags=re.MULTILINE), again


def config_table() -> str:
    """Every key of `uplift.toml` with its variables, its flag and what it means."""
    rows = ["| key | variable | flag | meaning |", "|---|---|---|---|"]
    for key in config_keys():
        names = ", ".join(f"`{name}`" for name, steps in variables().items() if steps[0] == key)
        by_flag = BY_FLAG.get(key, f"`{described()[key].flag}`" if described()[key].in_evaluate else "")
        rows.append(f"| `{key}` | {names} | {by_flag} | {_meaning(key)} |")
    return "\n".join(rows)


def keyword_table() -> str:
    """Every keyword of `evaluate` that is a setting; what it means where no key of `uplift.toml` has the same name."""
    shared = [f"`{keyword}`" for keyword, name in keywords().items() if keyword == name in config_keys()]
    rows = ["| keyword | meaning |", "|---|---|"]
    rows += [
        f"| `{keyword}` | {_meaning(name)} |"
        for keyword, name in keywords().items()
        if f"`{keyword}`" not in shared
    ]
    same = "These mean what [keys of `uplift.toml`](configuration.md#keys) of the same name mean: "
    return "\n".join(rows) + f"\n\n{same}{', '.join(shared)}."


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

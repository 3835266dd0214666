"""The documentation keeps its word: links lead somewhere, commands run, suites are valid, messages are real.

CONTRIBUTING.md says how a block is marked that is not to be run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer
import warm
import yaml
from doc_blocks import COMMANDS, PAGES, ROOT, Block, anchors, blocks, links, named_commands, prose
from pydantic import BaseModel
from typer.testing import CliRunner

from aggregate.artifact import build
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from producer.cli import app
from producer.settings import config_file
from producer.skills.ranking import Candidate, RankingFile
from producer.suites import suite

ALL = [block for page in PAGES for block in blocks(page)]
RUN_PAGES = [page for page in PAGES if any(block.executed for block in blocks(page))]
KNOWN = {*COMMANDS, "", "text", "yaml", "toml", "python", "json", "dockerfile"}
LOOKS_TYPED = re.compile(
    r"^\s*(\$ |(uplift|make|pip|python3?|pytest|ruff|docker|curl|export|cd|git) )", re.MULTILINE
)
# The word RUN stands for the newest run, EARLIER for the one before it.
TOOL = """#!/bin/sh
word() { ls -t "${UPLIFT_STATE_ROOT:-.uplift}/evaluations" | sed -n "$1"'s/[.]json$//p'; }
for given; do
  shift
  case $given in RUN) given=$(word 1) ;; EARLIER) given=$(word 2) ;; esac
  set -- "$@" "$given"
done
exec @uplift@ "$@"
"""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


# Links


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors(aim)):
            broken.append(target)
    assert broken == []


def test_the_table_of_contents_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert [
        named(page) for page in (ROOT / "docs").rglob("*.md") if page != index and page not in listed
    ] == []
    assert "docs/index.md" in links(ROOT / "README.md")


# Blocks


def test_every_block_says_what_language_it_is_in_and_output_holds_nothing_to_type() -> None:
    assert [block.place for block in ALL if block.language not in KNOWN] == []
    output = [one for one in of("", "text") if not one.text.startswith("Usage:") and not one.marker]
    assert [block.place for block in output if LOOKS_TYPED.search(block.text)] == []


def test_what_is_not_run_gives_a_reason_or_names_the_test_that_runs_it() -> None:
    illustrative = [block for block in ALL if block.marker == "illustrative"]
    assert [block.place for block in illustrative if len(block.words.split()) < 3] == []
    for block in ALL:
        if block.marker == "tested":
            test = ROOT / block.words
            assert test.is_file(), block.place
            assert block.page.name in test.read_text(encoding="utf-8"), block.place


@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.place)
def test_yaml_is_a_valid_suite_or_a_valid_part_of_one_or_at_least_yaml(block: Block, tmp_path: Path) -> None:
    for text in re.split(r"^(?=judge:)", block.text, flags=re.MULTILINE):
        value = yaml.safe_load(text)
        if (whole := as_suite(value, text)) is None:
            continue
        for name in re.findall(r"fixtures/[\w./-]+", whole):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("{}")
        (tmp_path / "suite.yaml").write_text(whole, encoding="utf-8")
        assert [str(problem) for problem in suite.validate([tmp_path / "suite.yaml"])] == []


def as_suite(value: object, text: str) -> str | None:
    """A suite around a suite, tasks, a judge or a task's other fields; None for YAML of other tools."""
    head = 'skill_id: x\nversion: "1.0"\ntasks:\n'
    indented = re.sub(r"^", "  ", text, flags=re.MULTILINE)
    if isinstance(value, dict) and "skill_id" in value:
        return text
    if isinstance(value, list) and all(
        isinstance(one, dict) and {"id", "judge"} <= set(one) for one in value
    ):
        return head + indented
    if isinstance(value, dict) and "judge" in value:
        return f"{head}  - id: x\n    prompt: x\n{re.sub('^', '    ', text, flags=re.MULTILINE)}"
    if isinstance(value, dict) and "replies" in value:
        judge = "judge: {type: contains, expected: [x]}"
        return f"{head}  - id: x\n    prompt: x\n    {judge}\n    {text.strip()}\n"
    return None


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.place)
def test_toml_is_a_config_that_uplift_takes(block: Block, tmp_path: Path) -> None:
    path = tmp_path / ("pyproject.toml" if "[tool." in block.text else "uplift.toml")
    path.write_text(block.text, encoding="utf-8")
    assert config_file.load(path).values


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.place)
def test_python_can_be_compiled(block: Block) -> None:
    compile(block.text, block.place, "exec")


# Names


@cache
def flags_of(command: str) -> frozenset[str]:
    group = typer.main.get_command(app)
    chosen = group if not command else group.commands[command]  # type: ignore[attr-defined]  # it is a group
    flags = {flag for one in chosen.params for flag in (*one.opts, *one.secondary_opts)}
    return frozenset({*flags, "--help", "-h"})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_and_flag_that_a_page_names_exists(page: Path) -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # it is a group
    for place, text in named_commands(page):
        words = text.split()
        command = words[1] if not words[1].startswith("-") else ""
        if command in ("…", "COMMAND"):
            continue
        assert not command or command in known, f"{place}: {text}"
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert used <= flags_of(command), f"{place}: {text}"


def test_the_reference_is_what_help_prints_and_the_tables_are_the_settings() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_cli_reference.py"))["pages"]()
    assert {path.name for path in made} == {"cli.md", "configuration.md", "library.md"}
    for path, text in made.items():
        assert text == path.read_text(encoding="utf-8"), "write it anew: python docs/make_cli_reference.py"


@pytest.mark.parametrize(
    ("part", "file"), [("schema", "record.schema.json"), ("page", "reading-a-result.md")]
)
def test_the_reference_of_records_is_what_their_types_and_columns_say(part: str, file: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_record_reference.py"))[part]()
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert made == written, "write it anew: python docs/make_record_reference.py"


def test_the_reference_names_every_flag_of_every_command_under_its_heading() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## uplift ?(.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    assert set(sections) == {"", *commands}
    for name, command in commands.items():
        flags = {flag for one in command.params if not getattr(one, "hidden", False) for flag in one.opts}
        named = set(re.findall(r"--[a-z-]+", sections[name]))
        assert sorted(one for one in flags - named if one.startswith("--")) == [], name


def test_help_fits_eighty_columns() -> None:
    texts = runpy.run_path(str(ROOT / "docs" / "make_cli_reference.py"))["help_texts"]()
    assert [line for text in texts.values() for line in text.splitlines() if len(line) > 80] == []


@cache
def said_by_the_code() -> str:
    """Every text of the packages, one to a line; what is filled in is an ellipsis."""
    texts = []
    for package in ("producer", "workers", "aggregate", "judges"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(" ".join(text.split()) for text in texts)


def messages() -> list[str]:
    page = prose(ROOT / "docs" / "troubleshooting.md")
    return [
        one
        for line in re.findall(r"^### (.+)$", page, re.MULTILINE)
        for one in re.findall(r"`([^`]+)`", line)
    ]


@pytest.mark.parametrize("message", messages())
def test_every_message_in_troubleshooting_is_one_that_the_code_can_print(message: str) -> None:
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    assert re.search(".*?".join(parts), said_by_the_code()), message


# Formats


def fields_of(model: type[BaseModel]) -> set[str]:
    """The fields of a format, and of the formats inside of it."""
    found = set(model.model_fields)
    for field in model.model_fields.values():
        for part in parts_of(field.annotation) - {model}:
            found |= fields_of(part)
    return found


def parts_of(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set().union(*map(parts_of, get_args(annotation)))


@pytest.mark.parametrize(
    ("page", "models", "some"),
    [
        ("ranking.md", (RankingFile, Candidate), {"lane", "target_path", "frontmatter_updates"}),
        ("records.md", (AttemptRecord,), {"outcome", "cache_write_tokens", "saw_cut_text", "oracle_median"}),
    ],
)
def test_the_page_about_a_format_names_every_field(
    page: str, models: tuple[type[BaseModel], ...], some: set[str]
) -> None:
    fields = set().union(*map(fields_of, models))
    assert some < fields
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert sorted(fields - set(re.findall(r"`(\w+)`", text))) == []


def test_the_page_about_rankings_names_what_the_pipeline_reads() -> None:
    (made,) = build.build(
        RunInfo(run_id="r"), [AttemptRecord(task="a", arm="candidate", attempt=1, outcome="passed")]
    )
    names = {
        "evaluation",
        "task_results",
        "next_step",
        "next_owner",
        "source_run_id",
        "source_ranking_artifact",
    }
    names |= {*made.evaluation.model_dump(), *asdict(made.task_results[0])}
    text = (ROOT / "docs" / "ranking.md").read_text(encoding="utf-8")
    assert sorted(names - set(re.findall(r"`(\w+)`", text))) == []


# The shell


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert CliRunner().invoke(app, ["--version"]).output == f"uplift {version('skill-uplift')}\n"


def test_the_shell_completes_commands_and_flags() -> None:
    def completed(words: str, position: int) -> list[str]:
        env = {"_UPLIFT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return CliRunner().invoke(app, [], prog_name="uplift", env=env).output.split()

    assert completed("uplift eva", 1) == ["evaluate"]
    assert "--pass-k" in completed("uplift evaluate --pass", 2)


# What pages tell to type


@pytest.mark.slow
@pytest.mark.timeout(900)  # two dozen commands in a row, each of which may wait for a busy machine
@pytest.mark.parametrize("page", RUN_PAGES, ids=named)
def test_what_a_page_tells_to_type_works_from_top_to_bottom(page: Path, short_tmp: Path) -> None:
    outputs = a_newcomers_folder(short_tmp)
    script = ["set -eo pipefail"]
    for number, block in enumerate(blocks(page)):
        if block.executed:
            script += as_script(block, outputs / f"{number:03}")
    ended = in_shell(short_tmp, "\n".join(script))
    said = {int(path.name): path.read_text(encoding="utf-8") for path in sorted(outputs.iterdir())}
    last = max(said)
    assert ended.returncode == 0, f"{blocks(page)[last].place}: {ended.stderr}{said[last]}"
    compare_outputs(page, said)


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(short_tmp: Path) -> None:
    recipe = re.search(
        r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert recipe is not None
    a_newcomers_folder(short_tmp)
    ended = in_shell(short_tmp, recipe[1].replace("$(BIN)/", ""))
    assert ended.returncode == 0, ended.stderr
    (shown,) = [block for block in blocks(ROOT / "README.md") if block.language == "text"]
    assert missing_lines(shown, ended.stderr) == []


def in_shell(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(folder), "COLUMNS": "100", "TERM": "dumb", "CI": "true"}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder / "home", env=env, capture_output=True, text=True, timeout=870
    )


def as_script(block: Block, output: Path) -> list[str]:
    """Run a block in the page's one shell, so that `cd` and variables hold for the blocks below it."""
    body = ["{", block.commands, f"}} > {output} 2>&1 < /dev/null"]
    if block.marker != "exits":
        return body
    wanted = int(block.words)
    return ["set +e", *body, f"code=$?; set -e; [ $code = {wanted} ] || {{ echo exit $code >&2; exit 1; }}"]


def compare_outputs(page: Path, said: dict[int, str]) -> None:
    """Every line of a block marked as output is in what the block run before it printed; … is a gap."""
    latest = ""
    for number, block in enumerate(blocks(page)):
        latest = said.get(number, latest)
        if block.marker == "output":
            assert missing_lines(block, latest) == [], f"{block.place} is not in:\n{latest}"


def missing_lines(block: Block, said: str) -> list[str]:
    """Lines of a block that are not in an output, however that was wrapped; … is a gap."""
    flat = " ".join(said.split())
    lines = filter(str.strip, block.text.splitlines())
    pieces = {line: [re.escape(" ".join(piece.split())) for piece in line.split("…")] for line in lines}
    return [line for line, parts in pieces.items() if not re.search(".*?".join(parts), flat)]


def a_newcomers_folder(folder: Path) -> Path:
    """A folder with a suite, a skill, its last version, another tool's evals, and a folder for outputs."""
    home, outputs, tools = (folder / name for name in ("home", "outputs", "bin"))
    for one in (home, outputs, tools):
        one.mkdir()
    source = ROOT / "examples" / "release-notes"
    shutil.copy(source / "suite.yaml", home)
    shutil.copytree(source / "skill", home / "skill")
    shutil.copytree(source / "baseline", home / "old")
    (home / "examples").symlink_to(ROOT / "examples")
    (home / "evals").mkdir()
    one = {"id": 1, "prompt": "Sum up the file.", "expectations": ["It is one sentence."]}
    (home / "evals" / "evals.json").write_text(json.dumps({"skill_name": "summary", "evals": [one]}))
    (folder / "warm").mkdir()
    tool = tools / "uplift"
    tool.write_text(TOOL.replace("@uplift@", str(warm.program(folder / "warm"))))
    tool.chmod(0o755)
    return outputs

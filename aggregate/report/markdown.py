"""A run for pull requests and step summaries: the verdict, a short table, what changed, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aggregate.artifact.model import Artifact, RunCost, TaskResult
from aggregate.report.source import (
    Material,
    Unit,
    between,
    consistency,
    efficiency,
    errors,
    headline,
    metrics,
    units,
)
from aggregate.text.files import write_text
from aggregate.text.formats import MISSING, counted, in_points, level_text, plain, rate, shown, usd

SHOWN_CHANGES = 15
SHOWN_TASKS = 300  # GitHub cuts a step summary at 1 MiB and a comment at 65,536 characters
_NAME = 80
_MARKS = {"pass": "✅", "fail": "❌", "error": "⚠️", "skipped": "⏭️"}
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", ":": "&#58;", "/": "&#47;"}
_ENTITIES |= {character: f"&#{ord(character)};" for character in "\\`*_{}[]()!|~=^$"}


def text(material: Material) -> str:
    """The whole report. Names and messages come out as they are, whatever Markdown or HTML they hold."""
    artifact = material.artifact
    verdict = artifact.verdict
    mark: str = verdict
    if verdict in ("pass", "fail"):  # as the job is marked, which follows the gate
        mark = {0: "pass", 3: "error"}.get(artifact.exit_code(), "fail")
    lines = [
        f"### {_MARKS[mark]} {escaped(artifact.name)}: {headline(artifact).lower()} ({verdict})",
        "",
        escaped(artifact.summary, 2000),
        "",
    ]
    if artifact.was_run:
        lines += [*_table(artifact), "", *_efficiency(artifact), *_changes(artifact)]
        lines += [*_consistency(artifact), *_tasks(artifact)]
    lines += [*_warnings(artifact), f"Run {code(artifact.run_id)}, {_size(artifact)}.", ""]
    return "\n".join(lines)


def write(material: Material, path: Path) -> Path:
    return write_text(text(material), path)


def escaped(value: str, limit: int = _NAME) -> str:
    """One line of prose in which no character means anything to Markdown, HTML, mentions or links."""
    # A mention is looked for after entities have become characters again, so something must stand in between.
    return _entities(value, limit).replace("&#64;", "&#64;&#8288;").replace("&#35;", "&#35;&#8288;")


def code(value: str, limit: int = _NAME) -> str:
    """A name as it is, in the font for names; inside it nobody is mentioned and nothing is linked."""
    return f"<code>{_entities(value, limit)}</code>"


def _entities(value: str, limit: int) -> str:
    text = "".join(_ENTITIES.get(character, character) for character in plain(value, limit))
    return text.replace("www", "&#119;ww")


def _table(artifact: Artifact) -> Iterable[str]:
    yield "| | baseline | candidate | difference |"
    yield "|---|---:|---:|---:|"
    for label, *cells in metrics(artifact):
        yield f"| {label} | {' | '.join(cells)} |"
        if label == "Attempts passed" and artifact.interval:
            name = f"{level_text(artifact.interval.level)} interval, tasks like these"
            yield f"| {name} | | | {between(artifact.interval.tasks_like_these)} |"
    cost = artifact.cost or RunCost()
    yield f"| Spent | | | {shown(cost.spent_usd, usd)} |"
    if cost.assumed_usd:
        yield f"| Assumed for calls of unknown cost | | | {usd(cost.assumed_usd)} |"


def _efficiency(artifact: Artifact) -> Iterable[str]:
    """What the candidate takes as a share of what the baseline takes; nothing where nothing is known."""
    rows = efficiency(artifact)
    if rows:
        yield f"| {' | '.join(rows[0])} |"
        yield "|---" + "|---:" * (len(rows[0]) - 1) + "|"
        yield from (f"| {' | '.join(row)} |" for row in rows[1:])
        yield ""


def _changes(artifact: Artifact) -> Iterable[str]:
    changes = artifact.changes
    if not changes:
        return
    yield f"**{counted(len(changes), 'task')} changed**"
    yield ""
    yield "| task | baseline | candidate | |"
    yield "|---|---:|---:|---|"
    several = len(artifact.models) > 1
    for change in changes[:SHOWN_CHANGES]:
        name = code(change.task_id) + (f" ({code(change.model, 40)})" if several else "")
        rates = f"{rate(change.baseline_pass_rate)} | {rate(change.candidate_pass_rate)}"
        yield f"| {name} | {rates} | {change.change} |"
    if len(changes) > SHOWN_CHANGES:
        yield f"| … and {len(changes) - SHOWN_CHANGES} more | | | |"
    yield ""


def _consistency(artifact: Artifact) -> Iterable[str]:
    """How steady repeated attempts are, a line for each arm; nothing where none was repeated."""
    arms = consistency(artifact)
    if not arms:
        return
    yield "| consistency | score of 100 | mean range | met every time | flaky tasks |"
    yield "|---|---:|---:|---:|---|"
    for arm in arms:
        flaky = [f"{code(task)} ({spread} points)" for task, spread in arm["flaky"]]
        flaky += [f"… and {arm['more']} more"] if arm["more"] else []
        cells = (
            code(arm["arm"]),
            arm["score"],
            arm["range"],
            arm["overlap"] or MISSING,
            ", ".join(flaky) or "none",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _tasks(artifact: Artifact) -> Iterable[str]:
    """Every task, folded; of many only the first."""
    listed = units(artifact)
    several = len(artifact.models) > 1
    lines = ["| task | baseline | candidate | difference | notes |", "|---|---:|---:|---:|---|"]
    lines += [_task(unit, several=several) for unit in listed[:SHOWN_TASKS]]
    if len(listed) > SHOWN_TASKS:
        lines.append(f"| … and {len(listed) - SHOWN_TASKS} more | | | | |")
    return _folded(f"All {counted(len(listed), 'task')}", lines) if listed else ()


def _folded(title: str, lines: Iterable[str]) -> Iterable[str]:
    """Lines that are shown when somebody opens them."""
    return f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""


def _task(unit: Unit, *, several: bool) -> str:
    name = code(unit.task) + (f" ({code(unit.model, 40)})" if several else "")
    notes = [flag for flag in unit.flags if flag != "changed"]
    passed = " | ".join(_passed(side) for side in (unit.baseline, unit.candidate))
    return f"| {name} | {passed} | {shown(unit.difference, in_points)} | {', '.join(notes)} |"


def _passed(side: TaskResult | None) -> str:
    return f"{side.passes} of {side.judged}" if side and side.judged else MISSING


def _warnings(artifact: Artifact) -> Iterable[str]:
    said = [
        f"error in {escaped(arm, 40)}, {entry.count}×: {code(entry.message, 200)}"
        for arm, entry in errors(artifact)
    ]
    said += [escaped(warning, 200) for warning in artifact.warnings]
    return _folded(counted(len(said), "note"), [f"- {one}" for one in said]) if said else ()


def _size(artifact: Artifact) -> str:
    models = ", ".join(code(model) for model in artifact.models)
    return f"{models}, {counted(artifact.pass_k, 'attempt')} each"

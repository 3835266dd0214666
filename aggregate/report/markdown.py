"""A run for pull requests and step summaries: the verdict, a short table, what changed, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aggregate.files import write_text
from aggregate.number_formats import in_points, points, rate, shown, usd
from aggregate.plain_text import plain
from aggregate.report.first_screen import headline, metrics
from aggregate.report.material import Material, Unit, units
from aggregate.verdict import exit_code

SHOWN_CHANGES = 15
SHOWN_TASKS = 300  # GitHub cuts a step summary at 1 MiB and a comment at 65,536 characters
_NAME = 80
_MARKS = {"pass": "✅", "fail": "❌", "error": "⚠️", "skipped": "⏭️"}
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", ":": "&#58;", "/": "&#47;"}
_ENTITIES |= {character: f"&#{ord(character)};" for character in "\\`*_{}[]()!|~=^$"}


def text(material: Material) -> str:
    """The whole report. Names and messages come out as they are, whatever Markdown or HTML they hold."""
    artifact = material.artifact
    name = escaped(artifact["candidate_id"] or artifact["skill_id"] or artifact["run_id"])
    verdict = artifact["verdict"]
    mark = verdict
    if verdict in ("pass", "fail"):  # as the job is marked, which follows the gate
        mark = "fail" if exit_code(verdict, artifact["decision"], artifact["gate"]) else "pass"
    lines = [
        f"### {_MARKS[mark]} {name}: {headline(artifact).lower()} ({verdict})",
        "",
        escaped(artifact["summary"], 2000),
        "",
    ]
    if verdict != "skipped":
        lines += [*_table(artifact), "", *_changes(artifact), *_tasks(artifact)]
    lines += [*_warnings(artifact), f"Run {code(artifact['run_id'])}, {_size(artifact)}.", ""]
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


def _table(artifact: Mapping[str, Any]) -> Iterable[str]:
    yield "| | baseline | candidate | difference |"
    yield "|---|---:|---:|---:|"
    for label, *cells in metrics(artifact):
        yield f"| {label} | {' | '.join(cells)} |"
        if label == "Attempts passed" and artifact["interval"]:
            yield f"| {_interval(artifact)} |"
    yield f"| Spent | | | {shown(artifact['cost']['spent_usd'], usd)} |"


def _interval(artifact: Mapping[str, Any]) -> str:
    interval = artifact["interval"]
    bounds = interval["tasks_like_these"]
    level = f"{round(100 * interval['level'], 2):g} %"
    if bounds["estimate"] is None:
        return f"{level} interval, tasks like these | | | –"
    between = f"{points(bounds['low'])} to {points(bounds['high'])}"
    return f"{level} interval, tasks like these | | | {between}"


def _changes(artifact: Mapping[str, Any]) -> Iterable[str]:
    changes = artifact["changes"]
    if not changes:
        return
    yield f"**{_count(len(changes), 'task')} changed**"
    yield ""
    yield "| task | baseline | candidate | |"
    yield "|---|---:|---:|---|"
    several = len(artifact["models"]) > 1
    for change in changes[:SHOWN_CHANGES]:
        name = code(change["task_id"]) + (f" ({code(change['model'], 40)})" if several else "")
        rates = f"{rate(change['baseline_pass_rate'])} | {rate(change['candidate_pass_rate'])}"
        yield f"| {name} | {rates} | {change['change']} |"
    if len(changes) > SHOWN_CHANGES:
        yield f"| … and {len(changes) - SHOWN_CHANGES} more | | | |"
    yield ""


def _tasks(artifact: Mapping[str, Any]) -> Iterable[str]:
    """Every task, folded; of many only the first."""
    listed = units(artifact)
    if not listed:
        return
    yield f"<details><summary>All {_count(len(listed), 'task')}</summary>"
    yield ""
    yield "| task | baseline | candidate | difference | notes |"
    yield "|---|---:|---:|---:|---|"
    several = len(artifact["models"]) > 1
    yield from (_task(unit, several=several) for unit in listed[:SHOWN_TASKS])
    if len(listed) > SHOWN_TASKS:
        yield f"| … and {len(listed) - SHOWN_TASKS} more | | | | |"
    yield ""
    yield "</details>"
    yield ""


def _task(unit: Unit, *, several: bool) -> str:
    name = code(unit.task) + (f" ({code(unit.model, 40)})" if several else "")
    notes = [
        note
        for note, holds in (("failed", unit.failed), ("flaky", unit.flaky), ("errors", unit.has_errors))
        if holds
    ]
    passed = " | ".join(_passed(side) for side in (unit.baseline, unit.candidate))
    return f"| {name} | {passed} | {shown(unit.difference, in_points)} | {', '.join(notes)} |"


def _passed(side: Mapping[str, Any] | None) -> str:
    return f"{side['passes']} of {side['judged']}" if side and side["judged"] else "–"


def _warnings(artifact: Mapping[str, Any]) -> Iterable[str]:
    said = [
        f"error in {escaped(arm, 40)}, {entry['count']}×: {code(entry['message'], 200)}"
        for arm, messages in (artifact["errors"] or {}).items()
        for entry in messages
    ]
    said += [escaped(warning, 200) for warning in artifact["warnings"]]
    if said:
        yield f"<details><summary>{_count(len(said), 'note')}</summary>"
        yield ""
        yield from (f"- {one}" for one in said)
        yield ""
        yield "</details>"
        yield ""


def _size(artifact: Mapping[str, Any]) -> str:
    models = ", ".join(code(model) for model in artifact["models"])
    return f"{models}, {_count(artifact['pass_k'], 'attempt')} each"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"

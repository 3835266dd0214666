"""A run for pull requests and step summaries: the answer, and folded away why it lost and won, and all tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aggregate.artifact import sentences
from aggregate.artifact.answer import answer_of
from aggregate.artifact.model import Artifact, RunCost, TaskResult
from aggregate.records.run_info import BASELINE
from aggregate.report import result_tables as tables
from aggregate.report.result_tables import Material, Unit
from aggregate.text.files import write_text
from aggregate.text.formats import MISSING, counted, in_points, level_text, plain, shown, usd

SHOWN_CHANGES = 15
SHOWN_TASKS = 300  # GitHub cuts a step summary at 1 MiB and a comment at 65,536 characters
_NAME = 80
_LINE = 400
_MARKS = {"pass": "✅", "fail": "❌", "error": "⚠️", "skipped": "⏭️"}
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", ":": "&#58;", "/": "&#47;"}
_ENTITIES |= {character: f"&#{ord(character)};" for character in "\\`*_{}[]()!|~=^$"}


def text(material: Material) -> str:
    """The whole report. Names and messages come out as they are, whatever Markdown or HTML they hold."""
    lines: list[str] = []
    if material.others:
        heading, *told = tables.shared(material.ranked)
        lines += [f"### {heading}", "", *(f"{escaped(one, _LINE)}  " for one in told), ""]
        lines += [*_candidates(material), ""]
    for artifact in material.ranked:
        lines += _one(artifact, "####" if material.others else "###")
    return "\n".join(lines)


def _candidates(material: Material) -> Iterable[str]:
    yield f"| {' | '.join(tables.CANDIDATES)} |"
    yield "|---|---:|---:|---:|---|"
    for name, *figures, said in map(tables.candidate_row, material.ranked):
        yield f"| {code(name)} | {' | '.join(figures)} | {escaped(said, _LINE)} |"


def _one(artifact: Artifact, head: str) -> Iterable[str]:
    answer = answer_of(artifact)
    said = f"{escaped(answer.headline, _LINE)} (gate: {answer.gate})"
    yield f"{head} {_MARKS[answer.gate]} {escaped(artifact.name)}: {said}"
    yield from ("", *(f"- {escaped(tables.line_text(line), _LINE)}" for line in answer.lines))
    if answer.next.text:
        words, _, command = answer.next.text.partition(": ")
        said = escaped(answer.next.text, _LINE)
        if answer.next.command:
            said = f"{escaped(words, _LINE)}: {code(command, _LINE)}"
        yield f"- **next:** {said}"
    yield ""
    if artifact.was_run:
        yield from (*_moved(artifact), *_groups(artifact), *_checks(artifact), *_causes(artifact))
        numbers = [*_table(artifact), "", *_efficiency(artifact), *_consistency(artifact)]
        yield from (*_folded("All numbers", numbers), *_tasks(artifact))
    yield from (*_warnings(artifact), f"Run {code(artifact.run_id)}, {_size(artifact)}.", "")


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
    for label, *cells in tables.metrics(artifact):
        yield f"| {label} | {' | '.join(cells)} |"
        if label == "Attempts passed" and artifact.interval:
            name = f"{level_text(artifact.interval.level)} interval, tasks like these"
            yield f"| {name} | | | {tables.between(artifact.interval.tasks_like_these)} |"
    cost = artifact.cost or RunCost()
    yield f"| Spent | | | {shown(cost.spent_usd, usd)} |"
    if cost.assumed_usd:
        yield f"| Assumed for calls of unknown cost | | | {usd(cost.assumed_usd)} |"


def _efficiency(artifact: Artifact) -> Iterable[str]:
    """What the candidate takes as a share of what the baseline takes; nothing where nothing is known."""
    rows = tables.efficiency(artifact)
    if rows:
        yield f"| {' | '.join(rows[0])} |"
        yield "|---" + "|---:" * (len(rows[0]) - 1) + "|"
        yield from (f"| {' | '.join(row)} |" for row in rows[1:])
        yield ""


def _moved(artifact: Artifact) -> Iterable[str]:
    """Lost and won tasks by what the judge said, folded: how many, and one example each."""
    lines = []
    for (side, found), arm in zip(tables.moved(artifact).items(), ("candidate", BASELINE), strict=True):
        if found:
            head = f"Tasks {side}, by what the judge said of the {arm}, with passes before → after:"
            lines += ["", head, ""]
        for one in found[:SHOWN_CHANGES]:
            lines.append(f"- {one.tasks} {side}: {escaped(one.said, _LINE)} ({code(one.name)} {one.passed})")
        if len(found) > SHOWN_CHANGES:
            lines.append(f"- … and {len(found) - SHOWN_CHANGES} more reasons why tasks {side}")
    return _folded("Why it lost and won", lines) if lines else ()


def _groups(artifact: Artifact) -> Iterable[str]:
    lines: list[str] = []
    for heading, rows in tables.groups(artifact).items():
        lines += ["", f"| by {heading} | {' | '.join(tables.GROUP_COLUMNS)} |", "|---" + "|---:" * 6 + "|"]
        lines += [f"| {code(row[0])} | {' | '.join(row[1:])} |" for row in rows]
    return _folded("By tier and model", lines) if lines else ()


def _checks(artifact: Artifact) -> Iterable[str]:
    rows = tables.checks(artifact)
    lines = [f"| {' | '.join(tables.CHECK_COLUMNS)} |", "|---|---|---" + "|---:" * 3 + "|"]
    lines += [f"| {code(row[0])} | {code(row[1])} | {' | '.join(row[2:])} |" for row in rows[:SHOWN_TASKS]]
    if len(rows) > SHOWN_TASKS:
        lines.append(f"| … and {len(rows) - SHOWN_TASKS} more | | | | | |")
    return _folded("By check", lines) if rows else ()


def _causes(artifact: Artifact) -> Iterable[str]:
    causes = [f"- {escaped(f'{one.text}; {one.remedy}', _LINE)}" for one in artifact.diagnosis]
    return _folded("Could this suite have answered?", causes) if causes else ()


def _consistency(artifact: Artifact) -> Iterable[str]:
    """How steady repeated attempts are, a line for each arm; nothing where none was repeated."""
    arms = tables.consistency(artifact)
    if not arms:
        return
    yield "| consistency | score of 100 | mean range | met every time | flaky tasks |"
    yield "|---|---:|---:|---:|---|"
    for arm in arms:
        flaky = [f"{code(task)} ({spread} points)" for task, spread in arm["flaky"]]
        flaky += [f"… and {arm['more']} more"] if arm["more"] else []
        cells = (code(arm["arm"]), arm["score"], arm["range"], arm["overlap"] or MISSING)
        yield f"| {' | '.join(cells)} | {', '.join(flaky) or 'none'} |"
    yield ""


def _tasks(artifact: Artifact) -> Iterable[str]:
    """Every task, folded; of many only the first."""
    listed = tables.units(artifact)
    names = sentences.short_models(artifact.models) if len(artifact.models) > 1 else {}
    lines = ["| task | baseline | candidate | difference | notes |", "|---|---:|---:|---:|---|"]
    lines += [_task(unit, names.get(unit.model, "")) for unit in listed[:SHOWN_TASKS]]
    if len(listed) > SHOWN_TASKS:
        lines.append(f"| … and {len(listed) - SHOWN_TASKS} more | | | | |")
    return _folded(f"All {counted(len(listed), 'task')}", lines) if listed else ()


def _folded(title: str, lines: Iterable[str]) -> Iterable[str]:
    """Lines that are shown when somebody opens them."""
    return f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""


def _task(unit: Unit, model: str) -> str:
    name = code(unit.task) + (f" ({code(model)})" if model else "")
    notes = [flag for flag in unit.flags if flag != "changed"]
    passed = " | ".join(_passed(side) for side in (unit.baseline, unit.candidate))
    return f"| {name} | {passed} | {shown(unit.difference, in_points)} | {', '.join(notes)} |"


def _passed(side: TaskResult | None) -> str:
    return f"{side.passes} of {side.judged}" if side and side.judged else MISSING


def _warnings(artifact: Artifact) -> Iterable[str]:
    said = [escaped(one, _LINE) for one in (*tables.notes(artifact), sentences.models_named(artifact)) if one]
    return _folded(counted(len(said), "note"), [f"- {one}" for one in said]) if said else ()


def _size(artifact: Artifact) -> str:
    models = ", ".join(map(code, sentences.short_models(artifact.models).values()))
    planned = "" if artifact.status == "finished" else " planned"
    return f"{models}, {counted(artifact.pass_k, 'attempt')} each{planned}"

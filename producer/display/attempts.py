"""What a terminal shows of attempts: what they answered, what judges said, and their steps one by one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from aggregate.artifact.sentences import short_models
from aggregate.records import atif
from aggregate.records.jsonl import read_jsonl
from aggregate.records.record import AttemptRecord, KeptSteps
from aggregate.text.files import exists, write_text
from aggregate.text.formats import counted, plain, safe_line
from judges.errors import did_you_mean
from judges.judgment import Judgment
from judges.trajectory import Trajectory
from producer import server as servers
from producer.display.progress import usd
from producer.server import Server, ServerNotRunning
from producer.state_root import Places, file_name, finished
from workers.store.run_store import UnknownRun

_MOST_LINES = 12  # of one text among an attempt's steps
_LONGEST = 2000  # characters of a line
_MOST_DEPTH = 8


def of_task(places: Places, broker: str | None, run_id: str, task: str) -> list[AttemptRecord]:
    """All attempts of a task, from the records at home or on the server; raises UnknownRun."""
    records = of_run(places, broker, run_id)
    chosen = [record for record in records if record.task == task]
    if not chosen:
        names = sorted({record.task for record in records})
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        hint = did_you_mean(task, names)
        raise UnknownRun(f"run {run_id} has no attempt of task {task!r}; it has {listed}{hint}")
    return sorted(chosen, key=lambda record: (record.attempt, record.arm, record.model or ""))


def of_run(places: Places, broker: str | None, run_id: str) -> list[AttemptRecord]:
    path = places.records(run_id)

    def read(server: Server) -> list[AttemptRecord]:
        server.store.manifest(run_id)
        return list(server.store.records(run_id))

    ended = [] if exists(path) else finished(places, run_id)
    if ended and not any(one.was_run for one in ended):
        raise UnknownRun(f"run {run_id} made no attempt: {ended[0].reason}")
    try:
        if not exists(path):
            with servers.joining(places, run_id, broker) as server:
                return read(server)
    except ServerNotRunning:
        if not exists(path):  # else its owner has brought them home since
            with servers.taking_over(places, run_id) as server:
                return read(server)
    return list(read_jsonl(path))


def attempt_texts(records: list[AttemptRecord]) -> str:
    """Attempts as text for a terminal; nothing that a model said can move the cursor or set colours."""
    parts = []
    models = short_models(dict.fromkeys(record.model for record in records if record.model))
    for record in records:
        score = "–" if record.score is None else f"{record.score:.2f}"
        model = models.get(record.model or "", record.model)
        head = f"attempt {record.attempt}, {record.arm}, {model}: {record.outcome}, score {score}"
        lines = [plain(head), *(plain(text) for text in (record.details, record.error) if text)]
        lines += [f"  {_check_text(one)}" for one in record.judgments if one.check]
        text = record.completion.text if record.completion else ""
        lines += [f"  | {safe_line(line.expandtabs(4))}".rstrip() for line in text.splitlines()]
        parts.append("\n".join(lines) + "\n")
    parts += [f"{name} is {plain(model)}\n" for model, name in models.items() if name != model]
    return "\n".join(parts)


def step_texts(records: list[AttemptRecord], places: Places, run_id: str, width: int) -> str:
    """The steps of attempts as a list for a terminal; those of sub-agents stand further in."""
    kept = KeptSteps(places.steps(run_id))
    return "\n".join("\n".join([*_steps(record, kept.of(record), width), ""]) for record in records)


def _steps(record: AttemptRecord, trajectory: Trajectory | None, width: int) -> Iterator[str]:
    yield plain(f"attempt {record.attempt}, {record.arm}, {record.model}: {record.outcome}", width)
    if trajectory is None:
        yield f"  {_no_steps(record)}"
        return
    depth: dict[int | None, int] = {None: 0}
    for number, step in enumerate(trajectory.steps, start=1):
        inside = depth.get(step.within, 0)
        depth.update({call.number: inside + 1 for call in step.calls})
        margin = "  " * min(inside + 1, _MOST_DEPTH)
        told = [f"{number} {step.source}", step.model, step.at, step.stop_reason]
        tokens = (step.input_tokens, step.output_tokens)
        told += [f"{tokens[0]} in, {tokens[1]} out"] if tokens != (None, None) else []
        told += [usd(step.cost_usd)] if step.cost_usd else []
        yield margin + plain(" · ".join(filter(None, told)), width - len(margin))
        for sign, text in (("(", step.reasoning), ("|", step.text)):
            yield from _quoted(text, f"{margin}  {sign} ", width)
        for call in step.calls:
            yield from _quoted(f"{call.name} {json.dumps(call.arguments)}", f"{margin}  → ", width)
            yield from _quoted(call.result or "", f"{margin}  {'✗' if call.failed else '←'} ", width)
    ends = [] if trajectory.ended else ["it was stopped here"]
    ends += [f"{counted(trajectory.left_out, 'step')} left out"] if trajectory.left_out else []
    yield from (f"  {end}" for end in ends)


def _no_steps(record: AttemptRecord) -> str:
    if record.trajectory is None:
        return "no steps: none are kept of it, or whoever answered does not tell them"
    return f"no steps: {plain(record.trajectory) if ' ' in record.trajectory else 'they are not in this state root'}"


def _quoted(text: str, margin: str, width: int) -> Iterator[str]:
    """A text in a few lines behind a margin; how many more there are is said."""
    lines = [
        row
        for line in text.splitlines()[:_MOST_LINES]
        for row in textwrap.wrap(
            safe_line(line.expandtabs(4)[:_LONGEST]), width - len(margin), drop_whitespace=False
        )
    ]
    for line in lines[:_MOST_LINES]:
        yield f"{margin}{line}".rstrip()
    if len(lines) > _MOST_LINES or len(text.splitlines()) > _MOST_LINES:
        yield f"{margin}…"


def export(records: list[AttemptRecord], places: Places, run_id: str, folder: Path) -> int:
    """Write each attempt's steps as an ATIF document; returns how many there were."""
    kept, written = KeptSteps(places.steps(run_id)), 0
    for record in records:
        if (trajectory := kept.of(record)) is not None:
            facts = record.model_dump(
                include={"run_id", "task", "arm", "model", "attempt", "outcome", "score"}
            )
            names = (record.task, record.arm, record.model or "", str(record.attempt))
            path = folder / f"{'_'.join(file_name(name) for name in names)}.json"
            write_text(json.dumps(atif.document(trajectory, **facts), indent=1), path)
            written += 1
    return written


def _check_text(judgment: Judgment) -> str:
    """A line for one of a task's checks: how it ended, and why."""
    word = "missing" if judgment.passed is None else "passed" if judgment.passed else "failed"
    score = "" if judgment.score is None else f", score {judgment.score:.2f}"
    optional = "" if judgment.required else " (not required)"
    return plain(f"{judgment.check}{optional}: {word}{score}: {judgment.details or judgment.judge}")


def failures(places: Places, broker: str | None, run_id: str) -> list[AttemptRecord]:
    """The attempts of a run that did not pass, by task; raises UnknownRun."""
    failed = [record for record in of_run(places, broker, run_id) if record.outcome != "passed"]
    return sorted(failed, key=lambda record: (record.task, record.arm, record.model or "", record.attempt))


def failure_texts(failed: list[AttemptRecord], command: str) -> str:
    """One line for each task and arm with attempts that did not pass: how many, and why the first did not."""
    if not failed:
        return "every attempt passed\n"
    lines = []
    for (task, arm), group in groupby(failed, key=lambda record: (record.task, record.arm)):
        records = list(group)
        why = plain(records[0].error or records[0].details or records[0].outcome, 100)
        lines.append(f"{plain(task)}, {plain(arm)}: {len(records)} not passed: {why}\n")
    return "".join([*lines, f"\nall attempts of a task: {command} TASK\n"])

"""Write a run as one HTML page that needs no network: verdict first, then every task down to its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aggregate.files import writing
from aggregate.report import first_screen, pages
from aggregate.report.material import Material, Unit, units
from aggregate.report.text_blocks import INLINE_BYTES, TextBlocks, attempt_entry, task_entry
from aggregate.run_info import UNKNOWN_MODEL
from aggregate.standard_json import clean

_LETTERS = {"passed": "p", "failed": "f", "timeout": "t", "error": "e"}
_DESCRIPTION = 160
Attempts = dict[tuple[str, str, str], list[tuple[int, str, int]]]


def write(material: Material, path: Path, *, inline_bytes: int = INLINE_BYTES) -> Path:
    """Write the page, and a folder `<name>-texts` beside it where the texts are too large for one file.

    An older page is replaced as a whole, also when writing fails half-way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = TextBlocks(path.with_name(f"{path.stem}-texts"), inline_bytes)
    try:
        index = _index(material, blocks)
        blocks.finish()
        index["starts"] = blocks.starts
        index["folder"] = f"{path.stem}-texts" if blocks.is_outside else None
        view = first_screen.view(material)
        pieces = pages.report(view, index, blocks.inline, frames=blocks.is_outside)
        return _write_whole(path, pieces)
    except BaseException:
        blocks.discard()
        raise


def _index(material: Material, blocks: TextBlocks) -> dict[str, Any]:
    """What the page's script lists, filters and searches without opening any text."""
    artifact = material.artifact
    attempts: Attempts = {}
    for record in material.own_records():
        key = (record.task, record.model or UNKNOWN_MODEL, record.arm)
        number = blocks.add(attempt_entry(record))
        attempts.setdefault(key, []).append((record.attempt, _LETTERS[record.outcome], number))
    prompts = {name: blocks.add(task_entry(task)) for name, task in material.tasks.items()}
    rows = [_row(unit, material, attempts, prompts) for unit in units(artifact)]
    named: dict[str, Any] = clean(
        {
            "run": artifact["run_id"],
            "pass_k": artifact["pass_k"],
            "models": artifact["models"],
            "baseline": artifact["baseline"] != "none",
            "rows": rows,
        },
        digits=6,
    )
    return named


def _row(unit: Unit, material: Material, attempts: Attempts, prompts: Mapping[str, int]) -> dict[str, Any]:
    task = material.tasks.get(unit.task)
    interval = (unit.candidate or {}).get("interval") or {}
    flags = [
        name
        for name, holds in (
            ("failed", unit.failed),
            ("changed", unit.changed),
            ("flaky", unit.flaky),
            ("errors", unit.has_errors),
        )
        if holds
    ]
    return {
        "task": unit.task,
        "model": unit.model,
        "tier": unit.tier,
        "judge": unit.judge,
        "tags": list(task.tags) if task else [],
        "about": task.description[:_DESCRIPTION] if task else "",
        "prompt": prompts.get(unit.task),
        "difference": unit.difference,
        "low": interval.get("low"),
        "high": interval.get("high"),
        "flags": flags,
        "arms": [
            _side(side, attempts.get((unit.task, unit.model, arm), []))
            for side, arm in zip((unit.baseline, unit.candidate), material.arms, strict=True)
        ],
    }


def _side(side: Mapping[str, Any] | None, attempts: list[tuple[int, str, int]]) -> dict[str, Any] | None:
    if side is None and not attempts:
        return None
    ordered = sorted(attempts)
    known = side or {}
    return {
        "passes": known.get("passes"),
        "judged": known.get("judged"),
        "score": known.get("score"),
        "cost": known.get("cost_usd"),
        "ms": known.get("duration_ms"),
        "range": known.get("accuracy_range"),
        "outcomes": "".join(letter for _, letter, _ in ordered),
        "numbers": [number for number, _, _ in ordered],
        "entries": [entry for _, _, entry in ordered],
    }


def _write_whole(path: Path, pieces: Iterable[str]) -> Path:
    with writing(path) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8", "replace"))
    return path

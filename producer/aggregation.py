"""Aggregate or compare records that lie in files, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from aggregate import artifact, exports, frames, two_runs
from aggregate.reading import RecordsError, read_jsonl
from aggregate.run_info import Observer
from aggregate.verdict import Gate
from producer.collect import finished, write
from producer.names import check_run_id, file_name
from producer.options import InvalidOption, check_margin
from producer.places import Notes, Places, check_output
from workers.store import UnknownRun


def aggregate_file(
    path: Path,
    places: Places,
    *,
    output: Path | None,
    margin: float,
    gate: Gate = "verdict",
    weak_baseline: Literal["error", "warn"] = "error",
) -> list[dict[str, Any]]:
    """Artifacts, summary and tables from a JSONL file, which is read once and never held in memory."""
    check_margin(margin)
    places.check_writable()
    observer = Observer()
    collected = frames.collect(observer.watch(read_jsonl(path)))
    asked = {"margin": margin, "gate": gate, "weak_baseline": weak_baseline}
    info = observer.info().model_copy(update=asked)
    if places.has_notes(info.run_id):
        raise InvalidOption(
            f"{info.run_id} is a run of {places.root} and has its artifact there; give another --state-root"
        )
    check_output(output, several=len(info.candidates) > 1)
    made = artifact.from_frames(info, collected)
    notes = Notes(run_id=info.run_id, output=str(output) if output else None)
    written = [write(one, notes, places, several=len(made) > 1) for one in made]
    exports.write_exports(info, collected, places.root / "runs" / file_name(info.run_id))
    return written


def compare_runs(first: str, second: str, places: Places, *, margin: float) -> dict[str, Any]:
    """The second run's candidate against the first's; each is a run id of the state root or a file of records."""
    check_margin(margin)
    one, other = (read_jsonl(_records(name, places)) for name in (first, second))
    curtailed_at = (_curtailed_at(first, places), _curtailed_at(second, places))
    try:
        return two_runs.compare(one, other, margin=margin, curtailed_at=curtailed_at)
    except ValueError as problem:
        raise InvalidOption(str(problem)) from None


def _curtailed_at(name: str, places: Places) -> int | None:
    """How many attempts were planned of a run that stopped once its verdict was certain."""
    folder = _records(name, places).resolve().parent
    made = finished(Places(folder.parent.parent), folder.name) if folder.parent.name == "runs" else []
    return made[0]["pass_k"] if made and made[0].get("stop_early") == "verdict" else None


def _records(name: str, places: Places) -> Path:
    given = Path(name)
    if len(given.parts) == 1 and file_name(name) == name and (path := places.records(name)).is_file():
        return path
    if given.is_file():
        return given
    if len(given.parts) > 1 or given.suffix in (".jsonl", ".gz"):
        raise RecordsError([f"{name}: records not found"])
    check_run_id(name)
    raise UnknownRun(f"no records of run {name!r} under {places.root}; `uplift runs` lists what is there")

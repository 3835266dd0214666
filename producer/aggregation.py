"""Aggregate or compare records that lie in files, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggregate import artifact, exports, frames, two_runs
from aggregate.reading import read_jsonl
from aggregate.run_info import Observer
from aggregate.verdict import Gate
from producer.collect import finished, write
from producer.names import file_name
from producer.options import InvalidOption, check_margin
from producer.places import Notes, Places, check_output
from workers.store import UnknownRun


def aggregate_file(
    path: Path, places: Places, *, output: Path | None, margin: float, gate: Gate = "verdict"
) -> list[dict[str, Any]]:
    """Artifacts, summary and tables from a JSONL file, which is read once and never held in memory."""
    check_margin(margin)
    places.check_writable()
    observer = Observer()
    collected = frames.collect(observer.watch(read_jsonl(path)))
    info = observer.info().model_copy(update={"margin": margin, "gate": gate})
    if output is None and places.has_notes(info.run_id):
        raise InvalidOption(
            f"{info.run_id} is a run of {places.root} and has its artifact there; give --output or another --state-root"
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
    if _is_file(name):
        return None
    made = finished(places, name)
    return made[0]["pass_k"] if made and made[0]["stop_early"] == "verdict" else None


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".jsonl", ".gz") and Path(name).is_file()


def _records(name: str, places: Places) -> Path:
    if _is_file(name):
        return Path(name)
    path = places.records(name)
    if not path.is_file():
        raise UnknownRun(f"no records of run {name!r} under {places.root}; `uplift runs` lists what is there")
    return path

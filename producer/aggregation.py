"""Aggregate a file of records, whoever wrote them, into the state root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggregate import artifact, exports
from aggregate.reading import read_jsonl
from aggregate.run_info import RunInfo
from producer.collect import write
from producer.names import file_name
from producer.places import Notes, Places


def aggregate_file(path: Path, places: Places, *, output: Path | None, margin: float) -> list[dict[str, Any]]:
    """Artifacts, summary and tables from a JSONL file; the file is read twice and never held in memory."""
    places.check_writable()
    info = RunInfo.from_records(read_jsonl(path)).model_copy(update={"margin": margin})
    made = artifact.build(info, read_jsonl(path))
    notes = Notes(run_id=info.run_id, output=str(output) if output else None)
    written = [write(one, notes, places, several=len(made) > 1) for one in made]
    exports.write_exports(info, read_jsonl(path), places.root / "runs" / file_name(info.run_id))
    return written

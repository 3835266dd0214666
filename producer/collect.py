"""Bring a finished run home and find it there: artifact, trace, records and frames, baselines in the cache."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aggregate import artifact_file
from aggregate.files import writing
from aggregate.records import AttemptRecord
from producer import reports
from producer.baseline_cache import BaselineCache
from producer.places import Notes, Places
from producer.workspaces import Workspaces
from workers.store import KEEP_DAYS, Store


def collect(store: Store, run_id: str, made: list[dict[str, Any]], places: Places) -> list[dict[str, Any]]:
    """Write everything that a finished run leaves; returns the artifacts as written.

    Every file appears whole or not at all, and the server keeps the run: where the disk is full, it can be done
    again later.
    """
    try:
        return _collect(store, run_id, made, places)
    except OSError as problem:
        if problem.filename is not None:
            raise
        # A write that failed knows no file name, and without one nobody knows where there is no room.
        words = f"{problem.strerror}; make room, then go on with: {places.command('resume', run_id)}"
        raise OSError(problem.errno, words, str(places.root)) from problem


def _collect(store: Store, run_id: str, made: list[dict[str, Any]], places: Places) -> list[dict[str, Any]]:
    notes = places.notes(run_id)
    workspaces = Workspaces(places.workspaces(run_id))
    write_records(places.records(run_id), workspaces.noting(store.records(run_id)))
    if lost := workspaces.save(store):
        made = [{**artifact, "warnings": [*artifact["warnings"], lost]} for artifact in made]
    write_lines(places.tasks(run_id), (task.model_dump_json(by_alias=True) for task in store.tasks(run_id)))
    if notes.baseline_cache_dir and notes.cache_keys:
        _fill_cache(store, notes)
    written = [write(artifact, notes, places, several=len(made) > 1) for artifact in made]
    reports.write_pages(places, run_id, written)
    store.touch(run_id, KEEP_DAYS)
    return written


def finished(places: Places, run_id: str) -> list[dict[str, Any]]:
    """The artifacts of a run that are in the state root, or where --output put them."""
    output = places.notes(run_id).output
    place = Path(output) if output is not None else places.artifact(run_id).parent
    paths = sorted(place.glob(f"{run_id}*.json")) if place.is_dir() else [place]
    found = []
    for path in paths:
        try:
            artifact = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(artifact, dict) and artifact.get("run_id") == run_id:
            found.append(artifact)
    return found


def write(artifact: dict[str, Any], notes: Notes, places: Places, *, several: bool) -> dict[str, Any]:
    """Write one artifact, and a trace beside it where it failed; an earlier ending's trace goes."""
    run_id, candidate = artifact["run_id"], artifact["candidate_id"] if several else None
    path = places.artifact(run_id, candidate)
    if notes.output is not None:
        path = Path(notes.output) / path.name if several else Path(notes.output)
    artifact = {**artifact, "truth_anchor": str(artifact_file.write(artifact, path))}
    trace, path = artifact_file.trace(artifact), places.trace(run_id, candidate)
    if trace is not None:
        artifact_file.write_json(trace, path)
    else:
        path.unlink(missing_ok=True)
    return artifact


def write_records(path: Path, records: Iterable[AttemptRecord]) -> None:
    """Records as JSON lines, compressed."""
    write_lines(path, (record.model_dump_json(exclude_none=True) for record in records))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One JSON object a line, compressed; the file appears whole or not at all."""
    with writing(path) as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as file:
        for line in lines:
            file.write(line.encode() + b"\n")


def _fill_cache(store: Store, notes: Notes) -> None:
    assert notes.baseline_cache_dir is not None
    cache = BaselineCache(Path(notes.baseline_cache_dir))
    now = time.time()
    for index, key in notes.cache_keys.items():
        record = store.record(notes.run_id, index)
        if record is not None and record.judged and not record.cached:
            cache.put(key, record, now)

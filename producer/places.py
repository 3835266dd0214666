"""Where a state root keeps things, and the notes that a producer leaves itself about each run."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from aggregate.files import write_text
from producer.names import DEFAULT_STATE_ROOT, check_run_id, file_name


class Unwritable(Exception):
    """A folder that must be written cannot be."""


class Notes(BaseModel):
    """What only the producer knows of a run: where its artifact goes and which cache entries it fills.

    `cache_keys` maps an attempt's index to its baseline cache key.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    embedded: bool = False
    output: str | None = None
    baseline_cache_dir: str | None = None
    cache_keys: dict[int, str] = {}


@dataclass(frozen=True)
class Places:
    """Paths under a state root. Ids become file names only through `file_name`, so nothing can leave it."""

    root: Path

    def command(self, verb: str, run_id: str) -> str:
        """A command about a run, to be typed where this one was."""
        where = "" if self.root == DEFAULT_STATE_ROOT else f" --state-root {shlex.quote(str(self.root))}"
        return f"uplift {verb} {run_id}{where}"

    def artifact(self, run_id: str, candidate: str | None = None) -> Path:
        return self.root / "evaluations" / f"{_name(run_id, candidate)}.json"

    def trace(self, run_id: str, candidate: str | None = None) -> Path:
        return self.root / "traces" / f"{_name(run_id, candidate)}.json"

    def run(self, run_id: str) -> Path:
        return self.root / "runs" / check_run_id(run_id)

    def records(self, run_id: str) -> Path:
        return self.run(run_id) / "records.jsonl.gz"

    def tasks(self, run_id: str) -> Path:
        return self.run(run_id) / "tasks.jsonl.gz"

    def workspaces(self, run_id: str) -> Path:
        return self.run(run_id) / "workspaces"

    def embedded(self, run_id: str) -> Path:
        return self.root / "embedded" / check_run_id(run_id)

    def run_ids(self, kind: Literal["runs", "embedded"]) -> list[str]:
        """The runs that have a folder of a kind; whatever else lies there is left alone."""
        found = (path.name for path in (self.root / kind).glob("*") if path.is_dir())
        return sorted(name for name in found if file_name(name) == name)

    def check_writable(self) -> None:
        """Create the state root and prove that files can be written there; raises Unwritable.

        The one that nobody chose keeps itself out of git, as prompts and answers do not belong there.
        """
        _check_folder(self.root, f"state root {self.root}", "--state-root")
        ignored = self.root / ".gitignore"
        if self.root == DEFAULT_STATE_ROOT and not ignored.exists():
            write_text("*\n", ignored)

    def write_notes(self, notes: Notes) -> None:
        folder = self.run(notes.run_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(notes.model_dump_json(), folder / "notes.json")

    def has_notes(self, run_id: str) -> bool:
        """Whether a run of this id was started here."""
        return (self.root / "runs" / file_name(run_id) / "notes.json").exists()

    def notes(self, run_id: str) -> Notes:
        """Notes of a run that was started elsewhere are empty."""
        try:
            return Notes.model_validate_json((self.run(run_id) / "notes.json").read_bytes())
        except (OSError, ValueError):
            return Notes(run_id=run_id)


def _name(run_id: str, candidate: str | None) -> str:
    return file_name(run_id) if candidate is None else f"{file_name(run_id)}-{file_name(candidate)}"


def check_output(path: Path | None, *, several: bool) -> None:
    """Prove that artifacts can be written where `--output` says, before anything is paid for; raises Unwritable."""
    if path is None:
        return
    if not several and path.is_dir():
        raise Unwritable(f"--output {path} is a folder; give a file in it, such as {path / 'artifact.json'}")
    _check_folder(path if several else path.parent, f"--output {path}", "--output")


def _check_folder(folder: Path, what: str, flag: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise Unwritable(f"{what} cannot be written ({problem.strerror}); give another with {flag}") from None

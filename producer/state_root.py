"""Where a state root keeps things: names of files, the producer's notes about each run, and artifacts found again.

Ids come from outside and are made safe before they name a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aggregate.text import files
from aggregate.text.files import exists, is_folder, keep_private, make_folder, write_text
from judges.errors import UpliftError
from judges.safe_text import strict_json
from workers.store.keys import InvalidBroker, checked_broker, redacted

if TYPE_CHECKING:
    from aggregate.artifact.model import Artifact

DEFAULT_STATE_ROOT = Path(".uplift")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LONGEST_REMAINS = 80


def folders_above(start: Path) -> list[Path]:
    """A folder and those above it, up to the repository's root or the user's home; outside both, only itself.

    Whoever can write to a shared folder above must not decide what is run or read here.
    """
    above = [start, *start.parents]
    home = Path.home().resolve()
    for number, folder in enumerate(above):
        if (folder / ".git").exists() or folder == home:
            return above[: number + 1]
    return [start]


def nearest_state_root() -> Path:
    """The nearest `.uplift` at or above the current folder; where there is none, the one to be made here."""
    for number, folder in enumerate(folders_above(Path.cwd())):
        if is_folder(folder / DEFAULT_STATE_ROOT):
            return Path(*[".."] * number) / DEFAULT_STATE_ROOT
    return DEFAULT_STATE_ROOT


class InvalidId(UpliftError, ValueError):
    """An id that cannot name a run."""


def file_name(text: str) -> str:
    """A file name for any id: the id itself where that is safe, else what remains of it and a short digest.

    The digest follows a `~`, which no safe id holds, so that no two ids share a name.
    """
    if _SAFE.fullmatch(text):
        return text
    remains = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_REMAINS]
    return f"{remains or 'id'}~{short_digest(text)}"


def short_digest(text: str) -> str:
    """Twelve characters that tell texts apart where no more of them fits into a name."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def check_run_id(text: str) -> str:
    """The run id unchanged; InvalidId when it is not one that Uplift could have given."""
    if _SAFE.fullmatch(text):
        return text
    shown = text if len(text) <= LONGEST_REMAINS else text[:LONGEST_REMAINS] + "…"
    raise InvalidId(
        f"run id {shown!r} is not valid; use letters, digits, '.', '_' and '-', at most 128, "
        "starting with a letter or digit"
    )


MAX_STATE_BYTES = 256 * 1024 * 1024  # of an artifact, and of what a run notes about itself
_LONGEST_NAME = 200
_STAMPED = re.compile(r"\d{8}-\d{6}-")


class Unwritable(UpliftError):
    """A folder that must be written cannot be."""


class Notes(BaseModel):
    """What only the producer knows of a run: where its artifact goes and which cache entries it fills.

    `worker` has the variables that its private worker is started with. `cache_keys` maps an attempt's index to its
    baseline cache key.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    embedded: bool = False
    # Nothing else: whoever wrote the file must not choose the environment that a program is started in.
    worker: dict[Annotated[str, Field(pattern="^UPLIFT_[A-Z_]*IN_FLIGHT$")], str] = {}
    output: str | None = None
    baseline_cache_dir: str | None = None
    cache_keys: dict[int, str] = {}
    answer_keys: dict[int, str] = {}


@dataclass(frozen=True)
class Places:
    """Paths under a state root. Ids become file names only through `file_name`, so nothing can leave it."""

    root: Path

    def __post_init__(self) -> None:
        # Prompts, answers and records are nobody else's business, whatever the umask says.
        keep_private(self.root)

    def command(self, verb: str, run_id: str = "", broker: str | None = None, *more: str) -> str:
        """A command about a run, or about all, to be typed where this one was; see `on_broker`."""
        words = ["uplift", verb, *map(shlex.quote, filter(None, [run_id, *more]))]
        if self.root != nearest_state_root():
            words += ["--state-root", shlex.quote(str(self.root))]
        return on_broker(" ".join(words), broker)

    def artifact(self, run_id: str, source_run_id: str | None = None, candidate: str | None = None) -> Path:
        return self.root / "evaluations" / f"{_name(run_id, source_run_id, candidate)}.json"

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

    def steps(self, run_id: str) -> Path:
        return self.run(run_id) / "steps.zip"

    def grounds(self, run_id: str) -> Path:
        return self.run(run_id) / "grounds.json"

    def report(self, artifact: Artifact, name: str = "report.html", *, several: bool) -> Path:
        """Where a report of a run is, or of one of its several candidates, whether it has been written or not."""
        path = self.root / "runs" / file_name(artifact.run_id) / name
        candidate = file_name(artifact.candidate_id or artifact.arm)
        return path.with_stem(f"{path.stem}-{candidate}") if several else path

    def embedded(self, run_id: str) -> Path:
        return self.root / "embedded" / check_run_id(run_id)

    def run_ids(self, kind: Literal["runs", "embedded"]) -> list[str]:
        """The runs that have a folder of a kind; whatever else lies there is left alone."""
        names = (path.name for path in (self.root / kind).glob("*") if path.is_dir())
        return sorted(name for name in names if file_name(name) == name)

    def check_writable(self) -> None:
        """Create the state root and prove that files can be written there; raises Unwritable.

        The one that nobody chose keeps itself out of git, as prompts and answers do not belong there.
        """
        _check_folder(self.root, f"state root {self.root}", "--state-root")
        ignored = self.root / ".gitignore"
        if self.root == DEFAULT_STATE_ROOT and not ignored.exists():
            write_text("*\n", ignored)

    def latest_first(self) -> list[str]:
        """The runs that were started or collected here; an id that does not begin with a time has its folder's."""

        def started(run_id: str) -> str:
            if _STAMPED.match(run_id):
                return run_id
            place = next(path for path in (self.run(run_id), self.embedded(run_id)) if path.exists())
            return time.strftime("%Y%m%d-%H%M%S", time.gmtime(place.stat().st_mtime))

        known = {*self.run_ids("runs"), *self.run_ids("embedded")}
        return sorted(known, key=lambda run_id: (started(run_id), run_id), reverse=True)

    def write_notes(self, notes: Notes) -> None:
        write_text(notes.model_dump_json(), self.run(notes.run_id) / "notes.json")

    def has_notes(self, run_id: str) -> bool:
        """Whether a run of this id was started here."""
        return exists(self.root / "runs" / file_name(run_id) / "notes.json")

    def notes(self, run_id: str) -> Notes:
        """Notes of a run that was started elsewhere are empty."""
        try:
            return Notes.model_validate_json(files.read(self.run(run_id) / "notes.json", MAX_STATE_BYTES))
        except (OSError, ValueError):
            return Notes(run_id=run_id)


def on_broker(command: str, url: str | None) -> str:
    """A command with the broker that it is for; an address with a password is left to UPLIFT_BROKER, and said so."""
    if url is None:
        return command
    try:
        checked_broker(url)
    except InvalidBroker:
        command += " --insecure"
    if redacted(url) == url:
        return f"{command} --broker {shlex.quote(url)}"
    if os.environ.get("UPLIFT_BROKER") == url:
        return command
    return f"{command}  # set UPLIFT_BROKER to {redacted(url)}, with the password"


def _name(*ids: str | None) -> str:
    """One file name for all these ids, which begins with the first; a system takes no longer one."""
    name = "-".join(file_name(text) for text in ids if text is not None)
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}~{short_digest(name)}"


def check_output(path: Path | None, *, several: bool) -> None:
    """Prove that artifacts can be written where `--output` says, before anything is paid for; raises Unwritable."""
    if path is None:
        return
    if not several and path.is_dir():
        raise Unwritable(f"--output {path} is a folder; give a file in it, such as {path / 'artifact.json'}")
    _check_folder(path if several else path.parent, f"--output {path}", "--output")


def _check_folder(folder: Path, what: str, flag: str) -> None:
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise Unwritable(f"{what} cannot be written ({problem.strerror}); give another with {flag}") from None


def finished(places: Places, run_id: str) -> list[Artifact]:
    """The artifacts of a run that are in the state root, or where --output put them; what is none is passed over."""
    from aggregate.artifact import file
    from aggregate.artifact.model import NotAnArtifact

    artifacts = []
    for path in artifact_paths(places, run_id):
        with suppress(OSError, NotAnArtifact):
            artifacts.append(file.load(path, MAX_STATE_BYTES))
    return [artifact for artifact in artifacts if artifact.run_id == run_id]


def artifact_paths(places: Places, run_id: str) -> list[Path]:
    """The files that may hold the artifacts of a run."""
    output = places.notes(run_id).output
    place = Path(output) if output is not None else places.artifact(run_id).parent
    return sorted(place.glob(f"{run_id}*.json")) if is_folder(place) else [place]


def run_of(path: Path) -> str | None:
    """The run that an artifact or a trace says it belongs to; None for a file that says nothing, being damaged."""
    try:
        value = strict_json(files.read(path, MAX_STATE_BYTES).decode())
    except ValueError:
        return None
    name = value.get("run_id") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None

"""An agent's folder and the files that it left there; stored answers with such files, to be judged once more.

What an agent leaves is hostile: only plain files are taken, no links, and only up to a limit. An answer is found
again in an earlier run, in a recording, or in a try that no judge could grade: then nobody is asked or paid.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from aggregate.records.record import AttemptRecord
from aggregate.text import files
from judges.inside.remove_folder import remove
from judges.judgment import LEFT_OUT
from judges.spec import CommandCheck, Files, Pytest, PythonFunction
from workers.attempts.run_context import Answer, Question, Run, is_ungraded, measured, now
from workers.models.model import Request, secrets, without_secrets
from workers.store import bundles, keys
from workers.store.bundles import Bundle, BundleError
from workers.store.keys import Keys
from workers.store.messages import Task
from workers.store.run_store import unpack

MAX_FILES = 500
MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 16
MAX_NAMES = 10_000


def reads_files(task: Task) -> bool:
    """Whether a judge of the task is shown what an agent left; a suite's own code may look, or not."""
    code = Pytest | Files | PythonFunction | CommandCheck
    sees = any("files" in rubric.sees for rubric in task.rubrics)
    return sees or any(isinstance(judge, code) for judge in task.leaves)


class AttemptFolder:
    """A folder of its own for one attempt; `close` removes it."""

    def __init__(self, task: Task, suite: Path | None) -> None:
        self._task = task
        self._root = Path(tempfile.mkdtemp(prefix="uplift-attempt-"))
        self.folder = self._root / "workspace"
        self.folder.mkdir()
        for name in task.files:
            assert suite is not None  # a suite that names files has a bundle of them
            place = self.folder / name.removeprefix("fixtures/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(suite / name, place)

    def left(self) -> tuple[Path, Bundle]:
        """What the agent left, as a clean copy for judges and as a bundle to be kept."""
        copy = self._root / "left"
        copy.mkdir()
        content: dict[str, bytes] = {}
        room = MAX_BYTES
        for path, size in _plain_files(self.folder):
            name = without_secrets(path.relative_to(self.folder).as_posix())
            if name == LEFT_OUT:
                continue
            if size > room or len(content) >= MAX_FILES or len(name.encode()) > bundles.MAX_PATH_BYTES:
                continue
            try:
                data = files.read(path, room, links=False)
            except OSError:
                continue  # locked against its owner, or changed by a program that the agent left running
            place = copy / name
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    file.write(_without_secrets(data))
            except (FileExistsError, NotADirectoryError):
                continue  # without their secrets, two names are one
            content[name] = place.read_bytes()
            room -= len(data)
        if any(isinstance(judge, Files) for judge in self._task.leaves):
            left_out = [name for name in map(without_secrets, _names(self.folder)) if name not in content]
            content[LEFT_OUT] = "\n".join(left_out).encode()
            (copy / LEFT_OUT).write_bytes(content[LEFT_OUT])
        return copy, bundles.pack_files(content)

    def close(self) -> None:
        remove(self._root)


def _without_secrets(data: bytes) -> bytes:
    """An agent has its key, and may leave it in a file: what is kept must not hold it."""
    for secret in secrets():
        data = data.replace(secret.encode(), b"[redacted]")
    return data


def _names(folder: Path) -> list[str]:
    """Whatever has a name in a folder, of any kind, links not followed; the last one is "…" where there are more."""
    found, waiting = list[str](), [(folder, 0)]
    while waiting:
        at, depth = waiting.pop()
        with suppress(OSError), os.scandir(at) as entries:
            for entry in entries:
                if len(found) >= MAX_NAMES:
                    return [*found, "…"]
                if entry.name.isprintable():
                    found.append(Path(entry.path).relative_to(folder).as_posix())
                    if depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                        waiting.append((Path(entry.path), depth + 1))
    return found


def _plain_files(folder: Path, depth: int = 0) -> Iterator[tuple[Path, int]]:
    """Regular files with their sizes, in order of name; links are not followed and odd names are left out.

    So is what its owner may not look at: an agent must not be able to turn a failure into an error.
    """
    try:
        with os.scandir(folder) as entries:
            by_name = sorted(entries, key=lambda entry: entry.name)
        listed = [(entry, entry.stat(follow_symlinks=False)) for entry in by_name]
    except OSError:
        return
    for entry, facts in listed:
        if not entry.name.isprintable() or entry.name in bundles.SKIPPED:
            continue
        if stat.S_ISREG(facts.st_mode):
            yield Path(entry.path), facts.st_size
        elif stat.S_ISDIR(facts.st_mode) and depth < MAX_DEPTH:
            yield from _plain_files(Path(entry.path), depth + 1)


class Stored:
    """One stored answer with the files that an agent left beside it; `close` removes the copy of them."""

    def __init__(self, run: Run, index: int) -> None:
        self._run = run
        self._index = index
        self._root: Path | None = None
        self._bundle: Bundle | None = None

    async def answer(self, question: Question, source: str | None) -> Answer | None:
        """The answer of the run or recording `source`, else that of an earlier try that no judge could grade.

        None where the model has to be asked. What a source lacks is an error, never an empty answer to be judged.
        """
        run = Keys(self._run.manifest.run_id)
        record = await self._record(run.records if source is None else run.stored)
        if source is None and (record is None or not is_ungraded(record)):
            record = await self._record(run.stored) if self._run.manifest.has_answers else None
            if record is None:
                return None
        request = Request(
            prompt=question.task.prompt,
            task=question.task,
            arm=question.arm,
            attempt=question.number,
            suite=self._run.fixtures,
        )
        if record is None or record.completion is None:
            wanted = f"task {question.task.id!r}, arm {question.arm!r}, attempt {question.number}"
            error = f"{source} holds no completion of {wanted}"
            return Answer(request, now(), 0.0, outcome="error", error=error)
        completion, skill = measured(record.completion), self._run.skill_of(question)
        begun, seconds = record.started_at or now(), (record.model_ms or 0.0) / 1000
        problem = await self._fetch(record.workspace, question.task) if record.workspace else None
        if problem is not None:
            return Answer(request, begun, seconds, completion, outcome="error", error=problem)
        steps = await self._run.kept_steps(record.trajectory)
        return Answer(
            request, begun, seconds, completion, retries=record.retries or 0, trajectory=steps, skill=skill
        )

    async def _record(self, key: str) -> AttemptRecord | None:
        data = await cast("Awaitable[bytes | None]", self._run.client.hget(key, str(self._index)))
        try:
            return unpack(data) if data is not None else None
        except (zlib.error, ValueError):
            return None

    async def _fetch(self, digest: str, task: Task) -> str | None:
        """Bring the agent's files here; says what is wrong where a judge that reads them would miss them."""
        data = await cast("Awaitable[bytes | None]", self._run.client.get(keys.bundle(digest)))
        if data is not None:
            self._bundle = Bundle(digest, data)
            try:
                await asyncio.to_thread(self._unpack, self._bundle)
            except BundleError as problem:
                return f"the files that the agent left cannot be unpacked: {problem}"
        elif reads_files(task):
            return "the files that the agent left were not kept, and this judge reads them"
        return None

    def _unpack(self, bundle: Bundle) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="uplift-stored-"))
        bundles.unpack(bundle.data, self._root / "left", digest=bundle.digest)

    def left(self) -> tuple[Path | None, Bundle | None]:
        """The agent's files as a folder, and as the bundle that they came in."""
        return (self._root / "left" if self._root else None), self._bundle

    def close(self) -> None:
        if self._root is not None:
            remove(self._root)

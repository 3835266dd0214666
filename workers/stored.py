"""What the models of an earlier run said, for a run that only judges it again: nobody is asked, nothing is paid."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from workers import bundles
from workers.attempt import Answer, Attempt
from workers.bundles import Bundle, BundleError
from workers.messages import Task
from workers.models import Request
from workers.runs import Run
from workers.store import Keys, unpack


class Stored:
    """One stored answer with the files that an agent left beside it; `close` removes the copy of them."""

    folder: Path | None = None

    def __init__(self, run: Run, index: int) -> None:
        self._run = run
        self._index = index
        self._root: Path | None = None
        self._bundle: Bundle | None = None

    async def answer(self, attempt: Attempt) -> Answer:
        """The answer as it was given; what is missing is an error, never an empty answer to be judged."""
        request = Request(
            prompt=attempt.task.prompt,
            task=attempt.task,
            arm=attempt.arm,
            attempt=attempt.number,
            suite=self._run.fixtures,
        )
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = await cast(
            "Awaitable[bytes | None]",
            self._run.client.hget(Keys(self._run.manifest.run_id).stored, str(self._index)),
        )
        record = unpack(data) if data is not None else None
        if record is None or record.completion is None:
            return Answer(
                request, now, 0.0, outcome="error", error="no completion is stored for this attempt"
            )
        completion = record.completion.model_copy(update={"cost_source": "replay"})
        begun, seconds = record.started_at or now, (record.model_ms or 0.0) / 1000
        problem = await self._fetch(record.workspace, attempt.task) if record.workspace else None
        if problem is not None:
            return Answer(request, begun, seconds, completion, outcome="error", error=problem)
        return Answer(request, begun, seconds, completion)

    async def _fetch(self, digest: str, task: Task) -> str | None:
        """Bring the agent's files here; says what is wrong where a judge that reads them would miss them."""
        data = await cast("Awaitable[bytes | None]", self._run.client.get(f"uplift:bundle:{digest}"))
        if data is not None:
            self._bundle = Bundle(digest, data)
            try:
                await asyncio.to_thread(self._unpack, self._bundle)
            except BundleError as problem:
                return f"the files that the agent left cannot be unpacked: {problem}"
        elif task.judge.type == "pytest":
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
            shutil.rmtree(self._root, ignore_errors=True)

"""Start a command without bubblewrap: in a private temporary folder, under a supervisor that outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from judges.inside import remove_folder, supervisor
from judges.sandbox.pipes import Lifeline

_PATIENCE_SECONDS = 5.0


class Folder:
    """A private folder with copies of the inputs, our code, and folders that the command may write to."""

    def __init__(self, inputs: Mapping[str, bytes | Path], code: Mapping[str, bytes]) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="uplift-"))
        self.inputs, self.code = self.path / "inputs", self.path / "code"
        self.work, self.tmp = (self.path / name for name in supervisor.WRITABLE)
        for folder in (self.inputs, self.code, self.work, self.tmp):
            folder.mkdir()
        try:
            for name, source in inputs.items():
                _put(source, self.inputs / name)
            for name, content in code.items():
                _put(content, self.code / name)
        except OSError:
            remove_folder.remove(self.path)
            raise


class Supervised:
    """A started supervisor, in a session of its own; its lifeline tells it to end the command, and that we are gone.

    `keep` are descriptors that it inherits, its end of the lifeline among them; `output` gets stdout, and stderr
    unless `errors` says otherwise.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        keep: Iterable[int],
        lifeline: Lifeline,
        output: int,
        errors: int = subprocess.STDOUT,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._lifeline = lifeline
        self._folder = cwd.parent
        self._before = supervisor.shared_by(os.geteuid())
        self.process = subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=cwd,
            stdin=stdin,
            stdout=output,
            stderr=errors,
            pass_fds=list(keep),
            start_new_session=True,
        )

    def inside(self) -> list[int]:
        """The command's processes."""
        return supervisor.descendants(self.process.pid)

    def disk_bytes(self) -> int:
        """What the command has written to disks, or what its files take if that is more."""
        processes = [self.process.pid, *self.inside()]
        user = os.geteuid() or supervisor.private_user(self.process.pid)
        files = {self._folder, *supervisor.shared_by(user)} - self._before
        return max(supervisor.written_bytes(processes), supervisor.allocated_bytes(files))

    def kill(self) -> None:
        """Tell the supervisor to kill the command with all its descendants."""
        self._lifeline.tell_to_end()

    def close(self) -> None:
        """Wait for the end, which must be under way; a command can have stopped its supervisor on the way."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_PATIENCE_SECONDS)
                return
            supervisor.kill(supervisor.descendants(self.process.pid))
            self.process.send_signal(signal.SIGCONT)


def copy(source: Path, target: Path) -> Path:
    """Copy a file or folder; links stay links."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target)
    return target


def _put(source: bytes | Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, bytes):
        target.unlink(missing_ok=True)
        target.write_bytes(source)
        target.chmod(0o444)
    else:
        copy(source, target)

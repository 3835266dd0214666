"""Start a command without bubblewrap: in a private temporary folder, under a supervisor that outlives it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from judges import supervise
from judges.pipes import Lifeline


class Folder:
    """A private folder: inputs (copies, so that the originals stay as they are), our code, and room for the
    command.
    """

    def __init__(self, inputs: Mapping[str, bytes | Path], code: Mapping[str, bytes]) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="uplift-"))
        self.inputs, self.code = self.path / "inputs", self.path / "code"
        self.work, self.tmp = (self.path / name for name in supervise.WRITABLE)
        for folder in (self.inputs, self.code, self.work, self.tmp):
            folder.mkdir()
        try:
            for name, source in inputs.items():
                _put(source, self.inputs / name)
            for name, content in code.items():
                _put(content, self.code / name)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete the folder, including what the command made unreadable to its own user."""
        shutil.rmtree(self.path, onerror=_open_up_and_retry)


class Supervised:
    """A started supervisor; its lifeline tells it to end the command, and that we are gone."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: Lifeline) -> None:
        self.process = process
        self._lifeline = lifeline

    def kill(self) -> None:
        """Have the command killed with all its descendants."""
        self._lifeline.tell_to_end()

    def close(self) -> None:
        """Wait for the end, which must be under way."""
        self.process.wait()


def start(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    output: int,
    keep: Iterable[int],
    lifeline: Lifeline,
) -> Supervised:
    """Start the supervisor in a session of its own; it must have been told its end of the lifeline."""
    process = subprocess.Popen(
        argv,
        env=dict(environment),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=list(keep),
        start_new_session=True,
    )
    return Supervised(process, lifeline)


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
        target.write_bytes(source)
        target.chmod(0o444)
    else:
        copy(source, target)


def _open_up_and_retry(remove: Callable[[str], object], path: str, error: object) -> None:
    with suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)

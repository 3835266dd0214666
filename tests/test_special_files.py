"""Files that are no files, or far too large: every command that reads one says so, soon and with little memory."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import a_record
from running import a_suite

from aggregate.text import files
from aggregate.text.files import TooLarge, Unreadable

RUN = "20260101-120000-abc123"
MEGABYTE = 1000 * 1000
MOST_MEGABYTES = 450  # pandas and a line at its limit; the bombs below would take two to six times as much
# Ends whatever is mistaken about its memory before it can hurt the machine, and tells what it took at most.
MEASURED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
from producer.cli import main
try:
    main()
finally:
    line, = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("took", int(line.split()[1]) * 1024 // 1_000_000, file=sys.stderr)
"""


def evaluate(*more: str | Path) -> Callable[[Path, Path], list[str | Path]]:
    def words(path: Path, folder: Path) -> list[str | Path]:
        chosen = [str(word).replace("FILE", str(path)) for word in more]
        target: list[str | Path] = ["--standalone", "--skill-path", folder / "skill"]
        if "--input" in chosen or "--skill-path" in chosen:
            target = []
        suite = folder / "suite.yaml"
        return ["evaluate", "--task-suite", suite, *target, "--state-root", folder / "state", *chosen]

    return words


def _in_state_root(command: str) -> Callable[[Path, Path], list[str | Path]]:
    def words(path: Path, folder: Path) -> list[str | Path]:
        place = folder / "state" / "evaluations" / f"{RUN}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(path)
        return [command, RUN, "--state-root", folder / "state"]

    return words


ENTRIES: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "validate": lambda path, folder: ["validate", path],
    "import": lambda path, folder: ["import", path],
    "aggregate": lambda path, folder: ["aggregate", path, "--state-root", folder / "state"],
    "compare": lambda path, folder: ["compare", path, path, "--state-root", folder / "state"],
    "config": evaluate("--mock", "--config", "FILE"),
    "input": evaluate("--mock", "--input", "FILE", "--candidate-id", "a"),
    "skill": evaluate("--mock", "--standalone", "--skill-path", "FILE"),
    "blessed baseline": evaluate("--mock", "--baseline-artifact", "FILE"),
    "replay": evaluate("--model", "replay:FILE"),
    "artifact to report": _in_state_root("report"),
    "artifact to bless": _in_state_root("bless"),
}


def _linked(path: Path, link: Path) -> Path:
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("special")
    os.mkfifo(folder / "pipe")
    with (folder / "sparse").open("wb") as file:
        file.truncate(500 * MEGABYTE)
    with gzip.open(folder / "bomb.gz", "wb", compresslevel=1) as file:
        for _ in range(1500):
            file.write(b" " * MEGABYTE)
    return {
        "pipe": folder / "pipe",
        "device": Path("/dev/zero"),
        "sparse": folder / "sparse",
        "bomb": folder / "bomb.gz",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "bomb"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_command_waits_for_a_special_file_or_takes_it_all_into_memory(
    entry: str, kind: str, special: dict[str, Path], tmp_path: Path
) -> None:
    a_suite(tmp_path)
    words = ENTRIES[entry](special[kind], tmp_path)
    child = subprocess.run(
        [sys.executable, "-P", "-c", MEASURED, *map(str, words)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    *said, took = child.stderr.strip().splitlines()
    assert child.returncode in (1, 2), child.stderr  # validate exits with 1
    assert "Traceback" not in child.stderr
    assert int(took.removeprefix("took ")) < MOST_MEGABYTES
    what = RUN if RUN in words else str(special[kind])
    assert what in child.stdout + " ".join(said)


def test_a_pipe_is_read_where_a_process_substitution_makes_sense(tmp_path: Path) -> None:
    a_suite(tmp_path)
    (tmp_path / "r.jsonl").write_text(
        "".join(
            a_record(task, arm).model_dump_json(exclude_none=True) + "\n"
            for task in "ab"
            for arm in ("baseline", "candidate")
        )
    )
    (tmp_path / "c.toml").write_text("pass_k = 2\n")
    uplift = f"{sys.executable} -P -m producer.cli"
    for line in (
        f"{uplift} aggregate <(sleep 0.3; cat r.jsonl) --state-root plain",
        f"{uplift} aggregate <(gzip -c r.jsonl) --state-root packed",
        f"cat r.jsonl | {uplift} aggregate /dev/stdin --state-root piped",
        f"{uplift} aggregate /dev/stdin --state-root given < r.jsonl",
        f"{uplift} compare <(cat r.jsonl) <(cat r.jsonl)",
        f"mkfifo named; (sleep 0.3; cat r.jsonl > named) & {uplift} aggregate named --state-root named-state",
        f"{uplift} evaluate --standalone --task-suite suite.yaml --skill-path skill --mock --dry-run "
        "--config <(cat c.toml) --json | grep -q attempts_per_task...2",
        f"{uplift} evaluate --standalone --task-suite suite.yaml --skill-path skill --mock --dry-run "
        "--config /dev/null",
    ):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "NO_WRITER_SECONDS", 0.1)
    monkeypatch.setattr(files, "SILENT_SECONDS", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable, match=r"a pipe that nobody wrote to for 0\.1 s"):
        files.read(tmp_path / "pipe", 10, pipes=True)
    keeps = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(Unreadable, match=r"a pipe that nobody wrote to for 0\.2 s"):
            files.read(tmp_path / "pipe", 10, pipes=True)
    finally:
        os.close(keeps)


def test_a_pipe_is_read_to_its_end_however_slowly_it_comes_and_no_further_than_allowed(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write(*parts: bytes) -> threading.Thread:
        def run() -> None:
            with pipe.open("wb", buffering=0) as file:
                for part in parts:
                    file.write(part)
                    threading.Event().wait(0.05)

        writer = threading.Thread(target=run)
        writer.start()
        return writer

    writer = write(b"one\n", b"two\n")
    assert list(files.lines(pipe, pipes=True)) == [b"one\n", b"two\n"]
    writer.join()
    writer = write()
    assert files.read(pipe, 10, pipes=True) == b""
    writer.join()
    writer = write(b"x" * 11)
    with pytest.raises(TooLarge, match="holds more than 10 bytes"):
        files.read(pipe, 10, pipes=True)
    writer.join()
    with pytest.raises(Unreadable, match="is a pipe and not a regular file"):
        files.read(pipe, 10)


def test_a_file_is_read_up_to_its_bound_and_not_a_byte_further(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert files.read(path, 10) == b"0123456789"
    with pytest.raises(TooLarge, match="holds 10 bytes; at most 9 bytes are allowed") as caught:
        files.read(path, 9)
    assert caught.value.filename == str(path)
    with pytest.raises(Unreadable, match="is a folder"):
        files.read(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none", 10)
    assert files.read(Path("/dev/null"), 0) == b""
    # It says that it is empty, and is not.
    with pytest.raises(TooLarge, match="holds more than 3 bytes"):
        files.read(Path("/proc/self/status"), 3)
    _linked(path, tmp_path / "link")
    assert files.read(tmp_path / "link", 10) == b"0123456789"
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "link", 10, links=False)


def test_lines_are_counted_after_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(files, "MAX_LINES", 20)
    packed = tmp_path / "packed"

    def lines(data: bytes, most: int = 1000) -> list[bytes]:
        packed.write_bytes(gzip.compress(data))
        return list(files.lines(packed, most=most))

    assert lines(b"a\n\nb") == [b"a\n", b"\n", b"b"]
    assert lines(b"x" * 99 + b"\n") == [b"x" * 99 + b"\n"]
    for data, words in (
        (b"x" * 101, "a line of more than 100 bytes"),
        (b"\n" * 21, "more than 20 lines"),
        ((b"x" * 59 + b"\n") * 17, "more than 1,000 bytes"),
    ):
        with pytest.raises(TooLarge, match=words):
            lines(data)
    packed.write_bytes(gzip.compress(b"a line\n")[:-5])
    with pytest.raises(Unreadable, match="is no whole gzip file"):
        list(files.lines(packed))

"""How much of our code one attempt passes: `python -m bench.trace_attempt [--list]`.

Runs `uplift evaluate --quiet` on a suite of one task with a `contains` judge: one attempt of the mock model with the
skill and one without, on a private server. Writes down every function of ours that is called: in the command, in its
worker and in the child process that aggregates. "Together" is the union over these processes.

A file counts when a function in it was called, of whatever kind; importing it is not enough. Functions are counted
without lambdas, comprehensions and generator expressions. Frames to the chord are our functions on the stack where the
command hands the chord to Celery, its `main` included. By this definition version 0.1.0 passes 108 files and 718
functions and has 10 frames; the 109, 717 and 10 that the bars below started from were measured by another tracer.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from bench.rows import Row, show

ROOT = Path(__file__).parent.parent
OURS = (*(f"{ROOT}/{name}/" for name in ("judges", "aggregate", "workers", "producer")), f"{ROOT}/uplift.py")
MOST_FILES = 75
MOST_FRAMES = 6
_FOLDER = "BENCH_TRACE_FOLDER"
_SUITE = """
skill_id: traced
version: "1.0"
tasks:
  - {id: only, prompt: Say something., judge: {type: contains, expected: [mock]}, tier: T1}
"""
_SKILL = "---\nname: traced\ndescription: Says something.\n---\nSay it.\n"


@dataclass(frozen=True)
class Trace:
    """What was called: (file, function) by process, and the functions on the way to the chord, outermost first."""

    processes: dict[str, set[tuple[str, str]]]
    to_chord: list[str]

    @property
    def called(self) -> set[tuple[str, str]]:
        return set().union(*self.processes.values())


def files(called: set[tuple[str, str]]) -> set[str]:
    return {file for file, _ in called}


def named(called: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without lambdas, comprehensions and generator expressions, whose names end with a bracket."""
    return {(file, function) for file, function in called if ">:" not in function}


def trace() -> Trace:
    """Run the attempt; every Python process of it traces itself, because it finds a sitecustomize of ours."""
    with tempfile.TemporaryDirectory(prefix="uplift-trace-") as temporary:
        folder = Path(temporary)
        for name in ("site", "traces", "skill"):
            (folder / name).mkdir()
        (folder / "site" / "sitecustomize.py").write_text(
            "from bench.trace_attempt import trace_this_process\ntrace_this_process()\n"
        )
        (folder / "suite.yaml").write_text(_SUITE)
        (folder / "skill" / "SKILL.md").write_text(_SKILL)
        words = ["evaluate", "--standalone", "--task-suite", "suite.yaml", "--skill-path", "skill"]
        subprocess.run(
            [sys.executable, "-P", "-m", "producer.cli", *words, "--mock", "--quiet"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder / 'site'}:{ROOT}", _FOLDER: str(folder / "traces")},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return _read(folder / "traces")


def trace_this_process() -> None:
    """Write each function of ours to a file of this process when it is first called, from now on, in all threads.

    At once, and not when the process ends: how it ends is its own business.
    """
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else Path(sys.argv[0]).name
    path = Path(os.environ[_FOLDER]) / f"{module} {os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    known: set[tuple[str, int, str]] = set()  # code objects of different files can be equal

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        function = code.co_filename, code.co_firstlineno, code.co_qualname
        if event != "call" or function in known:
            return
        known.add(function)
        if _is_ours(code):
            os.write(descriptor, f"called\t{_told(code)}\n".encode())
        elif code.co_qualname == "_chord.__call__" and code.co_filename.endswith("celery/canvas.py"):
            lines = "".join(f"chord\t{_told(code)}\n" for code in _way_here(frame))
            os.write(descriptor, lines.encode())

    threading.setprofile(called)
    sys.setprofile(called)


def _is_ours(code: CodeType) -> bool:
    # Bodies of modules and classes are not optimized code; functions of every kind are.
    return code.co_filename.startswith(OURS) and bool(code.co_flags & inspect.CO_OPTIMIZED)


def _told(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(ROOT)}\t{code.co_qualname}:{code.co_firstlineno}"


def _way_here(frame: FrameType | None) -> list[CodeType]:
    """Functions of ours on the stack, outermost first."""
    way: list[CodeType] = []
    while frame is not None:
        if _is_ours(frame.f_code):
            way.insert(0, frame.f_code)
        frame = frame.f_back
    return way


def _read(folder: Path) -> Trace:
    processes: dict[str, set[tuple[str, str]]] = {}
    to_chord = []
    for path in sorted(folder.iterdir()):
        called = processes.setdefault(path.name.rpartition(" ")[0], set())
        for line in path.read_text().splitlines():
            kind, file, function = line.split("\t")
            if kind == "called":
                called.add((file, function))
            else:
                to_chord.append(f"{file} {function.partition(':')[0]}")
    return Trace({name: called for name, called in processes.items() if called}, to_chord)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--list", action="store_true", help="print each file, with its number of functions called"
    )
    with_list = parser.parse_args().list
    made = trace()
    rows = []
    for name, called in {**made.processes, "together": made.called}.items():
        bar = MOST_FILES if name == "together" else None
        note = f"{len(named(called))} functions"
        rows.append(Row(f"one attempt, {name}", len(files(called)), "files", bar, note=note))
    rows.append(Row("command to chord", len(made.to_chord), "frames", MOST_FRAMES))
    show(rows)
    print("\nFrom command to chord:")
    for function in made.to_chord:
        print(f"  {function}")
    if with_list:
        print("\nFiles, with how many functions were called in each:")
        functions = Counter(file for file, _ in named(made.called))
        for file in sorted(files(made.called)):
            print(f"  {file} {functions[file]}")


if __name__ == "__main__":
    main()

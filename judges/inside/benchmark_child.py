"""Load one version of the code under test into an interpreter of its own, and run benchmarks on request.

Runs in a sandbox of its own, once per version, with SOLUTION BENCHMARKS as arguments. It imports
the solution, then the benchmark file, and answers one JSON line per request. Every test, snapshot and timed
batch happens in a fork of its own, so that nothing is carried over from one to the next: no cache that was
filled, no module that was patched, no thread that still runs.

Standard library only: inside a sandbox nothing else of the package exists.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from judges.inside import drop_rights

# How a fork ends that has said all it had to say; any other end is reported by its parent.
ANSWERED = 77
MAX_WHY_CHARACTERS = 500


@dataclass(frozen=True)
class Timed:
    """One benchmark: `prepare` sets up a batch and returns the call to time; `number` is how often, if given."""

    name: str
    prepare: Callable[[], Callable[[], object]]
    number: int | None


class Line:
    """One JSON value per line, over two file descriptors."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads = reads
        self.writes = writes

    def receive(self) -> Any:
        received = b""
        while not received.endswith(b"\n"):
            part = os.read(self.reads, 65536)
            if not part:
                os._exit(0)
            received += part
        return json.loads(received)

    def send(self, message: object) -> None:
        waiting = json.dumps(message).encode() + b"\n"
        while waiting:
            waiting = waiting[os.write(self.writes, waiting) :]


def main() -> None:
    """Load both files, say what they hold, and serve requests until the other side closes the line."""
    solution, benchmarks = sys.argv[1:]
    del sys.path[0]
    line = Line(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    drop_rights.hide_from_others()  # without bubblewrap there are others
    # Helper modules may lie beside the benchmark file; at the end, so that they cannot stand in for others.
    sys.path.append(str(Path(benchmarks).parent))
    try:
        _load("solution", Path(solution))
        module = _load(Path(benchmarks).stem, Path(benchmarks))
        timed = {one.name: one for one in _timed(module)}
        tests = {
            name: value
            for name, value in vars(module).items()
            if name.startswith("test_") and callable(value)
        }
        snapshot = getattr(module, "snapshot", None)
        listed = [{"name": one.name, "number": one.number} for one in timed.values()]
    except BaseException as broken:
        line.send({"failed": _why(broken)})
        return
    line.send({"benchmarks": listed, "tests": list(tests), "snapshot": callable(snapshot)})
    while True:
        _in_a_fork(line, line.receive(), timed, tests, snapshot)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _timed(module: ModuleType) -> Iterator[Timed]:
    """Every `time_*` function of the module and of its classes, once for each combination of its `params`."""
    for name, value in vars(module).items():
        if name.startswith("time_") and callable(value):
            methods = [""]
        elif isinstance(value, type) and value.__module__ == module.__name__:
            methods = [method for method in dir(value) if method.startswith("time_")]
        else:
            continue
        for method in methods:
            place = f"{module.__name__}.{name}" + (f".{method}" if method else "")
            for params in _combinations(value):
                yield _benchmark(place, value, method, params)


def _combinations(holder: Any) -> list[tuple[Any, ...]]:
    params = list(getattr(holder, "params", ()))
    if not params:
        return [()]
    if all(isinstance(values, list | tuple) for values in params):
        return list(itertools.product(*params))
    return [(value,) for value in params]


def _benchmark(name: str, owner: Any, method: str, params: tuple[Any, ...]) -> Timed:
    """`owner` is a function, or the class that has the method."""

    def prepare() -> Callable[[], object]:
        instance = owner() if method else owner
        if hasattr(instance, "setup"):
            instance.setup(*params)
        call = getattr(instance, method) if method else instance
        return lambda: call(*params)

    brackets = f"({', '.join(map(repr, params))})" if params else ""
    return Timed(name + brackets, prepare, getattr(owner, "number", None))


def _in_a_fork(
    line: Line,
    request: Any,
    timed: dict[str, Timed],
    tests: dict[str, Any],
    snapshot: Callable[[], object] | None,
) -> None:
    child = os.fork()
    if child == 0:
        try:
            match request["do"]:
                case "test":
                    line.send(_tested(tests[request["name"]]))
                case "snapshot":
                    line.send({"value": snapshot() if snapshot else None})
                case "time":
                    _run_batch(line, timed[request["name"]], request["number"])
        except BaseException as broken:
            line.send({"failed": _why(broken)})
        os._exit(ANSWERED)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        line.send({"failed": f"killed by signal {os.WTERMSIG(ended)}"})
    elif os.WEXITSTATUS(ended) != ANSWERED:
        line.send({"failed": f"ended the process with exit code {os.WEXITSTATUS(ended)}"})


def _run_batch(line: Line, timed: Timed, number: int) -> None:
    call = timed.prepare()
    gc.collect()
    line.send({"ready": True})
    line.receive()
    for _ in range(number):
        call()
    line.send({"done": True})


def _tested(test: Callable[[], object]) -> dict[str, str]:
    try:
        test()
    except AssertionError as failed:
        return {"status": "failed", "why": _why(failed)}
    except BaseException as broken:
        return {"status": "errored", "why": _why(broken)}
    return {"status": "passed", "why": ""}


def _why(broken: BaseException) -> str:
    """Type and message of an exception; the source line where an assertion has no message."""
    message = str(broken)
    if not message and (frames := traceback.extract_tb(broken.__traceback__)):
        message = frames[-1].line or ""
    return f"{type(broken).__name__}: {message}"[:MAX_WHY_CHARACTERS]

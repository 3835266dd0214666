"""The tracer of one attempt sees every process of ours, and what they call."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed with the packages

from bench import trace_attempt


@pytest.mark.slow
def test_an_attempt_is_traced_from_the_command_through_the_worker_to_the_aggregating_child():
    made = trace_attempt.trace()
    command, worker, child = (made.processes[name] for name in sorted(made.processes))
    # Who asks, who answers and who adds up: no other process does any of these.
    assert _has(command, "evaluate")
    assert _has(worker, "Mock.complete")
    assert not _has(command | child, "Mock.complete")
    assert any(file.startswith("aggregate/") for file, _ in child)
    assert not any(file.startswith("producer/") for file, _ in worker | child)
    assert [step.split()[1] for step in made.to_chord[:2]] == ["main", "evaluate"]
    assert made.to_chord[-1].startswith("workers/")


def _has(called, function):
    return any(name.startswith(f"{function}:") for _, name in called)

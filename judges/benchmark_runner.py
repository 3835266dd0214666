"""Time the original, the candidate's and the oracle's code against each other, round by round.

Runs inside the sandbox, with SECONDS BENCHMARKS ORIGINAL CANDIDATE [ORACLE] as arguments, and writes two
JSON lines to file descriptor 3: that the candidate's turn has come, and what came out. Each version of the
code lives in an interpreter of its own, so that the candidate's can patch neither the clock nor the code it
is compared with.

Who holds the clock: this process does, around a request and its answer, and it never runs the code under
test. A clock inside the candidate's process would be more precise by some 50 microseconds a batch, and one
line of hostile code would stop it. What the clock cannot know is whether the work was done; tests and the
snapshot say that. The time of the request itself is not subtracted, so speedups come out a little too
small, never too large.

How noise is shared: a round times every benchmark on every version, one after the other, in an order that
turns from round to round, with the same number of calls; versions that are not being timed are stopped
(SIGSTOP), so a thread left spinning by one cannot slow the others. A benchmark's figure is the median over
rounds.

Standard library only, and nothing of this package but benchmark_version and benchmark_child exists in
there.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
from statistics import median
from typing import Any

from judges.benchmark_version import Broken, OutOfTime, Version

REPORT_FD = 3
PR_SET_DUMPABLE = 4
# Many short rounds: with 11 of 20 ms, equal code came out further apart on a busy machine.
ROUNDS = 25
MAX_ROUNDS = 100
# Between a clear failure and a clear pass: equal code that was unlucky must get another chance.
CLOSE = (0.85, 0.97)
# Code that takes many times as long also takes many times as long to measure.
HOPELESS_ROUNDS = 7
HOPELESS = 0.5
BATCH_SECONDS = 0.01
MAX_NUMBER = 1_000_000
# No new round starts after this share of the time; what is under way then has the rest to come to an end.
SOFT_SHARE = 0.6
# A candidate that runs out of time is to blame only if it used clearly more of it than the original did.
TO_BLAME = 2.0

Report = dict[str, Any]


class Contest:
    """All versions at once: what they hold, and what came out so far."""

    def __init__(self, seconds: float, benchmarks: str) -> None:
        begun = time.monotonic()
        self.soft_deadline = begun + SOFT_SHARE * seconds
        self.deadline = begun + seconds
        self.benchmarks = benchmarks
        self.versions: dict[str, Version] = {}
        self.samples: dict[str, dict[str, list[float]]] = {}
        self.tests = {"passed": 0, "failed": 0, "errored": 0, "oracle_failed": 0}
        self.complaints: list[str] = []
        self.snapshot: dict[str, Any] | None = None

    def start(self, role: str, solution: str) -> Version:
        self.versions[role] = Version(role, self.deadline)
        self.versions[role].start(solution, self.benchmarks)
        return self.versions[role]

    def test(self) -> None:
        """Run every `test_*` function on the candidate, and on the oracle to know what nobody can pass."""
        candidate, oracle = self.versions["candidate"], self.versions.get("oracle")
        for name in self.versions["original"].holds["tests"]:
            answer = _verdict(candidate, name)
            self.tests[answer["status"]] += 1
            if answer["status"] != "passed":
                self.complaints.append(f"{name}: {answer['why']}")
            if oracle and _verdict(oracle, name)["status"] != "passed":
                self.tests["oracle_failed"] += 1

    def take_snapshot(self) -> None:
        """Compare what `snapshot()` gives for the original and for the candidate, item by item."""
        expected = _items(self.versions["original"].ask(do="snapshot")["value"])
        try:
            found = _items(self.versions["candidate"].ask(do="snapshot")["value"])
        except OutOfTime:
            raise
        except Broken as broken:
            self.snapshot = {"status": "errored", "pass_to_fail": len(expected)}
            self.complaints.append(str(broken))
            return
        changed = [name for name in expected if name not in found or not _same(expected[name], found[name])]
        self.snapshot = {"status": "failed" if changed else "passed", "pass_to_fail": len(changed)}
        self.complaints += [f"snapshot: {name or 'the result'} changed" for name in changed]

    def measure(self) -> None:
        """Rounds of every benchmark on every version, until there are enough or the time is used."""
        original = self.versions["original"]
        numbers = {
            one["name"]: one["number"] or _calibrated(original, one["name"])
            for one in original.holds["benchmarks"]
        }
        self.samples = {name: {role: [] for role in self.versions} for name in numbers}
        order = list(self.versions)
        for round_number in range(MAX_ROUNDS):
            if self._clear_after(round_number):
                return
            for name, number in numbers.items():
                if round_number and time.monotonic() > self.soft_deadline:
                    return
                turn = round_number % len(order)
                for role in order[turn:] + order[:turn]:
                    seconds = self.versions[role].seconds(name, number)
                    self.samples[name][role].append(seconds / number)

    def _clear_after(self, rounds: int) -> bool:
        """Whether there were rounds enough to tell; it takes few for the hopeless and more for a close call."""
        if rounds < HOPELESS_ROUNDS:
            return False
        ratios = [math.log(one["original"] / one["candidate"]) for one in self.medians()]
        speedup = math.exp(math.fsum(ratios) / len(ratios))
        if rounds < ROUNDS:
            return speedup < HOPELESS
        return not CLOSE[0] <= speedup <= CLOSE[1]

    def medians(self) -> list[Report]:
        return [
            {
                "name": name,
                **{role: median(seconds) if seconds else None for role, seconds in by_role.items()},
            }
            for name, by_role in self.samples.items()
        ]

    def report(self) -> Report:
        return {
            "benchmarks": self.medians(),
            "tests": self.tests,
            "snapshot": self.snapshot,
            "complaints": [complaint[:500] for complaint in self.complaints[:20]],
            "rounds": min(
                (len(seconds) for by_role in self.samples.values() for seconds in by_role.values()), default=0
            ),
        }

    def blames(self, broken: Broken) -> bool:
        """Whether the candidate is to blame, and not the suite."""
        if broken.version.role != "candidate" or not isinstance(broken, OutOfTime):
            return broken.version.role == "candidate"
        original = self.versions["original"]
        return broken.version.busy_seconds > TO_BLAME * original.busy_seconds


def _verdict(version: Version, test: str) -> dict[str, str]:
    """How a test ended; a test that takes its process down with it has errored."""
    try:
        answer = version.ask(do="test", name=test)
    except OutOfTime:
        raise
    except Broken as broken:
        return {"status": "errored", "why": str(broken).removeprefix(f"{test}: ")}
    if not isinstance(answer, dict) or answer.get("status") not in ("passed", "failed", "errored"):
        return {"status": "errored", "why": "something other than a result came back"}
    return {"status": answer["status"], "why": str(answer.get("why"))}


def _calibrated(original: Version, name: str) -> int:
    """How many calls of the original make a batch long enough to be timed from another process."""
    number = 1
    while number < MAX_NUMBER and (seconds := original.seconds(name, number)) < BATCH_SECONDS:
        wanted = number * BATCH_SECONDS / max(seconds, 1e-6)
        number = min(max(2 * number, math.ceil(wanted)), MAX_NUMBER)
    return number


def _items(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"": value}


def _same(expected: Any, found: Any) -> bool:
    """Equal, with numbers compared to nine digits: a faster way to add may round differently."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, float) and isinstance(found, int | float) and not isinstance(found, bool):
        both_missing = math.isnan(expected) and math.isnan(found)
        return both_missing or math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12)
    return type(expected) is type(found) and bool(expected == found)


def run(contest: Contest, original: str, candidate: str, oracle: str | None) -> Report:
    """Everything, and who is to blame if it could not be done."""
    try:
        holds = contest.start("original", original).holds
        if not holds["benchmarks"]:
            return {
                "outcome": "error",
                "why": "the benchmark file has no function whose name starts with time_",
            }
        if holds["snapshot"]:
            contest.snapshot = {"status": "missing", "pass_to_fail": 0}
        if oracle:
            contest.start("oracle", oracle)
        _tell({"stage": "candidate"})
        contest.start("candidate", candidate)
        contest.test()
        if holds["snapshot"]:
            contest.take_snapshot()
        contest.measure()
        return {"outcome": "measured", "why": ""} | contest.report()
    except Broken as broken:
        if not contest.blames(broken):
            return {"outcome": "error", "why": f"{broken.version.role}: {broken}"}
        kind = "time-out" if isinstance(broken, OutOfTime) else "crash"
        contest.tests["errored"] += 1
        return {"outcome": "failed", "why": f"{kind} in {broken}"} | contest.report()
    finally:
        for version in contest.versions.values():
            version.signal(signal.SIGKILL)


def _tell(message: Report) -> None:
    waiting = json.dumps(message).encode() + b"\n"
    while waiting:
        waiting = waiting[os.write(REPORT_FD, waiting) :]


def main() -> None:
    """Do what the arguments say and report it."""
    if sys.platform == "linux":  # or else code under test could reach this clock and report through /proc
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    seconds, benchmarks, original, candidate, *oracle = sys.argv[1:]
    _tell(run(Contest(float(seconds), benchmarks), original, candidate, oracle[0] if oracle else None))

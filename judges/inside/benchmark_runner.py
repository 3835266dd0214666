"""Time the original, the candidate's and the oracle's code against each other, round by round.

Runs inside the sandbox, with SECONDS ROLE... as arguments (original, candidate, perhaps oracle), and writes two
JSON lines to file descriptor 3: that the candidate's turn has come, and what came out. Each version of the
code lives in a sandbox of its own, so that the candidate's can reach neither the clock nor the code it
is compared with.

Who holds the clock: this process does, around a request and its answer, and it never runs the code under
test. A clock inside the candidate's process would be more precise by some 50 microseconds a batch, and one
line of hostile code would stop it. What the clock cannot know is whether the work was done; tests and the
snapshot say that. The time of the request itself is not subtracted, so speedups come out a little too
small, never too large.

How noise is shared: a round times every benchmark on every version, one after the other, in an order that
turns from round to round, with the same number of calls; versions that are not being timed are stopped
with all that they have started, so that nothing left spinning by one can slow the others. A benchmark's figure is
the median over rounds. A version is asked one thing at a time over a pipe (benchmark_child).
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import uplift_judge
from judges.inside import drop_rights
from judges.inside.benchmark_child import MAX_WHY_CHARACTERS, Line

MAX_REPLY_BYTES = 4 * 1024 * 1024
PROCESSORS = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else None
MOST_CLOCKS = 8  # that are looked at: it takes up to 20 ms each
# What a question and its answer take at least; some machines' clocks stand still for longer.
SHORTEST_SECONDS = 1e-6
_LOOKS_AT_A_CLOCK = 200_000  # some 10 ms


def hold_one_clock() -> None:
    """Keep this process on the processor whose clock moves in the smallest steps (Linux).

    On virtual machines each may have a clock of its own, some milliseconds from the next, or one that stands still
    for as long; whoever is moved between two looks would time that instead.
    """
    if PROCESSORS is None:
        return
    with suppress(OSError):  # a container may forbid it, or take a processor away meanwhile
        steps = {processor: _step(processor) for processor in PROCESSORS[:MOST_CLOCKS]}
        os.sched_setaffinity(0, {min(steps, key=lambda processor: steps[processor])})


def _step(processor: int) -> float:
    os.sched_setaffinity(0, {processor})
    first = time.perf_counter()
    later = (now for _ in range(_LOOKS_AT_A_CLOCK) if (now := time.perf_counter()) > first)
    begun = next(later, math.inf)
    return next((now - begun for now in later if now > begun), math.inf)


class Broken(Exception):
    """A version of the code crashed, raised or went silent."""

    def __init__(self, version: Version, why: str) -> None:
        super().__init__(why)
        self.version = version


class OutOfTime(Broken):
    """The time was up while a version was at work."""


class NotStarted(Broken):
    """There is no process for a version, through no fault of the code's."""


class Version:
    """One version of the code, in its own sandbox, stopped while others are timed."""

    def __init__(self, role: str, deadline: float) -> None:
        self.role = role
        self.deadline = deadline
        self.busy_seconds = 0.0
        self.holds: dict[str, Any] = {}
        self._heard = b""

    def start(self) -> None:
        """Load both files, and wait to be asked."""
        nothing = os.open(os.devnull, os.O_RDWR)
        (stdin, self._requests), (self._replies, stdout) = os.pipe(), os.pipe()
        self._process = uplift_judge.ask(self.role, [nothing, stdin, stdout, nothing])
        for end in (nothing, stdin, stdout):
            os.close(end)
        self.holds = self._receive("loading")
        self.stop()

    def ask(self, **request: object) -> Any:
        """The answer to one request."""
        self.tell("go")
        self._send(request)
        answer = self._receive(str(request.get("name", request["do"])))
        self.stop()
        return answer

    def seconds(self, name: str, number: int) -> float:
        """Wall time of `number` calls of a benchmark, after its setup, measured from out here; never 0."""
        self.tell("go")
        self._send({"do": "time", "name": name, "number": number})
        self._receive(name)
        begun = time.perf_counter()
        self._send("run")
        self._receive(name)
        elapsed = time.perf_counter() - begun
        self.stop()
        return max(elapsed, SHORTEST_SECONDS)

    def stop(self) -> None:
        """Stop everything that this version has started; returns when it stands still, or is gone."""
        self.tell("stop")
        self._heard = b""
        while b"stopped" not in self._heard and self._listen():
            pass

    def tell(self, word: str) -> None:
        """Tell who started the process what is to become of it."""
        with suppress(OSError):
            self._process.send(word.encode())

    def _listen(self) -> bytes:
        """What who started the process tells next; it may tell of its end when it is asked to stop it."""
        told = b""
        with suppress(OSError):
            told = self._process.recv(1000)
        self._heard += told
        return told

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        self._process.close()

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError):  # reading will tell
            os.write(self._requests, json.dumps(message).encode() + b"\n")

    def _receive(self, doing: str) -> Any:
        begun = time.perf_counter()
        received = b""
        try:
            while not received.endswith(b"\n"):
                left = self.deadline - time.monotonic()
                if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                    raise OutOfTime(self, f"{doing}: not done when the time was up")
                part = os.read(self._replies, 65536)
                received += part
                if not part:
                    raise self._why_it_ended(doing)
                if len(received) > MAX_REPLY_BYTES:
                    raise Broken(self, f"{doing}: more than {MAX_REPLY_BYTES} bytes came back")
        finally:
            self.busy_seconds += time.perf_counter() - begun
        try:
            answer = json.loads(received)
        except ValueError:
            raise Broken(self, f"{doing}: something other than an answer came back") from None
        if isinstance(answer, dict) and "failed" in answer:
            raise Broken(self, f"{doing}: {str(answer['failed'])[:MAX_WHY_CHARACTERS]}")
        return answer

    def _why_it_ended(self, doing: str) -> Broken:
        while self._listen():
            pass
        told = self._heard.decode(errors="replace").removeprefix("stopped")
        if told.partition(" ")[0] in ("exited", "timeout", "memory", "disk"):
            return Broken(self, f"{doing}: the process ended ({told})")
        return NotStarted(self, f"{doing}: {told or 'the judgment is over'}")


_REPORT = Line(reads=-1, writes=drop_rights.REPORT_FD)
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
# Of the time, what the suite's own code may use before the candidate's turn: as much again for the candidate
# and twice as much for a round of both leave enough for a candidate that is no slower.
AMPLE_SHARE = 0.25
# Where it used more, a candidate that runs out of time is to blame only if it used clearly more than the original.
TO_BLAME = 2.0

Report = dict[str, Any]


class Contest:
    """All versions of the code, and everything measured so far."""

    def __init__(self, seconds: float) -> None:
        self.begun = time.monotonic()
        self.seconds = seconds
        self.soft_deadline = self.begun + SOFT_SHARE * seconds
        self.deadline = self.begun + seconds
        self.versions: dict[str, Version] = {}
        self.samples: dict[str, dict[str, list[float]]] = {}
        self.tests = {"passed": 0, "failed": 0, "errored": 0, "oracle_failed": 0}
        self.complaints: list[str] = []
        self.snapshot: dict[str, Any] | None = None
        self.expected: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}
        self.seconds_before_turn: float | None = None

    def start(self, role: str) -> Version:
        self.versions[role] = Version(role, self.deadline)
        self.versions[role].start()
        return self.versions[role]

    def try_out(self) -> None:
        """Run all of the suite's own code once, without the candidate: if it breaks later, the candidate did it."""
        original, oracle = self.versions["original"], self.versions.get("oracle")
        if original.holds["snapshot"]:
            self.expected = _items(original.ask(do="snapshot")["value"])
        for one in original.holds["benchmarks"]:
            name = one["name"]
            self.numbers[name] = one["number"] or _calibrated(original, name)
            if one["number"]:
                original.seconds(name, one["number"])
            if oracle:
                oracle.seconds(name, self.numbers[name])
        if oracle:
            verdicts = [_verdict(oracle, name)["status"] for name in original.holds["tests"]]
            self.tests["oracle_failed"] = len(verdicts) - verdicts.count("passed")

    def give_turn(self) -> None:
        """Report that the candidate's code starts now: from here on, it can disturb everything else in the sandbox."""
        self.seconds_before_turn = time.monotonic() - self.begun
        _REPORT.send({"stage": "candidate"})

    def test(self) -> None:
        """Run every `test_*` function on the candidate."""
        for name in self.versions["original"].holds["tests"]:
            answer = _verdict(self.versions["candidate"], name)
            self.tests[answer["status"]] += 1
            if answer["status"] != "passed":
                self.complaints.append(f"{name}: {answer['why']}")

    def take_snapshot(self) -> None:
        """Compare what `snapshot()` gives for the original and for the candidate, item by item."""
        expected = self.expected
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
        self.samples = {name: {role: [] for role in self.versions} for name in self.numbers}
        order = list(self.versions)
        for round_number in range(MAX_ROUNDS):
            if self._clear_after(round_number):
                return
            for name, number in self.numbers.items():
                if round_number and time.monotonic() > self.soft_deadline:
                    return
                turn = round_number % len(order)
                for role in order[turn:] + order[:turn]:
                    seconds = self.versions[role].seconds(name, number)
                    self.samples[name][role].append(seconds / number)

    def _clear_after(self, rounds: int) -> bool:
        """Whether the rounds are enough for a verdict: few where the code is far too slow, more where it is close.

        Whatever else the machine does only adds time: as long as the candidate's best round is as fast as the original
        usually is, a median that calls it slower may be that noise.
        """
        if rounds < HOPELESS_ROUNDS:
            return False
        speedup, at_best = self._speedup(median), self._speedup(min)
        if rounds < ROUNDS:
            return max(speedup, at_best) < HOPELESS
        return speedup > CLOSE[1] or (speedup < CLOSE[0] and at_best < CLOSE[1])

    def _speedup(self, figure: Callable[[list[float]], float]) -> float:
        """The original's median time over a figure of the candidate's rounds."""
        ratios = [
            math.log(median(by_role["original"]) / figure(by_role["candidate"]))
            for by_role in self.samples.values()
        ]
        return math.exp(math.fsum(ratios) / len(ratios))

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
        """Whether the candidate is to blame, and not the suite: for all that breaks from its turn on."""
        if self.seconds_before_turn is None or isinstance(broken, NotStarted):
            return False
        if not isinstance(broken, OutOfTime) or self.seconds_before_turn <= AMPLE_SHARE * self.seconds:
            return True
        candidate, original = self.versions["candidate"], self.versions["original"]
        return broken.version is candidate and candidate.busy_seconds > TO_BLAME * original.busy_seconds


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
        wanted = math.ceil(number * BATCH_SECONDS / seconds)
        # Not at once: where the clock moves in steps of milliseconds, the first call seems to take no time.
        number = min(max(2 * number, min(wanted, 10 * number)), MAX_NUMBER)
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


def run(contest: Contest, *, oracle: bool) -> Report:
    """Run all steps and return the report; where one failed, it says whether suite or candidate is to blame."""
    try:
        holds = contest.start("original").holds
        if not holds["benchmarks"]:
            return {
                "outcome": "error",
                "why": "the benchmark file has no function whose name starts with time_",
            }
        if holds["snapshot"]:
            contest.snapshot = {"status": "missing", "pass_to_fail": 0}
        if oracle:
            contest.start("oracle")
        contest.try_out()
        contest.give_turn()
        contest.start("candidate")
        contest.test()
        if holds["snapshot"]:
            contest.take_snapshot()
        contest.measure()
        return {"outcome": "measured", "why": ""} | contest.report()
    except Broken as broken:
        if not contest.blames(broken):
            return {"outcome": "error", "why": f"{broken.version.role}: {broken}"}
        kind = "time-out" if isinstance(broken, OutOfTime) else "crash"
        whose = (
            "" if broken.version.role == "candidate" else f"{broken.version.role}, beside the output's code: "
        )
        contest.tests["errored"] += 1
        return {"outcome": "failed", "why": f"{kind} in {whose}{broken}"} | contest.report()
    finally:
        for version in contest.versions.values():
            version.close()


def main() -> None:
    """Read the arguments, run the contest, write the report."""
    hold_one_clock()
    contest = Contest(float(sys.argv[1]))
    _REPORT.send(run(contest, oracle="oracle" in sys.argv[2:]))

"""How well limits hold over all workers, by a stand-in's own log: real server, real workers, a provider that counts.

    python -m bench.limits [--minutes 10]

With one worker and with three: runs with --rpm, --tpm and --max-in-flight, small and large prompts; and runs without
any flag whose provider lets 60 calls a minute pass and refuses the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.rows import Row, show
from producer import server as servers
from workers.store.redis_client import connect, workers

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from stand_in.protocols import Reply
from stand_in.server import Asked, StandIn

RPM, TPM, IN_FLIGHT, ALLOWED = 240, 60_000, 12, 60
FLAGS = {
    "rpm-small": ["--rpm", str(RPM)],
    "rpm-large": ["--rpm", str(RPM)],
    "tpm-small": ["--tpm", str(TPM)],
    "tpm-large": ["--tpm", str(TPM)],
    "in-flight": ["--max-in-flight", str(IN_FLIGHT)],
    "window": [],
    "window-silent": [],
    "bucket": [],
}


@dataclass
class Log:
    """What the provider saw of one model: when each call came, what it used, whether it was let in, when it ended."""

    calls: list[tuple[float, int, bool, float]] = field(default_factory=list)

    def most(self, seconds: float, size: Callable[[tuple[float, int, bool, float]], float]) -> float:
        """The largest sum over any window of so many seconds."""
        sums, begin, total = [0.0], 0, 0.0
        for call in self.calls:
            total += size(call)
            while call[0] - self.calls[begin][0] >= seconds:
                total -= size(self.calls[begin])
                begin += 1
            sums.append(total)
        return max(sums)

    def minutes(self) -> list[int]:
        """Answers in each whole minute since the first call."""
        first = self.calls[0][0]
        counts: dict[int, int] = defaultdict(int)
        for at, _, let_in, _ in self.calls:
            counts[int((at - first) // 60)] += let_in
        return [counts[minute] for minute in range(int((self.calls[-1][0] - first) // 60))]


class Provider:
    """Answers every model after a second or so, and lets 60 calls a minute of the last three pass."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = defaultdict(Log)
        self._left: dict[str, tuple[float, float]] = defaultdict(lambda: (float(ALLOWED), time.monotonic()))

    def answer(self, asked: Asked) -> Reply:
        name, now = str(asked.body["model"]), time.monotonic()
        log, kind = self.logs[name], name.split(".")[0]
        wait = self._wait(kind, name, now) if not FLAGS[kind] else 0.0
        latency = 1.0 if kind == "in-flight" else 0.5 + 0.1 * (len(log.calls) % 11)
        characters = sum(len(message["content"]) for message in asked.body["messages"])
        given = characters // 4, 50 + 37 * (len(log.calls) % 20)
        log.calls.append((now, sum(given), wait <= 0, now + latency))
        if wait <= 0:
            return Reply(text="word", latency=latency, input_tokens=given[0], output_tokens=given[1])
        return Reply(status=429, retry_after=None if kind == "window-silent" else f"{wait:.3f}")

    def _wait(self, kind: str, name: str, now: float) -> float:
        """Seconds until a call would be let in; 0 lets this one in."""
        if kind == "bucket":
            left, at = self._left[name]
            left = min(ALLOWED, left + (now - at) * ALLOWED / 60)
            self._left[name] = (left - (left >= 1), now)
            return max(0.0, (1 - left) * 60 / ALLOWED)
        passed = [at for at, _, let_in, _ in self.logs[name].calls if let_in and at > now - 60]
        return passed[-ALLOWED] + 60 - now if len(passed) >= ALLOWED else 0.0


@contextmanager
def providing() -> Iterator[tuple[Provider, str]]:
    """A provider on a thread of its own."""
    provider, loop = Provider(), asyncio.new_event_loop()
    stand_in = StandIn(answer=provider.answer)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(stand_in.start(), loop).result()
    try:
        yield provider, f"{stand_in.url}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(stand_in.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def measure(minutes: float) -> dict[str, Log]:
    """Let runs go on for so long, or a third of it where they have limits; each has a server and workers of its own."""
    at_once = {True: ThreadPoolExecutor(4), False: ThreadPoolExecutor(6)}
    with providing() as (provider, url), tempfile.TemporaryDirectory(prefix="limits-") as name:
        ended = [
            at_once[bool(flags)].submit(
                _run, Path(name) / f"{kind}.{count}", kind, count, url, minutes / (3 if flags else 1)
            )
            for kind, flags in FLAGS.items()
            for count in (1, 3)
        ]
        for one in ended:
            one.result()
        return dict(provider.logs)


def _run(folder: Path, kind: str, count: int, url: str, minutes: float) -> None:
    folder.mkdir()
    environment = {**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url}
    uplift = [sys.executable, "-P", "-m", "producer.cli"]
    quiet = subprocess.DEVNULL
    with servers.serving(folder / "server") as server:
        started = [
            subprocess.Popen(
                [*uplift, "worker", "--broker", server.url], env=environment, stdout=quiet, stderr=quiet
            )
            for _ in range(count)
        ]
        try:
            with connect(server.url) as client:
                while len(workers(client)) < count:
                    time.sleep(0.1)
            suite = _suite(folder, kind, minutes)
            words = [
                "--broker",
                server.url,
                "--no-baseline",
                "--model",
                f"openai:{kind}.{count}",
                *FLAGS[kind],
            ]
            words = ["evaluate", "--standalone", "--task-suite", str(suite), "--skill-path", "skill", *words]
            started.append(
                subprocess.Popen([*uplift, *words], cwd=folder, env=environment, stdout=quiet, stderr=quiet)
            )
            time.sleep(60 * minutes)
        finally:
            for process in started[::-1]:
                process.kill()
                process.wait()


def _suite(folder: Path, kind: str, minutes: float) -> Path:
    """More tasks than there is time for; a large prompt has some 6,000 tokens."""
    (folder / "skill").mkdir(exist_ok=True)
    (folder / "skill" / "SKILL.md").write_text(
        "---\nname: bench\ndescription: For measuring.\n---\nBe brief.\n"
    )
    words = "word " * (4800 if "large" in kind else 20)
    lines = ["skill_id: bench", 'version: "1.0"', "tasks:"]
    tasks = {"in-flight": IN_FLIGHT * 70, "tpm-large": 20}.get(kind, 320 if FLAGS[kind] else 90)
    for number in range(round(tasks * minutes)):
        lines.append(f"  - id: task-{number}\n    prompt: {words}{number}.")
        lines.append("    judge: {type: contains, expected: [word]}")
    suite = folder / f"{kind}.yaml"
    suite.write_text("\n".join(lines) + "\n")
    return suite


def rows(minutes: float = 10.0) -> list[Row]:
    """This file's table."""
    found = []
    for name, log in sorted(measure(minutes).items()):
        kind, count = name.split(".")
        what = f"{kind.replace('-', ', ')}, {count} worker{'s' if count != '1' else ''}"
        minute = log.minutes()
        if not FLAGS[kind]:
            refused = 100 * sum(not call[2] for call in log.calls) / len(log.calls)
            found.append(
                Row(
                    f"{what}: fewest answers a minute from the third on",
                    min(minute[2:], default=0),
                    "",
                    48,
                    "higher",
                    f"{minute}",
                )
            )
            found.append(Row(f"{what}: calls refused", refused, "%", 10, note=f"{len(log.calls)} calls"))
            continue
        seconds = max(1.0, log.calls[-1][0] - log.calls[0][0])
        if kind == "in-flight":
            most = max(sum(at <= call[0] < end - 0.02 for at, _, _, end in log.calls) for call in log.calls)
            use = 100 * len(log.calls) / (IN_FLIGHT * seconds)
            found.append(
                Row(f"{what}: most at once", most, "calls", IN_FLIGHT, note=f"{len(log.calls)} calls")
            )
        elif kind.startswith("rpm"):
            use = 100 * len(log.calls) / (RPM * seconds / 60)
            found.append(Row(f"{what}: most in 60 s", log.most(60, lambda call: 1), "calls", RPM))
            begun = sum(call[0] < log.calls[0][0] + 6 for call in log.calls)
            found.append(Row(f"{what}: in the first 6 s", begun, "calls", RPM / 10 + 2))
        else:
            use = 100 * sum(call[1] for call in log.calls) / (TPM * seconds / 60)
            found.append(
                Row(f"{what}: most in 60 s", log.most(60, lambda call: call[1]), "tokens", 1.05 * TPM)
            )
        found.append(Row(f"{what}: use", use, "%", 85, "higher"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    show(rows(parser.parse_args().minutes))


if __name__ == "__main__":
    main()

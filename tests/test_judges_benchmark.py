"""The benchmark judge: what it measures, whom it blames, and how it reads code out of an output.

Versions of the code differ by sleeps, 10 ms in the original, so that a busy machine cannot turn a result.
"""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from judges import judge
from judges.checks.benchmark import code_of
from judges.inside.benchmark_runner import SHORTEST_SECONDS, Contest, Version, _calibrated, hold_one_clock
from judges.judgment import Completion, Judgment, Sandbox, Workspace
from judges.sandbox import command
from judges.spec import Benchmark

# Without bubblewrap the process limit counts all that a user runs: a fork bomb beside these would fail them.
pytestmark = pytest.mark.xdist_group("process-limit")

EXAMPLES = Path(__file__).parent.parent / "examples"

SLEEPS = """
import time

def work():
    time.sleep({seconds})
    return 42
"""
ORIGINAL = SLEEPS.format(seconds=0.01)
FASTER = SLEEPS.format(seconds=0)
SLOWER = SLEEPS.format(seconds=0.05)

BENCHMARKS = """
import solution

def time_work():
    solution.work()
"""
TESTED = (
    BENCHMARKS
    + """
def test_answer():
    assert solution.work() == 42, "not the answer"

def test_is_a_number():
    int(solution.work())

def snapshot():
    return {"answer": solution.work(), "twice": 2.0 * solution.work(), "type": type(solution.work()).__name__}
"""
)


class Suite:
    """A suite's folder with a benchmark file, an original and perhaps an oracle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "fixtures").mkdir()
        self.write(bench=BENCHMARKS, original=ORIGINAL)

    def write(self, **files: str) -> Suite:
        for name, text in files.items():
            (self.folder / "fixtures" / f"{name}.py").write_text(text)
        return self

    async def judge(self, output: str, sandbox: Sandbox = "auto", **changes: Any) -> Judgment:
        oracle = "fixtures/oracle.py" if (self.folder / "fixtures/oracle.py").exists() else None
        fields = {
            "type": "benchmark",
            "benchmark_file": "fixtures/bench.py",
            "original_file": "fixtures/original.py",
            "oracle_file": oracle,
            "timeout_seconds": 60.0,
        }
        spec = Benchmark(**fields | changes)
        return await judge(spec, Completion(text=output), nobody, Workspace(self.folder, sandbox=sandbox))


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("this judge must not ask a model")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def is_failed(judgment: Judgment) -> bool:
    return (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)


def is_error(judgment: Judgment) -> bool:
    return (judgment.passed, judgment.score) == (None, None) and bool(judgment.error)


def processes_with(argument: str) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that ends meanwhile
            found += [path] if argument.encode() in path.read_bytes() else []
    return found


# What is measured


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_faster_code_that_keeps_its_promises_passes_with_medians_for_all_three(suite, sandbox):
    suite.write(bench=TESTED, oracle=FASTER)
    judgment = await suite.judge(f"Here it is:\n```python\n{FASTER}```\n", sandbox)
    assert (judgment.judge, judgment.passed, judgment.score) == ("benchmark", True, 1.0), judgment.details
    [measured] = judgment.benchmarks
    assert measured.name == "bench.time_work"
    assert measured.nop_median >= 0.01
    assert 0 < measured.agent_median < measured.nop_median
    assert 0 < measured.oracle_median < measured.nop_median
    assert judgment.tests.model_dump() == {"passed": 2, "failed": 0, "errored": 0, "oracle_failed": 0}
    assert judgment.snapshot.model_dump() == {"status": "passed", "pass_to_fail": 0}


async def test_without_an_oracle_its_median_is_missing(suite):
    judgment = await suite.judge(FASTER)
    assert judgment.passed
    assert judgment.benchmarks[0].oracle_median is None
    assert judgment.snapshot is None


async def test_slower_code_fails(suite):
    judgment = await suite.judge(SLOWER)
    assert is_failed(judgment)
    assert "needs 0.95" in judgment.details


async def test_slow_in_one_benchmark_and_fast_in_another_goes_by_the_geometric_mean(suite):
    both = "import time\ndef first():\n    time.sleep({})\ndef second():\n    time.sleep({})\n"
    suite.write(
        bench="import solution\ndef time_one():\n    solution.first()\ndef time_two():\n    solution.second()\n",
        original=both.format(0.01, 0.01),
    )
    assert (await suite.judge(both.format(0.02, 0))).passed is True
    assert (await suite.judge(both.format(0.2, 0.008))).passed is False


async def test_names_hold_module_class_function_and_parameters(suite):
    suite.write(
        bench="""
import solution

class Sorting:
    params = [[1, 2], ["up"]]
    number = 1

    def setup(self, size, order):
        self.size = size

    def time_sort(self, size, order):
        assert self.size == size and order == "up"
        solution.work()

def time_plain(word):
    assert word == prepared[0]

prepared = []
time_plain.params = ["x", "y"]
time_plain.setup = prepared.append
time_plain.number = 1
"""
    )
    judgment = await suite.judge(FASTER)
    assert {one.name for one in judgment.benchmarks} == {
        "bench.Sorting.time_sort(1, 'up')",
        "bench.Sorting.time_sort(2, 'up')",
        "bench.time_plain('x')",
        "bench.time_plain('y')",
    }


async def test_a_cache_filled_in_one_round_does_not_help_in_the_next(suite):
    suite.write(bench=BENCHMARKS + "time_work.number = 1\n")
    remembers = "import functools\n" + SLOWER.replace("def work", "@functools.cache\ndef work")
    assert is_failed(await suite.judge(remembers))


async def test_helper_modules_and_data_beside_the_benchmark_file_can_be_used(suite):
    suite.write(
        bench="import helper\n" + BENCHMARKS, helper="from pathlib import Path\nPath(__file__).read_text()\n"
    )
    assert (await suite.judge(FASTER)).passed


def test_a_clock_that_moves_in_steps_does_not_make_a_batch_of_a_million_calls():
    class Ticks:
        """An original of 50 microseconds a call, on a machine whose clock moves every 4 milliseconds."""

        def seconds(self, name: str, number: int) -> float:
            return max(number * 50e-6 // 0.004 * 0.004, SHORTEST_SECONDS)

    # 200 calls take the 10 ms of a batch; ten times as many are still soon done.
    assert 200 <= _calibrated(Ticks(), "bench.time_work") <= 2000


def test_a_clock_that_stands_still_for_an_answer_does_not_break_the_measuring(monkeypatch):
    version = Version("original", deadline=0.0)
    for name in ("tell", "stop", "_send", "_receive"):
        monkeypatch.setattr(version, name, lambda *told: None)
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    assert version.seconds("bench.time_work", 1) > 0


# Tests and snapshot


async def test_a_failing_test_fails_however_fast_the_code_is_and_its_medians_are_kept(suite):
    suite.write(bench=TESTED.replace("def snapshot", "def not_a_snapshot"))
    judgment = await suite.judge("def work():\n    return 'x'\n")
    assert is_failed(judgment)
    assert judgment.tests.model_dump() == {"passed": 0, "failed": 1, "errored": 1, "oracle_failed": 0}
    assert "test_answer: AssertionError: not the answer" in judgment.details
    assert "test_is_a_number: ValueError" in judgment.details
    assert judgment.benchmarks[0].agent_median is not None


async def test_a_bare_assertion_is_told_by_its_line(suite):
    suite.write(bench=BENCHMARKS + "def test_answer():\n    assert solution.work() == 42\n")
    judgment = await suite.judge("def work():\n    return 41\n")
    assert "test_answer: AssertionError: assert solution.work() == 42" in judgment.details


async def test_a_test_that_the_oracle_fails_too_is_not_held_against_the_output(suite):
    wrong = FASTER.replace("42", "41")
    suite.write(bench=TESTED.replace("def snapshot", "def not_a_snapshot"), oracle=wrong)
    judgment = await suite.judge(wrong)
    assert judgment.passed is True
    assert (judgment.tests.failed, judgment.tests.oracle_failed) == (1, 1)


async def test_a_test_that_ends_its_process_has_errored(suite):
    suite.write(bench=TESTED.replace("def snapshot", "def not_a_snapshot"))
    exits = "import os\ndef work():\n    os._exit(0)\n"
    judgment = await suite.judge(exits)
    assert is_failed(judgment)
    # Both tests, and the benchmark that ended the measuring.
    assert judgment.tests.errored == 3


async def test_a_changed_snapshot_fails_and_its_items_are_counted(suite):
    suite.write(bench=TESTED.replace("def test_", "def no_test_"))
    judgment = await suite.judge("def work():\n    return 43\n")
    assert is_failed(judgment)
    assert judgment.snapshot.model_dump() == {"status": "failed", "pass_to_fail": 2}
    assert "snapshot: answer changed" in judgment.details


async def test_a_snapshot_compares_floats_to_nine_digits(suite):
    suite.write(bench=BENCHMARKS + "def snapshot():\n    return [0.1 + 0.2, solution.work()]\n")
    suite.write(original=ORIGINAL.replace("42", "0.3"))
    assert (await suite.judge("def work():\n    return 0.1 + 0.2\n")).snapshot.status == "passed"
    assert (await suite.judge("def work():\n    return 0.3001\n")).snapshot.status == "failed"


async def test_an_output_whose_snapshot_breaks_fails_with_every_item_lost(suite):
    suite.write(bench=TESTED.replace("def test_", "def no_test_"))
    judgment = await suite.judge("def work():\n    return [].pop()\n")
    assert is_failed(judgment)
    assert judgment.snapshot.model_dump() == {"status": "errored", "pass_to_fail": 3}


async def test_a_snapshot_that_was_never_taken_is_missing(suite):
    suite.write(bench=TESTED)
    judgment = await suite.judge("def work(:\n")
    assert is_failed(judgment)
    assert judgment.snapshot.status == "missing"


# Outputs that break

NOISE = """
import os
def work():
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"{\\n")
        except OSError:
            pass
"""

BREAKS = {
    "a syntax error": ("def work(:\n", "SyntaxError"),
    "prose": ("I would rather not.", "SyntaxError"),
    "nothing": ("", "AttributeError"),
    "a missing function": ("def other():\n    pass\n", "has no attribute 'work'"),
    "an exception at import": ("raise RuntimeError('no luck')\n", "RuntimeError: no luck"),
    "an exception in the benchmark": ("def work():\n    1 / 0\n", "bench.time_work: ZeroDivisionError"),
    "an exit at import": ("import os\nos._exit(0)\n", "the process ended"),
    "an exit in the benchmark": ("import sys\ndef work():\n    sys.exit(0)\n", "SystemExit"),
    "a hard exit in the benchmark": ("import os\ndef work():\n    os._exit(0)\n", "exit code 0"),
    "a crash": ("import os\ndef work():\n    os.abort()\n", "killed by signal 6"),
    "a memory hog": ("def work():\n    bytearray(10**12)\n", "MemoryError"),
    "surrogates in its message": ("def work():\n    raise ValueError('\\ud800')\n", "ValueError"),
    "a killed parent": (
        "import os\ndef work():\n    os.kill(os.getppid(), 9)\n    os.read(os.pipe()[0], 1)\n",
        "",
    ),
    "noise on every descriptor": (NOISE, ""),
}


@pytest.mark.parametrize(("output", "said"), BREAKS.values(), ids=BREAKS.keys())
async def test_code_that_breaks_is_failed_with_score_0_and_says_how(suite, output, said):
    judgment = await suite.judge(output, timeout_seconds=10.0)
    assert is_failed(judgment), judgment
    assert said in judgment.details
    assert judgment.tests.errored >= 1
    assert Judgment.model_validate_json(judgment.model_dump_json()) == judgment


@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize(
    "output",
    ["import time\nwhile True: time.sleep(0.1)\n", "def work():\n    __import__('time').sleep(600)\n"],
    ids=["import", "benchmark"],
)
async def test_code_that_hangs_is_failed_as_a_time_out(suite, output, sandbox):
    judgment = await suite.judge(output, sandbox, timeout_seconds=10.0)
    assert is_failed(judgment)
    assert "time-out" in judgment.details


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_code_that_kills_what_has_started_it_is_failed(suite, sandbox):
    kills_its_supervisor = """
import os
def work():
    zygote = os.getppid()
    fields = open(f"/proc/{zygote}/stat").read().rpartition(")")[2].split()
    os.kill(int(fields[1]), 9)
    raise OSError("still here")
"""
    judgment = await suite.judge(kills_its_supervisor, sandbox, timeout_seconds=8.0)
    assert is_failed(judgment), judgment
    assert "Error" in judgment.details


# Does something to the processes of the original's or the oracle's code, which it finds by their arguments.
TO_OTHERS = """
import os, resource, signal, time
def above(process):
    return int(open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1])
def others():
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            # Of this judgment only: another one may run on the same machine.
            if above(above(process)) == WORKER and NAME in open(f"/proc/{process}/cmdline").read():
                yield process
        except OSError:
            continue
WORKER, NAME = above(os.getppid()), f"/inputs/fixtures/{WHOSE}"
"""
HARMS = {
    "killed": "for other in others(): os.kill(other, signal.SIGKILL)",
    "killed in the benchmark": (
        "def work():\n    for other in others(): os.kill(other, signal.SIGKILL)\n    return 42"
    ),
    "given no files": (
        "def work():\n"
        "    for other in others(): resource.prlimit(other, resource.RLIMIT_NOFILE, (0, 0))\n"
        "    for other in others(): resource.prlimit(other, resource.RLIMIT_CPU, (0, 0))\n"
        "    return 42"
    ),
    "stopped for good": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        for other in others():\n"
        "            try: os.kill(other, signal.SIGSTOP)\n"
        "            except (ProcessLookupError, PermissionError): pass\n"  # it may have ended since it was found
        "        time.sleep(0.005)\n"  # often enough, and leaves the processor to other tests
    ),
}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("whose", ["original", "oracle"])
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_code_harms_what_it_is_compared_with_only_without_a_sandbox_and_then_it_fails(
    suite, sandbox, whose, harm
):
    suite.write(bench=TESTED, oracle=ORIGINAL)
    output = f"WHOSE = '{whose}.py'\n{TO_OTHERS}\ndef work():\n    return 42\n{harm}\n"
    judgment = await suite.judge(output, sandbox, timeout_seconds=12.0)
    if (sandbox == "auto" and command.probe().bubblewrap) or "SIGSTOP" in harm:
        assert judgment.passed is True, (
            judgment
        )  # nobody is there, or who would do it is stopped with the output's code
    elif os.geteuid() == 0:
        assert judgment.passed is True or "PermissionError" in judgment.details, judgment
    else:
        assert is_failed(judgment), judgment
        assert f"in {whose}, beside the output's code" in judgment.details


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_code_finds_no_oracle_nor_a_copy_of_it_whatever_the_benchmark_file_says(suite, sandbox):
    oracle = FASTER + "# only the ora" + "cle says so\n"
    suite.write(bench=BENCHMARKS + "# as fast as oracle.py\n", oracle=oracle, copy=oracle)
    fixtures = suite.folder / "fixtures"
    (fixtures / "deep").mkdir()
    os.link(fixtures / "oracle.py", fixtures / "deep" / "linked.txt")
    (fixtures / "other.py").symlink_to("oracle.py")
    py_compile.compile(str(fixtures / "oracle.py"), doraise=True)
    looks = """
import pathlib
def work():
    for path in pathlib.Path(__file__).parent.rglob("*"):
        if path.is_file():
            seen = path.read_bytes()
            assert b"only the ora" + b"cle says" not in seen, path
            assert path.suffix != ".pyc" or b"sleep" not in seen, path
"""
    judgment = await suite.judge(looks, sandbox)
    assert judgment.passed is True, judgment.details


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_a_benchmark_file_that_needs_the_oracle_is_a_broken_suite(suite, sandbox):
    suite.write(bench="import oracle\n" + BENCHMARKS, oracle=FASTER)
    judgment = await suite.judge(FASTER, sandbox)
    assert is_error(judgment)
    assert "original: loading: ImportError: only the oracle itself may see its code" in str(judgment.error)


# Ends the process of the output's code at once after an answer, so that its end is told in place of "stopped".
ENDS_AFTER_AN_ANSWER = """
import os
from judges.inside import benchmark_child
def work():
    return 42
waits = os.waitpid
def ends(*given):
    waits(*given)
    os.kill(os.getpid(), 9)
os.waitpid = ends
"""


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_code_that_ends_right_after_an_answer_fails_and_is_no_error(suite, sandbox):
    judgment = await suite.write(bench=TESTED).judge(ENDS_AFTER_AN_ANSWER, sandbox)
    assert is_failed(judgment), judgment
    assert "the process ended (exited 137)" in judgment.details or "exited -9" in judgment.details, judgment


# What the output's process says in place of an answer, once its code has been loaded.
SAYS = """
import os
from judges.inside import benchmark_child
sends = benchmark_child.Line.send
def send(line, answer):
    says(line.writes, lambda told: sends(line, told), answer)
benchmark_child.Line.send = send
def work():
    return 42
"""
NO_ANSWERS = {
    "a list in lists without end": "os.write(writes, b'[' * 100_000 + b'\\n')",
    "no JSON": "os.write(writes, b'\\xff\\xfe\\n')",
    "an endless line": "while True: os.write(writes, b'x' * 65536)",
    "two answers": "send(answer); send(answer)",
    "a list": "send([answer])",
    "nothing": "send(None)",
    "a huge number": "os.write(writes, b'9' * 100_000 + b'\\n')",
    "a failure that is none": "send({'failed': {'why': ['x' * 3_000_000]}})",
    "a status that cannot be looked up": "send({'status': ['passed'], 'why': 1, 'value': {'answer': {}}})",
    "half a character": "send({'status': 'failed', 'why': '\\ud800\\x00', 'value': '\\ud800'})",
    "its end": "os._exit(127)",
    "the end of all": "os.kill(-1, 9) if os.getpid() < 10 else os._exit(1)",
}


@pytest.mark.parametrize("says", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_what_is_no_answer_fails_and_is_no_error_nor_a_long_story(suite, says):
    output = f"{SAYS}def says(writes, send, answer): {says}\n"
    judgment = await suite.write(bench=TESTED).judge(output)
    assert is_failed(judgment), judgment
    assert len(judgment.details) < 4000


async def test_a_sandbox_that_does_not_start_for_the_output_is_an_error_and_not_its_fault(suite, monkeypatch):
    started = command.run_blocking

    def refuse(wanted, *rest):
        if "solution.py" in wanted.inputs:
            raise OSError("no more processes")
        return started(wanted, *rest)

    monkeypatch.setattr(command, "run_blocking", refuse)
    judgment = await suite.judge(FASTER)
    assert is_error(judgment), judgment
    assert "candidate: loading: OSError: no more processes" in judgment.error


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_a_daemon_that_the_output_starts_is_gone_with_the_judgment(suite, sandbox, tmp_path):
    marker = f"daemon of {tmp_path}"
    starts_one = f"""
import subprocess, sys
def work():
    command = [sys.executable, "-c", "import time; time.sleep(600)", "{marker}"]
    subprocess.Popen(command, start_new_session=True)
work()
"""
    judgment = await suite.judge(starts_one + "def work():\n    pass\n", sandbox)
    assert judgment.passed is True, judgment.details
    assert not processes_with(marker)


async def test_a_stopped_clock_in_the_output_changes_nothing(suite):
    stops = SLOWER + "\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
    assert is_failed(await suite.judge(stops))


async def test_the_output_cannot_open_what_the_measuring_process_has_open(suite):
    peeks = """
import os
def work():
    zygote = os.getppid()
    runner = open(f"/proc/{zygote}/stat").read().rpartition(")")[2].split()[1]
    for process in (zygote, runner):
        for thing in ("fd/0", "fd/1", "fd/3", "mem", "environ"):
            try:
                open(f"/proc/{process}/{thing}", "rb").close()
            except OSError:
                continue
            raise SystemError(f"could open {thing}")
"""
    judgment = await suite.judge(peeks)
    assert judgment.passed is True, judgment.details


# Suites that break


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"original": "def work(:\n"}, "original: loading: SyntaxError"),
        ({"bench": "import solution\n"}, "no function whose name starts with time_"),
        ({"bench": BENCHMARKS + "oops\n"}, "original: loading: NameError"),
        ({"bench": "def time_work():\n    1 / 0\n"}, "original: bench.time_work: ZeroDivisionError"),
        ({"oracle": "def work():\n    1 / 0\n"}, "oracle: bench.time_work: ZeroDivisionError"),
        ({"bench": BENCHMARKS + "def snapshot():\n    return {1, 2}\n"}, "original: snapshot: TypeError"),
    ],
)
async def test_a_broken_suite_is_an_error_and_never_held_against_the_output(suite, files, said):
    judgment = await suite.write(**files).judge(FASTER)
    assert is_error(judgment)
    assert said in str(judgment.error)


async def test_an_original_that_needs_all_the_time_is_an_error_that_is_not_blamed_on_the_output(suite):
    suite.write(original=SLEEPS.format(seconds=30))
    judgment = await suite.judge(FASTER, timeout_seconds=3.0)
    assert is_error(judgment)
    assert "original: bench.time_work: not done when the time was up" in str(judgment.error)


async def test_a_missing_file_is_an_error_that_names_it(suite):
    judgment = await suite.judge(FASTER, benchmark_file="fixtures/gone.py")
    assert is_error(judgment)
    assert judgment.error == "FileNotFoundError: fixtures/gone.py: not a file in the suite's fixtures folder"


async def test_code_that_lies_outside_of_the_fixtures_is_not_read_through_a_link(suite, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "original.py"
    elsewhere.write_text(ORIGINAL)
    (suite.folder / "fixtures/original.py").unlink()
    (suite.folder / "fixtures/original.py").symlink_to(elsewhere)
    judgment = await suite.judge(FASTER)
    assert is_error(judgment)
    assert "fixtures/original.py: not a file in the suite's fixtures folder" in judgment.error


async def test_a_benchmark_task_without_a_suite_folder_is_an_error():
    spec = Benchmark(type="benchmark", benchmark_file="fixtures/b.py", original_file="fixtures/o.py")
    judgment = await judge(spec, Completion(text=FASTER), nobody)
    assert is_error(judgment)
    assert "no suite folder was given" in str(judgment.error)


# Code in an output


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1\n", "x = 1\n"),
        ("Sure:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```py\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("~~~python title='a'\nx = 1\n~~~", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\r\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```bash\npip install x\n```\n```python\nx = 1\n```", "x = 1\n"),
        ("Old:\n```python\ndef f(): 1\n```\nNew:\n```python\ndef f(): 2\n```", "def f(): 2\n"),
        ("```python\ndef f(): 1\n```\nUse it:\n```python\nprint(f())\n```", "def f(): 1\n"),
        ("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
    ],
)
def test_the_code_is_the_last_block_that_defines_something_or_the_last_or_all(text, code):
    assert code_of(text) == code


@given(st.text(alphabet="`~py \n\rdef", max_size=80))
def test_any_text_has_a_code(text):
    assert code_of(text) in text


# The examples


def example_replies() -> list[Any]:
    """Every benchmark task of the examples with the replies that a simulated model gives for it."""
    cases = []
    for suite in sorted(EXAMPLES.glob("*/suite.yaml")):
        for task in yaml.safe_load(suite.read_text())["tasks"]:
            if task.get("judge", {}).get("type") == "benchmark":
                for passes, name in ((True, "pass"), (False, "fail")):
                    given = (suite.parent, task["judge"], task["replies"][name], passes)
                    cases.append(pytest.param(*given, id=f"{suite.parent.name}-{task['id']}-{name}"))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "settings", "reply", "passes"), example_replies())
async def test_an_example_reply_that_is_meant_to_pass_passes_and_one_that_is_meant_to_fail_fails(
    folder, settings, reply, passes
):
    completion = Completion(text=(folder / reply).read_text())
    judgment = await judge(Benchmark.model_validate(settings), completion, nobody, Workspace(folder))
    assert judgment.passed is passes, judgment


@pytest.mark.skipif(sys.platform != "linux", reason="processors are chosen on Linux only")
def test_whoever_holds_the_clock_stays_on_one_processor():
    """Clocks of virtual processors may lie milliseconds apart."""
    script = "import os; from judges.inside.benchmark_runner import hold_one_clock; hold_one_clock()\n"
    script += "assert len(os.sched_getaffinity(0)) == 1, os.sched_getaffinity(0)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="processors are chosen on Linux only")
async def test_the_code_under_test_may_use_all_processors(suite):
    looks = f"import os\ndef work():\n    assert os.sched_getaffinity(0) == {os.sched_getaffinity(0)}\n"
    judgment = await suite.judge(looks)
    assert judgment.passed is True, judgment.details


@pytest.mark.skipif(sys.platform != "linux", reason="processors are chosen on Linux only")
def test_a_machine_that_gives_nobody_a_processor_of_their_own_is_measured_on_all_the_same(monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    hold_one_clock()


def rounds_of(original: list[float], candidate: list[float]) -> Contest:
    contest = Contest(60)
    contest.samples = {"time_work": {"original": original, "candidate": candidate}}
    return contest


@pytest.mark.parametrize(
    ("rounds", "original", "candidate", "clear"),
    [
        (25, [0.01], [0.005], True),
        (25, [0.01], [0.02], True),
        (25, [0.01], [0.011], False),
        (7, [0.01], [0.05], True),
        (7, [0.01], [0.015], False),
    ],
)
def test_rounds_end_when_they_tell(rounds, original, candidate, clear):
    assert rounds_of(original * rounds, candidate * rounds)._clear_after(rounds) is clear


@pytest.mark.parametrize("rounds", [7, 25])
def test_faster_code_that_a_busy_machine_held_up_is_measured_again(rounds):
    # In most rounds something else had the processor for 40 ms while the candidate's turn came, and not the original's.
    held_up = [0.04 if number % 3 else 0.0001 for number in range(rounds)]
    assert not rounds_of([0.01] * rounds, held_up)._clear_after(rounds)

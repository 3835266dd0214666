"""The pytest judge: what passes, what fails, what is an error, and that judgments do not touch each other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_judging import WAYS, Way, a_suite, children, children_named, judged, needs, until

from judges.checks import pytest_file
from judges.inside import supervisor
from judges.judgment import Completion, Workspace
from judges.judgment import Tests as Counts
from judges.sandbox import command, warm_pool
from judges.spec import Pytest

READS_THE_OUTPUT = """
    import os
    from pathlib import Path

    OUTPUT = Path(os.environ["AI_OUTPUT_FILE"])

    def test_greets():
        assert "hello" in OUTPUT.read_text()

    def test_names():
        assert "world" in OUTPUT.read_text()
"""


@pytest.fixture(autouse=True, scope="module")
def no_zygote_is_left() -> Iterator[None]:
    before = children()
    yield
    warm_pool.close()
    assert children() <= before


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    needs(request.param)
    chosen: Way = request.param
    return chosen


async def test_an_output_that_passes_every_test_passes_with_score_one(tmp_path: Path, way: Way) -> None:
    judgment = await judged(a_suite(tmp_path, READS_THE_OUTPUT), way, text="hello world")

    assert (judgment.passed, judgment.score, judgment.error) == (True, 1.0, None)
    assert judgment.tests == Counts(passed=2)


async def test_the_score_is_the_share_of_tests_passed_and_details_name_the_failing_assertion(
    tmp_path: Path, way: Way
) -> None:
    judgment = await judged(a_suite(tmp_path, READS_THE_OUTPUT), way, text="hello there")

    assert (judgment.passed, judgment.score) == (False, 0.5)
    assert judgment.tests == Counts(passed=1, failed=1)
    assert "test_it.py::test_names" in judgment.details
    assert "line 11: AssertionError: assert 'world' in 'hello there'" in judgment.details
    assert "test_greets" not in judgment.details


async def test_the_output_arrives_exactly_as_the_model_wrote_it_and_cannot_be_changed(
    tmp_path: Path, way: Way
) -> None:
    text = "a\r\nb\0é\U0001f600" + "x" * 4_000_000
    suite = a_suite(
        tmp_path,
        f"""
        import os, pathlib

        def test_it():
            output = pathlib.Path(os.environ["AI_OUTPUT_FILE"])
            assert output.name == "output.txt"
            assert output.read_bytes() == {text[:7]!r}.encode() + b"x" * 4_000_000
            try:
                output.write_text("better")
            except OSError:
                return
            assert os.geteuid() != 0 and not output.is_relative_to("/sandbox")
        """,
    )

    assert (await judged(suite, way, text=text)).passed is True


async def test_a_lone_surrogate_in_the_output_is_replaced_rather_than_breaking_the_judge(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path, "import os\ndef test_it(): assert open(os.environ['AI_OUTPUT_FILE']).read() == 'a?'"
    )

    assert (await judged(suite, way, text="a\ud800")).passed is True


async def test_tests_may_import_modules_beside_them_and_what_the_worker_has_installed(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path,
        "import helper, pydantic\ndef test_it(): assert helper.ANSWER == 42 and pydantic.VERSION",
        helper="ANSWER = 42",
    )

    assert (await judged(suite, way)).passed is True


async def test_a_test_file_in_a_subfolder_may_import_from_fixtures_itself(tmp_path: Path, way: Way) -> None:
    suite = a_suite(tmp_path, helper="ANSWER = 42")
    (suite / "fixtures" / "deep").mkdir()
    (suite / "fixtures" / "deep" / "test_deep.py").write_text(
        "import helper, near\ndef test_it(): assert helper.ANSWER == near.ANSWER"
    )
    (suite / "fixtures" / "deep" / "near.py").write_text("ANSWER = 42")
    spec = Pytest(type="pytest", test_file="fixtures/deep/test_deep.py")
    setting = "off" if way == "plain" else "required"

    judgment = await pytest_file.judge(spec, Completion(), Workspace(suite=suite, sandbox=setting))

    assert judgment.passed is True


async def test_a_suite_may_have_a_conftest_of_its_own_even_one_that_adds_options(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path,
        "def test_it(answer, request): assert answer == request.config.getoption('--answer')",
        conftest="""
            import pytest

            def pytest_addoption(parser):
                parser.addoption("--answer", default=42)

            @pytest.fixture
            def answer():
                return 42
        """,
    )

    judgment = await judged(suite, way)

    assert judgment.passed is True, judgment.details


async def test_judges_of_agent_runs_see_the_files_that_the_agent_left(tmp_path: Path) -> None:
    left = tmp_path / "left"
    (left / "src").mkdir(parents=True)
    (left / "src" / "made.txt").write_text("by the agent")
    suite = a_suite(
        tmp_path,
        """
        import os, pathlib

        def test_it():
            made = pathlib.Path(os.environ["AI_WORKSPACE"], "src", "made.txt")
            assert made.read_text() == "by the agent"
            made.write_text("by the test")
        """,
    )

    for way in ("cold", "plain"):
        judgment = await judged(suite, way, left=left)
        assert "Error" in judgment.details or way == "plain"
        assert (left / "src" / "made.txt").read_text() == "by the agent"


@pytest.mark.parametrize(
    ("code", "score", "says"),
    [
        ("import pytest\n@pytest.mark.skip(reason='no')\ndef test_it(): pass", 0.0, "skipped"),
        ("import pytest\n@pytest.mark.xfail\ndef test_it(): assert 0", 0.0, "xfailed"),
        ("import pytest\n@pytest.mark.xfail\ndef test_it(): pass", 0.0, "xpassed"),
        ("X = 1", 0.0, "no test was collected"),
        ("import no_such_module\ndef test_it(): pass", 0.0, "no_such_module"),
        ("def test_it(:", 0.0, "not collected"),
        ("def test_a(): pass\ndef test_b(nothing): pass", 0.5, "errored"),
        ("import pytest\ndef test_a(): pass\ndef test_b(): pytest.exit('enough')", 0.5, "were not run"),
        ("import sys\nsys.exit(0)", 0.0, "no test was collected"),
        ("import os\nos._exit(0)", 0.0, "ended before pytest did"),
        ("import os\ndef test_a(): pass\ndef test_b(): os.abort()", 0.0, "ended before pytest did"),
    ],
)
async def test_anything_but_a_clean_pass_fails(
    tmp_path: Path, way: Way, code: str, score: float, says: str
) -> None:
    judgment = await judged(a_suite(tmp_path, code), way)

    assert (judgment.passed, judgment.score, judgment.error) == (False, score, None)
    assert says in judgment.details


async def test_a_test_that_passes_but_breaks_in_teardown_does_not_count_as_passed(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path,
        """
        import pytest

        @pytest.fixture
        def breaks():
            yield
            raise RuntimeError("late")

        def test_it(breaks): pass
        """,
    )

    judgment = await judged(suite, way)

    assert (judgment.passed, judgment.score, judgment.tests) == (False, 0.0, Counts(errored=1))


async def test_a_failing_subtest_fails_its_test(tmp_path: Path, way: Way) -> None:
    suite = a_suite(
        tmp_path,
        """
        import unittest

        class Numbers(unittest.TestCase):
            def test_even(self):
                for number in (2, 3, 4):
                    with self.subTest(number=number):
                        self.assertEqual(number % 2, 0)
        """,
    )

    judgment = await judged(suite, way)

    assert (judgment.passed, judgment.score) == (False, 0.0)


async def test_details_stay_short_however_much_fails(tmp_path: Path, way: Way) -> None:
    code = (
        "import pytest\n@pytest.mark.parametrize('n', range(500))\ndef test_it(n): assert n < 0, 'x' * 9999"
    )

    judgment = await judged(a_suite(tmp_path, code), way)

    assert judgment.tests == Counts(failed=500)
    assert len(judgment.details) < 5000
    assert "and 490 more" in judgment.details


async def test_a_missing_test_file_or_one_outside_fixtures_is_an_error_of_the_judge(tmp_path: Path) -> None:
    suite = a_suite(tmp_path)
    (suite / "test_outside.py").write_text("def test_it(): pass")
    for place in ("fixtures/test_missing.py", "fixtures/../test_outside.py"):
        with pytest.raises(FileNotFoundError, match="not a file in the suite's fixtures folder"):
            await pytest_file.judge(
                Pytest(type="pytest", test_file=place), Completion(), Workspace(suite=suite)
            )


async def test_a_required_sandbox_that_does_not_work_is_an_error_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "probe", lambda: command.Confinement(bubblewrap=False, why_not="not today"))
    ran = tmp_path / "ran"
    suite = a_suite(tmp_path, f"open({str(ran)!r}, 'w')\ndef test_it(): pass")
    spec = Pytest(type="pytest", test_file="fixtures/test_it.py")

    judgment = await pytest_file.judge(spec, Completion(), Workspace(suite=suite, sandbox="required"))

    assert (judgment.passed, judgment.score) == (None, None)
    assert judgment.error is not None
    assert "not today" in judgment.error
    assert not ran.exists()


async def test_without_bubblewrap_the_judgment_says_so_and_a_warning_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        command, "probe", lambda: command.Confinement(bubblewrap=False, why_not="none of that here")
    )
    spec = Pytest(type="pytest", test_file="fixtures/test_it.py")
    workspace = Workspace(suite=a_suite(tmp_path), sandbox="auto")

    judgments = [await pytest_file.judge(spec, Completion(), workspace) for _ in range(2)]

    assert all(judgment.passed for judgment in judgments)
    assert all(judgment.details.startswith("[without bubblewrap]") for judgment in judgments)
    assert caplog.text.count("none of that here") == 1


async def test_many_judgments_at_once_each_see_their_own_output_and_an_empty_world(
    tmp_path: Path, way: Way
) -> None:
    suite = a_suite(
        tmp_path,
        """
        import os, pathlib, tempfile, time

        def test_it():
            text = pathlib.Path(os.environ["AI_OUTPUT_FILE"]).read_text()
            for folder in (pathlib.Path.cwd(), pathlib.Path(tempfile.gettempdir())):
                assert list(folder.iterdir()) == []
                (folder / text).write_text(text)
            time.sleep(0.05)
            assert [path.name for path in pathlib.Path.cwd().iterdir()] == [text]
            assert text.isdigit()
        """,
    )

    judgments = await asyncio.gather(*(judged(suite, way, text=str(n)) for n in range(6)))

    assert [judgment.details for judgment in judgments if not judgment.passed] == []


def test_event_loops_of_different_threads_share_the_warm_sandboxes(tmp_path: Path) -> None:
    needs("warm")
    suite = a_suite(tmp_path, READS_THE_OUTPUT)
    passed: list[bool | None] = []

    def work() -> None:
        passed.append(asyncio.run(judged(suite, "warm", text="hello world")).passed)

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert passed == [True] * 6


async def test_a_cancelled_judgment_ends_its_processes_before_it_returns(tmp_path: Path, way: Way) -> None:
    suite = a_suite(tmp_path, "import time\ndef test_it(): time.sleep(600)")
    warm_pool.close()
    before = children()
    task = asyncio.create_task(judged(suite, way))
    await until(lambda: len(children() - before) >= 2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    warm_pool.close()
    assert children() <= before


async def test_a_test_file_that_changes_is_run_as_it_is_now(tmp_path: Path, way: Way) -> None:
    assert (await judged(a_suite(tmp_path, "def test_it(): assert 1"), way)).passed is True
    assert (await judged(a_suite(tmp_path, "def test_it(): assert not 1"), way)).passed is False


async def test_a_zygote_that_was_killed_is_replaced(tmp_path: Path) -> None:
    needs("warm")
    suite = a_suite(tmp_path)
    warm_pool.close()
    before = children()
    assert (await judged(suite, "warm")).passed
    for process in children() - before:
        os.kill(process, signal.SIGKILL)

    assert (await judged(suite, "warm")).passed is True


async def test_only_a_few_zygotes_are_kept(tmp_path: Path) -> None:
    needs("warm")
    warm_pool.close()
    before = children()
    for number in range(warm_pool.MAX_ZYGOTES + 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert (await judged(a_suite(folder), "warm")).passed

    assert len(children_named("bwrap") - before) == warm_pool.MAX_ZYGOTES


async def test_a_machine_that_does_not_allow_warm_sandboxes_gets_fresh_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("warm")
    monkeypatch.setattr(warm_pool, "run", lambda *work: None)

    assert (await judged(a_suite(tmp_path), "warm")).passed is True


def test_zygotes_end_with_a_worker_that_is_killed(tmp_path: Path, eventually: Callable[..., None]) -> None:
    needs("warm")
    script = f"""
import asyncio, os, pathlib, sys
from judges.inside import supervisor
from pytest_judging import a_suite, judged
assert asyncio.run(judged(a_suite(pathlib.Path({str(tmp_path)!r})), "warm")).passed
print(*supervisor.descendants(os.getpid()), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as worker:
        assert worker.stdout is not None
        zygotes = [int(process) for process in worker.stdout.readline().split()]
        assert len(zygotes) >= 2
        worker.kill()
    eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in zygotes))


def test_lines_without_the_nonce_and_a_last_line_that_was_cut_are_passed_over() -> None:
    written = b"\n".join(
        [
            b'{"nonce": "0123", "event": "start"}',
            b'{"nonce": "4567", "event": "test", "test": "a", "outcome": "passed", "line": ""}',
            b'["n"]',
            b"\xff" * 10,
            b"[" * 100_000,
            b'{"nonce": "0123", "event": "collected", "count": 1}',
            b'{"nonce": "0123", "event": "te',
        ]
    )

    report = pytest_file.read(written, "0123")

    assert report.started
    assert report.collected == 1
    assert report.outcomes == {}
    assert not report.forged
    assert pytest_file.judgment(report, died=None).passed is False


A_GOOD_RUN = """{"nonce": "0123", "event": "start"}
{"nonce": "0123", "event": "collected", "count": 1}
{"nonce": "0123", "event": "test", "test": "a", "outcome": "passed", "line": ""}
{"nonce": "0123", "event": "end", "code": 0}
"""
FORGED = {
    "without a count": '"event": "collected"',
    "a count that is no number": '"event": "collected", "count": "many"',
    "a negative count": '"event": "collected", "count": -1',
    "a huge count": f'"event": "collected", "count": {"9" * 4000}',
    "an endless count": '"event": "collected", "count": Infinity',
    "not a number": '"event": "collected", "count": NaN',
    "a number too long to read": f'"event": "collected", "count": {"9" * 5000}',
    "without a test": '"event": "test", "outcome": "failed", "line": ""',
    "a test that is a list": '"event": "test", "test": ["a"], "outcome": "failed", "line": ""',
    "a line that is missing": '"event": "not collected", "test": "a"',
    "an unknown event": '"event": "party"',
    "an event that is a list": '"event": []',
    "two nonces": '"nonce": "4567", "event": "start"',
    "deep nesting": f'"event": {"[" * 100_000}',
    "not closed": '"event": "start',
}


@pytest.mark.parametrize("facts", FORGED.values(), ids=FORGED.keys())
def test_lines_with_the_nonce_that_make_no_sense_are_a_fail_and_no_error(facts: str) -> None:
    good = pytest_file.read(A_GOOD_RUN.encode(), "0123")
    assert pytest_file.judgment(good, died=None).passed is True

    report = pytest_file.read(f'{A_GOOD_RUN}{{"nonce": "0123", {facts}}}\n'.encode(), "0123")

    judgment = pytest_file.judgment(report, died=None)
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)
    assert "something other than pytest wrote to the report" in judgment.details


def test_millions_of_lines_that_are_not_ours_are_read_in_a_moment() -> None:
    begun = time.process_time()
    assert pytest_file.read(A_GOOD_RUN.encode() + b"\n" * 4 * 1024 * 1024, "0123").ended
    assert time.process_time() - begun < 4  # parsing each takes 13


def test_processes_are_found_below_their_parent() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], stdout=subprocess.DEVNULL) as shell:
        while not (found := supervisor.descendants(shell.pid)):
            pass
        assert supervisor.resident_bytes(found) > 0
        supervisor.kill_descendants(shell.pid)
        assert supervisor.descendants(shell.pid) == []

"""Importing Harbor tasks: those that need no container become pytest tasks, the others are refused by name."""

from pathlib import Path

import pytest
from running import SKILL, standalone, uplift

from judges.spec import Pytest
from producer.importers import harbor, imported
from producer.importers.imported import Found, Unimportable
from producer.suites import suite

TOML = """version = "1.0"

[metadata]
author_name = "Someone"
difficulty = "easy"
tags = ["text", "numbers"]

[verifier]
timeout_sec = 20.0

[agent]
timeout_sec = 240.0

[environment]
build_timeout_sec = 600.0
cpus = 1
"""
TEST = """import os
from pathlib import Path

from expected import PRIMES


def test_holds_the_primes():
    assert Path(os.environ["AI_OUTPUT_FILE"]).read_text().split() == PRIMES


def test_is_short():
    assert len(Path(os.environ["AI_OUTPUT_FILE"]).read_text()) < 100
"""


def a_task(folder: Path, **files: str | None) -> Path:
    """A task's folder as Harbor has it; keys are paths with __ for / and DOT for a dot, None leaves one out."""
    content: dict[str, str | None] = {
        "task.toml": TOML,
        "instruction.md": "List the primes below 10.\n",
        "tests/test_outputs.py": TEST,
        "tests/expected.py": "PRIMES = '2 3 5 7'.split()\n",
        "tests/test.sh": "pytest /tests/test_outputs.py\n",
        "solution/answer.txt": "2 3 5 7\n",
    }
    content |= {name.replace("__", "/").replace("DOT", "."): text for name, text in files.items()}
    folder.mkdir(parents=True)
    for name, text in content.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def left_out(found: Found) -> str:
    assert found.tasks == []
    assert (found.task_count, found.tasks_left_out) == (1, 1)
    (item,) = found.left_out
    return item.why


def test_a_task_without_a_container_becomes_a_pytest_task(tmp_path: Path) -> None:
    a_task(tmp_path / "set" / "primes-1")
    found = harbor.convert(tmp_path / "set")
    (task,) = suite.load(imported.write(found, tmp_path / "out")).tasks
    assert (task.id, task.prompt, task.tier, task.tags) == (
        "primes-1",
        "List the primes below 10.\n",
        "easy",
        ("text", "numbers"),
    )
    assert task.judge == Pytest(
        type="pytest", test_file="fixtures/primes_1/test_outputs.py", timeout_seconds=20
    )
    assert task.timeout_seconds == 240
    assert task.replies is not None
    assert (tmp_path / "out" / str(task.replies.passing)).read_text() == "2 3 5 7\n"
    assert (tmp_path / "out/fixtures/primes_1/expected.py").exists()
    assert not (tmp_path / "out/fixtures/primes_1/test.sh").exists()
    assert (found.task_count, found.assertion_count, found.left_out) == (1, 2, [])


def test_one_tasks_own_folder_can_be_imported_too(tmp_path: Path) -> None:
    assert len(harbor.convert(a_task(tmp_path / "primes")).tasks) == 1


def test_files_of_the_environment_are_given_to_the_agent(tmp_path: Path) -> None:
    folder = a_task(tmp_path / "primes", environment__dataDOTcsv="a,b\n")
    (task,) = suite.load(imported.write(harbor.convert(folder), tmp_path / "out")).tasks
    assert task.files == ("fixtures/primes/files/data.csv",)


def test_a_dockerfile_that_only_names_an_image_adds_nothing(tmp_path: Path) -> None:
    folder = a_task(tmp_path / "p", environment__Dockerfile="# base\nFROM python:3.13-slim\nWORKDIR /app\n")
    assert len(harbor.convert(folder).tasks) == 1


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            {"environment__Dockerfile": "FROM x\nRUN make\n"},
            "environment/Dockerfile:2 needs a container: 'RUN make'",
        ),
        (
            {"environment__docker-composeDOTyaml": "services: {}\n"},
            "environment/docker-compose.yaml starts containers",
        ),
        ({"taskDOTtoml": '[environment]\ndocker_image = "x"\n'}, "task.toml asks for docker_image"),
        ({"taskDOTtoml": "[[steps]]\nname = 'a'\n"}, "it has several steps"),
        ({"tests__test_outputsDOTpy": None}, "its tests are a shell script, which needs a container"),
        (
            {"tests__test_outputsDOTpy": None, "tests__testDOTsh": None, "tests__expectedDOTpy": None},
            "it has no tests",
        ),
        ({"tests__test_moreDOTpy": "def test_it(): pass\n"}, "it has 2 test files, and a judge runs one"),
        (
            {"tests__test_outputsDOTpy": "from pathlib import Path\n\nP = Path('/app/out.txt')\n"},
            "tests/test_outputs.py:3 looks at '/app/out.txt' in a container",
        ),
        (
            {"tests__test_outputsDOTpy": "def test_(:\n"},
            "tests/test_outputs.py is no Python that can be read",
        ),
        ({"instructionDOTmd": " \n"}, "instruction.md is blank"),
    ],
)
def test_a_task_that_needs_a_container_is_refused_by_name_with_the_reason(
    tmp_path: Path, files: dict[str, str | None], why: str
) -> None:
    assert left_out(harbor.convert(a_task(tmp_path / "primes", **files))).startswith(why)


def test_a_link_that_leaves_the_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    folder = a_task(tmp_path / "primes")
    (folder / "tests" / "data.txt").symlink_to(tmp_path / "secret")
    assert "data.txt" in left_out(harbor.convert(folder))


def test_times_beyond_what_uplift_allows_are_cut_and_told(tmp_path: Path) -> None:
    folder = a_task(tmp_path / "primes", taskDOTtoml="[agent]\ntimeout_sec = 7200\n")
    found = harbor.convert(folder)
    assert found.tasks[0].fields["timeout_seconds"] == 3600
    assert found.notes == [f"{folder}: agent.timeout_sec was 7200; Uplift allows 1 to 3600"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = \n", "1:5  invalid TOML: Invalid value"),
        ("[agent]\nx = 1\nx = 2\n", "3:6  invalid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "1:1  invalid TOML: nested too deeply"),
    ],
)
def test_broken_settings_are_told_where_and_nothing_is_written(tmp_path: Path, text: str, said: str) -> None:
    a_task(tmp_path / "set" / "good")
    bad = a_task(tmp_path / "set" / "bad", taskDOTtoml=text)
    with pytest.raises(Unimportable) as caught:
        harbor.convert(tmp_path / "set")
    assert str(caught.value) == f"{bad}/task.toml:{said}"


def test_a_folder_without_tasks_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unimportable, match=r"no folder in it has an instruction\.md"):
        harbor.convert(tmp_path)


def test_text_that_a_suite_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    found = harbor.convert(a_task(tmp_path / "primes", instructionDOTmd="ring \x07 it\n"))
    with pytest.raises(Unimportable, match=r"tasks\[0\]\.prompt: forbidden character U\+0007"):
        imported.write(found, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["primes"]


@pytest.mark.slow
def test_a_folder_of_tasks_converts_and_runs_with_the_simulated_model(tmp_path: Path) -> None:
    a_task(tmp_path / "set" / "primes")
    a_task(tmp_path / "set" / "built", environment__Dockerfile="FROM x\nCOPY . /app\n")
    done = uplift("import", "set", "--output", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "2 tasks found: 1 imported, 1 left out\n" in done.out
    assert (
        "left out: set/built  built: environment/Dockerfile:2 needs a container: 'COPY . /app'\n" in done.out
    )
    (tmp_path / "out" / "skill").mkdir()
    (tmp_path / "out" / "skill" / "SKILL.md").write_text(SKILL)
    ran = uplift(
        *standalone(tmp_path / "out" / "suite.yaml", "--model", "sim:baseline=0,candidate=1"), cwd=tmp_path
    )
    assert ran.code == 0, ran.err
    assert (ran.line["execution_pass_rate"], ran.line["baseline_pass_rate"]) == (1.0, 0.0)

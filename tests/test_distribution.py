"""What is given away is whole: the source distribution is the repository, and the wheel has all of every package."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from running import SKILL, the_artifact

from judges.sandbox import command

HERE = Path(__file__).parent.parent
PACKAGES = ("judges/", "aggregate/", "workers/", "producer/", "uplift.py", "uplift_judge.py")


@pytest.fixture(scope="module")
def tracked():
    """What git holds, as file names."""
    if not (HERE / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no checkout, so nobody knows what should be there")
    # Whoever runs the tests need not own the checkout.
    command = ["git", "-c", f"safe.directory={HERE}", "-C", HERE, "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name and (HERE / name).exists()}


@pytest.fixture(scope="module")
def build(tracked, tmp_path_factory):
    """Build something from a fresh checkout, as a release does, each kind once; returns the file."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / name, source / name)

    @cache
    def make(kind):
        into = tmp_path_factory.mktemp(kind)
        code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, into], cwd=source, check=True, capture_output=True)
        (made,) = into.iterdir()
        return made

    return make


def test_the_source_distribution_is_the_repository(build, tracked):
    with tarfile.open(build("sdist")) as tar:
        names = {member.name.partition("/")[2] for member in tar if member.isfile()}
    made = {name for name in names if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert names - made == tracked


def test_the_wheel_has_every_file_of_every_package(build, tracked):
    with zipfile.ZipFile(build("wheel")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith(PACKAGES)}


@pytest.fixture
def installed(build, short_tmp):
    """An environment that has the wheel of its own and borrows everything else from this one.

    A path that a .pth file names is searched last, and .pth files in it are not read: what makes our checkout visible
    to this environment is none of the other's business.
    """
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python cannot make an environment with pip")
    short_tmp.chmod(0o755)  # a root worker's judges run as nobody
    environment = short_tmp / "environment"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, capture_output=True)
    words = ["install", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", *words, build("wheel")], check=True, capture_output=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    listed = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    packages = Path(listed.strip())
    places = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (packages / "borrowed.pth").write_text("".join(f"{place}\n" for place in places))
    return environment, packages


@pytest.mark.slow
def test_the_installed_wheel_runs_a_suite_with_a_pytest_task(installed, short_tmp):
    if not command.probe().bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {command.probe().why_not}")
    environment, packages = installed
    # Each process of the run notes which files of ours it has executed, under its own number.
    loaded = short_tmp / "loaded"
    loaded.mkdir()
    (packages / "noting.pth").write_text("import noting\n")
    (packages / "noting.py").write_text(
        dedent("""
            import os, pathlib, sys

            def note(event, arguments):
                if event == "exec" and hasattr(arguments[0], "co_filename"):
                    path = pathlib.Path(arguments[0].co_filename)
                    if {"judges", "aggregate", "workers", "producer"} & set(path.parts):
                        with open(f"{os.environ['LOADED']}/{os.getpid()}", "a") as file:
                            file.write(f"{path}\\n")

            if "LOADED" in os.environ:
                sys.addaudithook(note)
        """)
    )
    folder = short_tmp / "elsewhere"
    (folder / "fixtures").mkdir(parents=True)
    (folder / "skill").mkdir()
    (folder / "skill" / "SKILL.md").write_text(SKILL)
    (folder / "suite.yaml").write_text(
        dedent("""
            skill_id: haiku
            version: "1.0"
            tasks:
              - {id: tested, prompt: Say something., judge: {type: pytest, test_file: fixtures/test_it.py}, tier: T1}
        """)
    )
    (folder / "fixtures" / "test_it.py").write_text(
        dedent(f"""
            import os
            from pathlib import Path

            def test_the_answer_is_the_mock_model_s():
                assert "mock reply" in Path(os.environ["AI_OUTPUT_FILE"]).read_text()

            def test_the_packages_here_are_the_installed_ones():
                import aggregate, producer, workers
                for package in (aggregate, producer, workers):
                    assert package.__file__ == f"{packages}/{{package.__name__}}/__init__.py"
        """)
    )
    words = ["evaluate", "--standalone", "--task-suite", "suite.yaml", "--skill-path", "skill"]
    words += ["--no-baseline", "--mock", "--sandbox", "required", "--state-root", "state"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [environment / "bin" / "uplift", *words],
        cwd=folder,
        env={**kept, "LOADED": str(loaded)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    artifact = the_artifact(folder)
    assert (artifact["status"], artifact["verdict"]) == ("finished", "pass")
    (page,) = (folder / "state" / "runs").glob("*/report.html")
    assert page.stat().st_size > 10_000
    by_process = [set(file.read_text().splitlines()) for file in loaded.iterdir()]
    assert len(by_process) >= 3, "the command, its worker and the child that aggregates"
    assert any(str(packages / "workers" / "__main__.py") in paths for paths in by_process)
    foreign = {path for paths in by_process for path in paths if not Path(path).is_relative_to(packages)}
    assert not foreign

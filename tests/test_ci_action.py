"""The GitHub Action and the documented CI jobs: valid by their schemas, and their shell steps run as plain bash."""

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import warm
import yaml
from running import a_suite

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
PAGE = (ROOT / "docs" / "ci.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
BETTER = "sim:baseline=0,candidate=1,cost=0.01"


def schema(name: str) -> jsonschema.protocols.Validator:
    text = files("check_jsonschema").joinpath(f"builtin_schemas/vendor/{name}.json").read_text()
    content = json.loads(text)
    return jsonschema.validators.validator_for(content)(content)


def block(start: str) -> str:
    (found,) = [text for _, text in BLOCKS if text.startswith(start)]
    return found


def as_ci_reads(text: str) -> dict:
    """YAML as CI systems read it: `on` is a key, not a truth value."""
    return {("on" if key is True else key): value for key, value in yaml.safe_load(text).items()}


@dataclass
class Runner:
    """A machine of GitHub's, as far as the steps of a composite action can tell."""

    folder: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "temp").mkdir(exist_ok=True)
        tools(self.folder / "bin")

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one step as GitHub runs `shell: bash`."""
        step = STEPS[name]
        script = self.folder / "temp" / "step.sh"
        script.write_text(step["run"])
        for file in ("output", "summary", "path"):
            (self.folder / "temp" / file).touch()
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "RUNNER_"))},
            **{key: self.filled(value) for key, value in step["env"].items()},
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(self.folder / "temp" / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "temp" / "summary"),
            "GITHUB_PATH": str(self.folder / "temp" / "path"),
        }
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if "id" in step:
            lines = (self.folder / "temp" / "output").read_text().splitlines()
            self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
        return ended

    def filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            words = match[1].split(".")
            if words[0] == "inputs":
                return self.inputs.get(words[1], str(ACTION["inputs"][words[1]].get("default", "")))
            if words[0] == "steps":
                return self.outputs[words[1]].get(words[3], "")
            return {"github.action_path": "/action", "runner.temp": str(self.folder / "temp")}[match[1]]

        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)

    @property
    def summary(self) -> str:
        return (self.folder / "temp" / "summary").read_text()


def tools(folder: Path) -> None:
    """`uplift` and `python` on the PATH, as an installation would put them there."""
    folder.mkdir(exist_ok=True)
    warm.program(folder)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)


def a_runner(folder: Path, **inputs: str) -> Runner:
    a_suite(folder, 3)
    given = {"task-suite": "suite.yaml", "skill-path": "skill", "state-root": "state", "model": BETTER}
    return Runner(folder, {**given, **{name.replace("_", "-"): value for name, value in inputs.items()}})


# What the files say


def test_the_action_follows_githubs_schema():
    assert [error.message for error in schema("github-actions").iter_errors(ACTION)] == []


def test_the_documented_workflow_follows_githubs_schema_and_gives_inputs_that_exist():
    workflow = as_ci_reads(block("# .github"))
    assert [error.message for error in schema("github-workflows").iter_errors(workflow)] == []
    (step,) = [one for one in workflow["jobs"]["evaluate"]["steps"] if one.get("id") == "uplift"]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert {name for name, one in ACTION["inputs"].items() if one.get("required")} <= set(step["with"])


def test_the_documented_gitlab_job_follows_gitlabs_schema():
    assert [error.message for error in schema("gitlab-ci").iter_errors(as_ci_reads(block("# .gitlab")))] == []


def test_no_expression_is_pasted_into_a_script():
    """An input inside a script would be run as code; in the environment it is only a value."""
    assert not [name for name, step in STEPS.items() if "${{" in step.get("run", "")]


def test_every_input_is_used_and_every_output_is_made():
    text = json.dumps(ACTION["runs"])
    assert not [name for name in ACTION["inputs"] if f"inputs.{name}" not in text]
    assert not [name for name in ACTION["outputs"] if f"{name}" not in STEPS["Evaluate"]["run"]]


def test_what_must_happen_after_a_failure_does():
    """Evaluating never fails the job by itself: the gate does, when summary, upload and cache are done."""
    names = list(STEPS)
    after = names[names.index("Evaluate") + 1 :]
    assert after[-1] == "Gate"
    assert all(STEPS[name]["if"].startswith("always()") for name in after)


# What the steps do


def test_the_action_installs_locked_files_and_itself_or_what_it_is_told(tmp_path):
    runner = a_runner(tmp_path)
    stand_in = tmp_path / "bin" / "python"
    stand_in.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"; cat > "$3/bin/python" <<\'E\'\n'
        '#!/bin/sh\necho "$*" >> "$(dirname "$0")/installed"\nE\n'
        'chmod +x "$3/bin/python"\n'
    )
    ended = runner.run("Install Uplift")
    assert ended.returncode == 0, ended.stderr
    runner.inputs["source"] = "./a wheel.whl"
    runner.run("Install Uplift")
    installed = tmp_path / "temp/uplift-venv/bin/installed"
    pip = "-m pip install --quiet --disable-pip-version-check"
    assert installed.read_text().splitlines() == [
        f"{pip} --require-hashes --no-deps -r /action/requirements.lock",
        f"{pip} --no-deps --no-build-isolation /action",
        f"{pip} ./a wheel.whl",
    ]
    assert (tmp_path / "temp/path").read_text().splitlines()[0] == str(tmp_path / "temp/uplift-venv/bin")


@pytest.mark.slow
def test_a_better_skill_passes_the_gate_with_a_summary_reports_and_a_filled_cache(short_tmp):
    runner = a_runner(short_tmp, pass_k="2", args="--margin\n0.1\n")
    evaluated = runner.run("Evaluate")
    assert evaluated.returncode == 0, evaluated.stderr
    made = runner.outputs["evaluate"]
    assert (made["exit-code"], made["verdict"], made["delta"]) == ("0", "pass", "1.0")
    assert json.loads(Path(made["artifact"]).read_text())["margin"] == 0.1
    summarized = runner.run("Summarize")
    assert summarized.returncode == 0, summarized.stderr
    assert "PASS" in runner.summary.upper()
    reports = {path.name for path in (short_tmp / "state" / "runs" / made["run-id"]).iterdir()}
    assert {"report.html", "report.md", "junit.xml", "records.jsonl.gz"} <= reports
    assert len(list((short_tmp / "state" / "baseline-cache").rglob("*.json"))) == 6
    assert runner.run("Gate").returncode == 0


@pytest.mark.slow
def test_a_cost_gate_is_handed_on_and_closes_the_job(short_tmp):
    """The simulated model costs nothing in either arm, so that no ratio of costs can be formed."""
    runner = a_runner(short_tmp, model="sim:baseline=0,candidate=1,cost=0", gate_cost="+10%")
    assert runner.run("Evaluate").returncode == 0
    gate = runner.run("Gate")
    assert (gate.returncode, "verdict pass" in gate.stdout, "exit code 3" in gate.stdout) == (3, True, True)


def test_every_job_of_ours_fails_on_harm_only_unless_it_is_told_otherwise():
    """A verdict counts a single attempt that was lost: a healthy skill would fail every few pull requests."""
    new = files("producer").joinpath("templates", "workflow.yml").read_text()
    (documented,) = [text for _, text in BLOCKS if "uplift evaluate" in text and "--gate " in text]
    for words in (new, documented):
        assert re.findall("--gate (\\S+)", words) == ["regression"]
    assert ACTION["inputs"]["gate"]["default"] == "regression"
    assert '--gate "$GATE"' in STEPS["Evaluate"]["run"]


@pytest.mark.slow
def test_a_worse_skill_fails_only_at_the_gate(short_tmp):
    runner = a_runner(short_tmp, model="sim:baseline=1,candidate=0", cache="false")
    assert runner.run("Evaluate").returncode == 0
    assert runner.outputs["evaluate"]["verdict"] == "fail"
    assert runner.run("Summarize").returncode == 0
    gate = runner.run("Gate")
    assert (gate.returncode, "verdict fail" in gate.stdout) == (1, True)
    assert not (short_tmp / "state" / "baseline-cache").exists()


@pytest.mark.slow
def test_input_that_is_no_suite_is_neither_run_as_code_nor_passed(short_tmp):
    runner = a_runner(short_tmp, task_suite='no.yaml"; touch pwned; echo "$(touch pwned)')
    assert runner.run("Evaluate").returncode == 0
    assert runner.outputs["evaluate"] == {"exit-code": "2"}
    assert runner.run("Gate").returncode == 2
    assert not (short_tmp / "pwned").exists()


# What the page says


def shell(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    tools(folder / "bin")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_gitlab_jobs_commands_evaluate_and_report(short_tmp):
    a_suite(short_tmp, 2)
    job = as_ci_reads(block("# .gitlab"))["uplift"]
    ran = shell(short_tmp, "\n".join([*job["script"], *job["after_script"]]), MODEL=BETTER)
    assert ran.returncode == 0, ran.stderr
    assert (short_tmp / job["artifacts"]["reports"]["junit"]).exists()
    assert all((short_tmp / path).exists() for path in job["artifacts"]["paths"])
    assert all((short_tmp / path).exists() for path in job["cache"]["paths"])


@pytest.mark.slow
def test_the_pages_commands_bless_a_run_and_compare_with_it(short_tmp):
    a_suite(short_tmp, 2)
    first, bless, second = (
        line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()
    )
    assert shell(short_tmp, first).returncode in (0, 1, 3)
    (run,) = (short_tmp / "state" / "runs").iterdir()
    blessed = shell(short_tmp, bless.replace("RUN", run.name))
    assert blessed.returncode == 0, blessed.stderr
    compared = shell(short_tmp, second)
    assert "come from run" in compared.stderr, compared.stderr
    assert json.loads(compared.stdout)["delta"] == 0  # the same skill and the same draws

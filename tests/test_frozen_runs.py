"""Seeded runs, one for each way in which a run can end, print and write what they did when they were frozen.

After a change that is meant: `pytest tests/test_frozen_runs.py --freeze`, and read what git then says has changed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import start_server
from freezing import Mask, differences, outputs
from running import Ended, a_suite, standalone, uplift, worker
from standing_in import provider_process

FROZEN = Path(__file__).parent / "frozen"
WHOLE_PAGE = "improved"  # its page is kept with style and script, the others' without

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("frozen-runs"),
]  # one server and worker for most of them


@dataclass(frozen=True)
class Stage:
    """Where a run takes place: its own folder, and the broker that most runs share."""

    folder: Path
    broker: str

    def shared(self, *words: str | Path) -> Ended:
        return self.alone(*words, "--broker", self.broker)

    def alone(self, *words: str | Path, **env: str) -> Ended:
        return uplift(*words, cwd=self.folder, env=env)

    def suite(self, tasks: int) -> Path:
        return a_suite(self.folder, tasks).relative_to(self.folder)

    def mixed_suite(self) -> Path:
        shutil.copytree(FROZEN / "suite", self.folder, dirs_exist_ok=True)
        return Path("suite.yaml")


def sim(baseline: float, candidate: float, more: str = "") -> tuple[str, str]:
    """A model that takes long enough to be measured: at 0 seconds it would have no ratio of times."""
    return "--model", f"sim:baseline={baseline},candidate={candidate},latency=0.02{more}"


def improved(stage: Stage) -> Ended:
    words = ("--baseline-path", "old", "--pass-k", "2", "--gate", "decision", "--details")
    words += sim(0.2, 0.97, ",cost=0.01,seed=8")
    return stage.alone(*standalone(stage.mixed_suite(), *words))


def no_worse(stage: Stage) -> Ended:
    words = ("--margin", "0.25", "--gate", "decision", *sim(1, 1))
    return stage.shared(*standalone(stage.suite(9), *words))


def worse(stage: Stage) -> Ended:
    words = ("--pass-k", "2", "--gate", "regression", *sim(0.9, 0.1, ",garbage=0.1"))
    return stage.shared(*standalone(stage.suite(6), *words))


def inconclusive(stage: Stage) -> Ended:
    words = ("--pass-k", "2", "--gate", "decision", *sim(0.5, 0.6, ",cost=0.002,seed=2"))
    return stage.shared(*standalone(stage.suite(4), *words))


def errors(stage: Stage) -> Ended:
    words = ("--pass-k", "2", "--no-retry", *sim(0.5, 0.7, ",error=0.6,seed=4"))
    return stage.shared(*standalone(stage.suite(4), *words))


def over_budget(stage: Stage) -> Ended:
    words = ("--budget-usd", "0.06", "--in-flight", "1", *sim(0.4, 0.8, ",cost=0.01"))
    return stage.alone(*standalone(stage.suite(6), *words))


def cancelled(stage: Stage) -> Ended:
    """Cancelled before any worker came: what was in flight at the end would be chance."""
    process, nobody_works_here = start_server(stage.folder)
    try:
        stage = Stage(stage.folder, nobody_works_here)
        run_id = stage.shared(*standalone(stage.suite(3), "--detach", *sim(0.5, 0.7))).out.strip()
        return stage.shared("cancel", run_id, "--state-root", "state")
    finally:
        process.kill()
        process.wait()


def weak_baseline(stage: Stage) -> Ended:
    """The baseline is in the cache: without one, chance says how many attempts were made by then."""
    words = standalone(
        stage.mixed_suite(), "--baseline-path", "old", "--tier", "T1", *sim(0, 1, ",cost=0.01")
    )
    words += ["--baseline-cache-dir", "cache"]
    stage.shared(*words, "--weak-baseline", "warn", "--state-root", "earlier")
    return stage.shared(*words)


def stopped_early(stage: Stage) -> Ended:
    words = ("--pass-k", "4", "--stop-early", *sim(0, 1, ",cost=0.01"))
    return stage.shared(*standalone(stage.suite(6), *words))


def several_models(stage: Stage) -> Ended:
    words = ("--pass-k", "2", "--gate-cost", "+10%", *sim(0.3, 0.9, ",cost=0.02"), *sim(0.6, 0.6, ",seed=9"))
    return stage.shared(*standalone(stage.suite(4), *words))


def without_baseline(stage: Stage) -> Ended:
    return stage.shared(*standalone(stage.suite(4), "--no-baseline", "--json", *sim(0, 0.7)))


def given_up(stage: Stage) -> Ended:
    """A provider that lets nobody in; one call at a time, or chance says how many were in flight."""
    with provider_process() as provider:
        provider.script({"status": 401, "message": "invalid x-api-key", "latency": 0.02})
        words = standalone(stage.suite(6), "--model", "anthropic:claude-haiku-4-5", "--in-flight", "1")
        keys = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "sk-none"}
        return stage.alone(*words, **keys)


AGENT = """\
import json, pathlib
prompt = open(0).read()
skill = any(pathlib.Path(".skills").glob("*/SKILL.md")) and "release" in prompt
print(json.dumps({"text": "done", "skill": {"used": skill}}))
"""
TRIGGERS = """\
skill_id: haiku
version: "1.0"
tasks:
  - {id: wanted, prompt: Write the release notes., judge: {type: contains, expected: [done]}, should_trigger: true}
  - {id: missed, prompt: What changed since May?, judge: {type: contains, expected: [done]}, should_trigger: true}
  - {id: unwanted, prompt: Do not release it., judge: {type: contains, expected: [done]}, should_trigger: false}
"""


def triggers(stage: Stage) -> Ended:
    """An agent that loads the skill whenever it reads of a release, rightly or not."""
    suite = stage.suite(1)
    (stage.folder / suite).write_text(TRIGGERS)
    (stage.folder / "uplift.toml").write_text(
        f'[commands.agent]\nargv = {json.dumps([sys.executable, "-c", AGENT])}\noutput = "json"\ntext_path = "text"\n'
        'skill_invoked_path = "skill.used"\nskill_folder = "{workspace}/.skills"\n'
    )
    with worker(stage.broker, stage.folder):  # the only one whose config has the agent
        return stage.shared(*standalone(suite, "--model", "command:agent"))


def ranking(stage: Stage) -> Ended:
    """Candidates that are run, one that scores too low, and one that does not apply."""
    suite = stage.suite(4)
    edit = {
        "action": "append_markdown_section",
        "section_heading": "## Notes",
        "content_lines": ["Be brief."],
    }
    target = {"target_path": "skill/SKILL.md", "executor_support": True, "execution_plan": edit}
    broken = {**edit, "action": "insert_before_section", "section_heading": None}
    candidates = [
        {"id": "brief", "score": 8.5, **target},
        {"id": "kind", "score": 7.0, **target, "execution_plan": {**edit, "content_lines": ["Be kind."]}},
        {"id": "low", "score": 2.5, **target},
        {"id": "broken", "score": 9.0, **target, "execution_plan": broken},
    ]
    content = {
        "schema_version": "1.0",
        "run_id": "source",
        "stage": "ranked",
        "target": {"path": "skill", "exists": True, "kind": "directory"},
        "scored_candidates": candidates,
    }
    (stage.folder / "ranking.json").write_text(json.dumps(content))
    words = ("evaluate", "--input", "ranking.json", "--candidate-id", "all", "--task-suite", suite)
    return stage.shared(*words, "--state-root", "state", "--pass-k", "2", *sim(0.4, 0.8, ",cost=0.01,seed=6"))


def speedups(stage: Stage) -> Ended:
    """Benchmarks as somebody else measured them: times of this machine are no seed's doing."""
    lines = []
    for number, (task, arm) in enumerate((task, arm) for task in "abc" for arm in ("baseline", "candidate")):
        for attempt in (1, 2):
            faster = 1 + number % 2 + attempt / 8
            timed = {"name": "bench", "nop_median": 0.5, "agent_median": 0.5 / faster, "oracle_median": 0.125}
            record = {
                "run_id": "elsewhere",
                "task": task,
                "arm": arm,
                "attempt": attempt,
                "model": "some-model",
            }
            record |= {"outcome": "passed", "score": 1.0, "model_ms": 250 * attempt, "benchmarks": [timed]}
            record |= {
                "judgments": [{"judge": "benchmark", "passed": True, "score": 1.0}],
                "tests": {"passed": 3},
            }
            usage = {
                "cost_usd": 0.01 * attempt,
                "turns": number + attempt,
                "input_tokens": 100,
                "output_tokens": 7,
            }
            record |= {"completion": {"text": "done", **usage}}
            lines.append(record)
    lines[0] |= {"outcome": "timeout", "score": 0.0, "benchmarks": [], "judgments": [], "tests": None}
    (stage.folder / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return stage.alone("aggregate", "records.jsonl", "--state-root", "state")


ENDS: dict[Callable[[Stage], Ended], tuple[int, str, str]] = {
    improved: (0, "finished", "improved"),
    no_worse: (0, "finished", "no_worse"),
    worse: (1, "finished", "worse"),
    inconclusive: (1, "finished", "inconclusive"),
    errors: (3, "finished", "inconclusive"),
    over_budget: (3, "over_budget", "None"),
    cancelled: (3, "cancelled", "None"),
    weak_baseline: (3, "weak_baseline", "None"),
    given_up: (3, "hopeless", "inconclusive"),
    stopped_early: (0, "finished", "improved"),
    several_models: (0, "finished", "inconclusive"),
    without_baseline: (0, "finished", "None"),
    triggers: (0, "finished", "inconclusive"),
    ranking: (3, "finished", "inconclusive"),
    speedups: (0, "finished", "inconclusive"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with one worker."""
    folder = tmp_path_factory.mktemp("b")
    process, url = start_server(folder)
    try:
        with worker(url, folder):
            yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("run", ENDS, ids=lambda run: run.__name__)
def test_a_run_ends_as_it_did_when_it_was_frozen(
    run: Callable[[Stage], Ended],
    broker: str,
    short_tmp: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # CI services set it
    ended = run(Stage(short_tmp, broker))
    mask = Mask(short_tmp, broker, measured=run is not speedups)
    artifacts = [
        json.loads(path.read_text()) for path in (short_tmp / "state" / "evaluations").glob("*.json")
    ]
    for artifact in artifacts[:1]:
        words = ("report", artifact["run_id"], "--md", "--junit", "--csv", "--state-root", "state")
        if (
            short_tmp / "records.jsonl"
        ).exists():  # of an aggregation, which makes no page and leaves its records where they are
            words += ("--html", "--records", "records.jsonl")
        reported = uplift(*words, cwd=short_tmp)
        assert reported.code == 0, reported.err
    code, status, decision = ENDS[run]
    assert ended.code == code, ended.err
    assert (status, decision) in [(one["status"], str(one["decision"])) for one in artifacts]
    now = {
        "stdout.txt": mask.stdout(ended.out),
        "stderr.txt": mask.stderr(ended.err),
        **dict(outputs(short_tmp, mask, whole_page=run.__name__ == WHOLE_PAGE)),
    }
    folder = FROZEN / "runs" / run.__name__
    if request.config.getoption("--freeze"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in now.items():
            (folder / name).write_text(text, "utf-8")
    frozen = {path.name: path.read_text("utf-8") for path in folder.glob("*")}
    if changed := differences(frozen, now):
        pytest.fail(f"{run.__name__} is not what it was:\n{changed}", pytrace=False)


def test_every_frozen_run_is_still_made() -> None:
    assert {path.name for path in (FROZEN / "runs").iterdir()} == {run.__name__ for run in ENDS}

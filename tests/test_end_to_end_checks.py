"""Tasks with several checks from suite to reports; a changed check is judged anew, and no model is asked again."""

import csv
import gzip
import json

import pytest
from running import a_suite, standalone, uplift
from standing_in import provider_process

MODEL = "openai:gpt-5-mini"
CHECKS = [
    {"type": "contains", "expected": ["word"], "name": "word"},
    {"not": {"type": "regex", "pattern": "nothing"}},
    {"type": "length", "max_words": 3, "required": False, "weight": 2},
]


def a_suite_of(folder, *tasks):
    """A skill, and a suite of these checks, one task each."""
    suite = a_suite(folder, 1)
    return written(suite, *tasks)


def written(suite, *tasks, **fields):
    made = [
        {"id": f"t{n}", "prompt": "Say it.", "checks": checks, **fields} for n, checks in enumerate(tasks)
    ]
    suite.write_text(json.dumps({"skill_id": "haiku", "version": "1.1", "tasks": made}))
    return suite


def records(folder, run_id):
    with gzip.open(folder / "state" / "runs" / run_id / "records.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def artifacts(folder):
    """All of a state root, oldest first."""
    found = sorted(
        (folder / "state" / "evaluations").glob("*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    return [json.loads(path.read_text()) for path in found]


@pytest.fixture
def provider():
    with provider_process() as made:
        made.script({"text": "a word", "input_tokens": 1000, "output_tokens": 100})
        yield made


@pytest.fixture
def evaluate(short_tmp, provider):
    """Evaluate with the provider; returns the artifact, and how often the provider was asked for it."""
    env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{provider.url}/v1"}

    def run(suite, *more, command=None):
        before = len(provider.asked())
        words = command or standalone(suite, "--model", MODEL)
        ended = uplift(*words, *more, cwd=short_tmp, env=env, timeout=240)
        assert ended.code in (0, 1), ended.err
        return artifacts(short_tmp)[-1], len(provider.asked()) - before, ended.err

    return run


@pytest.mark.slow
def test_each_check_is_a_row_everywhere(short_tmp, evaluate):
    artifact, asked, _ = evaluate(a_suite_of(short_tmp, CHECKS), "--pass-k", "2")
    assert asked == 4
    assert [(one["check"], one["arm"], one["passes"], one["judged"]) for one in artifact["checks"]] == [
        (check, arm, 2, 2) for arm in ("baseline", "candidate") for check in ("word", "not regex", "length")
    ]
    for record in records(short_tmp, artifact["run_id"]):
        assert (record["outcome"], record["score"]) == ("passed", 1.0)
        assert [one["check"] for one in record["judgments"]] == ["word", "not regex", "length"]
    run = ("report", artifact["run_id"], "--state-root", short_tmp / "state")
    assert uplift(*run, "--csv", "--md", "--junit", "--html", cwd=short_tmp).code == 0
    folder = short_tmp / "state" / "runs" / artifact["run_id"]
    (table,) = folder.rglob("checks.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["check"], row["weight"], row["required"]) for row in rows[:3]] == [
        ("word", "1", "true"),
        ("not regex", "1", "true"),
        ("length", "2", "false"),
    ]
    assert len(rows) == 12
    assert (
        "<code>length &#40;not required&#41;</code> | program | 100.0 % | 100.0 % | 0 |"
        in next(folder.rglob("*.md")).read_text()
    )
    assert 'classname="haiku.candidate.t0" name="not regex"' in next(folder.rglob("*.xml")).read_text()
    assert "length (not required)" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_changed_check_is_judged_anew_and_the_model_is_not_asked_again(short_tmp, evaluate):
    """From the cache, from a blessed baseline, and by `rejudge`."""
    suite, cache = a_suite_of(short_tmp, CHECKS, CHECKS[:1]), ("--baseline-cache-dir", short_tmp / "cache")
    first, asked, _ = evaluate(suite, *cache)
    assert (asked, first["baseline_pass_rate"]) == (4, 1.0)
    blessed = short_tmp / "blessed.json"
    assert uplift("bless", "--output", blessed, "--state-root", short_tmp / "state", cwd=short_tmp).code == 0

    stricter = [*CHECKS[:2], {**CHECKS[2], "max_words": 1, "required": True}]
    written(suite, stricter, CHECKS[:1])
    second, asked, said = evaluate(suite, *cache)
    assert asked == 2  # the candidate's
    assert "1 baseline answers are judged anew" in said
    assert (second["attempts"]["cached"], second["baseline_pass_rate"]) == (1, 0.5)
    third, asked, _ = evaluate(suite, *cache)
    assert (asked, third["attempts"]["cached"], third["baseline_pass_rate"]) == (2, 2, 0.5)

    against, asked, said = evaluate(suite, "--baseline", blessed)
    assert (asked, against["baseline_pass_rate"]) == (2, 0.5)
    assert "left out" not in said
    assert "1 baseline answers are judged anew" in said

    written(suite, CHECKS, CHECKS[:1])
    words = ["rejudge", second["run_id"], "--task-suite", suite, "--state-root", short_tmp / "state"]
    again, asked, _ = evaluate(suite, command=words)
    assert (asked, again["baseline_pass_rate"], again["execution_pass_rate"]) == (0, 1.0, 1.0)

    written(suite, CHECKS, CHECKS[:1], prompt="Say something else.")
    _, asked, _ = evaluate(suite, *cache)
    assert asked == 4


@pytest.mark.slow
def test_spared_checks_are_missing_and_counted_and_their_models_are_not_asked(short_tmp, evaluate):
    failing = [{"type": "contains", "expected": ["other"]}, {"type": "llm-rubric", "rubric": "kind?"}]
    suite = a_suite_of(short_tmp, failing)
    spared, asked, _ = evaluate(suite, "--spare-checks")
    assert asked == 2
    assert [(one["check"], one["n"], one["missing"]) for one in spared["checks"]] == [
        ("contains", 1, 0),
        ("llm-rubric", 1, 1),
    ] * 2
    assert {record["outcome"] for record in records(short_tmp, spared["run_id"])} == {"failed"}
    assert all(
        "score" not in record or record["score"] is None for record in records(short_tmp, spared["run_id"])
    )
    assert any("2 checks of 4 spared" in warning for warning in spared["warnings"])
    assert spared["arms"]["candidate"]["n_scored"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--stop-early", "--pass-k", "3"], ["--pass-k", "3"]])
def test_repeated_attempts_and_early_stopping_take_tasks_with_checks(short_tmp, more):
    rubric = {"type": "llm-rubric", "rubric": "kind?", "required": False}
    suite = a_suite_of(short_tmp, *[[*CHECKS, rubric]] * 4)
    words = standalone(suite, "--model", "sim:baseline=0.1,candidate=0.9,seed=3", *more)
    ended = uplift(*words, cwd=short_tmp, timeout=240)
    assert ended.code == 0, ended.err
    (artifact,) = artifacts(short_tmp)
    assert artifact["by_judge"].keys() == {"checks"}
    assert artifact["consistency"]["candidate"]["concept_overlap"] is not None
    assert 0 < artifact["arms"]["candidate"]["mean_impl_rate"] < 1
    assert artifact["judges"]["panel_sizes"].keys() == {"1"}

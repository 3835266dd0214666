"""The answer is the same on every surface, however a run ended; the diagnosis names what is wrong with a suite."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from builders import a_record, both_arms, built, many
from rich.console import Console

from aggregate.artifact import build, sentences
from aggregate.artifact.answer import answer_of, brief
from aggregate.artifact.file import stdout_line
from aggregate.artifact.model import AnswerLine, Artifact, LineKind, Needed, loads
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import CandidateInfo, RunInfo
from aggregate.report import html, junit, markdown
from aggregate.report.charts import axis
from aggregate.report.result_tables import Material, candidate_row, groups, moved, next_of, ranked, shared
from aggregate.report.terminal import answer_block, result_table
from aggregate.text.formats import points, rate, seconds
from judges.judgment import Judgment
from producer.display import run_list
from producer.display.attempts import attempt_texts
from producer.display.progress import usd

FROZEN = Path(__file__).parent / "frozen" / "runs"
COMPARED = ("better", "no_worse", "worse", "cannot_tell", "nothing_to_learn")
NO_RESULT = ("no_result", "cancelled", "skipped")


def frozen(name: str) -> list[Artifact]:
    """The artifacts of a frozen run; what was masked in them was a number, which does not matter here."""
    texts = (path.read_text("utf-8") for path in sorted((FROZEN / name).glob("evaluations-*.json")))
    known = (text.replace('"created_at": "TIME"', '"created_at": "2026"') for text in texts)
    return [loads(text.replace('"TIME"', "1.5").encode()) for text in known]


def drawn(tasks: int, attempts: int, candidate: float, baseline: float, seed: int = 1) -> list[AttemptRecord]:
    """Tasks that are easy or hard for both arms, and attempts that pass with a chance around the arm's rate."""
    random = np.random.default_rng(seed)
    ease = random.uniform(-0.2, 0.2, tasks)
    arms = [
        {
            f"t{task:03}": "".join(
                "p" if random.random() < mean + ease[task] else "f" for _ in range(attempts)
            )
            for task in range(tasks)
        }
        for mean in (candidate, baseline)
    ]
    return both_arms(*arms)


def made(records: list[AttemptRecord], **info: Any) -> list[Artifact]:
    return [built(records, **info)]


def futile() -> list[Artifact]:
    """Nothing differs after the first of five rounds, so that no more are made."""
    records = both_arms(many("p", 10) | {"x": "f"}, many("p", 10) | {"y": "f", "x": "p"})
    return made(
        [*records, *both_arms({"y": "p"}, {})], stop_early=True, pass_k=5, effect=0.05, planned_attempts=110
    )


def ranked_candidates(pictures: dict[str, str], low: float = 1.0, **info: Any) -> list[Artifact]:
    """Candidates whose attempts went alike on each of 20 tasks, beside two that are below the threshold."""
    outcomes = {"p": "passed", "f": "failed", "t": "timeout", "e": "error"}
    records = [
        a_record(f"t{task}", arm, number, outcome=outcomes[letter], model="sim:a=1")
        for arm, picture in pictures.items()
        for task in range(20)
        for number, letter in enumerate(picture, start=1)
    ]
    found = RunInfo.from_records(records) if records else RunInfo(run_id="r", models=("sim:a=1",), pass_k=3)
    skipped = (("aaa", low / 2), ("zzz", low))
    candidates = found.candidates if records else ()
    candidates += tuple(CandidateInfo(arm=f"candidate:{n}", candidate_id=n, score=s) for n, s in skipped)
    return build.build(found.model_copy(update={"candidates": candidates, **info}), records)


def here() -> list[Artifact]:
    """One is better on tasks like these, the other on exactly these tasks only."""
    pictures = {"baseline": "p" * 5 + "f" * 5, "candidate:all": "p" * 10}
    mixed = ("p" * 10, "p" * 9 + "f", "p" * 5 + "f" * 5, "p" * 4 + "f" * 6)
    records = [
        a_record(f"t{task}", arm, number, outcome="passed" if letter == "p" else "failed")
        for arm in ("baseline", "candidate:all", "candidate:some")
        for task in range(8)
        for number, letter in enumerate(pictures.get(arm, mixed[task % 4]), start=1)
    ]
    return build.build(RunInfo.from_records(records), records)


ENDS: dict[str, tuple[str, Callable[[], list[Artifact]]]] = {
    "improved": ("better", lambda: frozen("improved")),
    "no_worse": ("no_worse", lambda: frozen("no_worse")),
    "worse": ("worse", lambda: frozen("worse")),
    "inconclusive": ("cannot_tell", lambda: frozen("inconclusive")),
    "errors": ("no_result", lambda: frozen("errors")),
    "over_budget": ("no_result", lambda: frozen("over_budget")),
    "weak_baseline": ("no_result", lambda: frozen("weak_baseline")),
    "given_up": ("no_result", lambda: frozen("given_up")),
    "cancelled": ("cancelled", lambda: frozen("cancelled")),
    "stopped_early": ("better", lambda: frozen("stopped_early")),
    "futile": ("cannot_tell", futile),
    "several_models": ("better", lambda: frozen("several_models")),
    "without_baseline": ("alone", lambda: frozen("without_baseline")),
    "saturated": ("nothing_to_learn", lambda: made(both_arms(many("p", 9, 2), many("p", 9, 2)))),
    "floor": ("nothing_to_learn", lambda: made(both_arms(many("f", 9), many("f", 9)), baseline="bare")),
    "timeouts": ("worse", lambda: made(both_arms(many("t", 12, 2), many("p", 12, 2)))),
    "skipped": (
        "skipped",
        lambda: build.build(RunInfo(run_id="r", candidates=(CandidateInfo(score=2.0),)), []),
    ),
    "triggers": ("nothing_to_learn", lambda: frozen("triggers")),
    "ranking": ("no_result", lambda: frozen("ranking")),
    "several": (
        "better",
        lambda: ranked_candidates({"baseline": "ppf", "candidate:up": "ppp", "candidate:down": "ttf"}),
    ),
    "several_here": ("better", here),
    "several_cancelled": (
        "cancelled",
        lambda: ranked_candidates(
            {"baseline": "p", "candidate:up": "p"}, status="cancelled", pass_k=3, planned_attempts=120
        ),
    ),
    "all_skipped": ("skipped", lambda: ranked_candidates({}, low=4.2)),
    "few_errors": (
        "better",
        lambda: made(both_arms(many("p", 30, 3) | {"task-00": "ppe"}, many("f", 30, 3)), baseline="bare"),
    ),
    "resumed_after_errors": (
        "better",
        lambda: made(both_arms(many("p", 30, 3), many("f", 30, 3), deliveries=6), baseline="bare"),
    ),
}
SURFACES: dict[str, Callable[[list[Artifact]], str]] = {
    "terminal at 80": lambda artifacts: terminal(artifacts, 80),
    "terminal at 120": lambda artifacts: terminal(artifacts, 120),
    "artifact": lambda artifacts: " ".join(artifact.summary for artifact in artifacts),
    "status": lambda artifacts: status(artifacts),
    "page": lambda artifacts: page_words(artifacts),
    "markdown": lambda artifacts: unescape(re.sub("<[^>]*>|&#8288;", "", markdown.text(material(artifacts)))),
    "junit": lambda artifacts: unescape("".join(junit.text(material([one])) for one in artifacts)),
}


def material(artifacts: list[Artifact]) -> Material:
    return Material(artifacts[0], list, others=tuple(artifacts[1:]))


def page(artifacts: list[Artifact]) -> str:
    return "".join(html.report(material(artifacts).ranked, "{}", [], frames=False))


def page_words(artifacts: list[Artifact]) -> str:
    seen = re.sub(r"<(script|style)\b.*?</\1>", "", page(artifacts), flags=re.DOTALL)
    return unescape(re.sub("<[^>]*>", "", seen))


def terminal(artifacts: list[Artifact], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    console.print(answer_block(artifacts, width, "page: .uplift/runs/RUN/report.html"), soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above


def status(artifacts: list[Artifact]) -> str:
    """What people read, and what scripts do."""
    facts = run_list._over("RUN", artifacts)
    lines = "\n".join(f"{name} {text}" for name, text in run_list._ended_lines(facts))
    return lines + json.dumps(facts, ensure_ascii=False)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module", params=ENDS)
def end(request: pytest.FixtureRequest) -> tuple[str, list[Artifact]]:
    state, make = ENDS[request.param]
    return state, make()


def test_every_end_has_its_state_and_shows_no_rate_where_there_is_no_result(end):
    state, artifacts = end
    assert state in [answer_of(artifact).state for artifact in artifacts]
    for answer in map(answer_of, artifacts):
        kinds = {line.kind for line in answer.lines}
        assert ("rates" in kinds) == (answer.state in COMPARED)
        assert "ranges" not in kinds or "rates" in kinds
        assert ("why" in kinds) == (answer.state in ("no_result", "skipped"))
        if answer.state in NO_RESULT:
            assert not [line.text for line in answer.lines if " % of attempts" in line.text]


def test_a_run_that_was_ended_by_hand_or_by_money_has_no_decision(end):
    _, artifacts = end
    for artifact in artifacts:
        if artifact.status in ("cancelled", "over_budget", "weak_baseline"):
            assert (artifact.decision, artifact.suite_decision, artifact.could_miss) == (None, None, None)
        if artifact.verdict == "error":
            assert artifact.could_miss is None
            assert artifact.decision in (None, "inconclusive") or artifact.baseline_is_too_weak


def test_every_estimate_lies_inside_its_interval_and_counts_add_up(end):
    _, artifacts = end
    for artifact in artifacts:
        interval = artifact.interval
        for bounds in filter(
            None, (interval and interval.tasks_like_these, interval and interval.exactly_this_suite)
        ):
            if bounds.estimate is not None:
                assert bounds.low <= bounds.estimate <= bounds.high
        if rates := answer_of(artifact).line("rates"):
            numbers = rates.values
            if numbers["low"] is not None:
                assert numbers["low"] <= numbers["difference"] <= numbers["high"]
            if numbers["candidate"] is not None:
                assert numbers["candidate"] - numbers["baseline"] == pytest.approx(
                    numbers["difference"], abs=1e-4
                )
        if counts := artifact.attempts:
            assert counts.run == sum(sum(outcomes.values()) for outcomes in counts.by_arm.values())
            if counts.planned is not None:
                assert counts.run + counts.skipped <= counts.planned
        lost = answer_of(artifact).line("cost")
        if lost is not None:
            assert lost.values["timeouts"] == sum(
                outcomes.get("timeout", 0) for outcomes in artifact.attempts.by_arm.values()
            )


@pytest.mark.parametrize("surface", SURFACES)
def test_every_surface_says_the_same_figures_in_the_same_words(end, surface):
    _, artifacts = end
    said = flat(SURFACES[surface](artifacts))
    assert not re.search(r"\$\d[\d.]*e-|\bnan\b|\bNone\b|(?<![\d.])100 % interval|\(100 %\)", said)
    for artifact in artifacts:
        answer = answer_of(artifact)
        if len(artifacts) == 1:
            assert answer.headline in said
            assert surface == "artifact" or answer.next.text in said
        if rates := answer.line("rates"):
            numbers = rates.values
            if numbers["candidate"] is not None:
                assert rate(numbers["candidate"]) in said
            assert points(numbers["difference"]) in said
        if len(artifacts) > 1 and surface == "junit":
            assert answer.headline in said
        elif len(artifacts) > 1 and surface != "artifact":
            short = (" here",) if surface.startswith("terminal") else ()
            assert flat(candidate_row(artifact, *short)[-1])[:40] in said
    if len(artifacts) > 1 and surface not in ("artifact", "status", "junit"):
        assert all(flat(text) in said for text in shared(ranked(artifacts)))
    if len(artifacts) > 1 and surface in ("terminal at 80", "terminal at 120", "status"):
        assert next_of(ranked(artifacts)).text in said
        names = [artifact.name for artifact in ranked(artifacts)]
        lines = [line.split() for line in SURFACES[surface](artifacts).splitlines()]
        order = [word.rstrip(":") for words in lines for word in words[:1] if word.rstrip(":") in names]
        assert order == names
    if len(artifacts) == 1 and surface != "status":
        shown = answer_of(artifacts[0]).lines
        assert all(flat(line.text)[:60] in said for line in shown)


def test_page_and_markdown_draw_and_table_only_the_answers_own_figures(end):
    _, artifacts = end
    answers = [answer_of(artifact) for artifact in artifacts]
    shown = [answer.figure("rates", "low") for answer in answers]
    assert page(artifacts).count('class="chart delta"') == len([low for low in shown if low is not None])
    text = SURFACES["markdown"](artifacts)
    for answer in answers:
        numbers = [answer.figure("rates", name) for name in ("baseline", "candidate", "difference")]
        if None not in numbers:
            before, after, difference = numbers
            told = f"| Attempts passed | {rate(before)} | {rate(after)} | {points(difference)} points |"
            assert told in text


def test_junit_counts_what_the_candidate_failed_and_follows_the_gate(end):
    for artifact in end[1]:
        root = ElementTree.fromstring(junit.text(material([artifact])))
        gate = answer_of(artifact).gate
        failed = [one for one in artifact.candidate_results if one.passed is False]
        assert int(root.get("failures")) == len(failed) + (gate == "fail")
        assert int(root.get("skipped")) == (gate == "skipped")
        assert int(root.find("testsuite[@name='answer']").get("errors")) == (gate == "error")


def test_the_answer_fits_its_lines_and_commands_stay_whole(end):
    _, artifacts = end
    most = 15 if len(artifacts) == 1 else 20
    for width in (80, 120):
        lines = terminal(artifacts, width).splitlines()
        taken = sum(max(1, -(-len(line) // width)) for line in lines)
        assert taken <= most
        assert all(len(line) <= width or "uplift " in line for line in lines)
    assert lines[-1].lstrip().startswith("page: ")


def test_an_answer_with_much_to_say_gives_up_words_but_no_line():
    (artifact,) = frozen("improved")
    answer = answer_of(artifact)
    kinds = [kind for kind in get_args(LineKind) if kind not in ("why", "bill", "rates")]
    lines = [AnswerLine(kind=kind, text=f"{kind}: " + "a word " * 60) for kind in kinds]
    said = artifact.model_copy(update={"answer": answer.model_copy(update={"lines": lines})})
    for width in (80, 120):
        shown = terminal([said], width).splitlines()
        assert sum(max(1, -(-len(line) // width)) for line in shown) == 15
        assert [line.split(":")[0].strip() for line in shown if ": a word" in line] == kinds
        assert shown[-1].lstrip().startswith("page: ")


def test_the_remedy_at_the_end_of_a_message_is_not_cut():
    remedy = "(it runs confined: name the folders that it needs under `readable`)"
    message = (
        f"ModelFailed: agent ended with exit code 2: can't open file '/{'folder/' * 12}agent.py' {remedy}"
    )
    (artifact,) = made(both_arms(many("e", 6), many("e", 6), error=message))
    assert f"{remedy} (12×)" in flat(terminal([artifact], 80))


@pytest.mark.parametrize(
    ("code", "advised"),
    [
        ("timeouts", "first give tasks a longer timeout_seconds, then run it again"),
        (
            "never_loaded",
            "make the skill's description say when to use it, then run again; or add --unloaded warn",
        ),
        ("saturated", "first add harder tasks, then run it again"),
        ("errors", "mend what the errors say, then try those attempts again: uplift resume run-1"),
        ("one_task", "add tasks like these, "),
    ],
)
def test_no_tasks_are_advised_where_something_else_is_wrong_with_the_suite(code, advised):
    """20 times more tasks that run out of time, or never load the skill, tell no more."""
    artifact = BROKEN[code]()
    if code == "timeouts":
        (artifact,) = made(both_arms(many("pt", 12), many("pf", 12)))
    if code == "saturated":
        (artifact,) = ENDS["saturated"][1]()
    if code == "errors":  # too few for an error, and of one arm only
        tasks = {f"t{n:02}": "p" if n % 2 else "f" for n in range(60)}
        records = both_arms(tasks | dict.fromkeys(["t00", "t02", "t04"], "e"), tasks)
        (artifact,) = made(records, planned_attempts=120, margin=0.01)
    assert answer_of(artifact).next.text.startswith(advised)


def test_of_a_suite_that_asks_when_the_skill_is_loaded_the_task_that_went_wrong_is_the_next_to_read():
    (artifact,) = frozen("triggers")
    fresh = answer_of(artifact.model_copy(update={"answer": None}))
    assert fresh.next.text == "read where the skill was not invoked as it should be: uplift show RUN missed"


def test_flaky_tasks_are_told_in_the_order_of_what_they_cost_the_interval():
    """The variance of a task's mean: 0.5 / 2 of one pass in two attempts, 0.33 / 3 of one in three."""
    (artifact,) = made(both_arms({"a": "pff", "z": "pf"}, {"a": "ppp", "z": "pp"}))
    assert artifact.consistency["candidate"].flaky_tasks == ["z", "a"]


def test_the_list_of_runs_and_standard_output_tell_the_same_end(end):
    state, artifacts = end
    said = brief(artifacts)
    if len(artifacts) == 1:
        assert said.startswith(state.replace("_", " "))
        assert ("!" in said) == bool(artifacts[0].diagnosis)
        if rates := answer_of(artifacts[0]).line("rates"):
            assert points(rates.values["difference"]) in said
    else:
        words = Counter(
            candidate_row(artifact, " here")[-1].split(":")[0].split(",")[0] for artifact in artifacts
        )
        assert sorted(said.split(", ")) == sorted(f"{count} {word}" for word, count in words.items())
    facts = run_list.results(artifacts)
    assert facts["verdict"] in [artifact.verdict for artifact in artifacts]
    if len(artifacts) > 1:
        assert "decision" not in facts
        assert [one["attempt_delta"] for one in facts["candidates"]] == [
            one.attempt_delta for one in artifacts
        ]
    for artifact in artifacts:
        assert json.loads(stdout_line(artifact))["verdict"] == artifact.verdict


def test_hostile_and_endless_names_neither_break_nor_stretch_the_answer():
    name = "\x1b[31m[bold]" + "long-name " * 40
    records = both_arms({name: "fff", "b": "ppp"}, {name: "ppp", "b": "ppf"}, model=name, error=name)
    text = terminal(made(records, skill_id=name, planned_attempts=12), 80)
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if "uplift " not in line]
    assert len(lines) <= 13
    assert max(map(len, lines)) <= 80


def test_a_stop_for_futility_says_why_and_at_which_look_and_claims_no_interval():
    (artifact,) = futile()
    answer = answer_of(artifact)
    assert answer.stopped_early
    assert artifact.interval.level > 0.999
    assert answer.line("ranges") is None
    assert answer.line("rates").values["low"] is None
    assert answer.line("stopped").text.startswith("stopped early, after round 1 of 5 (")
    assert "would now be found with a chance of" in answer.line("stopped").text
    assert "× 1 attempt of 5" in answer.line("what").text


def test_several_candidates_are_ranked_each_with_its_own_difference_and_interval():
    """Any of three attempts passes everywhere, so by tasks nothing differs; by attempts one gains and one loses."""
    tasks = [f"t{n}" for n in range(20)]
    pictures = {"baseline": "ppf", "candidate:up": "ppp", "candidate:down": "pff"}
    records = [
        a_record(task, arm, number, outcome={"p": "passed", "f": "failed"}[letter])
        for arm, picture in pictures.items()
        for task in tasks
        for number, letter in enumerate(picture, start=1)
    ]
    info = RunInfo.from_records(records)
    candidates = (*info.candidates, CandidateInfo(arm="candidate:low", candidate_id="low", score=1.0))
    artifacts = build.build(info.model_copy(update={"candidates": candidates}), records)
    text = terminal(artifacts, 80)
    rows = [line for line in text.splitlines() if line.split()[:1] in (["up"], ["down"], ["low"])]
    assert [row.split()[0] for row in rows] == ["up", "down", "low"]
    assert "100.0 %" in rows[0]
    assert "+33.3" in rows[0]
    assert rows[0].endswith("better")
    assert "33.3 %" in rows[1]
    assert "-33.3" in rows[1]
    assert "worse" in rows[1]
    assert "skipped: score 1 is below" in rows[2]
    assert text.count("cost not known") == 1
    assert brief(artifacts) == "1 better, 1 worse, 1 skipped"


def test_models_of_a_kind_have_short_names_that_differ():
    from aggregate.artifact.sentences import short_models

    assert short_models(["sim:a=1", "anthropic:opus"]) == {
        "sim:a=1": "sim",
        "anthropic:opus": "anthropic:opus",
    }
    assert list(short_models(["sim:a=1", "sim:b=2"]).values()) == ["sim 1", "sim 2"]
    assert list(short_models(["replay:/a/b/c.jsonl"]).values()) == ["replay:c.jsonl"]


def test_a_failing_verdict_names_its_metric_and_the_tasks_that_made_it():
    candidate = {f"t{n}": "ppp" for n in range(8)} | {"names-the-platform": "fff"}
    artifact = built(both_arms(candidate, dict.fromkeys(candidate, "ppf")))
    assert artifact.verdict == "fail"
    assert artifact.attempt_delta > 0
    assert artifact.reason == "tasks passed in any of 3 attempts fell by 1 of 9: lost names-the-platform"
    assert answer_of(artifact).gate == "fail"
    assert answer_of(artifact).line("tasks").text == "broke 1 task, names-the-platform: 2/3 → 0/3"


def test_with_several_models_the_verdict_says_that_it_counts_pairs_of_task_and_model():
    """4 tasks with 2 models: "2 of 8" alone would be 2 of 8 tasks."""
    (artifact,) = frozen("several_models")
    assert " rose by 2 of 8 pairs of task and model: gained " in artifact.reason


def test_power_is_that_of_the_interval_in_use():
    """The last of three looks asks for a little more than 95 %, so it finds a little less."""
    records = drawn(30, 3, 0.6, 0.5)
    plain, looking = (built(records, stop_early=early, pass_k=3) for early in (False, True))
    assert looking.min_detectable_effect > plain.min_detectable_effect


# Could this suite have answered?


def with_loads(records: list[AttemptRecord], invoked: bool) -> list[AttemptRecord]:
    return [
        record.model_copy(update={"completion": {"text": "", "skill_loaded": invoked}}) for record in records
    ]


def mixed(tasks: int) -> dict[str, str]:
    return {f"t{n:02}": "ppf" if n % 2 else "pff" for n in range(tasks)}


def loaded(share: float) -> list[AttemptRecord]:
    return [
        a_record(
            task,
            arm,
            n,
            outcome="passed" if n % 2 else "failed",
            completion={"skill_loaded": n <= 10 * share},
        )
        for arm in ("candidate", "baseline")
        for task in (f"t{number}" for number in range(12))
        for n in range(1, 11)
    ]


BROKEN: dict[str, Callable[[], Artifact]] = {
    "errors": lambda: built(both_arms(mixed(20) | {f"t{n:02}": "pee" for n in range(6)}, mixed(20))),
    "timeouts": lambda: built(
        both_arms({task: f"{letters[:2]}t" for task, letters in mixed(30).items()}, mixed(30))
    ),
    "saturated": lambda: built(both_arms(many("p", 12, 3), many("p", 12, 3) | {"task-03": "ppf"})),
    "floor": lambda: built(
        both_arms(many("f", 12, 3) | {"task-03": "pff"}, many("f", 12, 3)), baseline="bare"
    ),
    "never_loaded": lambda: built(loaded(0)),
    "rarely_loaded": lambda: built(loaded(0.1)),
    "quotes_skill": lambda: built(
        drawn(60, 5, 0.6, 0.6), candidates=(CandidateInfo(quoting=("t001", "t002")),)
    ),
    "one_task": lambda: built(both_arms(mixed(20) | {"one": "ppp"}, mixed(20) | {"one": "fff"})),
    "few_tasks": lambda: built(both_arms(mixed(4), mixed(4) | {"t01": "pff"})),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_instrument_is_told_its_cause_with_figures_and_a_remedy(code):
    artifact = BROKEN[code]()
    worst = artifact.diagnosis[0]
    assert worst.code == code
    assert re.search(r"\d", worst.text)
    assert worst.remedy
    assert f"! {code.replace('_', ' ')}" in brief([artifact])
    answer = answer_of(artifact)
    if answer.state in COMPARED and not (answer.state == "cannot_tell" and code == "few_tasks"):
        assert answer.line("diagnosis").text == f"careful: {worst.text}; {worst.remedy}"


@pytest.mark.parametrize(
    ("candidate", "baseline", "state"), [(0.7, 0.4, "better"), (0.4, 0.7, "worse"), (0.6, 0.6, "no_worse")]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sound_instrument_raises_no_alarm(candidate, baseline, state, seed):
    artifact = built(drawn(150, 8, candidate, baseline, seed), margin=0.1)
    assert artifact.diagnosis == []
    assert answer_of(artifact).state == state
    assert answer_of(artifact).line("diagnosis") is None


def test_a_saturated_suite_is_advised_no_number_of_attempts():
    (artifact,) = ENDS["saturated"][1]()
    said = artifact.summary
    assert "nothing left to gain: the baseline passes 100.0 % of attempts; add harder tasks" in said
    assert "would show" not in said


# What a stranger misread once.


def test_several_candidates_say_that_they_are_simulated_and_whose_cause_is_the_worst():
    said = flat(terminal(ENDS["several"][1](), 80))
    assert said.startswith("4 candidates, best first (simulated) against the baseline · 20 tasks × 3")
    assert "careful, down: 40 of 60 candidate and 0 of 60 baseline attempts ran out of time" in said
    assert "give tasks a longer timeout_seconds" in said


def test_where_every_candidate_is_skipped_there_is_no_table_and_the_best_scored_is_named():
    lines = terminal(ENDS["all_skipped"][1](), 80).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["zzz", "aaa"]
    assert "attempts" not in " ".join(lines)
    assert lines[3] == "  next: to run zzz all the same, add --eval-threshold 4.2"


@pytest.mark.parametrize("name", ["cancelled", "over_budget", "weak_baseline", "given_up", "skipped"])
def test_a_run_that_was_cut_short_does_not_claim_the_attempts_that_were_planned(name):
    for artifact in ENDS[name][1]():
        fresh = answer_of(artifact.model_copy(update={"answer": None}))
        assert "×" not in fresh.line("what").text
        assert "attempt" not in fresh.line("what").text
        assert fresh.line("what").values["attempts"] is None


def test_what_was_made_counts_the_attempts_of_all_candidates_as_the_plan_does():
    """20 tasks of a baseline and one candidate, an attempt each, of a plan of three times as many."""
    up = ENDS["several_cancelled"][1]()[0]
    assert answer_of(up).headline == "CANCELLED after 40 of 120 attempts (simulated)"


def test_after_a_stop_for_futility_no_attempts_are_advised_and_words_and_next_step_agree():
    """Half of the tasks gained all and half lost all; the runs stopped after one attempt of five."""
    apart = [
        both_arms(
            many("p", n) | {f"x{i}": "f" for i in range(n)}, many("f", n) | {f"x{i}": "p" for i in range(n)}
        )
        for n in (2, 3, 5)
    ]
    for records, effect in zip(apart, (0.5, 0.5, 0.2), strict=True):
        (artifact,) = made(records, stop_early=True, pass_k=5, effect=effect, planned_attempts=120)
        assert artifact.sequential.stopped_after == 1
        answer = answer_of(artifact)
        told = answer.line("needed")
        assert told is None or "of each would show" not in told.text
        assert told is None or "likely" not in told.text
        assert "--pass-k" not in answer.next.text or "in all" in answer.next.text


@pytest.mark.parametrize(("attempts", "advised"), [(2, True), (6, False), (9, False)])
def test_no_attempts_are_advised_that_are_made_already(attempts, advised):
    needed = Needed(effect=0.1, n_pairs=12, attempts=6, tasks=40, tasks_at_attempts=5)
    (artifact,) = made(drawn(12, 2, 0.6, 0.5), pass_k=attempts, needed=needed)
    artifact = artifact.model_copy(
        update={
            "needed": needed,
            "answer": None,
            "decision": "inconclusive",
            "suite_decision": "inconclusive",
        }
    )
    said = answer_of(artifact).line("needed").text
    assert ("6 attempts of each would show 10 points" in said) == advised
    assert ("40 tasks × 5 attempts would show 10 points" in said) == (not advised)
    assert sentences.advised(artifact) == ((12, 6) if advised else (40, 5))


def test_a_candidate_alone_and_a_weak_baseline_name_their_metric_in_percent():
    (alone,) = made(both_arms({"a": "ppf", "b": "fff"}, {}), baseline="none")
    said = answer_of(alone)
    assert said.line("what").text.startswith("run-1 alone · 2 tasks × 3 attempts")
    assert said.line("gate").text == (
        "gate pass: tasks passed in any of 3 attempts: 50.0 %, at least the 50.0 % that are asked of a candidate alone"
    )
    (weak,) = made(both_arms(many("p", 6, 2), many("f", 6, 2)))
    assert weak.reason == "baseline pass rate 0.0 % < 20.0 % (tasks passed in any of 2 attempts)"


@pytest.mark.parametrize("code", BROKEN)
def test_cause_and_remedy_are_whole_at_80_columns(code):
    said = flat(terminal([BROKEN[code]()], 80))
    worst = BROKEN[code]().diagnosis[0]
    if "NO RESULT" not in said:
        assert worst.remedy in said
        assert worst.text in said


def test_where_the_interval_for_exactly_these_tasks_is_wider_that_is_said():
    """Every task moves by the same third, and each rests on three attempts."""
    (artifact,) = made(both_arms(many("ppf", 12), many("pff", 12)))
    like_these, suite = artifact.interval.tasks_like_these, artifact.interval.exactly_this_suite
    assert like_these.high - like_these.low < suite.high - suite.low
    assert (
        answer_of(artifact)
        .line("ranges")
        .text.endswith("(95 %); here the second is more careful, as these tasks moved alike")
    )
    (sound,) = made(both_arms(many("ppp", 12), many("ppp", 12) | many("fff", 6)))
    assert "careful" not in answer_of(sound).line("ranges").text


def test_the_first_ratio_says_what_its_brackets_are():
    usage = {"input_tokens": 100, "output_tokens": 10}
    (artifact,) = made(both_arms(many("p", 9), many("p", 9), completion=usage))
    said = answer_of(artifact).line("cost").text
    assert re.search(r"times the input tokens \(95 % interval [\d.]+ to [\d.]+\), ", said)


def test_a_row_of_the_details_has_a_colour_only_where_its_interval_leaves_out_0():
    records = both_arms(
        {"sure": "f" * 12, "half": "pf", "small": "ppp", "won": "p" * 12},
        {"sure": "p" * 12, "half": "pp", "small": "ppf", "won": "f" * 12},
    )
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    console.print(result_table(made(records)))
    text = console.file.getvalue()
    lines = {line.split()[0].strip("\x1b[0m"): line for line in text.splitlines() if " %" in line}
    assert "\x1b[31m" in lines["sure"]
    assert "\x1b[32m" in lines["won"]
    assert "\x1b[3" not in lines["half"]
    assert "small" not in lines
    assert "… and 1 more that changed" in text


def test_of_tasks_that_broke_the_worst_is_named_with_what_the_judge_said():
    candidate = {"a": "ff", "b": "pf", "c": "pp"}
    (artifact,) = made(both_arms(candidate, dict.fromkeys(candidate, "pp"), details="missing: 'x'"))
    told = answer_of(artifact).line("tasks").text
    assert told == "broke 2 tasks, worst a: 2/2 → 0/2 (missing: 'x')"


@pytest.mark.parametrize(("planned", "against"), [(None, "the baseline"), (4, "the baseline skill")])
def test_records_alone_do_not_tell_what_the_baseline_was_given(planned, against):
    (artifact,) = made(both_arms({"a": "p", "b": "p"}, {"a": "p", "b": "f"}), planned_attempts=planned)
    assert f" against {against} · 2 tasks" in answer_of(artifact).line("what").text


def test_where_there_is_room_no_line_of_the_answer_is_cut_at_80_columns():
    won = {f"names-the-platform-{n}": "pp" for n in range(9)}
    lost = {f"leaves-out-the-users-{n}": "ff" for n in range(3)}
    records = both_arms(won | lost, dict.fromkeys(won, "ff") | dict.fromkeys(lost, "pp"))
    (artifact,) = made(records)
    said = terminal([artifact], 80)
    assert answer_of(artifact).line("gate").text in flat(said)
    assert len(said.splitlines()) <= 15


def test_a_candidate_without_figures_has_the_room_of_the_table_for_the_reason():
    """On a phone, "skipped: score 1 is below the threshold" took six lines of one column."""
    seen = page(ENDS["several"][1]())
    assert '<td colspan="4">skipped: score 1 is below the threshold of' in seen


def test_a_candidate_alone_has_no_columns_of_dashes_on_the_page():
    (artifact,) = frozen("without_baseline")
    seen = page([artifact])
    heads = [
        re.findall(r'<th scope="col">([^<]*)', row)
        for row in re.findall(r"<thead>.*?</thead>", seen, re.DOTALL)
    ]
    assert ["Tier", "Candidate", "Time-outs", "Cost of an attempt"] in heads
    assert ["Metric", "Candidate"] in heads
    assert "<td>–</td><td>" not in seen.partition('id="tasks"')[0]


def test_both_rates_of_a_group_are_of_what_its_difference_is_of():
    """Of task b no candidate's attempt was judged: 50 % and 75 % of all attempts would stand beside +50 points."""
    records = both_arms({"a": "pp", "b": "ee", "c": "pf"}, {"a": "pf", "b": "pp", "c": "ff"}, tier="T1")
    (artifact,) = made(records)
    ((_, before, after, difference, *_),) = groups(artifact)["tier"]
    assert (before, after, difference) == ("25.0 %", "75.0 %", "+50")


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (-0.58, -0.22, (-0.6, 0.2)),
        (0.26, 0.31, (-0.2, 0.4)),
        (-1.0, 1.0, (-1.0, 1.0)),
        (0.0, 0.0, (-0.2, 0.2)),
    ],
)
def test_an_axis_holds_0_and_the_interval_and_ends_at_the_next_20_points(low, high, ends):
    assert axis(low, high) == pytest.approx(ends)


def test_sides_stand_in_the_same_order_in_a_sentence_as_in_tables():
    (artifact,) = made(both_arms(many("ptp", 9), many("ppp", 9) | {"task-01": "ptt"}))
    assert "11 time-outs (baseline 2, candidate 9)" in answer_of(artifact).line("cost").text


def test_markdown_says_of_which_arm_the_judge_spoke():
    (artifact,) = made(both_arms({"a": "f", "b": "p"}, {"a": "p", "b": "f"}, details="missing: 'x'"))
    text = SURFACES["markdown"]([artifact])
    assert "Tasks lost, by what the judge said of the candidate" in text
    assert "Tasks won, by what the judge said of the baseline" in text


def test_a_sum_says_what_it_is_wherever_nothing_else_does():
    (artifact,) = made(both_arms({"a": "p"}, {"a": "p"}, completion={"text": "", "cost_usd": 0.01}))
    for surface in ("status", "page", "markdown", "junit"):
        assert "this run: $0.02" in SURFACES[surface]([artifact])


def test_people_read_a_runs_state_in_words():
    (artifact,) = frozen("given_up")
    facts = run_list._over("RUN", [artifact])
    assert facts["state"] == "hopeless"
    assert dict(run_list._ended_lines(facts))["state"] == "given up"


def test_models_of_a_kind_are_explained_where_their_short_names_stand():
    records = [a_record("a", arm, model=f"sim:seed={n}") for arm in ("candidate", "baseline") for n in (1, 2)]
    artifacts = made(records)
    console = Console(file=io.StringIO(), width=200)
    console.print(result_table(artifacts))
    explained = "sim 1 is sim:seed=1, sim 2 is sim:seed=2"
    assert explained in console.file.getvalue()
    assert explained in SURFACES["markdown"](artifacts)
    assert explained in SURFACES["page"](artifacts)
    shown = attempt_texts(records)
    assert "attempt 1, baseline, sim 1: passed" in shown
    assert "sim 2 is sim:seed=2" in shown
    assert "a [sim 1]" in SURFACES["junit"](artifacts)
    assert "sim:seed" not in SURFACES["junit"](artifacts)


def test_tasks_that_missed_the_same_are_one_group_whatever_else_they_missed():
    def said(*missed: str) -> dict[str, Any]:
        judgment = Judgment(judge="contains", passed=False, score=0.0, details=str(missed), missed=missed)
        return {"details": str(missed), "judgments": (judgment,), "outcome": "failed"}

    records = [a_record(f"t{n}", "candidate", **said("## Impact", f"word{n}")) for n in range(5)]
    records += [a_record("other", "candidate", **said("else"))]
    records += [a_record(task, "baseline") for task in (*(f"t{n}" for n in range(5)), "other")]
    groups = moved(made(records)[0])["lost"]
    assert [(one.said, one.tasks) for one in groups] == [("missing: '## Impact'", 5), ("('else',)", 1)]


def test_markdown_lists_no_more_than_ten_flaky_tasks_an_arm_and_no_note_for_each():
    artifacts = made(both_arms(many("pf", 36), many("pp", 36)))
    assert len([one for one in artifacts[0].warnings if one.startswith("flaky task ")]) == 10
    text = SURFACES["markdown"](artifacts)
    assert "flaky task task" not in text
    assert "… and 26 more" in text


def test_marks_of_a_difference_have_not_the_colours_of_passed_and_failed():
    css = (Path(html.__file__).parent / "templates" / "report.css").read_text()
    marks = re.findall(r"^mark\.\w+ \{.*\}$", css, re.MULTILINE)
    used = {name for mark in marks for name in re.findall(r"var\((--[\w-]+)\)", mark)}
    colours = dict(re.findall(r"^\s*(--[\w-]+): (light-dark\(.*?\));$", css, re.MULTILINE))
    assert len(marks) == 2
    assert used == {"--candidate", "--baseline"}
    assert {"--good", "--bad"} <= colours.keys()
    assert not {colours[name] for name in used} & {colours["--good"], colours["--bad"]}


def test_times_are_the_same_zulu_times_while_a_run_goes_on_and_after():
    assert run_list.moment(0) == "1970-01-01T00:00:00Z"


def test_sums_and_times_too_small_to_read_are_written_as_such():
    assert usd(0.0) == "$0"
    assert usd(0.0012) == "$0.0012"
    assert seconds(0.0526) == "<0.001 s"
    assert seconds(0.0) == "0 s"

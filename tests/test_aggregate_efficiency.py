"""What a candidate takes as a share of the baseline: paired by task, with an interval; missing stays missing."""

from __future__ import annotations

import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import a_record, both_arms, built
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console
from statsmodels.stats.weightstats import DescrStatsW

from aggregate.artifact import blocks, build, sentences
from aggregate.artifact.model import MEASURES, Artifact, loads
from aggregate.formulas.intervals import ratio_interval
from aggregate.formulas.verdict import largest_ratio
from aggregate.records import frames
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from aggregate.report import html, markdown, result_tables, terminal
from aggregate.report.result_tables import Material
from aggregate.text.formats import times

Costs = dict[str, list[float | None]]
positive = st.floats(1e-6, 1e3)


def paid(candidate: Costs, baseline: Costs, **fields: Any) -> list[AttemptRecord]:
    """Records of passed attempts that cost this much each, by task."""
    return [
        a_record(task, arm, number, completion={"text": "x", "cost_usd": usd}, **fields)
        for arm, tasks in (("candidate", candidate), ("baseline", baseline))
        for task, bills in tasks.items()
        for number, usd in enumerate(bills, start=1)
    ]


def cost_of(records: list[AttemptRecord], among: str = "all", **info: Any) -> dict[str, Any]:
    found = built(records, **info).efficiency.model_dump()[among]["cost"]
    assert isinstance(found, dict)
    return found


def alone(records: list[AttemptRecord]) -> dict[str, Any]:
    """The same without the rest of an artifact, which takes longer."""
    found = blocks.efficiency_block(frames.collect(records).attempts, "candidate", 0.95)["all"]["cost"]
    assert isinstance(found, dict)
    return found


def halved(tasks: int, ratio: float = 0.5) -> list[AttemptRecord]:
    names = [f"t{number}" for number in range(tasks)]
    return paid({name: [ratio] for name in names}, {name: [1.0] for name in names})


def test_the_ratio_is_the_geometric_mean_over_tasks_and_the_totals_are_the_bill():
    found = cost_of(paid({"a": [1, 3], "b": [5], "c": [0.9]}, {"a": [4, 4], "b": [10], "c": [0.3]}))
    assert found["ratio"] == pytest.approx(statistics.geometric_mean([2 / 4, 5 / 10, 0.9 / 0.3]), rel=1e-5)
    assert found["ratio_of_totals"] == pytest.approx((2 + 5 + 0.9) / (4 + 10 + 0.3), rel=1e-5)
    assert (found["n_tasks"], found["n_zero"], found["n_unknown"], found["level"]) == (3, 0, 0, 0.95)


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize("logs", [[-0.7, -0.7], [0.1, -2.0, 0.4, 0.9, -0.3], [0.0] * 12])
def test_the_interval_is_students_with_half_a_task_tenfold_and_half_a_tenth(logs: list[float], level: float):
    """Statsmodels' weighted interval, given those two halves as data."""
    mean = statistics.fmean(logs)
    data, weights = [*logs, mean + math.log(10), mean - math.log(10)], [*[1.0] * len(logs), 0.5, 0.5]
    low, high = DescrStatsW(data, weights).tconfint_mean(alpha=1 - level)
    found = ratio_interval(np.array(logs), level)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.estimate == pytest.approx(math.exp(mean))


@pytest.mark.parametrize(
    ("tasks", "sigma", "attempts"), [(5, 1.0, 1), (7, 0.3, 5), (20, 0.3, 10), (40, 0.6, 3)]
)
def test_the_interval_holds_the_mean_log_ratio_of_all_such_tasks(tasks: int, sigma: float, attempts: int):
    """Log-normal costs, one task in ten tenfold for the candidate: few tasks often show none of those."""
    rng = np.random.default_rng(1)
    mine, other = (rng.lognormal(0, sigma, (1000, tasks, attempts)).mean(axis=2) for _ in range(2))
    mine *= np.where(rng.random(mine.shape) < 0.1, 10, 1)
    truth = math.exp(0.1 * math.log(10))
    made = [ratio_interval(one) for one in np.log(mine / other)]
    assert statistics.fmean(one.low <= truth <= one.high for one in made) >= 0.93


def test_one_task_has_a_ratio_and_no_interval():
    found = cost_of(halved(1))
    assert (found["ratio"], found["low"], found["high"], found["word"]) == (0.5, None, None, None)
    assert sentences.efficiency(built(halved(1))) == "0.50 times the cost (one task has no interval)."


@settings(max_examples=25)
@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12))
def test_swapping_the_arms_inverts_the_ratio_and_its_bounds(pairs: list[tuple[float, float]]):
    mine = {f"t{number}": [one] for number, (one, _) in enumerate(pairs)}
    other = {f"t{number}": [one] for number, (_, one) in enumerate(pairs)}
    forth, back = alone(paid(mine, other)), alone(paid(other, mine))
    for name, turned in (("ratio", "ratio"), ("low", "high"), ("high", "low"), ("ratio_of_totals",) * 2):
        assert forth[name] * back[turned] == pytest.approx(1, rel=1e-9)
    opposite = {"cheaper": "dearer", "dearer": "cheaper", None: None}
    assert back["word"] == opposite[forth["word"]]
    assert forth["low"] <= forth["ratio"] <= forth["high"]


@settings(max_examples=25)
@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=8), st.sampled_from([0.01, 3.7, 1000.0]))
def test_another_currency_changes_nothing(pairs: list[tuple[float, float]], rate: float):
    def of(factor: float) -> dict[str, Any]:
        arms = [{f"t{n}": [factor * pair[arm]] for n, pair in enumerate(pairs)} for arm in (0, 1)]
        return alone(paid(arms[0], arms[1]))

    before, after = of(1.0), of(rate)
    for name in ("ratio", "low", "high", "ratio_of_totals"):
        assert after[name] == pytest.approx(before[name], rel=1e-9)


def test_a_task_with_several_models_counts_once_and_a_model_without_numbers_in_both_arms_not_at_all():
    records = [
        *paid({"a": [2.0], "b": [3.0]}, {"a": [1.0], "b": [1.0]}, model="m1"),
        *paid({"a": [8.0]}, {"a": [1.0]}, model="m2"),
        *paid({"b": [9.0]}, {"b": [None]}, model="m2"),
    ]
    found = cost_of(records)
    # a: sqrt(2 · 8) = 4; b: 3, by its one model with both numbers.
    assert found["ratio"] == pytest.approx(math.sqrt(4 * 3), rel=1e-5)
    assert found["ratio_of_totals"] == pytest.approx((2 + 3 + 8) / 3, rel=1e-5)
    assert (found["n_tasks"], found["n_unknown"], found["n_all"]) == (
        2,
        1,
        2,
    )  # one of b's models has no bill
    # Both tasks are in the ratio, so the table does not speak of three.
    assert [row[3] for row in result_tables.efficiency(built(records))[1:]] == ["2"]


def test_missing_stays_missing_and_zeros_are_left_out_of_ratios_and_counted():
    """A judged attempt without a bill leaves its task without a cost; an error is no attempt at all."""
    records = paid(
        {"a": [1.0, 1.0], "b": [1.0, None], "c": [0.0], "d": [1.0]}, {"a": [2.0], "b": [2.0], "c": [5.0]}
    )
    records.append(a_record("a", "baseline", 2, outcome="error", error="boom"))
    found = cost_of(records)
    assert (found["ratio"], found["n_tasks"], found["n_zero"], found["n_unknown"]) == (0.5, 1, 1, 2)
    assert found["ratio_of_totals"] == pytest.approx((1 + 0) / (2 + 5), rel=1e-5)


@pytest.mark.parametrize("usd", [None, 0.0])
def test_costs_that_are_unknown_or_nothing_everywhere_have_no_ratio(usd: float | None):
    made = built(paid({"a": [usd], "b": [usd]}, {"a": [usd], "b": [usd]}))
    cost = made.efficiency.all["cost"]
    assert (cost.ratio, cost.low, cost.high, cost.ratio_of_totals, cost.word) == (None,) * 5
    assert sentences.efficiency(made) == ""
    json.dumps(made.model_dump(), allow_nan=False)


def test_bills_that_no_one_could_pay_break_nothing():
    records = paid({"a": [1e-320], "b": [1e9]}, {"a": [1e9], "b": [1e-320]})
    found = cost_of(records)
    assert found["n_tasks"] == 2
    assert found["word"] is None
    assert cost_of(paid({"a": [1e9], "b": [1e9]}, {"a": [1e-320]}))["n_unknown"] == 1
    assert printed(built(records, gate_cost="+10%"))


def test_cheaper_is_only_what_tasks_and_bill_both_say():
    """Nineteen small tasks at a tenth of their cost, and one at which the money goes."""
    names = [f"t{number:02}" for number in range(20)]
    baseline: Costs = {name: [1.0] for name in names} | {"t19": [1000.0]}
    candidate: Costs = {name: [0.1] for name in names}
    assert cost_of(paid(candidate, baseline))["word"] == "cheaper"
    assert cost_of(paid(baseline, candidate))["word"] == "dearer"
    dearer_bill = built(paid(candidate | {"t19": [2000.0]}, baseline))
    found = dearer_bill.efficiency.all["cost"]
    assert found.high < 1 < found.ratio_of_totals
    assert found.word is None
    assert sentences.efficiency(dearer_bill).endswith(", but 1.96 times the bill.")


def test_tasks_that_both_arms_passed_are_compared_by_themselves():
    records = paid({"a": [1.0], "b": [1.0]}, {"a": [2.0], "b": [2.0]})
    records += paid({"c": [9.0]}, {"c": [1.0]}, outcome="failed")
    assert cost_of(records, "both_passed")["ratio"] == 0.5
    assert cost_of(records, "both_passed")["n_tasks"] == 2
    assert cost_of(records)["ratio"] == pytest.approx((0.5 * 0.5 * 9) ** (1 / 3), rel=1e-5)


def test_every_measure_is_told_apart():
    def used(arm: str, factor: int) -> list[AttemptRecord]:
        names = [name for name, _ in MEASURES.values() if name not in ("cost_usd", "model_ms")]
        completion = {name: factor * place for place, name in enumerate(names, start=1)} | {"text": "x"}
        return [a_record(task, arm, model_ms=100 * factor**2, completion=completion) for task in "abc"]

    found = built(used("candidate", 3) + used("baseline", 1)).efficiency.all
    ratios = {name: one.ratio for name, one in found.items()}
    assert ratios == {**dict.fromkeys(MEASURES, 3.0), "cost": None, "model_seconds": 9.0}


def test_attempts_from_the_baseline_cache_count_with_what_they_cost_then():
    records = paid({"a": [1.0], "b": [1.0]}, {})
    records += paid({}, {"a": [4.0], "b": [4.0]}, cached=True)
    assert cost_of(records)["ratio"] == 0.25


def test_with_several_candidates_the_interval_has_the_level_of_the_others():
    records = halved(6)
    records += [one.model_copy(update={"arm": "candidate:b"}) for one in records if one.arm == "candidate"]
    records = [
        one.model_copy(update={"arm": "candidate:a"}) if one.arm == "candidate" else one for one in records
    ]
    for made in build.build(RunInfo.from_records(records), records):
        assert made.efficiency.all["cost"].level == made.interval.level == 0.975


def test_nothing_is_said_of_a_run_that_has_no_baseline():
    assert built(paid({"a": [1.0]}, {})).efficiency is None
    unfinished = built(halved(5)[:7], status="over_budget").efficiency.all["cost"]
    assert (unfinished.n_tasks, unfinished.n_unknown) == (2, 3)


# The cost gate


@pytest.mark.parametrize(("text", "ratio"), [("+10%", 1.1), ("+0%", 1.0), ("+2.5%", 1.025)])
def test_a_share_of_the_cost_is_read_as_written(text: str, ratio: float):
    assert largest_ratio(text) == pytest.approx(ratio)


@pytest.mark.parametrize(
    "text", ["10", "-5%", "abc", "", "10%", "+%", "+1e3%", "+nan%", "+10%\n", "+١٠%", "+9999999%"]
)
def test_what_is_no_share_is_refused_with_an_example(text: str):
    with pytest.raises(
        ValueError, match=r"says not how much more it may cost; write it as in \+10%, sign included$"
    ):
        largest_ratio(text)
    with pytest.raises(ValidationError, match="gate_cost"):  # whatever a broker holds
        RunInfo(run_id="r", gate_cost=text)


@pytest.mark.parametrize(
    ("ratio", "tasks", "gate", "code"),
    [
        (0.5, 10, "+10%", 0),
        (2.0, 10, "+10%", 1),
        (2.0, 10, "+50%", 0),  # the interval reaches down to 1.22
        (2.0, 10, None, 0),
        (50.0, 1, "+10%", 3),  # one task has no interval
    ],
)
def test_the_cost_gate_closes_when_the_whole_interval_lies_above(ratio, tasks, gate, code):
    made = built(halved(tasks, ratio), gate_cost=gate)
    assert made.cost_code == code
    assert ("the cost gate (" in made.summary) == (gate is not None)
    assert (
        f"is closed: the interval of the cost ratio lies above 1.10 (exit code {code})" in made.summary
    ) == (code == 1)
    assert ("one task has no interval (exit code 3)" in made.summary) == (code == 3)


@pytest.mark.parametrize("usd", [None, 0.0])
def test_a_cost_gate_without_a_ratio_is_closed_as_an_error(usd: float | None):
    made = built(paid({"a": [usd]}, {"a": [usd]}), gate_cost="+10%")
    assert made.cost_code == 3
    assert "is closed: no task has a known cost above 0 in both arms (exit code 3)." in made.summary
    assert markdown.text(a_material(made)).startswith("### ⚠️")


def test_an_artifact_of_an_earlier_version_is_read_as_one_without_a_cost_gate():
    written = built(halved(3)).model_dump_json(exclude={"efficiency", "gate_cost"})
    made = loads(written.encode())
    assert made.cost_code == 0
    assert printed(made)
    assert "candidate / baseline" not in markdown.text(a_material(made))


# How it is shown


def a_material(made: Artifact) -> Material:
    return Material(made, list)


def printed(made: Artifact, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    console.print(terminal.result_table([made]))
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above


def test_same_quality_is_said_where_an_interval_lies_within_the_margin():
    """Sixty tasks that five attempts each pass in both arms leave less than 5 points open; six do not."""
    names = [f"t{number}" for number in range(60)]
    many = built(paid({name: [0.1] * 5 for name in names}, {name: [1.0] * 5 for name in names}))
    bounds = many.interval.tasks_like_these
    assert -many.margin < bounds.low < 0 < bounds.high < many.margin
    said = sentences.efficiency(many)
    assert said.startswith("Same quality (+0 points, -")
    assert said.endswith("), 0.10 times the cost (95 % interval 0.09 to 0.11).")
    few = built(halved(6, 0.1))
    assert few.interval.exactly_this_suite.high > few.margin
    assert sentences.efficiency(few).startswith("0.10 times the cost (")


def test_without_a_known_cost_the_sentence_speaks_of_tokens():
    records = [
        a_record(task, arm, completion={"text": "x", "input_tokens": tokens, "output_tokens": 7})
        for task in "abcde"
        for arm, tokens in (("candidate", 50), ("baseline", 100))
    ]
    said = sentences.efficiency(built(records))
    # Student's t with 5 degrees of freedom is 2.5706, and exp(2.5706 · ln 10 / sqrt(5 · 6)) is 2.947.
    assert said.startswith(
        "0.50 times the input tokens (95 % interval 0.17 to 1.47), 1.00 times the output tokens ("
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.12, "0.12"),
        (0.08, "0.08"),
        (0.0123, "0.012"),
        (1.0, "1.00"),
        (0.9987, "1.00"),
        (1.0004, "1.00"),
        (12.345, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (3.14159, "3.14"),
    ],
)
def test_ratios_are_written_with_the_digits_that_they_need(ratio: float, text: str):
    assert times(ratio) == text


def test_terminal_markdown_and_page_show_the_same_table(tmp_path: Path):
    records = paid(
        {f"t{n}": [0.5] for n in range(9)} | {"free": [0.0]},
        {f"t{n}": [1.0] for n in range(9)} | {"free": [0.0]},
    )
    records += paid({"lost": [1.0]}, {"lost": [1.0]}, outcome="failed")
    made = built(records, gate_cost="+10%")
    cells = result_tables.efficiency(made)[1]
    assert cells[0] == "Cost"
    assert cells[3] == "10 of 11"
    for width in (80, 120):
        lines = printed(made, width).splitlines()
        assert max(map(len, lines)) <= width
        (row,) = [line for line in lines if line.startswith("Cost  ")]
        assert row.split() == " ".join(cells).split()
    assert f"| {' | '.join(cells)} |" in markdown.text(a_material(made))
    assert result_tables.view(made)["efficiency"][1] == cells
    page = html.write(a_material(made), tmp_path / "page.html").read_text()
    assert "What the candidate takes, as a share of the baseline" in page
    assert f"<td>{cells[1]}</td>" in page
    assert sentences.efficiency(made).rstrip(".").replace(" %", "\xa0%") in page


def test_one_call_an_attempt_is_not_shown_as_a_finding():
    records = both_arms(
        {"a": "p", "b": "p"}, {"a": "p", "b": "p"}, completion={"text": "x", "turns": 1, "cost_usd": 1}
    )
    assert [row[0] for row in result_tables.efficiency(built(records))[1:]] == ["Cost"]

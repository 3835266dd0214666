"""What a run looks like while it goes on: on terminals of any size, in pipes, and with hostile names."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from producer.display.progress import LiveView, cost, line, spending, wants_plain_lines
from producer.display.snapshot import InFlight, View, WorkerActivity, difference, share
from workers.process.heartbeat import Beat
from workers.store.run_store import Progress

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202etxt.exe\u200b\r\nsecond line [red]markup[/red]"


def counts(passed=0, failed=0, timeout=0, error=0):
    return {"passed": passed, "failed": failed, "timeout": timeout, "error": error}


def a_view(baseline=None, candidate=None, *, in_flight=12, spent=1.5, **fields):
    """A run of 500 attempts an arm, halfway through, unless told otherwise."""
    outcomes = {0: baseline or counts(150, 100), 1: candidate or counts(180, 60, 5, 5)}
    fields.setdefault("arms", ("baseline", "candidate"))
    fields.setdefault("inside", an_inside(done=500, spent=spent))
    return View(
        run_id=fields.pop("run_id", "20260101-120000-abc123"),
        total_per_arm=fields.pop("total_per_arm", 500),
        progress=Progress(outcomes=fields.pop("outcomes", outcomes), in_flight=in_flight, spent=spent),
        workers=fields.pop("workers", 2),
        elapsed=fields.pop("elapsed", 42.0),
        rate=fields.pop("rate", 10.0),
        **fields,
    )


def an_inside(**fields):
    fields.setdefault("in_flight", {"anthropic:some-model": 12})
    fields.setdefault("slowest", tuple(a_slow_one(seconds=30.0 - number) for number in range(8)))
    fields.setdefault(
        "workers",
        tuple(
            Beat(worker=name, in_flight={0: 6}, rate=5.0, done=done)
            for name, done in (("host-a:1", 200), ("host-b:2", 300))
        ),
    )
    return WorkerActivity(**fields)


def a_slow_one(task="names-the-platform", arm="candidate", seconds=33.0):
    return InFlight(task, arm, "anthropic:some-model", 2, seconds)


def drawn(view, width=80, height=24):
    """The lines that a terminal of this size would show."""
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        legacy_windows=False,
    )
    console.print(LiveView(view))
    return console.file.getvalue().rstrip("\n").split("\n")


def row(lines, label):
    return next(line for line in lines if line.startswith(label))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 20), (200, 60), (80, 8), (40, 6)])
def test_a_view_fits_any_terminal_with_a_line_to_spare(width, height):
    lines = drawn(a_view(), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_a_pace_that_the_provider_sets_is_said():
    view = a_view(inside=an_inside(done=500, spent=1.5, paced={"anthropic:some-model": 54}))
    assert "by the provider: anthropic:some-model 54 calls a minute" in row(drawn(view, 80), "paced")
    assert "; paced by the provider; " in line(view)
    assert "paced" not in line(a_view())


@pytest.mark.parametrize("width", [80, 120])
def test_everything_that_was_asked_for_is_there_at_80_columns_and_at_120(width):
    view = a_view(inside=an_inside(done=500, spent=1.5, retries=12), budget_usd=10.0)
    lines = drawn(view, width, 40)
    assert "0:42 elapsed, about 0:50 left" in lines[0]
    assert re.search(r"250/500 +60 % passing \(54–66\)", row(lines, "baseline"))
    assert re.search(r"250/500 +73 % passing \(68–79\) +(5 time-outs +)?5 errors", row(lines, "candidate"))
    assert "+13 points of attempts passed (+5 to +22, roughly)" in row(lines, "so far")
    assert "$1.50 spent, about $3.00 in all, budget $10.00" in row(lines, "cost")
    assert "12, anthropic:some-model, 12 retries" in row(lines, "in flight")
    assert "2, 10.0 attempts a second" in row(lines, "workers")
    assert "30 s  names-the-platform, candidate, attempt 2" in row(lines, "slowest")
    assert "host-a:1: 6 in flight, 5.0 attempts a second" in "\n".join(lines)


def test_rows_do_not_move_when_the_first_results_come_in():
    nothing = a_view(counts(), counts(), rate=None, spent=0.0, inside=WorkerActivity())
    labels = [line.split(" ")[0] for line in drawn(nothing)]
    later = [line.split(" ")[0] for line in drawn(a_view())]
    assert later[: len(labels)] == labels
    text = "\n".join(drawn(nothing))
    assert "nothing spent yet" in text
    assert "left" not in text


def test_what_is_unknown_is_never_shown_as_nothing():
    view = a_view(spent=0.0, inside=an_inside(done=500, unpriced=500))
    assert "cost unknown" in row(drawn(view), "cost")
    assumed = Progress(spent=2.0, assumed=0.5)
    assert cost(replace(view, progress=assumed, rate=None)).startswith("$2.00 spent, $0.5000 assumed")
    unknown = replace(view, progress=replace(assumed, spent=0.0))
    assert cost(unknown).startswith("cost unknown, $0.5000 assumed")
    partly = a_view(spent=2.0, inside=an_inside(done=500, unpriced=100, spent=2.0))
    assert "at least $2.00 spent" in row(drawn(partly), "cost")


def test_attempts_from_the_cache_do_not_make_the_rest_look_cheap():
    """Half of the run came from the cache for nothing; what was really done cost 1 cent an attempt."""
    view = a_view(spent=2.5, inside=an_inside(done=250, spent=2.5))
    assert view.projected == pytest.approx(2.5 + 500 * 0.01)


def test_a_run_that_may_stop_early_only_says_what_it_takes_at_most():
    lines = drawn(a_view(may_stop=True))
    assert "at most 0:50 left" in lines[0]
    assert "at most $3.00 in all" in row(lines, "cost")


def test_the_stage_is_told_when_it_is_not_running():
    assert "stopping, 12 still in flight" in drawn(a_view(stopping=True))[0]
    over = a_view(counts(300, 200), counts(300, 200), in_flight=0)
    assert "working out the result" in drawn(over)[0]


def test_a_missing_worker_is_told_once_it_should_be_there():
    assert "none yet" in row(drawn(a_view(workers=0, elapsed=2)), "workers")
    assert "none answers" in row(drawn(a_view(workers=0, elapsed=20)), "workers")


def test_a_candidate_alone_has_nothing_to_be_compared_with():
    lines = drawn(a_view(arms=("candidate",), outcomes={0: counts(3, 1)}))
    assert not [line for line in lines if line.startswith("so far")]


def test_many_candidates_are_cut_to_what_fits():
    arms = ("baseline", *(f"candidate:{number}" for number in range(30)))
    view = a_view(arms=arms, outcomes={arm: counts(3, 1) for arm in range(31)})
    for height in (8, 12, 24, 50):
        lines = drawn(view, 80, height)
        assert len(lines) < height
    assert "and 23 more arms" in "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_hostile_names_cannot_move_the_cursor_or_bring_markup(width):
    view = a_view(
        run_id=HOSTILE,
        arms=("baseline", HOSTILE),
        inside=an_inside(
            in_flight={HOSTILE: 3, HOSTILE + "2": 4},
            slowest=(a_slow_one(HOSTILE, HOSTILE),),
            workers=(Beat(worker=HOSTILE, in_flight={0: 1}, rate=1.0, done=1),) * 2,
        ),
    )
    shown = "\n".join([*drawn(view, width, 40), line(view)])
    assert not set(shown) & {"\x1b", "\x07", "\r", "\u202e", "\u200b"}
    assert "[red]" in shown
    assert max(map(len, drawn(view, width, 40))) <= width


def test_models_in_flight_add_up_to_what_is_said_of_all():
    view = a_view(in_flight=38, inside=an_inside(in_flight={"large": 65, "small": 62}))
    assert "127, 65 of large, 62 of small" in "\n".join(drawn(view, 120, 40))


def test_wide_characters_are_counted_by_their_cells():
    from rich.cells import cell_len

    view = a_view(arms=("baseline", "候補" * 40), inside=an_inside(slowest=(a_slow_one("課題" * 60),)))
    assert max(map(cell_len, drawn(view))) <= 80


def test_simulated_models_have_the_short_names_that_their_result_has():
    models = ("sim:baseline=0.4,candidate=0.8", "sim:baseline=0.6", "anthropic:haiku")
    view = a_view(models=models, inside=an_inside(in_flight=dict.fromkeys(models[1:], 4)))
    assert "8, 4 of sim 2, 4 of anthropic:haiku" in row(drawn(view), "in flight")


def test_nothing_spent_is_no_sum_with_four_zeros():
    assert spending(0.0, 0.0, 0) == "$0 spent"


def test_a_line_for_a_log_says_the_same_in_short():
    assert line(a_view(inside=an_inside(done=500, spent=1.5, retries=1))) == (
        "500/1000 attempts; passing: baseline 60 %, candidate 73 %; +13 (+5 to +22) points of attempts; "
        "12 in flight; 2 workers; 1 retry; 5 errors; $1.50 spent, about $3.00 in all; 0:42 elapsed; about 0:50 left"
    )


@pytest.mark.parametrize(
    ("environment", "plain"),
    [
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm", "CI": "false", "NO_COLOR": ""}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "xterm", "CI": "true"}, True),
        ({"TERM": "dumb"}, True),
        ({}, True),
    ],
)
def test_nothing_is_drawn_where_nobody_wants_it(environment, plain):
    assert wants_plain_lines(environment) is plain


@pytest.mark.parametrize(("passed", "judged"), [(0, 1), (1, 1), (3, 10), (10, 10), (0, 250), (183, 250)])
def test_the_interval_of_a_rate_is_wilsons(passed, judged):
    low, high = proportion_confint(passed, judged, method="wilson")
    assert share(passed, judged) == pytest.approx((passed / judged, low, high), abs=1e-12)


@pytest.mark.parametrize("four", [(8, 10, 5, 10), (183, 250, 150, 250), (1, 7, 6, 9), (0, 5, 5, 5)])
def test_the_interval_of_a_difference_is_newcombes(four):
    low, high = confint_proportions_2indep(*four, method="newcomb", compare="diff")
    passed, judged, base_passed, base_judged = four
    expected = (passed / judged - base_passed / base_judged, low, high)
    assert difference(*four) == pytest.approx(expected, abs=1e-12)


def test_more_attempts_of_the_same_tasks_do_not_make_the_interval_narrower():
    once = a_view(counts(30, 20), counts(40, 10), units=50)
    often = a_view(counts(300, 200), counts(400, 100), units=50)
    assert often.delta(1) == pytest.approx(once.delta(1))
    assert often.passing(0) == pytest.approx(once.passing(0))


def test_errors_are_neither_pass_nor_fail():
    assert a_view(counts(3, 1, 0, 96), counts(3, 1)).passing(0).estimate == 0.75
    assert a_view(counts(0, 0, 0, 5), counts(3, 1)).delta(1) is None

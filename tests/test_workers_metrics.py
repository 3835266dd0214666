"""A worker's numbers for Prometheus: off unless asked for, closed to strangers, and the very names of the dashboard."""

import gzip
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from builders import a_record
from prometheus_client.parser import text_string_to_metric_families
from running import a_suite, standalone, start_uplift, uplift, worker

from workers.attempts.run_context import Bill
from workers.process.heartbeat import BOUNDS, Tally
from workers.process.metrics import Endpoint, InvalidMetrics, endpoint, label

DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana-dashboard.json"
MONITORING = Path(__file__).parent.parent / "docs" / "monitoring.md"
TOKEN = "correct-horse-battery"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url, token=None, scheme="Bearer"):
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"{scheme} {token}")
    try:
        with _OPENER.open(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def scraped(text):
    """Sample values by name and labels; parsing fails on what Prometheus would refuse."""
    families = list(text_string_to_metric_families(text))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def names(text):
    """All metric names that queries may use, those included that have no value yet."""
    found = set()
    for family in text_string_to_metric_families(text):
        found |= {sample.name for sample in family.samples}
        found.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return found


def total(values, name, **labels):
    return sum(
        value
        for (found, pairs), value in values.items()
        if found == name and set(labels.items()) <= set(pairs)
    )


def test_metrics_are_off_unless_a_port_is_given():
    assert endpoint({}) is None
    assert endpoint({"UPLIFT_METRICS_PORT": ""}) is None
    assert endpoint({"UPLIFT_METRICS_PORT": "9100"}) == Endpoint(9100, "127.0.0.1")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3", "metrics.internal"])
def test_an_address_that_strangers_can_reach_needs_a_token(address):
    asked = {"UPLIFT_METRICS_PORT": "9100", "UPLIFT_METRICS_ADDRESS": address}
    with pytest.raises(InvalidMetrics, match="UPLIFT_METRICS_TOKEN"):
        endpoint(asked)
    assert endpoint({**asked, "UPLIFT_METRICS_TOKEN": TOKEN}).token == TOKEN


@pytest.mark.parametrize("wrong", ["x", "-1", "65536", "80.0"])
def test_a_port_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidMetrics, match="UPLIFT_METRICS_PORT"):
        endpoint({"UPLIFT_METRICS_PORT": wrong})


def test_a_token_is_not_shown_and_must_be_something():
    assert TOKEN not in repr(Endpoint(1, token=TOKEN))
    for wrong in ("", "tökén", "a\nb"):
        with pytest.raises(InvalidMetrics):
            Endpoint(1, token=wrong)


def test_a_tally_counts_what_it_is_told():
    tally = Tally()
    tally.add("run-1", a_record(model="m", model_ms=1500.0), Bill(1, usd=0.25), "stored")
    tally.add("run-1", a_record(model="m", outcome="error", model_ms=10.0), Bill(1), "stored")
    tally.add("run-1", a_record(model="m", outcome="error", model_ms=2e9), Bill(2, unpriced=2), "stored")
    tally.add("run-2", a_record(model="m"), Bill(usd=0.5), "duplicate")
    tally.add("run-2", a_record(model="m", model_ms=10.0), Bill(usd=0.5), "replaced")  # only judged again
    tally.retried("run-1", "m")
    assert tally.attempts == {("m", "passed"): 3, ("m", "error"): 2}
    assert tally.spent == {"m": 1.25}
    assert tally.unpriced == {"m": 1}  # the other error is known to have cost nothing
    assert (tally.wasted_attempts, tally.wasted_usd) == (2, 0.5)
    first = tally.runs["run-1"]
    assert (first.done, first.retries, first.unpriced, first.spent) == (3, 1, 1, 0.25)
    timed = tally.model_seconds["m"]
    assert timed.counts[BOUNDS.index(2.5)] == 1
    assert timed.counts[BOUNDS.index(0.025)] == 1
    assert timed.counts[-1] == 1
    assert timed.sum == pytest.approx(1.5 + 0.01 + 2e6)


def test_the_tallies_of_long_past_runs_are_forgotten():
    tally = Tally()
    for number in range(1000):
        tally.add(f"run-{number}", a_record(), Bill(), "stored")
    assert len(tally.runs) < 100
    assert "run-999" in tally.runs


def test_long_and_hostile_labels_are_cut_cleaned_and_still_told_apart():
    assert label("anthropic:claude") == "anthropic:claude"
    one, other = label("sim:" + "x" * 500), label("sim:" + "x" * 501)
    assert one != other
    assert len(one) < 100
    assert "\x1b" not in label("\x1b[31mred")


def the_address(process):
    """Where a worker that was started with port 0 serves its metrics."""
    for said in process.stderr:
        if found := re.search(r"metrics are on (http://\S+)", said):
            return found[1]
    raise AssertionError("the worker said nothing of metrics")


@pytest.mark.slow
def test_a_scrape_after_a_run_has_its_numbers_and_every_name_that_the_dashboard_and_the_docs_use(
    valkey, short_tmp
):
    suite = a_suite(short_tmp, 30)
    model = "sim:cost=0.01,error=0.2,latency=0.01"
    with worker(valkey, short_tmp, UPLIFT_METRICS_PORT="0", UPLIFT_METRICS_TOKEN=TOKEN) as process:
        url = the_address(process)
        assert url.startswith("http://127.0.0.1:")
        ended = uplift(*standalone(suite, "--model", model, "--broker", valkey), cwd=short_tmp)
        assert ended.code in (0, 1), ended.err
        status, text = get(url, TOKEN)
        for token, scheme in (
            (None, ""),
            ("wrong", "Bearer"),
            (TOKEN, "Basic"),
            ("", "Bearer"),
            ("\xff", "Bearer"),
        ):
            refused, words = get(url, token, scheme)
            assert refused == 401
            assert "uplift_" not in words
        assert get(url.replace("/metrics", "/"), TOKEN)[0] == 404
    assert status == 200
    values = scraped(text)
    with gzip.open(next(short_tmp.glob("state/runs/*/records.jsonl.gz"))) as file:
        records = [json.loads(one) for one in file]
    for outcome in ("passed", "failed"):
        expected = sum(record["outcome"] == outcome for record in records)
        assert total(values, "uplift_attempts_total", outcome=outcome, model=model) == expected
    ran = total(values, "uplift_attempts_total")
    assert ran == sum(record["deliveries"] for record in records)
    answered = sum(record["outcome"] != "error" for record in records)
    assert total(values, "uplift_spend_usd_total", model=model) == pytest.approx(0.01 * answered)
    assert total(values, "uplift_model_seconds_count", model=model) == ran
    assert total(values, "uplift_model_seconds_bucket", le="+Inf") == ran
    assert total(values, "uplift_wasted_attempts_total") == ran - len(records)
    assert total(values, "uplift_broker_up") == 1
    assert total(values, "uplift_queue_length") == 0
    assert total(values, "uplift_in_flight") == 0
    assert "Say word" not in text
    assert "task-1" not in text
    assert metrics_of_the_dashboard() <= names(text)
    assert documented_metrics() == {name for name in names(text) if name.startswith("uplift_")} - parts_of(
        text
    )


def metrics_of_the_dashboard():
    """Every metric in a query of the dashboard."""
    found = set()
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    for query in queries:
        found |= set(re.findall(r"\b(?:uplift|process)_\w+", query))
    assert len(found) > 10
    return found


def documented_metrics():
    return set(re.findall(r"^\| `(uplift_\w+)", MONITORING.read_text(), re.MULTILINE))


def parts_of(text):
    """Names that belong to a histogram, which is documented as a whole."""
    whole = {family.name for family in text_string_to_metric_families(text) if family.type == "histogram"}
    return {f"{name}{ending}" for name in whole for ending in ("_bucket", "_sum", "_count")}


def test_the_dashboard_has_one_place_for_each_panel_and_needs_no_fixed_data_source():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


@pytest.mark.slow
def test_a_worker_without_metrics_does_not_even_import_them(valkey, short_tmp):
    code = "import sys, workers.process.celery_app as us; us.worker_app(); print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_a_worker_refuses_to_show_its_metrics_to_the_world_without_a_token(valkey, short_tmp):
    ended = uplift(
        "worker", "--broker", valkey, "--metrics-port", "0", "--metrics-address", "0.0.0.0", cwd=short_tmp
    )
    assert ended.code == 2
    assert "UPLIFT_METRICS_TOKEN" in ended.err


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_worker_with_one_line(valkey, short_tmp):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start_uplift("worker", "--broker", valkey, "--metrics-port", str(port), cwd=short_tmp)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"cannot serve metrics on 127.0.0.1, port {port}: Address already in use" in err
    assert "Traceback" not in err

"""What was paid for is kept when what comes after it fails: aggregating, writing files, making the report's page."""

import signal
import time

import pytest
from running import a_suite, processes_below, standalone, the_artifact, uplift, worker
from standing_in import provider_process
from submitting import RUN, a_server, a_stored_run, record_all, record_one, waiting

from aggregate.artifact.model import loads
from aggregate.records import jsonl
from aggregate.records.jsonl import read_jsonl
from aggregate.report import html
from producer.baselines.cache import BaselineCache
from producer.display.run_list import status
from producer.runs import collect
from producer.runs.submit import go_on
from producer.state_root import Notes, Places
from workers.rounds.finish import finish
from workers.store import run_store
from workers.store.keys import LANES, waiting_keys

MODEL = "openai:gpt-5-mini"
# A version of Uplift that cannot aggregate, as with a library that it does not get along with.
BROKEN = """
import sys
if {"workers.rounds.finish", "aggregate"} <= {*sys.orig_argv}:
    from aggregate.artifact import build as artifacts

    def build(info, records):
        raise KeyError("None")

    artifacts.build = build
"""


@pytest.fixture
def provider():
    with provider_process() as made:
        made.script({"text": "word0 word1", "input_tokens": 1000, "output_tokens": 100})
        yield made


@pytest.fixture
def mended(provider):
    """The surroundings of a command that works."""
    return {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{provider.url}/v1"}


@pytest.fixture
def broken(short_tmp, mended):
    """The same, but aggregating fails."""
    folder = short_tmp / "broken"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BROKEN)
    return {**mended, "PYTHONPATH": str(folder)}


def paid_once(folder, provider):
    """Two tasks with two arms were asked for once each, and the artifact tells of all four."""
    artifact = the_artifact(folder)
    return (
        len(provider.asked()) == 4 and artifact["attempts"]["run"] == 4 and artifact["status"] == "finished"
    )


@pytest.mark.slow
@pytest.mark.parametrize("detach", [False, True])
def test_a_private_run_that_could_not_be_aggregated_is_finished_later_without_paying_again(
    short_tmp, provider, broken, mended, eventually, detach
):
    words = standalone(a_suite(short_tmp, 2), "--model", MODEL)
    here = ("--state-root", short_tmp / "state")
    failed = uplift(*words, *(["--detach"] if detach else []), cwd=short_tmp, env=broken, timeout=240)
    (run_id,) = Places(short_tmp / "state").run_ids("runs")
    if detach:
        eventually(lambda: not processes_below(short_tmp), 120)
        said = (short_tmp / "state" / "runs" / run_id / "supervisor.log").read_text()
        watched = uplift("watch", run_id, *here, cwd=short_tmp)
        assert (watched.code, f"uplift resume {run_id}" in watched.err) == (130, True), watched.err
    else:
        assert (failed.code, failed.out) == (3, "")
        said = failed.err
    assert "aggregating failed: KeyError: 'None'; all records are kept" in said
    assert said.endswith(f"with: uplift resume {run_id} --state-root {short_tmp / 'state'}\n")
    assert not (short_tmp / "state" / "evaluations").exists()
    assert len(provider.asked()) == 4

    again = uplift("resume", run_id, *here, cwd=short_tmp, env=broken, timeout=240)
    assert (again.code, "all records are kept" in again.err) == (3, True), again.err

    ended = uplift("resume", run_id, *here, cwd=short_tmp, env=mended, timeout=240)
    assert ended.code == 0, ended.err
    assert paid_once(short_tmp, provider)
    assert list((short_tmp / "state" / "embedded").iterdir()) == []


@pytest.mark.slow
def test_a_run_on_a_broker_that_could_not_be_aggregated_is_finished_later_without_paying_again(
    valkey, short_tmp, provider, broken, mended
):
    words = standalone(a_suite(short_tmp, 2), "--model", MODEL, "--broker", valkey)
    here = ("--state-root", short_tmp / "state", "--broker", valkey)
    with worker(valkey, short_tmp, **broken):
        failed = uplift(*words, cwd=short_tmp, env=broken, timeout=240)
    assert failed.code == 3
    assert "aggregating failed: KeyError: 'None'; all records are kept" in failed.err
    (run_id,) = Places(short_tmp / "state").run_ids("runs")
    facts = status(Places(short_tmp / "state"), valkey, run_id)
    assert (facts["state"], facts["why"]) == ("interrupted", "aggregating failed: KeyError: 'None'")

    ended = uplift("resume", run_id, *here, cwd=short_tmp, env=mended, timeout=240)
    assert ended.code == 0, ended.err
    assert paid_once(short_tmp, provider)


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.close()
    made.store.client.close()


@pytest.mark.parametrize(("halt", "status"), [("decided", "finished"), ("cancelled", "cancelled")])
def test_a_run_that_was_over_before_all_was_asked_is_only_aggregated(server, halt, status):
    """Going on with it would pay for attempts that were not wanted any more."""
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    server.store.client.delete(*waiting_keys(LANES[0]))
    for index in range(4):
        record_one(server.store, manifest, index)
    server.store.halt(RUN, halt)
    server.store.seal(RUN, 1)
    server.store.set_trouble(RUN, 1, "aggregating failed: KeyError: 'None'")
    assert go_on(server, server.store.run(RUN)) == 0
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact.status, artifact.attempts.run) == (status, 4)
    assert server.store.state(RUN).trouble is None
    assert waiting(server.store) == 0


def test_an_aggregation_that_is_killed_says_so(server, monkeypatch):
    from subprocess import CompletedProcess

    from workers.rounds import finish as finishing

    record_all(server.store, a_stored_run(server.store))
    server.store.next_generation(RUN)
    monkeypatch.setattr(finishing, "run_module", lambda *_: CompletedProcess([], -9, "", ""))
    finish(server.app, server.settings, RUN, 1, 1)
    assert server.store.state(RUN).trouble == "aggregating failed: its process ended with -9"


def test_an_aggregation_that_is_ended_with_its_worker_is_begun_again(server, monkeypatch):
    """systemd and terminals tell all processes of a group to end, and not the worker alone."""
    from subprocess import CompletedProcess

    from workers.rounds import finish as finishing

    record_all(server.store, a_stored_run(server.store))
    server.store.next_generation(RUN)
    aggregate = finishing.run_module
    monkeypatch.setattr(finishing, "run_module", lambda *_: CompletedProcess([], -signal.SIGTERM, "", ""))
    with pytest.raises(finishing.TryAgain):
        finish(server.app, server.settings, RUN, 1, 1)
    assert server.store.state(RUN).trouble is None
    monkeypatch.setattr(finishing, "run_module", aggregate)
    assert finish(server.app, server.settings, RUN, 1, 1) == "finished"


@pytest.fixture
def ended(server, tmp_path):
    """A run that is over on the server and not yet at home."""
    record_all(server.store, a_stored_run(server.store))
    server.store.next_generation(RUN)
    assert finish(server.app, server.settings, RUN, 1, 1) == "finished"
    places = Places(tmp_path / "state")
    return places, lambda: collect.collect(
        server.store, server.store.run(RUN), server.store.artifacts(RUN), places
    )


@pytest.mark.parametrize("step", ["add", "write"])
def test_a_page_that_cannot_be_made_costs_neither_verdict_nor_records(ended, monkeypatch, step):
    def strange(page, given):
        raise UnicodeEncodeError("utf-8", "a\ud83d", 1, 2, "surrogates not allowed")

    places, bring_home = ended
    monkeypatch.setattr(html.Page, step, strange)
    (artifact,) = bring_home()
    assert len(list(read_jsonl(places.records(RUN)))) == 6
    (warning,) = artifact.warnings[-1:]
    assert warning.startswith(
        "the report page could not be made (UnicodeEncodeError: 'utf-8' codec can't encode"
    )
    assert f"uplift report {RUN}" in warning
    assert loads(places.artifact(RUN).read_bytes()) == artifact
    monkeypatch.undo()
    (page,) = collect.write_report(collect.find(places, RUN, None), places, "html")
    assert page.exists()


def test_each_record_is_read_once_on_its_way_home(ended, monkeypatch):
    """Its file, the page and the baseline cache are made in one pass, and nothing is read back."""
    places, bring_home = ended
    cache = BaselineCache(places.root / "cache")
    keys = {index: f"{index:064x}" for index in range(6)}
    places.write_notes(Notes(run_id=RUN, baseline_cache_dir=str(places.root / "cache"), cache_keys=keys))
    read = []

    def counted(of):
        return lambda *given, **more: read.append(of.__name__) or of(*given, **more)

    monkeypatch.setattr(run_store, "unpack", counted(run_store.unpack))
    monkeypatch.setattr(jsonl, "_read", counted(jsonl._read))
    bring_home()
    assert read == ["unpack"] * 6
    monkeypatch.undo()
    records = list(read_jsonl(places.records(RUN)))
    assert len(records) == 6
    kept = [cache.get(key, time.time()) for key in keys.values()]
    assert {(one.task, one.arm) for one in kept} == {(one.task, one.arm) for one in records}
    made = places.root / "runs" / RUN / "report.html"
    told = made.read_bytes()
    (again,) = collect.write_report(collect.find(places, RUN, None), places, "html")
    assert again == made
    assert len(made.read_bytes()) == len(told)


def test_pages_that_are_not_written_leave_nothing_behind(ended, monkeypatch):
    places, bring_home = ended
    monkeypatch.setattr(html, "_BLOCK_CHARACTERS", 1)
    monkeypatch.setattr(html.Page.__init__, "__defaults__", (0,))

    def full(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collect, "write", full)
    with pytest.raises(OSError, match="No space left"):
        bring_home()
    assert sorted(path.name for path in (places.root / "runs" / RUN).iterdir()) == [
        "records.jsonl.gz",
        "tasks.jsonl.gz",
    ]


def test_files_that_cannot_be_written_say_what_is_kept_and_what_to_type(ended):
    """An --output whose folder has become a file meanwhile; root may write everywhere else."""
    places, bring_home = ended
    output = places.root.parent / "elsewhere" / "artifact.json"
    places.write_notes(Notes(run_id=RUN, output=str(output)))
    output.parent.write_text("")
    with pytest.raises(
        OSError, match=f"all records are kept: mend that, then go on with: uplift resume {RUN}"
    ):
        bring_home()
    output.parent.unlink()
    (artifact,) = bring_home()
    assert loads(output.read_bytes()) == artifact


def test_a_private_server_keeps_its_data_until_the_run_is_at_home(short_tmp):
    """What is in the way is found when everything has been paid for; it is put away, and nothing is asked again."""
    suite, places = a_suite(short_tmp, 2), Places(short_tmp / "state")
    places.root.mkdir()
    (places.root / "evaluations").write_text("")
    failed = uplift(*standalone(suite, "--mock"), cwd=short_tmp)
    assert (failed.code, "all records are kept" in failed.err) == (3, True), failed.err
    (run_id,) = places.run_ids("embedded")
    (places.root / "evaluations").unlink()
    ended = uplift("resume", run_id, "--state-root", places.root, cwd=short_tmp)
    assert ended.code == 0, ended.err
    assert "0 attempts left" in ended.err
    assert places.run_ids("embedded") == []

"""Children of a worker end with it: killed or stopped, it leaves no process behind."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from submitting import RUN, a_stored_run

from judges.inside import supervisor
from workers.process.bootsteps import Finisher
from workers.rounds.child_process import run_module
from workers.store.process_settings import ProcessSettings
from workers.store.run_store import Store

PARENT = """
import sys
from workers.rounds.child_process import run_module
from workers.store.process_settings import ProcessSettings
run_module(ProcessSettings(sys.argv[1]), "workers.rounds.finish", *sys.argv[2:])
"""


@pytest.mark.parametrize("words", [("aggregate", RUN, "1"), ("look", RUN)])
def test_a_child_whose_parent_is_killed_ends_at_once(valkey, client, eventually, words):
    a_stored_run(Store(client), 3)
    client.client_pause(60_000)  # the child waits for the server's answer
    parent = subprocess.Popen([sys.executable, "-c", PARENT, valkey, *words])
    eventually(lambda: supervisor.descendants(parent.pid))
    [child] = supervisor.descendants(parent.pid)
    eventually(lambda: b"workers" in command_line(child))
    parent.kill()
    parent.wait()
    eventually(lambda: command_line(child) == b"")


def command_line(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_what_a_child_says_and_how_it_ended_are_told(valkey, client):
    a_stored_run(Store(client), 1, pass_k=2)
    ended = run_module(ProcessSettings(valkey), "workers.rounds.finish", "look", RUN)
    assert (ended.returncode, ended.stdout[:8]) == (0, '{"stop":')
    assert run_module(ProcessSettings(valkey), "workers.rounds.finish", "look", "no-such-run").returncode == 1


class Slow:
    """Stands for what takes callbacks, at work on a run until the test lets it end."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.ended = False

    def insist(self):
        Finisher.busy.set()
        self.begun.set()
        self.may_end.wait()
        self.ended = True
        Finisher.busy.clear()


@pytest.mark.parametrize(("way", "waits"), [("stop", True), ("terminate", False)])
def test_a_worker_that_is_stopped_ends_the_run_that_it_is_finishing(way, waits):
    worker, slow = SimpleNamespace(app=SimpleNamespace(settings=ProcessSettings("unix:///nowhere"))), Slow()
    step = Finisher(worker)
    step._thread = threading.Thread(target=slow.insist)
    step.start(worker)
    slow.begun.wait()
    if waits:  # a stop that does not wait returns long before this
        threading.Timer(0.3, slow.may_end.set).start()
    getattr(step, way)(worker)
    assert (step._stopped.is_set(), slow.ended) == (True, waits)
    slow.may_end.set()
    step._thread.join()

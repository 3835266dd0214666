"""Joining a run from another terminal, while its owner may finish it at any moment."""

import signal

import pytest
import redis
from running import a_suite, processes_below, standalone, start_uplift, the_artifact, uplift

from producer import local
from producer.places import Places
from workers.store import Keys

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", ["cancel", "watch"])
def test_whoever_looks_too_late_finds_what_the_owner_of_the_private_server_has_left(
    short_tmp, eventually, command
):
    suite = a_suite(short_tmp, 10)
    words = standalone(suite, "--model", "sim:latency=0.5", "--in-flight", "4", "--detach")
    run_id = uplift(*words, cwd=short_tmp).out.strip()
    places = Places(short_tmp / "state")
    state = redis.Redis.from_url(local.address(places.embedded(run_id)))
    joined = start_uplift(command, run_id, "--state-root", short_tmp / "state", cwd=short_tmp)
    if command == "cancel":
        eventually(lambda: state.hget(Keys(run_id).state, "halt") == b"cancelled")
    else:
        eventually(lambda: len(state.client_list()) > 15)
    joined.send_signal(signal.SIGSTOP)
    state.close()
    eventually(lambda: len(processes_below(short_tmp)) == 1)  # the owner has brought the run home and left
    joined.send_signal(signal.SIGCONT)
    out, err = joined.communicate(timeout=60)
    artifact = the_artifact(short_tmp)
    assert artifact["status"] == ("cancelled" if command == "cancel" else "finished")
    assert joined.returncode == (3 if command == "cancel" else 0 if artifact["verdict"] == "pass" else 1), err
    assert f'"verdict": "{artifact["verdict"]}"' in out

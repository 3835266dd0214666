"""`uplift monitor`: Flower that tells nothing to strangers, changes nothing, and is told nothing by its folder."""

import base64
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from browsing import ask, free_port
from conftest import start_server
from flower.events import Events
from flower.urls import handlers
from running import a_suite, standalone, start_uplift, uplift

from producer.setup.flower import InvalidLogin, Login
from workers.store.keys import is_loopback

pytestmark = pytest.mark.xdist_group("monitor")  # one started monitor serves most of them

PASSWORD = "correct,horse:battery staple"
LOGIN = f"uplift:{PASSWORD}"


def header(credentials, scheme="Basic"):
    return f"{scheme} {base64.b64encode(credentials.encode()).decode()}"


def test_a_login_admits_its_own_name_and_password_only():
    login = Login("uplift", PASSWORD)
    assert login.admits(header(LOGIN))
    assert login.admits(header(LOGIN, scheme="basic"))
    for wrong in (
        "",
        f"uplift:{PASSWORD}x",
        "uplift:correct",
        "horse:battery staple",
        f"root:{PASSWORD}",
        "uplift:",
    ):
        assert not login.admits(header(wrong))


@pytest.mark.parametrize(
    "text", ["", "Basic", "Basic ", "Basic ***", "Basic w7w=", f"Bearer {PASSWORD}", "Basic a b c"]
)
def test_a_header_that_is_no_login_is_refused_without_a_fuss(text):
    assert not Login("uplift", PASSWORD).admits(text)


@pytest.mark.parametrize(
    ("user", "password"),
    [("", "x"), ("a:b", "x"), ("ü", "x"), ("uplift", ""), ("uplift", "pässword"), ("a", "x\n")],
)
def test_a_login_that_http_cannot_carry_is_an_error(user, password):
    with pytest.raises(InvalidLogin):
        Login(user, password)


def test_a_login_does_not_show_its_password():
    assert PASSWORD not in repr(Login("uplift", PASSWORD))


def test_only_addresses_of_this_machine_count_as_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "queue.internal", ""]))


@pytest.fixture(scope="module")
def monitor(tmp_path_factory):
    """A monitor with a given password, in a folder and an environment that try to open it up."""
    folder = tmp_path_factory.mktemp("m")
    (folder / "flowerconfig.py").write_text(
        "basic_auth = ['stranger:open']\nport = 1\nopen('executed', 'w')\n"
    )
    server, url = start_server(folder)
    port = free_port()
    process = start_uplift(
        *("monitor", "--broker", url, "--port", str(port)),
        cwd=folder,
        env={
            "UPLIFT_MONITOR_PASSWORD": PASSWORD,
            "FLOWER_BASIC_AUTH": "stranger:open",
            "FLOWER_UNAUTHENTICATED_API": "true",
            "FLOWER_READ_ONLY": "false",
        },
    )
    try:
        await_answer(process, port)
        yield f"http://127.0.0.1:{port}", folder, process
    finally:
        process.kill()
        process.communicate()
        server.kill()
        server.wait()


def await_answer(process, port):
    deadline = time.monotonic() + 60
    while ask(f"http://127.0.0.1:{port}/healthcheck")[0] != 200:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "the monitor does not answer"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_monitor_whose_broker_hangs_stops_when_it_is_told_to(tmp_path):
    server, url = start_server(tmp_path)
    port = free_port()
    environment = {"UPLIFT_MONITOR_PASSWORD": PASSWORD}
    process = start_uplift("monitor", "--broker", url, "--port", str(port), cwd=tmp_path, env=environment)
    try:
        await_answer(process, port)
        server.send_signal(signal.SIGSTOP)
        time.sleep(Events.events_enable_interval / 1000 + 1)  # then a thread of Flower looks for the broker
        process.terminate()
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()
        server.kill()
        server.wait()


def every_path():
    """A path for each of Flower's routes, so that a page that a later version adds is covered."""
    patterns = [rule.regex.pattern if hasattr(rule, "regex") else rule[0] for rule in handlers]
    return sorted(
        {re.sub(r"\(\.[+*]\)|\.\*", "x", pattern.rstrip("$")).replace("/?", "") for pattern in patterns}
    )


@pytest.mark.slow
def test_without_the_password_every_page_but_the_health_check_is_refused(monitor):
    url, _, _ = monitor
    paths = every_path()
    assert {"/", "/api/tasks", "/api/workers", "/metrics", "/healthcheck", "/broker", "/login"} <= set(paths)
    for path in {*paths, "/queue", "/METRICS", "//metrics", "/metrics/", "/healthcheck/../metrics"} - {
        "/healthcheck",
        "x",
    }:
        for login in (None, "stranger:open", "uplift:correct", "horse:battery staple", "uplift:"):
            assert ask(url + path, login)[0] == 401, (path, login)
            assert ask(url + path, login, data=b"{}")[0] == 401, (path, login)
    assert ask(f"{url}/healthcheck") == (200, "OK")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/tasks", "/broker", "/api/tasks", "/api/workers", "/metrics"])
def test_with_the_password_pages_are_shown(monitor, path):
    url, _, _ = monitor
    assert ask(url + path, LOGIN)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "/api/task/async-apply/uplift.run_batch",
        "/api/task/send-task/uplift.finish_run",
        "/api/task/revoke/1",
        "/api/worker/shutdown/w",
    ],
)
def test_even_with_the_password_nothing_can_be_started_revoked_or_shut_down(monitor, path):
    url, _, _ = monitor
    assert ask(url + path, LOGIN, data=b"{}")[0] == 403


@pytest.mark.slow
def test_with_the_password_an_autoscaler_is_told_what_there_is_to_do_with_no_worker_alive(monitor):
    url, folder, _ = monitor
    suite = a_suite(folder, tasks=2)
    broker = f"unix://{folder}/s"
    uplift(*standalone(suite, "--broker", broker, "--mock", "--detach"), cwd=folder)
    status, body = ask(f"{url}/queue", LOGIN)
    assert status == 200
    assert json.loads(body) == {"total": 4, "waiting": 4, "under_way": 0, "finishing": 0, "workers": 0}
    assert ask(f"{url}/queue", LOGIN, data=b"{}")[0] in (403, 405)


@pytest.mark.slow
def test_a_broker_that_is_away_is_an_error_for_the_autoscaler_and_never_a_zero(short_tmp):
    server, url = start_server(short_tmp)
    port = free_port()
    process = start_uplift(
        *("monitor", "--broker", url, "--port", str(port)),
        cwd=short_tmp,
        env={"UPLIFT_MONITOR_PASSWORD": PASSWORD},
    )
    try:
        await_answer(process, port)
        server.kill()
        server.wait()
        status, body = ask(f"http://127.0.0.1:{port}/queue", LOGIN)
        assert status == 503
        assert body == "the broker does not answer: ConnectionError\n"
    finally:
        process.kill()
        process.communicate()
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_flower_config_in_the_current_folder_is_not_run(monitor):
    _, folder, _ = monitor
    assert not (folder / "executed").exists()


@pytest.mark.slow
def test_a_password_from_the_environment_is_not_in_the_list_of_processes(monitor):
    _, _, process = monitor
    assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.mark.slow
def test_a_made_up_password_is_printed_once_and_works_and_sigterm_ends_it_quietly(valkey, tmp_path):
    port = free_port()
    process = start_uplift("monitor", "--broker", valkey, "--port", str(port), cwd=tmp_path)
    try:
        await_answer(process, port)
        said = process.stderr.readline()
        found = re.fullmatch(r"uplift: log in as uplift with password (\S{16})\n", said)
        assert found, said
        assert ask(f"http://127.0.0.1:{port}/", f"uplift:{found[1]}")[0] == 200
        assert ask(f"http://127.0.0.1:{port}/")[0] == 401
        process.terminate()
        _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert found[1] not in rest


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line_and_exit_code_3(valkey, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = uplift("monitor", "--broker", valkey, "--port", str(port), cwd=tmp_path)
    assert ended.code == 3
    assert ended.err == f"uplift: cannot listen on 127.0.0.1, port {port}: Address already in use\n"


@pytest.mark.parametrize("words", [["--password", ""], ["--user", "a:b", "--password", "x"]])
def test_an_unusable_login_is_a_usage_error(valkey, tmp_path, words):
    ended = uplift("monitor", "--broker", valkey, *words, cwd=tmp_path)
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_without_a_broker_there_is_nothing_to_monitor(tmp_path):
    ended = uplift("monitor", cwd=tmp_path)
    assert ended.code == 2
    assert "UPLIFT_BROKER" in ended.err

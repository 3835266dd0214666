"""A broker reached by `rediss://`: a run goes through TLS, and a server that nobody vouches for is refused."""

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager, suppress

import pytest
from running import a_suite, standalone, the_artifact, uplift, worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl is not installed, to make a certificate with"
    ),
]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder):
    """A certificate for localhost, and its key."""
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def pump(source, target):
    with suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def behind_tls(socket_path, certificate):
    """A TLS port in front of a server's socket, since the packaged server is built without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    ends = []

    def serve(listener):
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=connect, args=(accepted,), daemon=True).start()

    def connect(accepted):
        try:
            outside = context.wrap_socket(accepted, server_side=True)
        except OSError:
            accepted.close()
            return
        inside = socket.socket(socket.AF_UNIX)
        try:
            inside.connect(socket_path)
        except OSError:  # the server is away
            inside.close()
            outside.close()
            return
        ends.extend((outside, inside))
        threading.Thread(target=pump, args=(outside, inside), daemon=True).start()
        pump(inside, outside)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for end in ends:
        end.close()


@pytest.mark.parametrize("named_by", ["the address", "a variable"])
def test_a_run_goes_through_a_broker_with_tls(valkey, short_tmp, certificate, monkeypatch, named_by):
    suite = a_suite(short_tmp, 50 if named_by == "a variable" else 4)
    with behind_tls(valkey.removeprefix("unix://"), certificate) as port:
        url = f"rediss://localhost:{port}/0"
        if named_by == "the address":
            url += f"?ssl_ca_certs={certificate[0]}"
        else:
            monkeypatch.setenv("UPLIFT_BROKER_CA", str(certificate[0]))
        with worker(url, short_tmp) as process:
            words = standalone(
                suite, "--broker", url, "--model", "sim:candidate=1,latency=0.2", "--pass-k", "2"
            )
            ended = uplift(*words, cwd=short_tmp)
            process.terminate()
            said = process.communicate(timeout=60)[1]
    assert ended.code == 0, ended.err
    assert the_artifact(short_tmp)["execution_pass_rate"] == 1.0
    assert "handed back" not in said


def test_an_authority_that_is_not_there_is_told_in_one_line(short_tmp, monkeypatch):
    monkeypatch.setenv("UPLIFT_BROKER_CA", str(short_tmp / "ca.pem"))
    ended = uplift("runs", "--broker", "rediss://localhost:1/0", cwd=short_tmp)
    assert (ended.code, ended.err) == (
        2,
        f"uplift: UPLIFT_BROKER_CA is '{short_tmp}/ca.pem', which is no file\n",
    )


def test_a_broker_whose_certificate_nobody_vouches_for_is_refused_in_one_line(valkey, short_tmp, certificate):
    suite = a_suite(short_tmp)
    with behind_tls(valkey.removeprefix("unix://"), certificate) as port:
        ended = uplift(
            *standalone(suite, "--broker", f"rediss://localhost:{port}/0", "--mock"), cwd=short_tmp
        )
    assert ended.code == 3
    assert "certificate" in ended.err
    assert "Traceback" not in ended.err

"""What a confined agent reaches, what it does not, and that no way of asking keeps the worker busy or open."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_judging import until
from running import a_suite, standalone, the_artifact, uplift
from test_workers_models_agent_view import said_by_shell

from judges.judgment import Completion
from judges.spec import Contains
from workers.models import agent_network, agent_view
from workers.models.agent_network import AgentNetwork, AgentProxy
from workers.models.choose import model_for
from workers.models.model import ModelFailed, Request
from workers.store.messages import CommandSpec, ModelSettings, Task

confines = pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work here")

START = """
import os, socket, sys, time, urllib.request
PORT = int(sys.argv[1])
def ask(text, port=3128, wait=30):
    with socket.create_connection(("127.0.0.1", port), wait) as s:
        s.settimeout(wait)
        s.sendall(text.encode() if isinstance(text, str) else text)
        said = b""
        while part := s.recv(65536):
            said += part
        return said.decode(errors="replace")
"""


class Server:
    """Answers every connection on a free port with some words, and keeps what it was sent."""

    def __init__(self, words: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nthe answer") -> None:
        self.words, self.asked, self.open, self.port = words, list[bytes](), 0, 0
        self.reads_to_end = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.asked.append(await reader.read(100_000))
            writer.write(self.words)
            while self.reads_to_end and await reader.read(1000):
                pass
            await writer.drain()
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def a_server(host: str = "127.0.0.1", **rest: Any) -> AsyncIterator[Server]:
    server = Server(**rest)
    listening = await asyncio.start_server(server.serve, host, 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def completion_of(
    script: str,
    port: int = 0,
    request: Request | None = None,
    settings: dict[str, Any] | None = None,
    **rest: Any,
) -> Completion:
    """What a confined Python program answers that has these functions and knows this port."""
    spec = CommandSpec(argv=(sys.executable, "-I", "-c", START + script, str(port)), **rest)
    model = model_for("command:it", ModelSettings(commands={"it": spec}, **(settings or {})))
    return await model.complete(request or Request("", sandbox="required", timeout_seconds=60))


def refused(completion: Completion) -> dict[str, int]:
    return dict(completion.refused)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# What prints reached what it must not.
DIRECT = {
    "the port itself": "print(ask('GET / HTTP/1.0\\r\\n\\r\\n', PORT))",
    "all addresses of this machine": "print(socket.create_connection(('0.0.0.0', PORT), 2).recv(9))",
    "another loopback address": "print(socket.create_connection(('127.8.8.8', PORT), 2).recv(9))",
    "IPv6": "print(socket.create_connection(('::1', PORT), 2).recv(9))",
    "the metadata of a cloud": "print(socket.create_connection(('169.254.169.254', 80), 2).recv(9))",
    "the internet": "print(socket.create_connection(('1.1.1.1', 443), 2))",
    "names": "print(socket.getaddrinfo('example.org', 443))",
    "a name server": "s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(1)\n"
    "s.sendto(b'?', ('8.8.8.8', 53)); print(s.recv(9))",
    "a raw socket": "print(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "packets": "print(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    "virtual machines": "print(socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))",
    "a listener of the worker": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[2]); print(s.recv(9))",
    "a socket of the worker": "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); print(s.recv(9))",
    "an inherited descriptor": "print([os.readlink(f'/proc/self/fd/{n}') for n in map(int, os.listdir('/proc/self/fd'))"
    " if n > 2 and 'socket' in os.readlink(f'/proc/self/fd/{n}')][0])",
    "the first process's sockets": "import glob\nfor p in glob.glob('/proc/1/fd/*'): print(os.readlink(p))",
}


@confines
@pytest.mark.parametrize("way", DIRECT)
async def test_without_the_proxy_an_agent_reaches_nothing(way: str, tmp_path: Path) -> None:
    script = (
        f"try:\n    {DIRECT[way].replace(chr(10), chr(10) + '    ')}\nexcept Exception: pass\nprint('tried')"
    )
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0{place}")
        named.bind(str(place))
        place.chmod(0o777)
        for listening in (abstract, named):
            listening.listen()
        async with a_server() as broker:
            spec = CommandSpec(
                argv=(sys.executable, "-I", "-c", START + script, str(broker.port), str(place))
            )
            settings = ModelSettings(commands={"it": spec}, network="open")
            said = await model_for("command:it", settings).complete(Request("", sandbox="required"))
    assert said.text == "tried\n"
    assert broker.asked == []


LOCAL = (
    *("127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0"),
    *("127.8.8.8", "[::1]", "[::ffff:127.0.0.1]", "[::]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
)


@confines
@pytest.mark.parametrize("network", ["provider", "open"])
async def test_no_spelling_of_this_machine_leads_to_its_broker(network: str) -> None:
    script = f"""
for host in {LOCAL!r}:
    said = ask(f"CONNECT {{host}}:{{PORT}} HTTP/1.1\\r\\n\\r\\n")
    said += ask(f"GET http://{{host}}:{{PORT}}/ HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n")
    print(host, said.count("HTTP/1.1 403"), "answer" in said)
"""
    async with a_server() as broker:
        found = await completion_of(script, broker.port, settings={"network": network})
    # What is no address for this machine's resolver either is not found, which leads as little.
    assert all(line.split()[2] == "False" for line in found.text.splitlines())
    assert len(found.text.splitlines()) == len(LOCAL)
    assert broker.asked == []
    assert refused(found)["127.0.0.1"] >= 2


@confines
async def test_a_local_provider_answers_on_its_own_port_by_the_proxy_and_by_a_tunnel() -> None:
    script = """
print(ask("GET / HTTP/1.0\\r\\n\\r\\n", PORT)[-10:])
print(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/way?x=1").read().decode())
tunnel = f"CONNECT 127.0.0.1:{PORT} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
print(ask(tunnel + "GET / HTTP/1.0\\r\\n\\r\\n")[-10:])
"""
    async with a_server() as provider:
        found = await completion_of(script, provider.port, hosts=(f"127.0.0.1:{provider.port}",))
    assert found.text == "the answer\n" * 3
    assert provider.asked[1].startswith(b"GET /way?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert found.refused == ()


@confines
async def test_a_host_in_a_variable_that_the_program_may_see_is_its_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_server() as provider:
        monkeypatch.setenv("MY_BASE_URL", f"http://localhost:{provider.port}/v1")
        script = "print(urllib.request.urlopen(os.environ['MY_BASE_URL']).read().decode())"
        found = await completion_of(script, environment=("MY_BASE_URL",))
    assert found.text == "the answer\n"


@confines
async def test_another_port_of_the_provider_is_refused_and_counted() -> None:
    script = "\n".join(
        f"print(ask('CONNECT {one} HTTP/1.1\\r\\n\\r\\n').split()[1])"
        for one in (
            "api.example.org:22",
            "API.example.org.:444",
            "other.example.org:443",
            "api.example.org:0",
        )
    )
    found = await completion_of(script, hosts=("api.example.org",))
    assert found.text.split() == ["403", "403", "403", "400"]
    assert refused(found) == {"api.example.org": 2, "other.example.org": 1}


def resolving(monkeypatch: pytest.MonkeyPatch, **hosts: str) -> None:
    """Have names lead to addresses."""

    def look_up(host: str, port: int, *_: Any) -> list[Any]:
        if host not in hosts:
            raise socket.gaierror("no such name")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts[host].split()
        ]

    monkeypatch.setattr(agent_network.socket, "getaddrinfo", look_up)


class Client:
    """The sandbox's side of a proxy that serves in this process."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    async def ask(self, text: str | bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(text.encode() if isinstance(text, str) else text)
        said = await reader.read()
        writer.close()
        return said

    async def tunnel(self, place: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(f"CONNECT {place} HTTP/1.1\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n"), reader, writer


def places(*named: str) -> frozenset[tuple[str, int]]:
    return agent_network._places(named)


@asynccontextmanager
async def a_proxy(network: AgentNetwork) -> AsyncIterator[Client]:
    """A proxy for this network, and nothing of it left at the end."""
    before = asyncio.all_tasks()
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in network.ports]
    proxy = AgentProxy(network, listening)
    try:
        yield Client(listening[0].getsockname())
    finally:
        await proxy.stop()
        assert asyncio.all_tasks() <= before
        assert all(one.fileno() == -1 for one in listening)


async def test_a_granted_name_that_leads_to_this_machine_or_its_network_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_server() as broker:
        names = {"a": "127.0.0.1", "b": "10.0.0.1", "c": "169.254.169.254", "d": "93.184.215.14 127.0.0.1"}
        resolving(monkeypatch, **names)
        network = AgentNetwork(granted=places(*(f"{name}:{broker.port}" for name in names)))
        async with a_proxy(network) as client:
            for name in names:
                said = await client.ask(f"CONNECT {name}:{broker.port} HTTP/1.1\r\n\r\n")
                assert said.startswith(b"HTTP/1.1 403")
    assert network.refused == dict.fromkeys(names, 1)
    assert broker.asked == []


async def test_a_granted_name_that_leads_to_an_address_that_this_machine_has_on_the_internet_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, own="127.0.0.1", other="127.0.0.2")
    monkeypatch.setattr(agent_network, "_is_internet", lambda address: True)
    async with a_server("0.0.0.0") as server:
        network = AgentNetwork(granted=places(f"own:{server.port}", f"other:{server.port}"))
        async with a_proxy(network) as client:
            tunnel = "CONNECT {}:{} HTTP/1.1\r\n\r\nhello"
            assert (await client.ask(tunnel.format("own", server.port))).startswith(b"HTTP/1.1 403")
            assert (await client.ask(tunnel.format("other", server.port))).endswith(b"the answer")
    assert server.asked == [b"", b"hello"] or server.asked == [b"hello"]


async def test_the_addresses_of_a_name_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, two="127.0.0.3 127.0.0.2")
    monkeypatch.setattr(agent_network, "_is_internet", lambda address: True)
    async with a_server("127.0.0.2") as server, a_proxy(AgentNetwork(internet=True)) as client:
        assert (await client.ask(f"CONNECT two:{server.port} HTTP/1.1\r\n\r\nx")).endswith(b"the answer")
        assert (await client.ask("CONNECT none:443 HTTP/1.1\r\n\r\nx")).startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize(
    ("address", "internet"),
    [
        *((one, True) for one in ("93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "172.32.0.1")),
        *((one, False) for one in ("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200")),
        *(
            (one, False)
            for one in ("127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255")
        ),
        *((one, False) for one in ("::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:10.0.0.1")),
        *((one, False) for one in ("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1", "168.63.129.16")),
    ],
)
def test_what_is_an_address_of_the_internet(address: str, internet: bool) -> None:
    assert agent_network._is_internet(address) == internet


async def test_the_workers_own_proxy_is_asked_for_a_tunnel_and_its_password_stays_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    established = b"HTTP/1.1 200 Connection established\r\n\r\nthe answer"
    async with a_server(words=established) as upstream:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{upstream.port}")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{upstream.port}")
        monkeypatch.setenv("NO_PROXY", "inside.example.org")
        network = AgentNetwork(places("https://api.example.org/v1", "http://plain.example.org:8000"))
        async with a_proxy(network) as client:
            assert (await client.ask("CONNECT api.example.org:443 HTTP/1.1\r\n\r\n")).endswith(b"the answer")
            await client.ask("GET http://plain.example.org:8000/x HTTP/1.1\r\n\r\n")
            assert (await client.ask("CONNECT evil.example.org:443 HTTP/1.1\r\n\r\n")).startswith(
                b"HTTP/1.1 403"
            )
    login = base64.b64encode(b"me:p@ss").decode()
    assert upstream.asked == [
        f"CONNECT api.example.org:443 HTTP/1.1\r\nHost: api.example.org:443\r\n"
        f"Proxy-Authorization: Basic {login}\r\n\r\n".encode(),
        b"CONNECT plain.example.org:8000 HTTP/1.1\r\nHost: plain.example.org:8000\r\n\r\n",
    ]
    assert "p%40ss" not in str(network.environment)


@pytest.mark.parametrize(
    "words",
    [b"HTTP/1.1 407 No\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"SSH-2.0\r\n", b"x" * 70_000, b""],
    ids=["refuses", "unknown status", "no http", "flood", "nothing"],
)
async def test_a_proxy_of_the_workers_that_refuses_or_makes_no_sense_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    async with a_server(words=words) as upstream:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{upstream.port}")
        async with a_proxy(AgentNetwork(places("https://api.example.org"))) as client:
            said = await client.ask("CONNECT api.example.org:443 HTTP/1.1\r\n\r\n")
    assert said.split()[1] in (b"400", b"502")


async def test_a_name_of_this_network_is_not_reached_by_the_workers_proxy_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, inner="10.0.0.1")
    async with a_server() as upstream:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{upstream.port}")
        async with a_proxy(AgentNetwork(internet=True)) as client:
            assert (await client.ask("CONNECT inner:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")
    assert upstream.asked == []


async def test_a_second_request_in_the_same_connection_goes_to_the_same_server_and_no_other() -> None:
    async with a_server() as provider, a_server() as broker:
        network = AgentNetwork(places(f"http://127.0.0.1:{provider.port}"))
        smuggled = f"GET http://127.0.0.1:{broker.port}/ HTTP/1.1\r\nHost: 127.0.0.1:{broker.port}\r\n\r\n"
        asked = (
            f"POST http://127.0.0.1:{provider.port}/a HTTP/1.1\r\nHost: 127.0.0.1:{broker.port}\r\n"
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n"
            f"Proxy-Authorization: Basic eDp5\r\nAccept: x\r\n\r\n{smuggled}"
        )
        async with a_proxy(network) as client:
            await client.ask(asked)
    head, _, _ = provider.asked[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /a HTTP/1.1",
        f"Host: 127.0.0.1:{provider.port}".encode(),
        b"Connection: close",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Accept: x",
    ]
    assert broker.asked == []


BAD = (
    *("", "\r\n", "GET / HTTP/1.1", "GET /", "CONNECT", "CONNECT  HTTP/1.1", "CONNECT a HTTP/1.1"),
    *(
        "CONNECT a:b HTTP/1.1",
        "CONNECT a:99999 HTTP/1.1",
        "CONNECT a:443:80 HTTP/1.1",
        "CONNECT :443 HTTP/1.1",
    ),
    *(
        "CONNECT a:443 HTTP/2",
        "CONNECT a:443 HTTP/1.1 x",
        "CONNECT user@a:443 HTTP/1.1",
        "CONNECT a/b:443 HTTP/1.1",
    ),
    *(
        "CONNECT a\x00b:443 HTTP/1.1",
        "CONNECT ä:443 HTTP/1.1",
        "CONNECT .:443 HTTP/1.1",
        "CONNECT a:٤٤٣ HTTP/1.1",
    ),
    *("GET https://a/ HTTP/1.1", "GET ftp://a/ HTTP/1.1", "GET http:// HTTP/1.1", "GET http://b@a/ HTTP/1.1"),
    *("GET http://a:b@a/ HTTP/1.1", "G T http://a/ HTTP/1.1", "GET\thttp://a/\tHTTP/1.1", "PRI * HTTP/2.0"),
    "GET http://a/\nHost: b HTTP/1.1",
)


@pytest.mark.parametrize("first", BAD)
async def test_what_is_no_request_to_a_proxy_is_answered_with_400(first: str) -> None:
    async with a_proxy(AgentNetwork(internet=True)) as client:
        assert (await client.ask(f"{first}\r\n\r\n")).startswith(b"HTTP/1.1 400")


@given(
    st.binary(max_size=200)
    | st.builds(lambda a, b: b"CONNECT " + a + b" HTTP/1.1" + b, st.binary(), st.binary())
)
def test_no_head_of_a_request_breaks_the_proxy(head: bytes) -> None:
    try:
        wanted = agent_network._parsed(head)
    except ValueError:
        return
    assert 0 < wanted.port < 65536
    assert set(wanted.host) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-:")


async def test_a_head_without_end_and_one_that_is_too_large_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_network, "_HEAD_SECONDS", 0.3)
    async with a_proxy(AgentNetwork(internet=True)) as client:
        assert (await client.ask("CONNECT a:443 HTTP/1.1\r\nX: ")).startswith(b"HTTP/1.1 502")
        with_long_header = f"CONNECT a:443 HTTP/1.1\r\nX: {'x' * agent_network.MAX_HEAD_BYTES}"
        assert (await client.ask(with_long_header)).startswith(b"HTTP/1.1 400")


async def test_a_client_that_vanishes_takes_its_connection_to_the_provider_along() -> None:
    async with a_server() as provider:
        provider.reads_to_end = True
        async with a_proxy(AgentNetwork(places(f"http://127.0.0.1:{provider.port}"))) as client:
            _, _, writer = await client.tunnel(f"127.0.0.1:{provider.port}")
            writer.write(b"hello")
            await until(lambda: provider.open == 1)
            writer.transport.abort()
            await until(lambda: provider.open == 0)


async def test_an_answer_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_network, "_CLOSE_SECONDS", 0.2)
    async with a_server(words=b"x" * 20_000_000) as provider:
        network = AgentNetwork(places(f"http://127.0.0.1:{provider.port}"))
        before = open_files()
        async with a_proxy(network) as client:
            _, reader, writer = await client.tunnel(f"127.0.0.1:{provider.port}")
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # as who does not read
            writer.write(b"hello")
            writer.write_eof()
            await until(lambda: provider.open == 0)
            writer.transport.abort()
        await until(lambda: open_files() <= before)


@confines
async def test_ten_thousand_connections_at_once_are_served_a_few_at_a_time_and_all_closed_at_the_end() -> (
    None
):
    script = """
held = []
for _ in range(10_000):
    try:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", 3128))
        held.append(s)
    except OSError:
        break
print(len(held), flush=True)
time.sleep(2)
"""
    before, most = open_files(), 0
    running = asyncio.create_task(completion_of(script))
    while not running.done():
        most = max(most, open_files())
        await asyncio.sleep(0.01)
    found = await running
    assert int(found.text) > 5_000
    assert most - before < agent_network.MAX_CONNECTIONS + 40
    await until(lambda: open_files() <= before)


@confines
async def test_an_agent_in_a_loop_of_refused_connections_leaves_the_worker_time_for_others() -> None:
    script = """
end = time.time() + 2
while time.time() < end:
    ask("CONNECT evil.example.org:443 HTTP/1.1\\r\\n\\r\\n")
"""
    found = await completion_of(script)
    # Each place is free again after a tenth of a second; all are free at first, and at the end one more may begin.
    assert refused(found)["evil.example.org"] <= (2 * 10 + 2) * agent_network.MAX_CONNECTIONS


async def test_only_some_hosts_are_told_apart() -> None:
    network = AgentNetwork()
    async with a_proxy(network) as client:
        for number in range(60):
            await client.ask(f"CONNECT host{number}:443 HTTP/1.1\r\n\r\n")
    assert len(network.refused) == 51
    assert network.refused["others"] == 10


async def test_a_secret_in_a_host_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        agent_network, "without_secrets", lambda text: text.replace("abc-secret", "[redacted]")
    )
    network = AgentNetwork()
    async with a_proxy(network) as client:
        await client.ask("CONNECT abc-secret.evil.example.org:443 HTTP/1.1\r\n\r\n")
    assert network.refused == {"[redacted].evil.example.org": 1}


@confines
async def test_a_task_grants_hosts_and_an_error_names_those_that_were_refused() -> None:
    judge = Contains(type="contains", expected=["x"])
    task = Task(id="t", prompt="?", judge=judge, network=("docs.example.org",))
    request = Request("", task=task, sandbox="required")
    script = """
for host in ("docs.example.org:443", "docs.example.org:80", "docs.example.org:8443", "evil.example.org:443"):
    print(ask(f"CONNECT {host} HTTP/1.1\\r\\n\\r\\n").split()[1])
"""
    found = await completion_of(script, request=request)
    # No name can be looked up here.
    assert found.text.split() == ["502", "502", "403", "403"]
    with pytest.raises(ModelFailed, match=r"it may not reach docs.example.org, evil.example.org"):
        await completion_of(script + "sys.exit(1)", request=request)


@confines
async def test_an_open_network_is_the_internet_and_no_more() -> None:
    said = await completion_of(
        """
print(ask("CONNECT evil.example.org:443 HTTP/1.1\\r\\n\\r\\n").split()[1])
print(ask("CONNECT 169.254.169.254:80 HTTP/1.1\\r\\n\\r\\n").split()[1])
print(ask("CONNECT 10.0.0.1:443 HTTP/1.1\\r\\n\\r\\n").split()[1])
""",
        settings={"network": "open"},
    )
    assert said.text.split() == ["502", "403", "403"]
    assert refused(said) == {"10.0.0.1": 1, "169.254.169.254": 1}


REFUSED = """
import sys, urllib.request
try:
    urllib.request.urlopen("http://evil.example.org/")
except OSError as refused:
    print("sunny", refused)
"""


@confines
@pytest.mark.slow
def test_a_run_tells_how_many_connections_were_refused_and_the_option_that_allows_them(
    short_tmp: Path,
) -> None:
    commands = {"agent": {"argv": [sys.executable, "-c", REFUSED]}}
    words = standalone(a_suite(short_tmp, 2), "--model", "command:agent", "--skill-mode", "prepend")
    environment = {"UPLIFT_COMMANDS": json.dumps(commands), "UPLIFT_SANDBOX": "required"}
    told = "4 connections to 1 other host were refused; `--network open` allows them, unless they are local"
    assert uplift(*words, cwd=short_tmp, env=environment).code in (0, 1)
    assert told in the_artifact(short_tmp)["warnings"]
    ran = uplift(*words, "--network", "open", "--output", "opened.json", cwd=short_tmp, env=environment)
    assert ran.code in (0, 1), ran.err
    assert "refused" not in str(json.loads((short_tmp / "opened.json").read_text())["warnings"])


@confines
async def test_the_workers_proxies_are_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://me:secret@proxy.example.org:3128")
    seen = await said_by_shell("env")
    assert "secret" not in seen
    assert "HTTPS_PROXY=http://127.0.0.1:3128\n" in seen
    assert "NO_PROXY=\n" in seen


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("https://api.example.org/v1", {("api.example.org", 443)}),
        ("http://LOCALHOST.:8080", {("localhost", 8080)}),
        ("http://[::1]:8080/x", {("::1", 8080)}),
        ("docs.example.org", {("docs.example.org", 80), ("docs.example.org", 443)}),
        ("docs.example.org:22", {("docs.example.org", 22)}),
        *(
            (broken, set())
            for broken in ("http://", "", "https://a:b", "https://[", "ftp://a", "https://a:70000")
        ),
    ],
)
def test_the_hosts_and_ports_that_an_address_names(named: str, found: set[tuple[str, int]]) -> None:
    assert places(named) == found


def test_the_proxy_gets_out_of_the_way_of_a_provider_on_its_port() -> None:
    network = AgentNetwork(places("http://127.0.0.1:3128", "http://localhost:80", "https://api.example.org"))
    assert [(port, wanted and wanted.port) for port, wanted in network.ports.items()] == [
        (3129, None),
        (3128, 3128),
    ]
    assert network.environment["HTTPS_PROXY"] == "http://127.0.0.1:3129"

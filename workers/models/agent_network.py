"""Let a confined agent reach its model's provider and the hosts that it is granted, and nothing else.

An agent has a network of its own, in which nobody else is. The first process inside listens there and hands the sockets
to this process (see `drop_rights`), which answers as an HTTP proxy, and, where the provider is on this machine, on the
provider's own port too, for programs that use no proxy for loopback.

Only the provider, which the worker's own settings name, may be on this machine or its network. What else is granted
must be on the internet, so that no name can be made to lead to the worker, its broker or a cloud's metadata.
"""

from __future__ import annotations

import asyncio
import re
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from itertools import count
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from judges.judgment import Completion
from workers.models.model import ModelError, ModelTimedOut, Request, without_secrets
from workers.store.messages import ModelSettings

MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 64  # of one agent at once; others wait in the kernel
_MAX_HOSTS = 50  # that are told apart
_HEAD_SECONDS, _CONNECT_SECONDS, _CLOSE_SECONDS = 10.0, 30.0, 5.0
_PAUSE_SECONDS = (
    0.1  # for which what is over keeps its place: an agent in a loop must not keep this process busy
)
_CHUNK_BYTES = 65536
_PROXY_PORT = 3128
_LEAST_PORT = 1024  # below which a process without rights cannot listen
_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_INTERNET_6 = IPv6Network("2000::/3")
_METADATA = "168.63.129.16"  # Azure's, which looks like an address of the internet
_HOST = r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))"
_TUNNEL = re.compile(rf"{_HOST}:(?P<port>\d{{1,5}})")
_PLAIN = re.compile(rf"http://{_HOST}(?::(?P<port>\d{{1,5}}))?(?P<path>[/?]\S*)?", re.IGNORECASE)
# Headers that are for the proxy, or would have a connection used again, for another host.
_OF_CONNECTION = (b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive")


class _Refused(Exception):
    """The agent may not reach the host."""


@dataclass(frozen=True)
class _Wanted:
    """Where a request is to go, and the head that is sent there before all else; tunnels have none."""

    host: str
    port: int
    head: bytes = b""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class AgentNetwork:
    """What one agent may reach, by host and port, and how often it was refused what else it tried, by host."""

    own: frozenset[tuple[str, int]] = frozenset()
    granted: frozenset[tuple[str, int]] = frozenset()
    internet: bool = False
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def ports(self) -> dict[int, _Wanted | None]:
        """The ports to listen on inside, and where each leads: first the proxy's, then those of a local provider."""
        own = {port: _Wanted(host, port) for host, port in sorted(self.own) if host in _THIS_MACHINE}
        own = {port: wanted for port, wanted in own.items() if port >= _LEAST_PORT}
        return {next(port for port in count(_PROXY_PORT) if port not in own): None, **own}

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the proxy."""
        url = f"http://127.0.0.1:{next(iter(self.ports))}"
        return {**dict.fromkeys(_VARIABLES, url), "NO_PROXY": "", "no_proxy": "", "NODE_USE_ENV_PROXY": "1"}

    def refuse(self, host: str) -> None:
        """Note that a connection was refused."""
        host = without_secrets(host)
        self.refused[host if host in self.refused or len(self.refused) < _MAX_HOSTS else "others"] += 1

    async def told(self, asking: Awaitable[Completion]) -> Completion:
        """Wait for an agent's answer; what it was refused is told in it, or behind the error."""
        try:
            return self._told(await asking)
        except (ModelError, ModelTimedOut) as failed:
            failed.completion = failed.completion and self._told(failed.completion)
            if self.refused and isinstance(failed, ModelError):
                hosts = ", ".join(host for host, _ in self.refused.most_common(3))
                failed.args = (f"{failed} (it may not reach {hosts}; see docs/isolation.md)",)
            raise

    def _told(self, completion: Completion) -> Completion:
        return completion.model_copy(update={"refused": tuple(sorted(self.refused.items()))})


def network_of(settings: ModelSettings, request: Request, providers: Iterable[str]) -> AgentNetwork:
    """The network of an agent: its providers, by address (with a scheme) or as HOST[:PORT], and what is granted."""
    wished = request.task.network if request.task else ()
    # Whether the worker grants it was asked before: see `workers.models.policy`.
    return AgentNetwork(_places(providers), _places(wished), settings.network == "open")


def _places(names: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Hosts with their ports, those of HTTP and HTTPS where none is named; what names no host is left out."""
    found = set()
    for name in names:
        with suppress(ValueError):
            parts = urlsplit(name if "://" in name else f"//{name}")
            usual = [_PORTS[parts.scheme]] if parts.scheme in _PORTS else [] if parts.scheme else [80, 443]
            ports = [parts.port] if parts.port else usual
            found |= {(parts.hostname.rstrip("."), port) for port in ports if parts.hostname}
    return frozenset(found)


class AgentProxy:
    """Serves the sockets of one agent's network until it is stopped."""

    def __init__(self, network: AgentNetwork, listening: Sequence[socket.socket]) -> None:
        self._network = network
        self._listening = listening
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        # One at a time: names that nobody answers for must not take the threads that this process needs.
        self._looking_up = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        for server, always in zip(listening, network.ports.values(), strict=True):
            self._start(self._accept(server, always))

    async def stop(self) -> None:
        """Close every connection and socket."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._listening:
            server.close()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket, always: _Wanted | None) -> None:
        listening.setblocking(False)
        while True:
            await self._room.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError:  # gone already, or this process has too many files open
                self._room.release()
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                serving = self._start(self._serve(connection, always))
                serving.add_done_callback(partial(self._over, connection))

    def _over(self, connection: socket.socket, _: asyncio.Task[None]) -> None:
        connection.close()  # which it is, unless its task never began
        self._room.release()

    async def _serve(self, connection: socket.socket, always: _Wanted | None) -> None:
        """Serve one connection, until nothing of it is open any more."""
        writers: list[asyncio.StreamWriter] = []
        try:
            client, writer = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
            writers.append(writer)
            if answer := await self._answered(client, always, writers):
                writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            # Who does not read what it asked for must not have it kept here.
            async with asyncio.timeout(_CLOSE_SECONDS):
                for one in writers:
                    one.close()
                    await one.wait_closed()
            await asyncio.sleep(_PAUSE_SECONDS)
        except OSError:  # who asked is gone, or does not read
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            for one in writers:
                one.transport.abort()

    async def _answered(
        self, client: asyncio.StreamReader, wanted: _Wanted | None, writers: list[asyncio.StreamWriter]
    ) -> str:
        """Serve one connection to its end; returns the status to answer with where it leads nowhere."""
        writer, asked = writers[0], wanted is None
        try:
            if wanted is None:
                async with asyncio.timeout(_HEAD_SECONDS):
                    wanted = _parsed(await client.readuntil(b"\r\n\r\n"))
            async with asyncio.timeout(_CONNECT_SECONDS):
                server = await self._connect(wanted, writers)
        except _Refused:
            self._network.refuse(wanted.host if wanted else "")
            return "403 Forbidden"
        except (ValueError, asyncio.LimitOverrunError):
            return "400 Bad Request"
        except (OSError, EOFError):  # time-outs are among them
            return "502 Bad Gateway"
        writers[-1].write(wanted.head)
        if asked and not wanted.head:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        ways = [self._start(_copy(*way)) for way in ((client, writers[-1]), (server, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
        return ""

    async def _connect(self, wanted: _Wanted, writers: list[asyncio.StreamWriter]) -> asyncio.StreamReader:
        """Connect to a host, by the worker's own proxy where it has one for it; raises _Refused or OSError."""
        place = (wanted.host, wanted.port)
        own = place in self._network.own
        if not (own or self._network.internet or place in self._network.granted):
            raise _Refused
        addresses, proxy = [wanted.host], _upstream(wanted)
        if not own:
            found = []
            with suppress(OSError):  # where the worker has a proxy, only that may know the name
                async with self._looking_up:
                    look_up = asyncio.get_running_loop().getaddrinfo
                    found = await look_up(*place, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
            if not all(map(_is_internet, addresses)):
                raise _Refused
        if proxy is not None:
            return await _through(proxy, wanted, writers)
        for address in addresses:
            with suppress(OSError):
                server, writer = await asyncio.open_connection(address, wanted.port)
                writers.append(writer)
                ends = [writer.get_extra_info(end)[0] for end in ("sockname", "peername")]
                if not own and ends[0] == ends[1]:  # this machine, by an address that the internet knows
                    raise _Refused
                return server
        raise OSError("no address answers")


def _parsed(head: bytes) -> _Wanted:
    """What a request to a proxy asks for; raises ValueError where it is none."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.decode("ascii").split(" ")
    found = (_TUNNEL if method == "CONNECT" else _PLAIN).fullmatch(target)
    if found is None or not re.fullmatch(r"HTTP/1\.[01]", version) or not method.isalpha():
        raise ValueError(target)
    host = (found["six"] or found["name"]).lower().rstrip(".")
    wanted = _Wanted(host, int(found["port"] or 80))
    if not wanted.host or not 0 < wanted.port < 65536:
        raise ValueError(target)
    if method == "CONNECT":
        return wanted
    path = found["path"] or "/"
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OF_CONNECTION]
    request = f"{method} {path if path[0] == '/' else f'/{path}'} HTTP/1.1"
    own = [request, f"Host: {wanted.authority.removesuffix(':80')}", "Connection: close"]
    return replace(wanted, head=b"\r\n".join([*(line.encode() for line in own), *kept, b"", b""]))


def _upstream(wanted: _Wanted) -> SplitResult | None:
    """The proxy by which the worker's environment sends such requests, if any."""
    if wanted.host in _THIS_MACHINE or proxy_bypass(f"{wanted.host}:{wanted.port}"):
        return None
    proxies = getproxies_environment()
    url = proxies.get("http" if wanted.head else "https") or proxies.get("all")
    return urlsplit(url if "://" in url else f"http://{url}") if url else None


async def _through(
    proxy: SplitResult, wanted: _Wanted, writers: list[asyncio.StreamWriter]
) -> asyncio.StreamReader:
    """A tunnel through another proxy, which is asked for tunnels alone: a second request could be for another host."""
    if proxy.scheme not in _PORTS:
        raise OSError(f"proxies of the kind {proxy.scheme} are not supported")
    port, secure = proxy.port or _PORTS[proxy.scheme], proxy.scheme == "https"
    server, writer = await asyncio.open_connection(
        proxy.hostname, port, ssl=secure or None, limit=MAX_HEAD_BYTES
    )
    writers.append(writer)
    lines = [f"CONNECT {wanted.authority} HTTP/1.1", f"Host: {wanted.authority}"]
    if proxy.username is not None:
        known = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(known.encode()).decode()}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if not re.match(rb"HTTP/1\.\d 200\b", await server.readuntil(b"\r\n\r\n")):
        raise OSError("the worker's own proxy refuses")
    return server


def _is_internet(address: str) -> bool:
    """Whether an address is neither of this machine nor of a network around it, and leads to none such."""
    known = ip_address(address.partition("%")[0])
    if isinstance(known, IPv6Address):
        return known.is_global and known in _INTERNET_6 and known.sixtofour is None
    return known.is_global and not known.is_multicast and address != _METADATA


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()

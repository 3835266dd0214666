"""Let a confined agent reach its model's provider and the hosts that it is granted, and nothing else.

An agent has a network of its own, in which nobody else is. The first process inside listens on ports of its loopback
and hands the sockets to this process (see `drop_rights`), which answers there: as an HTTP proxy, and, where the
provider is on this machine, as the provider's own port for programs that use no proxy for it. Host names are looked up
here. What was refused is counted by host.

Only what the worker's own settings name, its provider, may be an address of this machine or its network. Whatever else
is granted must be on the internet, so that no name can be made to lead to the worker, its broker or a cloud's metadata.
"""

from __future__ import annotations

import asyncio
import re
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from judges.judgment import Completion, Refusals
from workers.models.model import ModelError, ModelTimedOut, Request, without_secrets
from workers.store.messages import ModelSettings, Network

MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 64  # of one agent at once; others wait in the kernel
_MAX_HOSTS = 50  # that are told apart
_HEAD_SECONDS, _CONNECT_SECONDS, _CLOSE_SECONDS = 10.0, 30.0, 5.0
_PAUSE_SECONDS = (
    0.1  # for which what was refused keeps its place: an agent in a loop must not keep this process busy
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

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Refused(Exception):
    """The agent may not reach the host; `local`: it is this machine, or of a network around it."""

    def __init__(self, *, local: bool) -> None:
        super().__init__()
        self.local = local


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
    """What one agent may reach, by host and port, and how often it was refused other hosts, and which were local."""

    own: frozenset[tuple[str, int]] = frozenset()
    granted: frozenset[tuple[str, int]] = frozenset()
    internet: bool = False
    refused: Counter[tuple[str, bool]] = field(default_factory=Counter)

    @property
    def ports(self) -> dict[int, _Wanted | None]:
        """The ports to listen on inside, and where each leads: first the proxy's, then those of a local provider."""
        own = sorted(one for one in self.own if one[0] in _THIS_MACHINE and one[1] >= _LEAST_PORT)
        taken = {port for _, port in own}
        proxy = next(port for port in range(_PROXY_PORT, _PROXY_PORT + len(taken) + 1) if port not in taken)
        return {proxy: None, **{port: _Wanted(host, port) for host, port in own}}

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the proxy."""
        url = f"http://127.0.0.1:{next(iter(self.ports))}"
        return {**dict.fromkeys(_VARIABLES, url), "NO_PROXY": "", "no_proxy": "", "NODE_USE_ENV_PROXY": "1"}

    def check(self, host: str, port: int) -> bool:
        """Whether the host is the provider's, of which any address will do; raises _Refused for what is not allowed."""
        if (host, port) in self.own:
            return True
        if self.internet or (host, port) in self.granted:
            return False
        raise _Refused(local=_is_local(host))

    def count(self, host: str, *, local: bool) -> None:
        """Note that a connection was refused."""
        host = without_secrets(host)
        known = (host, local) in self.refused or len(self.refused) < _MAX_HOSTS
        self.refused[host if known else "others", local] += 1

    async def told(self, asking: Awaitable[Completion]) -> Completion:
        """Wait for an agent's answer; what it was refused is told in it, or behind the error."""
        try:
            return self._told(await asking)
        except (ModelError, ModelTimedOut) as failed:
            if failed.completion is not None:
                failed.completion = self._told(failed.completion)
            if self.refused and isinstance(failed, ModelError):
                hosts = ", ".join(host for (host, _), _ in self.refused.most_common(3))
                failed.args = (f"{failed} (it may not reach {hosts}; see docs/isolation.md)",)
            raise

    def _told(self, completion: Completion) -> Completion:
        refused = tuple(
            Refusals(host=host, connections=times, local=local)
            for (host, local), times in sorted(self.refused.items())
        )
        return completion.model_copy(update={"refused": refused}) if refused else completion


def network_of(settings: ModelSettings, request: Request, providers: Iterable[str]) -> AgentNetwork:
    """The network of an agent: its providers, by address (with a scheme) or as HOST[:PORT], and what is granted."""
    wished = request.task.network if request.task else ()
    network, hosts = allowed(settings.network, wished)
    return AgentNetwork(_places(providers), _places(hosts), network == "open")


def allowed(network: Network, hosts: Sequence[str]) -> tuple[Network, Sequence[str]]:
    """What a worker grants of what a run and a task ask to reach: all. The one place where it can say no."""
    return network, hosts


def _places(names: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Hosts with their ports, those of HTTP and HTTPS where none is named; what names no host is left out."""
    found = set()
    for name in names:
        with suppress(ValueError):
            parts = urlsplit(name if "://" in name else f"//{name}")
            ports = (
                [parts.port or _PORTS.get(parts.scheme)] if parts.port or parts.scheme else _PORTS.values()
            )
            found |= {(_plain(parts.hostname), port) for port in ports if parts.hostname and port}
    return frozenset(found)


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


class AgentProxy:
    """Serves the sockets of one agent's network until it is stopped."""

    def __init__(self, network: AgentNetwork, listening: Sequence[socket.socket]) -> None:
        self._network = network
        self._listening = listening
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        # Names that nobody answers for must not take the threads that the rest of this process needs.
        self._resolver = ThreadPoolExecutor(4, "resolve")
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
        self._resolver.shutdown(wait=False, cancel_futures=True)

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
            if answer := await self._answered(client, writer, always, writers):
                text = f"{answer} (uplift's proxy)\n"
                head = f"HTTP/1.1 {answer}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n{text}".encode())
            for one in writers:
                one.close()
            # Who does not read what it asked for must not have it kept here.
            async with asyncio.timeout(_CLOSE_SECONDS):
                for one in writers:
                    await one.wait_closed()
            await asyncio.sleep(_PAUSE_SECONDS if answer else 0)
        except OSError:  # who asked is gone, or does not read
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            for one in writers:
                one.transport.abort()

    async def _answered(
        self,
        client: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wanted: _Wanted | None,
        writers: list[asyncio.StreamWriter],
    ) -> str:
        """Serve one connection to its end; returns the status to answer with where it leads nowhere."""
        tunnel = wanted is None
        try:
            if wanted is None:
                async with asyncio.timeout(_HEAD_SECONDS):
                    wanted = _parsed(await client.readuntil(b"\r\n\r\n"))
            async with asyncio.timeout(_CONNECT_SECONDS):
                server, to_server = await self._connect(wanted)
        except _Refused as refused:
            self._network.count(wanted.host if wanted else "", local=refused.local)
            return "403 Forbidden"
        except (ValueError, asyncio.LimitOverrunError):
            return "400 Bad Request"
        except (OSError, EOFError):  # time-outs are among them
            return "502 Bad Gateway"
        writers.append(to_server)
        to_server.write(wanted.head)
        if tunnel and not wanted.head:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        ways = [asyncio.ensure_future(_copy(*way)) for way in ((client, to_server), (server, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        return ""

    async def _connect(self, wanted: _Wanted) -> _Streams:
        """Connect to a host, by the worker's own proxy where it has one for it; raises _Refused or OSError."""
        own = self._network.check(wanted.host, wanted.port)
        proxy = _upstream(wanted, "http" if wanted.head else "https")
        try:
            addresses = [] if own and proxy else await self._addresses(wanted)
        except OSError:
            if proxy is None:
                raise
            addresses = []  # where all goes through a proxy, names may be known to it alone
        if not own and not all(map(_is_internet, addresses)):
            raise _Refused(local=True)
        if proxy is not None:
            return await _through(proxy, wanted)
        problem: OSError = OSError("no address")
        for address in addresses:
            try:
                server, writer = await asyncio.open_connection(address, wanted.port)
            except OSError as failed:
                problem = failed
                continue
            ends = (writer.get_extra_info(end) for end in ("sockname", "peername"))
            here, there = (end[0] if end else None for end in ends)
            if not own and here == there:  # this machine, by an address that the internet knows
                writer.close()
                raise _Refused(local=True)
            return server, writer
        raise problem

    async def _addresses(self, wanted: _Wanted) -> list[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(address[0]) for *_, address in found))

        return await asyncio.get_running_loop().run_in_executor(self._resolver, look_up)


def _parsed(head: bytes) -> _Wanted:
    """What a request to a proxy asks for; raises ValueError where it is none."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.decode("ascii").split(" ")
    tunnel = method == "CONNECT"
    found = (_TUNNEL if tunnel else _PLAIN).fullmatch(target)
    if found is None or not re.fullmatch(r"HTTP/1\.[01]", version) or not method.isalpha():
        raise ValueError(target)
    host, port = _plain(found["six"] or found["name"]), int(found["port"] or 80)
    if not host or not 0 < port < 65536:
        raise ValueError(target)
    wanted = _Wanted(host, port)
    if tunnel:
        return wanted
    path = found["path"] or "/"
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OF_CONNECTION]
    request = f"{method} {path if path[0] == '/' else f'/{path}'} HTTP/1.1"
    own = [request, f"Host: {wanted.authority.removesuffix(':80')}", "Connection: close"]
    return replace(wanted, head=b"\r\n".join([*(line.encode() for line in own), *kept, b"", b""]))


def _upstream(wanted: _Wanted, scheme: Literal["http", "https"]) -> SplitResult | None:
    """The proxy by which the worker's environment sends such requests, if any."""
    if wanted.host in _THIS_MACHINE or proxy_bypass(f"{wanted.host}:{wanted.port}"):
        return None
    proxies = getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    return urlsplit(url if "://" in url else f"http://{url}") if url else None


async def _through(proxy: SplitResult, wanted: _Wanted) -> _Streams:
    """A tunnel through another proxy, which is asked for tunnels alone: a second request could be for another host."""
    if proxy.scheme not in _PORTS or proxy.hostname is None:
        raise OSError(f"proxies of the kind {proxy.scheme} are not supported")
    port, secure = proxy.port or _PORTS[proxy.scheme], proxy.scheme == "https"
    server, writer = await asyncio.open_connection(
        proxy.hostname, port, ssl=secure or None, limit=MAX_HEAD_BYTES
    )
    try:
        lines = [f"CONNECT {wanted.authority} HTTP/1.1", f"Host: {wanted.authority}"]
        if proxy.username is not None:
            known = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {b64encode(known.encode()).decode()}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await server.readuntil(b"\r\n\r\n")
        if not re.match(rb"HTTP/1\.\d 200\b", head):
            raise OSError("the worker's own proxy refuses")
    except BaseException:
        writer.close()
        raise
    return server, writer


def _is_local(host: str) -> bool:
    """Whether a host is this machine or an address of a network around it, as far as its name tells."""
    with suppress(ValueError):
        return not _is_internet(host)
    return host in _THIS_MACHINE


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

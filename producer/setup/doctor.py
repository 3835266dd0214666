"""Look whether everything is there that a run needs: what is set and from where, server, workers, sandbox, keys.

Nothing is changed and no key is ever shown. Each check says what was found and, where something is amiss, how
to mend it; a `warning` may be fine for what you have in mind, a `problem` is not.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

from producer.settings import config_file as configs
from producer.settings.config_file import Config
from producer.state_root import on_broker
from workers.models.choose import PROGRAMS, Need, needs
from workers.models.model import message
from workers.store import redis_client as servers
from workers.store.keys import PROTOCOL, InvalidBroker, checked_broker, redacted

Status = Literal["ok", "warning", "problem"]
LITTLE_DISK = 1024**3
NO_DISK = 200 * 1024**2
VERSION_SECONDS = 15
PINNED = ("celery", "kombu", "redis")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class ToldSetting:
    """A value in force, fit to be shown, and where it came from."""

    key: str
    value: str
    origin: str


def settings(config: Config) -> list[ToldSetting]:
    """Everything that is set, and the defaults that matter most."""
    origins = {**dict.fromkeys(("broker", "models", "state_root"), "default"), **config.origins}
    return [ToldSetting(key, _shown(config, key), origin) for key, origin in sorted(origins.items())]


def _shown(config: Config, key: str) -> str:
    if key == "broker":
        broker = config.values.broker
        return redacted(broker) if broker else "none: each run has a private server"
    if key == "models" and key not in config.raw:
        return ", ".join(config.values.models)
    table, _, inner = key.partition(".")
    value: Any = config.values.model_dump(mode="json", exclude_none=True).get(table)
    if inner:
        value = value[json.loads(inner) if inner.startswith('"') else inner]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def examine(config: Config, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """All checks, in the order in which people want them; some take a second."""
    values = config.values
    yield from _versions()
    for name, hint in configs.unknown_variables(environment).items():
        yield Check(name, "warning", "means nothing to uplift", f"unset it, or correct its name{hint}")
    yield from _state_root(values.state_root)
    if values.broker:
        yield from _broker(values.broker, insecure=values.insecure)
    else:
        yield _private_server()
    yield from _sandbox(config)
    # Workers elsewhere have programs, packages and keys of their own; a default may not be what is wanted.
    strict = not values.broker and "models" in config.raw
    for need in needs(values.models, values.settings, environment):
        yield _needed(need, "problem" if strict and need.vital else "warning")


def _needed(need: Need, lack: Status) -> Check:
    if need.met:
        found = f"{_told_version(need.found)} ({need.found})" if need.name in PROGRAMS else need.found
        return Check(need.name, "ok", found)
    if not need.wanted:
        return Check(need.name, "ok", f"{need.found}; not needed for these models")
    return Check(need.name, lack, need.found, need.remedy)


def _told_version(path: str) -> str:
    """What a program says of itself, on one line; it is started outside any project."""
    import subprocess

    try:
        said = subprocess.run(
            [path, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=os.path.sep,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not tell its version"
    return message(said.stdout.decode("utf-8", "replace"))[:80] or "does not tell its version"


def _versions() -> Iterator[Check]:
    import platform
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    yield Check("uplift", "ok", f"{version('skill-uplift')} on Python {platform.python_version()}")
    for text in requires("skill-uplift") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            found = "missing"
        if found == "missing" or not wanted.specifier.contains(found, prereleases=True):
            remedy = f"install {wanted.name}{wanted.specifier}: other versions were not tried"
            yield Check(wanted.name, "problem", found, remedy)
        elif wanted.name in PINNED:
            yield Check(wanted.name, "ok", f"{found} (needs {wanted.specifier})")


def _state_root(root: Path) -> Iterator[Check]:
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    try:
        if not there.is_dir():
            raise NotADirectoryError(20, "not a folder")
        with tempfile.TemporaryFile(dir=there):
            pass
        found = str(root) if there == root else f"{root}, which the first run will make"
        yield Check("state root", "ok", found)
    except OSError as problem:
        found = f"{root} cannot be written: {problem.strerror}"
        yield Check("state root", "problem", found, "give another with --state-root, or mend its rights")
        return
    free = shutil.disk_usage(there).free
    status: Status = "problem" if free < NO_DISK else "warning" if free < LITTLE_DISK else "ok"
    remedy = "" if status == "ok" else "make room: records, agents' workspaces and the server's log go there"
    yield Check("disk", status, f"{free / 1024**3:.1f} GiB free", remedy)


def _private_server() -> Check:
    import subprocess

    from producer.server import NoServer, server_binary

    try:
        binary = server_binary()
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except NoServer as problem:
        return Check("server", "problem", str(problem), "install redis or valkey, or give --broker URL")
    except (OSError, subprocess.SubprocessError) as problem:
        found = f"does not start: {problem}"
        return Check("server", "problem", found, "install another, or give --broker URL")
    words = " ".join(said.stdout.split()[:3])
    return Check("server", "ok", f"each run starts its own: {words} ({binary})")


def _broker(url: str, *, insecure: bool) -> Iterator[Check]:
    try:
        checked_broker(url, insecure=insecure)
    except InvalidBroker as problem:
        yield Check("server", "problem", str(problem), "correct the address")
        return
    client = servers.connect(url, timeout_seconds=5, retries=1)
    try:
        yield from _server(client, url)
    except redis.AuthenticationError:
        found = f"{redacted(url)} refuses the password"
        yield Check("server", "problem", found, "correct it in UPLIFT_BROKER")
    except redis.RedisError as problem:
        found = f"{redacted(url)} does not answer: {str(problem)[:200]}"
        yield Check("server", "problem", found, "start it, or correct the address")
    finally:
        client.close()


def _server(client: redis.Redis, url: str) -> Iterator[Check]:
    name = redacted(url)
    info: dict[str, Any] = client.info()
    version = str(info.get("redis_version", "0"))
    product = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    if servers.is_too_old(version):
        remedy = f"use Redis {servers.WANTED}, or Valkey: it is too old"
        yield Check("server", "problem", f"{product} at {name}", remedy)
        return
    yield Check("server", "ok", f"{product} at {name}")
    try:
        doubts = servers.check(client)
        yield Check("eviction", "ok", "none: the server keeps what it is given")
        kept = "runs survive a restart (appendonly yes)"
        remedy = "set appendonly yes" if doubts else ""
        yield Check("persistence", "warning" if doubts else "ok", doubts[0] if doubts else kept, remedy)
    except servers.UnusableServer as problem:
        yield Check("eviction", "problem", str(problem), "set maxmemory-policy noeviction")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and used > 0.8 * most:
        found = f"{used / most:.0%} of the server's maxmemory is used"
        remedy = f"raise maxmemory, or delete runs: {on_broker('uplift runs --delete RUN', url)}"
        yield Check("memory", "warning", found, remedy)
    workers = servers.workers(client)
    if workers:
        total = sum(int(one.get("slots", 0)) for one in workers)
        names = ", ".join(sorted(str(one.get("name")) for one in workers)[:5])
        yield Check("workers", "ok", f"{len(workers)} with {total} slots: {names}")
        others = any(one.get("protocol", 1) != PROTOCOL for one in workers)
        remedy = "start workers of this version, or use the version that they are of" if others else ""
        yield Check("versions", "warning" if others else "ok", servers.versions(workers), remedy)
        yield Check("serving", "ok", servers.serving(workers))
    else:
        remedy = f"start one with: {on_broker('uplift worker', url)}"
        yield Check("workers", "warning", "none answers", remedy)


def _sandbox(config: Config) -> Iterator[Check]:
    from judges.sandbox import command, limits

    wanted = config.values.sandbox
    if wanted == "off":
        remedy = "set sandbox to auto where suites are not all your own"
        yield Check("sandbox", "warning", "switched off", remedy)
        return
    lack: Status = "problem" if wanted == "required" else "warning"
    remedy = "install bubblewrap and allow user namespaces, see docs/deployment.md"
    for name, whose, lost in (
        ("agents", "agents", "run unconfined, with the worker's network"),
        ("sandbox", "judges that run code", "leave it the network and files"),
    ):
        tried = command.probe(for_agents=name == "agents")
        if tried.bubblewrap:
            yield Check(name, "ok", f"{whose} are confined by bubblewrap")
        else:
            yield Check(name, lack, f"{whose} {lost}: {tried.why_not}", remedy)
    if command.probe(for_agents=True).bubblewrap:
        yield Check("network", "ok", "agents reach their provider and what is granted, and nothing else")
    facts = command.facts_inside()
    if facts.get("NoNewPrivs") == "1":
        whom = "nobody" if tried.user else "a user of its own" if os.geteuid() == 0 else "your own user"
        yield Check("rights", "ok", f"confined code is {whom}, and cannot become another one")
    else:
        yield Check("rights", lack, "confined code may become other users", "use Linux")
    if facts.get("Seccomp") == "2":
        yield Check("system calls", "ok", "those that kernels are attacked by are forbidden")
    else:
        found = "all are allowed: no filter for this processor, or a kernel without filters"
        yield Check("system calls", "warning", found, "use Linux on x86_64 or aarch64")
    found = "none is delegated: files in memory (memfd) and agents' memory are not bounded, other memory is"
    if tried.bubblewrap and (place := limits.delegated()):
        more = ", processors" if "cpu" in (place / "cgroup.subtree_control").read_text().split() else ""
        found = f"memory and processes{more} of a sandbox are bounded in {place}"
    yield Check("cgroup", "ok", found)

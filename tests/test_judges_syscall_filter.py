"""Which system calls judged code may make: asked of the kernel from inside, and of the filter's own table."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_judging import WAYS, Way, a_suite, judged

from judges.inside import syscall_filter
from judges.sandbox import warm_pool

MACHINE = os.uname().machine
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not syscall_filter.table(MACHINE), reason="no filter for this machine"
)
CLONE_NEWUSER, CLONE_NEWNET, SIGCHLD = 0x10000000, 0x40000000, 17
# Calls that would work otherwise, or fail in another way, with arguments that do no harm where they work.
TRIED = {
    "ptrace": [0, 0, 0, 0],
    "process_vm_readv": ["PID", 0, 0, 0, 0, 0],
    "process_vm_writev": ["PID", 0, 0, 0, 0, 0],
    "pidfd_getfd": [-1, 0, 0],
    "kcmp": ["PID", "PID", 1, 0, 0],
    "keyctl": [0, -3, 0, 0, 0],
    "add_key": [0, 0, 0, 0, 0],
    "request_key": [0, 0, 0, 0],
    "io_uring_setup": [1, 0],
    "userfaultfd": [1],
    "bpf": [0, 0, 0],
    "perf_event_open": [0, 0, 0, 0, 0],
    "open_by_handle_at": [-1, 0, 0],
    "mount": [0, 0, 0, 0, 0],
    "umount2": [0, 0],
    "pivot_root": [0, 0],
    "move_mount": [-1, 0, -1, 0, 0],
    "fsopen": [0, 0],
    "open_tree": [-1, 0, 0],
    "unshare": [0],
    "setns": [-1, 0],
}
SCRIPT = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)

def told(number, *arguments):
    ctypes.set_errno(0)
    values = [ctypes.c_long(os.getpid() if one == "PID" else one) for one in arguments]
    outcome = libc.syscall(ctypes.c_long(number), *values)
    return errno.errorcode.get(ctypes.get_errno(), "?") if outcome == -1 else "worked"

def results():
    return {name: told(*call) for name, call in CALLS.items()}
"""


def numbers(machine: str) -> dict[str, int]:
    """The kernel's own list, where its headers are installed."""
    place = {
        "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "aarch64": "/usr/include/asm-generic/unistd.h",
    }[machine]
    if not Path(place).exists():
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(place).read_text())
    return {name: int(number) for name, number in found}


def calls() -> dict[str, list[object]]:
    column = 0 if MACHINE == "x86_64" else 1
    known = syscall_filter._FORBIDDEN
    found: dict[str, list[object]] = {name: [known[name][column], *rest] for name, rest in TRIED.items()}
    clone = syscall_filter._CLONE[column]
    found["clone with a user namespace"] = [clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0]
    found["clone with a network namespace"] = [clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0]
    found["clone3"] = [435, 0, 0]
    found["a vsock, which reaches the host of a virtual machine"] = [syscall_filter._SOCKET[column], 40, 1, 0]
    found["a socket of the kernel's cryptography"] = [syscall_filter._SOCKET[column], 38, 5, 0]
    if MACHINE == "x86_64":
        found["a call of the x32 kind"] = [0x40000000 + 39]
    return found


EXPECTED = {"clone3": "ENOSYS", "a call of the x32 kind": "ENOSYS"}


def expected(name: str) -> str:
    return EXPECTED.get(name, "EAFNOSUPPORT" if "socket" in name or "vsock" in name else "EPERM")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    yield
    warm_pool.close()


@pytest.mark.parametrize("way", WAYS)
async def test_judged_code_cannot_make_the_calls_that_kernels_are_attacked_by(
    tmp_path: Path, way: Way
) -> None:
    wanted = {name: expected(name) for name in calls()}
    code = f"CALLS = {calls()!r}\nWANTED = {wanted!r}\n{SCRIPT}\n"
    judgment = await judged(a_suite(tmp_path, code + "def test_it(): assert results() == WANTED\n"), way)
    assert judgment.passed, judgment.details


def test_some_of_these_calls_work_outside() -> None:
    # Or the test above would say nothing about the filter.
    some = {name: call for name, call in calls().items() if name in ("ptrace", "kcmp", "process_vm_readv")}
    script = f"CALLS = {some!r}\n{SCRIPT}\nprint(json.dumps(results()))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert "worked" in json.loads(told).values()


@pytest.mark.parametrize("way", WAYS)
async def test_ordinary_programs_run_under_the_filter(tmp_path: Path, way: Way) -> None:
    code = """
    import multiprocessing, socket, subprocess, sys, threading

    def square(x): return x * x

    def test_it():
        thread = threading.Thread(target=print)
        thread.start(); thread.join()
        assert subprocess.run(["/bin/sh", "-c", "echo a | cat"], capture_output=True).stdout == b"a\\n"
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            socket.socket(family).close()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(square, [2, 3]) == [4, 9]
    """
    judgment = await judged(a_suite(tmp_path, code), way)
    assert judgment.passed, judgment.details


# The table by itself, read as the kernel reads it, for the processor that this machine does not have too.

ALLOWED, ARM_32, I386 = 0x7FFF0000, 0x40000028, 0x40000003


def decided(machine: str, number: int, first: int = 0, architecture: int | None = None) -> int | str:
    """What the filter says to a call: run the program as the kernel would."""
    native = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    call = struct.pack("<iIQQ", number, architecture or native, 0, first)
    steps = list(struct.iter_unpack("HBBI", syscall_filter.table(machine)))
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", call, value)
            case 0x06:
                return value if value == ALLOWED else errno.errorcode[value & 0xFFFF]
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_the_kernels_and_nothing_else_is_forbidden(machine: str) -> None:
    listed = numbers(machine)
    forbidden = set(syscall_filter._FORBIDDEN) & set(listed)
    special = {"clone", "clone3", "socket"}
    for name, number in listed.items():
        if name not in special | {"syscalls", "arch_specific_syscall"}:
            assert decided(machine, number) == ("EPERM" if name in forbidden else ALLOWED), name
    assert len(forbidden) >= 25  # older headers do not know the newest calls
    assert decided(machine, listed["clone3"]) == "ENOSYS"
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decided(machine, listed["clone"], flag | SIGCHLD) == "EPERM"
    assert decided(machine, listed["clone"], 0x003D0F00) == ALLOWED  # a thread
    families = {family: decided(machine, listed["socket"], family) for family in range(46)}
    assert {family for family, answer in families.items() if answer == ALLOWED} == {1, 2, 10, 16}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("architecture", [ARM_32, I386])
def test_calls_of_other_architectures_do_not_exist(machine: str, architecture: int) -> None:
    assert decided(machine, 39, architecture=architecture) == "ENOSYS"


def test_other_processors_have_no_table() -> None:
    assert syscall_filter.table("riscv64") == b""

"""Forbid the system calls that kernels are attacked by, for this process and all that it starts, for good.

The kernel runs a small program of ours (seccomp, classic BPF) before each call. What is forbidden fails with EPERM,
and nothing is killed; `clone3` "does not exist" (ENOSYS), so that the C library takes `clone`, whose flags can be
seen. There are no sockets but Unix, internet and netlink ones: network namespaces do not hold all of the others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_ARCHITECTURES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column below, the kernel's name for it
_FORBIDDEN = {  # number on x86_64, number on aarch64
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_NEW_NAMESPACES = 0x7E020000
_SOCKET_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink
_OTHER_CALLS = 0x40000000  # of the x32 ABI, on x86_64
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets of what the kernel tells of a call
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 21, 22, 2


def install() -> None:
    """Install the filter; privileges must have been given up. Does nothing where no table or no such kernel exists."""
    program = table(os.uname().machine) if sys.platform == "linux" else b""
    libc = ctypes.CDLL(None, use_errno=True)
    if not program or libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return
    content = ctypes.create_string_buffer(program, len(program))
    told = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(content))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, told, 0, 0) != 0:
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # a kernel that is built without filters
            raise OSError(number, f"no filter for system calls: {os.strerror(number)}")


def table(machine: str) -> bytes:
    """The filter's program for a kind of processor; empty for one that we have no numbers for."""
    if machine not in _ARCHITECTURES:
        return b""
    column, native = _ARCHITECTURES[machine]
    no_such_call, not_allowed = _ERROR | errno.ENOSYS, _ERROR | errno.EPERM
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, native),
        (_RETURN, 0, 0, no_such_call),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _OTHER_CALLS),
        (_RETURN, 0, 0, no_such_call),
        (_IF_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, no_such_call),
    ]
    for numbers in _FORBIDDEN.values():
        steps += [(_IF_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, not_allowed)]
    steps += [
        (_IF_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, not_allowed),
        (_RETURN, 0, 0, _ALLOW),
        (_IF_EQUAL, 0, len(_SOCKET_FAMILIES) + 2, _SOCKET[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
    ]
    for left, family in enumerate(reversed(_SOCKET_FAMILIES)):
        steps.append((_IF_EQUAL, len(_SOCKET_FAMILIES) - left, 0, family))
    steps += [(_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)

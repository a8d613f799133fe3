"""Leaving a process only the system calls that reading, making and describing files takes (seccomp(2), filter mode).

For a process of one thread that has set ``no_new_privs`` and is about to read what it must not trust; threads it starts
later have the same filter, other processes it cannot start. What is not listed fails with ENOSYS, as on a kernel that
lacks it, which is what C libraries know how to do without. Called by the unpack process after ``confine``.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

import msgspec

from podkeep.base.errors import KernelCallError

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_CLONE_THREAD = 0x00010000

# struct seccomp_data (linux/seccomp.h): number, architecture, instruction pointer, arguments.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
# Instructions of the classic BPF machine (linux/bpf_common.h).
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
_MAX_INSTRUCTIONS = 255
"""A jump goes as far."""

# Numbers: arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h for arm64.
_X86_64_FILES = (
    *(0, 1, 2, 3, 4, 5, 6, 8, 17, 18, 19, 20, 21, 32, 40, 72, 74, 75, 76, 77, 79),  # read to getcwd
    *(83, 84, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 133),  # mkdir to mknod
    *(*range(188, 200), 217),  # extended attributes, getdents64
    *(257, 258, 259, 260, 262, 263, 264, 265, 266, 267, 268, 269, 280, 285, 292, 316, 326, 332),  # openat to statx
)
_X86_64_SELF = (
    *(7, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 60, 62, 63, 96, 98, 99, 102, 104, 107, 108, 131, 186, 201),
    *(202, 204, 218, 219, 228, 230, 231, 234, 271, 273, 302, 318, 324, 334),  # memory, signals, threads, time
)
_ARM64_FILES = (
    *(*range(5, 17), 17, 23, 24, 25, 33, 34, 35, 36, 37, 38, 45, 46, 47, 48, 52, 53, 54, 55, 56, 57, 61, 62),
    *(63, 64, 65, 66, 67, 68, 71, 78, 79, 80, 82, 83, 88, 166, 276, 285, 291),
)
_ARM64_SELF = (
    *(73, 93, 94, 96, 98, 99, 101, 113, 115, 123, 124, 128, 129, 131, 132, 134, 135, 139, 160, 165, 169, 172, 174),
    *(175, 176, 177, 178, 179, 214, 215, 216, 222, 226, 233, 261, 278, 283, 293),
)
_NEW = (437, 439, 452)
"""openat2, faccessat2 and fchmodat2, the same everywhere."""


class _Machine(msgspec.Struct, frozen=True, kw_only=True):
    """``audit`` is its ``AUDIT_ARCH_*`` (linux/audit.h), ``first_foreign`` where numbers of another ABI begin."""

    audit: int
    clone: int
    allowed: tuple[int, ...]
    first_foreign: int = 0x40000000


_MACHINES = {
    "x86_64": _Machine(audit=0xC000003E, clone=56, allowed=(*_X86_64_FILES, *_X86_64_SELF, *_NEW)),
    "aarch64": _Machine(audit=0xC00000B7, clone=220, allowed=(*_ARM64_FILES, *_ARM64_SELF, *_NEW)),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_LIBC = ctypes.CDLL(None, use_errno=True)
_prctl = _LIBC["prctl"]
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.POINTER(_Program), ctypes.c_ulong, ctypes.c_ulong)
_prctl.restype = ctypes.c_int


def allow_files_only() -> bool:
    """Let only files be worked on from now on; return whether it is so: not on machines without a table here.

    :raises KernelCallError: if the kernel refuses.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    instructions = _instructions(machine)
    program = _Program(len(instructions) // _INSTRUCTION.size, instructions)
    if _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == -1:
        raise KernelCallError(
            "prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)",
            ctypes.get_errno(),
            hint="a kernel with CONFIG_SECCOMP_FILTER is needed",
        )
    return True


def _instructions(machine: _Machine) -> bytes:
    """Return the filter: architecture, foreign numbers, threads, then what is allowed."""
    numbers = sorted(set(machine.allowed))
    # Behind the list: what was not found, then what was.
    refuse, allow = len(numbers) + 6, len(numbers) + 7
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        # Numbers mean other calls in another architecture's ABI (int 0x80): the list says nothing of them.
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        # x32 has the same AUDIT_ARCH as x86-64, and other meanings of the numbers from here on.
        (_AT_LEAST, refuse - 5, 0, machine.first_foreign),
        (_EQUAL, allow + 1 - 6, 0, machine.clone),
        *((_EQUAL, allow - position - 1, 0, number) for position, number in enumerate(numbers, 6)),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
        # clone(2): only threads, whose flags say so.
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    if len(code) > _MAX_INSTRUCTIONS:
        raise ValueError(f"{len(code)} instructions: too many for one jump")
    return b"".join(_INSTRUCTION.pack(*one) for one in code)

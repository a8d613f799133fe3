"""Tries from inside of a container to use what is the whole machine's; writes how each attempt ended as JSON.

``done``, or the name of the error. **Nothing changes on the machine, even if an attempt is allowed**: what is written
is what is there already, or the kernel finds the arguments invalid after it has looked at the caller's capabilities.
The numbers of system calls are those of x86_64. With ``--stay`` the program goes on until it gets SIGTERM.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outcomes import call, check, libc, outcome

ADJ_FREQUENCY, ADJ_SETOFFSET = 0x2, 0x100
USER_KEYRING, PROCESS_KEYRING = -4, -2
KEYCTL_LINK, KEYCTL_SEARCH, KEYCTL_READ = 8, 10, 11


def set_clock() -> None:
    """Move the clock by an offset that is none; who may not do that does not set it either."""
    timex = ctypes.create_string_buffer(256)
    struct.pack_into("I", timex, 0, ADJ_SETOFFSET)
    struct.pack_into("q", timex, 80, -1)  # time.tv_usec
    try:
        check(libc.adjtimex(timex))
    except PermissionError:  # so that this changes nothing
        time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME))


def adjust_clock() -> None:
    """Set the clock's frequency to what it is."""
    timex = ctypes.create_string_buffer(256)
    check(libc.adjtimex(timex))
    struct.pack_into("I", timex, 0, ADJ_FREQUENCY)
    check(libc.adjtimex(timex))


def make_device() -> None:
    """Make a node of /dev/null."""
    os.mknod("/tmp/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def use_ports() -> None:
    """Be allowed an I/O port, which only a delay is made with (ioperm(2) of port 0x80), and give it back."""
    call(173, 0x80, 1, 1)
    call(173, 0x80, 1, 0)


def load_module() -> None:
    """Load a module that is none, from memory."""
    call(175, b"no module", 9, b"")


def load_module_file() -> None:
    """Load a module that is none, from a file."""
    with Path(__file__).open("rb") as file:
        call(313, file.fileno(), b"", 0)


def swap_on() -> None:
    """Swap on what is not there."""
    check(libc.swapon(b"/no/such/file", 0))


def account() -> None:
    """Write records of all processes that end to a file that is not there."""
    check(libc.acct(b"/no/such/file"))


def kexec() -> None:
    """Load another kernel, with flags that do not exist."""
    call(246, 0, 0, None, 0xFFFF)


def read_kernel_log() -> None:
    """Read the kernel's log."""
    check(libc.klogctl(3, ctypes.create_string_buffer(4096), 4096))


def set_console_level() -> None:
    """Say what the kernel writes to the console, with a level that does not exist."""
    check(libc.klogctl(8, None, 0))


def fault_for_the_kernel() -> None:
    """Get a descriptor by which page faults of the kernel itself can be held up."""
    os.close(call(323, os.O_CLOEXEC))


def load_bpf() -> None:
    """Load a program of eBPF that does nothing: r0 = 0; exit."""
    instructions = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))
    name = ctypes.create_string_buffer(b"GPL")
    sched_cls = 3
    attributes = ctypes.create_string_buffer(128)
    struct.pack_into("IIQQ", attributes, 0, sched_cls, 2, ctypes.addressof(instructions), ctypes.addressof(name))
    os.close(call(321, 5, attributes, 128))  # BPF_PROG_LOAD


def _write_what_is_there(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, os.pread(fd, 4096, 0), 0)
    finally:
        os.close(fd)


def set_core_pattern() -> None:
    """Say which program gets the memory of programs that crash: the same as before."""
    _write_what_is_there("/proc/sys/kernel/core_pattern")


def set_sysctl() -> None:
    """Set what the machine does with memory: the same as before."""
    _write_what_is_there("/proc/sys/vm/swappiness")


def trigger_sysrq() -> None:
    """Open the file by which the machine can be made to crash, and write nothing."""
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))


def mount_disk() -> None:
    """Mount the file system of a disk, read-only."""
    Path("/tmp/disk").mkdir(exist_ok=True)
    check(libc.mount(os.environ["DISK"].encode(), b"/tmp/disk", b"ext4", 1, b""))
    check(libc.umount2(b"/tmp/disk", 0))


def open_by_handle() -> None:
    """Open a directory by its inode, whatever its path is (CVE-2014-3519)."""
    handle = ctypes.create_string_buffer(8 + 128)
    struct.pack_into("I", handle, 0, 128)
    mount_id = ctypes.create_string_buffer(4)
    here = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        call(303, here, b"", handle, mount_id, 0x1000)  # name_to_handle_at, AT_EMPTY_PATH
        os.close(call(304, here, handle, os.O_RDONLY))
    finally:
        os.close(here)


def find_key() -> None:
    """Read the key that the machine's root keeps in its keyring."""
    key = call(250, KEYCTL_SEARCH, USER_KEYRING, b"user", os.environ["KEY"].encode(), 0)
    call(250, KEYCTL_LINK, USER_KEYRING, PROCESS_KEYRING)  # a key is read by whoever has its keyring
    content = ctypes.create_string_buffer(16)
    if call(250, KEYCTL_READ, key, content, 16) != len(b"secret"):
        raise OSError(errno.EBADMSG, "")


ATTACKS: tuple[Callable[[], None], ...] = (
    set_clock,
    adjust_clock,
    make_device,
    use_ports,
    load_module,
    load_module_file,
    swap_on,
    account,
    kexec,
    read_kernel_log,
    set_console_level,
    fault_for_the_kernel,
    load_bpf,
    set_core_pattern,
    set_sysctl,
    trigger_sysrq,
    mount_disk,
    open_by_handle,
    find_key,
)


def _end(*_: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    print(json.dumps({attack.__name__: outcome(attack) for attack in ATTACKS}), flush=True)
    while "--stay" in sys.argv:
        signal.pause()

"""In a container: exchange, mount and write everything that can be reached, until SIGTERM or for a few seconds.

tamper.py SEED SECONDS CANARY TERMINATION_LOG DIRECTORY...

Links lead to CANARY, a path of the machine whose content must not change and must not be shown. With CAP_SYS_ADMIN it
mounts, and makes read-only mounts writable. It ends with a status made by chance.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2
MS_REMOUNT, MS_BIND, MS_REC, MNT_DETACH = 32, 4096, 16384, 2
S_IFCHR, MEMORY_DEVICE = 0o20000, 1
TEBIBYTE = 1 << 40
WRITES_S = 0.05

libc = ctypes.CDLL(None)
seed, seconds, canary, termination_log, *directories = sys.argv[1:]
rng = random.Random(f"{seed} {time.time_ns()}")

LINKS = (
    *(canary, f"{canary}/file", f"{canary}/directory/deep", "../" * 8 + canary.lstrip("/"), f"/proc/1/root{canary}"),
    *("/etc", "/", "..", "../..", ".", "..data", "/proc/self/root", "x" * 200, "/dev/zero", "/dev/stdin"),
)
NAMES = (
    *("..data", "..data_tmp", "..2026_01_01_00_00_00.1234567890abcdef", "key", "token", "ca.crt", "namespace"),
    *("labels", "annotations", "env", "a", "b", "a/b", "sub", "sub/deep", "file\udcff", "\n\x1b[31m"),
)
CONTENTS = (b"A=1\n", b"\0" * 5000, b"\xff\xfe", b"x" * 70_000, b"K='\"\n")
LINES = (
    *(b"x" * 20_000, b"\0\0\0\n", b"\n" * 1000, b"\r", b"\x1b[2J\x1b]0;x\x07\n", b"\xff\xfe\n", b"no newline"),
    b"2026-01-01T00:00:00.000000000Z stdout F forged\n",
)
MESSAGES = (b"x" * 10_000, b"\0", b"\x1b[31m\n", b"\xff")


def write_file(path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        os.write(file, rng.choice(CONTENTS))
        if rng.random() < 0.2:
            os.ftruncate(file, TEBIBYTE)
    finally:
        os.close(file)


def listen(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)


def change(directory: str) -> None:
    """Do one thing to a name of a directory, or make something and give it that name."""
    name = os.path.join(directory, rng.choice(NAMES))
    new = f"{name}.t{rng.randrange(3)}"
    either = rng.choice((name, new))
    here, there = os.fsencode(name), os.fsencode(directory)
    steps: tuple[Callable[[], object], ...] = (
        lambda: os.symlink(rng.choice(LINKS), new),
        lambda: os.mkfifo(new),
        lambda: os.mkdir(new),
        lambda: write_file(new),
        lambda: listen(new),
        lambda: os.mknod(new, S_IFCHR | 0o666, os.makedev(MEMORY_DEVICE, rng.choice((3, 5, 9)))),
        lambda: libc.renameat2(AT_FDCWD, here, AT_FDCWD, os.fsencode(new), RENAME_EXCHANGE),
        lambda: os.chmod(rng.choice((either, directory)), rng.choice((0, 0o777, 0o4777, 0o1777, 0o2777))),
        lambda: os.chown(either, rng.choice((0, 1000, 65534)), rng.choice((0, 1000)), follow_symlinks=False),
        lambda: os.unlink(either),
        lambda: os.rmdir(either),
        lambda: libc.mount(rng.choice((there, b"/etc", b"none")), here, None, MS_BIND | rng.choice((0, MS_REC)), None),
        lambda: libc.mount(b"none", here, b"tmpfs", 0, None),
        lambda: libc.umount2(here, MNT_DETACH),
        lambda: os.link(name, new),
        lambda: os.setxattr(name, "user.x", b"1"),
    )
    with suppress(OSError):
        rng.choice(steps)()
    with suppress(OSError):
        os.rename(new, name)


def write_log() -> None:
    os.write(rng.choice((1, 2)), rng.choice(LINES))


def write_message() -> None:
    Path(termination_log).write_bytes(rng.choice(MESSAGES))


def leave_message() -> None:
    """Do one thing to the file that the node reads when the container has ended."""
    path = os.fsencode(termination_log)
    steps: tuple[Callable[[], object], ...] = (
        write_message,
        lambda: os.truncate(path, rng.choice((0, TEBIBYTE))),
        lambda: os.chmod(path, rng.choice((0, 0o666))),
        lambda: os.unlink(path),
        lambda: libc.mount(b"none", path, b"tmpfs", 0, None),
        lambda: libc.umount2(path, MNT_DETACH),
    )
    rng.choice(steps)()


def again_and_again(step: Callable[[], object]) -> None:
    while True:
        with suppress(OSError):
            step()
        time.sleep(WRITES_S)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    for directory in directories:
        libc.mount(None, os.fsencode(directory), None, MS_REMOUNT | MS_BIND, None)
    for step in (write_log, leave_message):
        threading.Thread(target=again_and_again, args=[step], daemon=True).start()
    end = time.monotonic() + float(seconds) * rng.uniform(0.5, 1.5)
    for directory in itertools.cycle(directories):
        if time.monotonic() >= end:
            break
        for _ in range(20):
            change(directory)
        time.sleep(WRITES_S / 5)
    return rng.choice((0, 1, 137))


os._exit(main())

"""File systems of FUSE whose server answers nothing, or is gone, as a container with a volume may leave them.

Who asks one waits until the server ends; one without a server refuses everything with ENOTCONN, and one of another user
namespace with EACCES.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from support.waiting import TIMEOUT_S

Result = TypeVar("Result")

# linux/fuse.h
GETATTR, MKDIR, STATFS, OPENDIR, READDIR, RELEASEDIR, ACCESS = 3, 9, 17, 27, 28, 29, 34
_NO_ANSWER = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET
_ATTRIBUTES = struct.pack("=QIIQQQ36xII20x", 0, 0, 0, 1, 0, 0, 0o40777, 2)
_ANSWERS = {
    GETATTR: _ATTRIBUTES,
    STATFS: bytes(80),
    OPENDIR: bytes(16),
    READDIR: b"",
    RELEASEDIR: b"",
    ACCESS: b"",
}
"""Those of an empty directory; there is no other file."""


class Hanging:
    """One that is mounted at ``path`` and answers nothing but the first question."""

    def __init__(self, path: Path, options: str = "") -> None:
        self.path = path
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        mounts.mount("none", path, fstype="fuse", data=f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0{options}")
        # linux/fuse.h: fuse_init_out
        self.answer(self.question(), struct.pack("=IIIIHHII36x", 7, 31, 0, 0, 0, 0, 4096, 1))

    def question(self) -> bytes:
        """Return the next question, when somebody waits for the answer."""
        return os.read(self._fuse, 1 << 16)

    def answer(self, question: bytes, data: bytes = b"", *, error: int = 0) -> None:
        """Answer a question, with an error number if one is given."""
        header = struct.pack("=Ii8s", 16 + len(data), -error, question[8:16])
        os.write(self._fuse, header + data)

    async def asked(self) -> None:
        """Return when somebody waits for an answer."""
        # Not with a thread that reads: it would keep the device open, and who waits, when this gives up.
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._fuse, asked.set)
        try:
            await asyncio.wait_for(asked.wait(), TIMEOUT_S)
        finally:
            loop.remove_reader(self._fuse)

    def unasked(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` returns, which must ask nothing; if it does, it gets an error after a while."""
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(work)
            try:
                return future.result(TIMEOUT_S)
            finally:
                self.close()

    def close(self) -> None:
        """Unmount it, and end its server: who waits gets an error."""
        if self._fuse >= 0:
            mounts.unmount(self.path, lazy=True)
            os.close(self._fuse)
            self._fuse = -1


class Holding(Hanging):
    """One with nothing in its directory, which answers everything but one kind of question."""

    def __init__(self, path: Path, kind: int) -> None:
        super().__init__(path, ",allow_other")
        self._kind = kind
        self._held = threading.Event()
        self._closing = os.eventfd(0)
        os.set_blocking(self._fuse, False)
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    async def held(self) -> None:
        """Return when somebody waits for the answer."""
        assert await asyncio.to_thread(self._held.wait, TIMEOUT_S), "nobody asked"

    def close(self) -> None:
        if self._fuse >= 0:
            # A thread that reads keeps the device open, and who waits goes on waiting.
            os.eventfd_write(self._closing, 1)
            self._server.join()
            os.close(self._closing)
        super().close()

    def _serve(self) -> None:
        with suppress(OSError):  # it was unmounted
            while self._closing not in select.select([self._fuse, self._closing], [], [])[0]:
                try:
                    question = self.question()
                except BlockingIOError:  # who asked was killed meanwhile
                    continue
                (kind,) = struct.unpack_from("=I", question, 4)
                if kind == self._kind:
                    self._held.set()
                elif kind in _ANSWERS:
                    self.answer(question, _ANSWERS[kind])
                elif kind not in _NO_ANSWER:
                    self.answer(question, error=errno.ENOENT)


@contextmanager
def refusing(path: Path, userns: int, device: Path) -> Iterator[None]:
    """Mount one at ``path`` that root of a user namespace has made: root of the machine is refused with EACCES.

    :param device: a node of /dev/fuse that this root may open.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            try:
                libc.setns(userns, CloneFlag.NEWUSER)
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                libc.unshare(CloneFlag.NEWNS)
                fuse = os.open(device, os.O_RDWR)
                context = mounts.fsopen("fuse")
                for key, value in {"fd": fuse, "rootmode": "40000", "user_id": 0, "group_id": 0}.items():
                    mounts.fsconfig_string(context, key, str(value))
                mounts.fsconfig_flag(context, "allow_other")
                mounts.fsconfig_create(context)
                socket.send_fds(theirs, [b"made"], [mounts.fsmount(context), fuse])
            finally:
                os._exit(0)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 4, 2)
        os.waitpid(pid, 0)
    made, fuse = fds
    try:
        mounts.attach(made, path)
        yield
    finally:
        mounts.unmount(path, lazy=True)
        os.close(made)
        os.close(fuse)


@contextmanager
def dead(path: Path) -> Iterator[None]:
    """Mount one at ``path`` whose server has ended."""
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        mounts.mount("none", path, fstype="fuse", data=f"fd={fuse},rootmode=40000,user_id=0,group_id=0")
    finally:
        os.close(fuse)
    try:
        yield
    finally:
        mounts.unmount(path, lazy=True)

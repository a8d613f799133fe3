"""A process that mounts and unmounts tmpfs in a given mount namespace: what an agent does, or an administrator.

``python -m bench.mounter`` obeys lines ``mount PATH`` and ``unmount PATH`` and answers each with an empty line, or with
what went wrong. :class:`Mounter` starts it in the namespace of a process and speaks to it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from bench.hosts import command_in, module
from podkeep.base.errors import KernelCallError
from podkeep.kernel.mount import mounts


class Mounter(AbstractContextManager["Mounter"]):
    """Mounts in the mount namespace of process ``pid``; threads may share it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Mounter:
        command = command_in(self._pid, module("bench.mounter"))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.communicate()

    def mount(self, path: Path) -> None:
        """Mount an empty tmpfs at ``path``, which is made.

        :raises OSError: with what the kernel said.
        """
        self._ask("mount", path)

    def unmount(self, path: Path) -> None:
        """Unmount what is at ``path``, and remove the directory.

        :raises OSError: with what the kernel said.
        """
        self._ask("unmount", path)

    def _ask(self, verb: str, path: Path) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{verb} {path}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if answer != "\n":
            raise OSError(f"{verb} {path}: {answer.strip() or 'the process that mounts has ended'}")


def main() -> None:
    """Obey the lines on standard input until it ends."""
    for line in sys.stdin:
        verb, _, name = line.rstrip("\n").partition(" ")
        path = Path(name)
        try:
            if verb == "mount":
                path.mkdir()
                mounts.tmpfs(path, "mode=0777")
            else:
                mounts.unmount(path)
                path.rmdir()
        except (KernelCallError, OSError) as error:
            print(error, flush=True)
        else:
            print(flush=True)


if __name__ == "__main__":
    main()

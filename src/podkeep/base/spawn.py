"""Starting programs: the only place that does.

Programs are started with exec and nothing between fork and exec (no ``preexec_fn``: the server has threads),
every descriptor closed except those passed, and the command line kept in a form that can be pasted into a shell.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podkeep.base.errors import CommandFailed, DeadlineExceeded, NotFound


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What a finished program left: exit status (negative: the signal that ended it) and both outputs."""

    command: str
    returncode: int
    stdout: bytes
    stderr: bytes

    def check(self) -> Completed:
        """Return self.

        :raises CommandFailed: if the exit status is not 0.
        """
        if self.returncode != 0:
            raise CommandFailed(self.command, self.returncode, self.stderr.decode(errors="replace"))
        return self


def command_line(argv: Sequence[str]) -> str:
    """Return ``argv`` quoted so that it can be pasted into a shell."""
    return shlex.join(argv)


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    output: int | None = None,
) -> Completed:
    """Run a program to its end and return what it left; blocks the calling thread.

    :param timeout: seconds after which the program is killed.
    :param output: a descriptor for both outputs, which are not captured then: for a program that leaves a process
        behind which keeps them open.
    :raises NotFound: if the program does not exist.
    :raises DeadlineExceeded: if it did not finish in time.
    """
    command = command_line(argv)
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE if output is None else output,
            timeout=timeout,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            check=False,
        )
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot run `{command}`: {error}", hint="`podkeep doctor` lists the programs podkeep needs"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"`{command}` did not finish within {timeout:g} s and was killed") from error
    return Completed(command=command, returncode=done.returncode, stdout=done.stdout or b"", stderr=done.stderr or b"")


def start(argv: Sequence[str], *, pass_fds: Sequence[int] = (), cwd: str = "/") -> subprocess.Popen[bytes]:
    """Start a program of our own that serves until its owner goes; the caller waits for it.

    It is in a session of its own (Ctrl-C at a terminal does not reach it), reads nothing and writes to our stderr.

    :raises NotFound: if the program does not exist.
    """
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotFound(f"cannot run `{command_line(argv)}`: {error}") from error

"""One daemon of a node as its supervisor sees it: its process, what it writes, what it tells of itself.

Each daemon has a socket on which it says that it serves (systemd's protocol, ``base.service``), and a pipe for its
standard error. Does not own: when it is started or ended (``supervisor``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from podkeep.base import forks, service, spawn
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable
from podkeep.cli.core import supervised
from podkeep.cli.node.restarts import Reason, reason

WATCHDOG_S = 60
"""A daemon that has said once that it is alive, and not again for this long, is killed: it hangs."""
_HELD_LINES = 400
_LINE_BYTES = 16 << 10
_DATAGRAM_BYTES = 4096
_AT_ONCE = 64
"""Pieces read from one daemon before others have their turn."""


class Command(FrozenStruct, kw_only=True):
    """What starts a daemon. ``after``: names of those that must have served before it is started for the first time.

    With ``main`` that is called in a copy of this process, and nothing executed, as long as podkeep is what it was when
    this process began: after an update nothing old is to run beside what is imported later. ``prepare`` imports what a
    daemon that is not started at once needs.
    """

    name: str
    argv: Sequence[str]
    after: tuple[str, ...] = ()
    main: Callable[[], None] | None = None
    prepare: Callable[[], None] = lambda: None


class Output:
    """Relays lines of one daemon with its name in front; while it is told to hold, only the last ones are kept.

    :param write: writes one line, without its end.
    """

    def __init__(self, name: str, write: Callable[[str], None]) -> None:
        self._name = name
        self._write = write
        self._rest = b""
        self._held: deque[str] = deque(maxlen=_HELD_LINES)
        self.last: deque[str] = deque(maxlen=_HELD_LINES)
        """The last lines since the daemon was started."""
        self.holds = False

    def feed(self, data: bytes) -> None:
        """Take what the daemon wrote; of a line, only its first 16 KiB are kept."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        self._rest = rest[:_LINE_BYTES]

    def end(self) -> None:
        """Take the last line, which may have no end."""
        if self._rest:
            self._take(self._rest)
        self._rest = b""

    def release(self) -> None:
        """Relay what was held, and from now on everything."""
        self.holds = False
        while self._held:
            self._relay(self._held.popleft())

    def begin(self, *, hold: bool) -> None:
        """Begin anew with a new process."""
        self.holds = hold
        self._held.clear()
        self.last.clear()

    def _take(self, line: bytes) -> None:
        text = printable(line[:_LINE_BYTES].decode(errors="replace"))
        self.last.append(text)
        if self.holds:
            self._held.append(text)
        else:
            self._relay(text)

    def _relay(self, text: str) -> None:
        # Lines of JSON name their logger themselves, and are to stay JSON.
        self._write(text if text.startswith("{") else f"{self._name}: {text}")


class Child:
    """A daemon's running process.

    :param directory: where its socket is made; of root alone.
    """

    def __init__(self, command: Command, directory: Path, output: Output, environ: Mapping[str, str]) -> None:
        """Start it.

        :raises NotFound: if its program does not exist.
        :raises OSError: if the socket or the process cannot be made.
        """
        self.ready = False
        self.status = self.problem = ""
        self.alive_at: float | None = None
        """When it said last that it is alive (the clock of whoever reads); None: never."""
        self._output = output
        path = directory / f"{command.name}.notify"
        # Left by a supervisor that was killed; bind(2) takes no name that is there.
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._path = path
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            self._socket.bind(str(path))
            os.set_blocking(read, False)
            env = supervised.environment(environ, notify=str(path), watchdog_s=WATCHDOG_S)
            self._process: subprocess.Popen[bytes] | forks.Fork
            if command.main is not None and forks.is_same_installation():
                self._process = forks.start(command.main, stderr=write, env=env)
            else:
                self._process = spawn.start(command.argv, stderr=write, env=env)
            # By this descriptor it is waited for and signalled: never another process that has got its ID.
            self._pidfd = os.pidfd_open(self._process.pid)
        except BaseException:
            self._socket.close()
            os.close(read)
            raise
        finally:
            # As long as this process had it, too, reading would not come to an end with the daemon.
            os.close(write)
        self._stderr = read

    @property
    def pid(self) -> int:
        return self._process.pid

    def descriptors(self) -> tuple[int, int, int]:
        """Return what to wait for: its end, its messages, its output."""
        return self._pidfd, self._socket.fileno(), self._stderr

    def ended(self) -> bool:
        return self._process.poll() is not None

    def read_messages(self, now: float) -> bool:
        """Take what it says of itself; return whether it says for the first time that it serves."""
        was_ready = self.ready
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                break
            told = service.parse(data)
            if "STATUS" in told:
                self.status, self.problem = told["STATUS"], told.get(service.PROBLEM, "")
            if "WATCHDOG" in told:
                self.alive_at = now
            self.ready = self.ready or told.get("READY") == "1"
        return self.ready and not was_ready

    def read_output(self) -> bool:
        """Relay what it wrote; return whether more may come."""
        for _ in range(_AT_ONCE):
            try:
                data = os.read(self._stderr, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output.feed(data)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def hangs(self, now: float) -> bool:
        """Return whether it has said nothing for too long."""
        return self.alive_at is not None and now - self.alive_at > WATCHDOG_S

    def excuse(self, now: float) -> None:
        """Let its time begin anew, as nobody has listened to it until now."""
        if self.alive_at is not None:
            self.alive_at = now

    def close(self) -> Reason:
        """Take the rest of its output once it has ended, and return why it did."""
        self.read_output()
        self._output.end()
        self._socket.close()
        self._path.unlink(missing_ok=True)
        os.close(self._stderr)
        os.close(self._pidfd)
        return reason(self._output.last, self._process.wait())

"""The supervisor of a node's daemons: starts them, starts them again when they end, ends them in order.

One thread and no event loop: it waits for ends, messages and output of its daemons, and for signals, all in one poll.
Owns: the order of starting and stopping, and what is told of failures (each once). Does not own: the daemons' commands
(``command``), back-off (``restarts``), one process (``child``).
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from podkeep.base import service
from podkeep.base.errors import PodkeepError
from podkeep.cli.core import node_report as report
from podkeep.cli.node.child import Child, Command, Output
from podkeep.cli.node.restarts import Failures, Reason

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
"""How long a daemon may take to end; then it is killed."""
TELL_ANYWAY_S = 30.0
"""After this time the service manager is told that the node serves, also if a daemon cannot start: others do."""
_LONGEST_WAIT_S = 20.0
"""How long the supervisor waits at once: so often it looks for daemons that hang."""
_HELD_UP_S = _LONGEST_WAIT_S + 5.0
"""The supervisor was held up itself if it has not looked for so long: by a terminal or a journal that takes nothing,
for example. Its daemons may have been, too, as nobody took what they wrote."""
_STOPPING = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Daemon:
    """A daemon and what has become known of it."""

    command: Command
    output: Output
    child: Child | None = None
    has_served: bool = False
    failures: Failures = field(default_factory=Failures)
    restarts: int = 0
    due: float | None = None
    """When it is started; None: it runs, or waits for others."""
    ready_at: float | None = None
    since: float = 0.0
    """Of its state, seconds since 1970."""
    told: Reason | None = None
    """The reason that was told last, until it serves again."""
    had_served: bool = False
    """Whether it served before it ended for that reason."""
    hung: bool = False

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def state(self) -> str:
        if self.child is not None:
            return "ready" if self.child.ready else "starting"
        if self.due is None:
            return "stopped" if self.has_served else "waiting"
        return "failed" if self.failures.count else "waiting"

    def report(self) -> report.DaemonReport:
        reason = self.told or Reason("")
        return report.DaemonReport(
            name=self.name,
            state=self.state,
            pid=self.child.pid if self.child else 0,
            since=self.since,
            restarts=self.restarts,
            status=self.child.status if self.child else "",
            problem=self.child.problem if self.child else "",
            reason=reason.text,
            hint=reason.hint,
            had_served=self.had_served,
        )


class Supervisor:
    """Runs daemons until it is told to stop.

    :param run: directory for sockets and the report; of root alone.
    :param write: writes one line of a daemon's output.
    :param tell: what the report says beside the daemons.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        run: Path,
        write: Callable[[str], None],
        tell: report.NodeReport,
        environ: Mapping[str, str],
    ) -> None:
        self._daemons = [Daemon(command, Output(command.name, write)) for command in commands]
        self._run, self._tell, self._environ = run, tell, environ
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._is_stopping = False
        self._hangups = 0
        self._alive_at = 0.0
        self._looked_at = time.monotonic()
        self._told_manager = ""
        self._started_at = time.monotonic()

    def serve(self, when_stopped: Mapping[str, Callable[[], None]]) -> None:
        """Start all, keep them running until SIGTERM or SIGINT, and end them in the opposite order.

        SIGHUP is passed on to the runtime, which reads the configuration again.

        :param when_stopped: called by the name of the daemon that has just been stopped.
        """
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A signal that comes right before select(2) would otherwise be noticed up to 20 s later.
        previous = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: self._drain(wake_read))
        for number in (*_STOPPING, signal.SIGHUP):
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self._start_due()
            for daemon in self._daemons:
                daemon.command.prepare()
            while not self._stops:
                self._start_due()
                self._tell_manager()
                self._wait()
            service.stopping()
            self._stop_all(when_stopped)
        finally:
            self._kill_all()
            signal.set_wakeup_fd(previous)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)

    def _signalled(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self._hangups += 1
        else:
            self._stops += 1

    @staticmethod
    def _drain(descriptor: int) -> None:
        try:
            os.read(descriptor, 4096)
        except BlockingIOError:
            return

    def _wait(self, until: float | None = None) -> None:
        """Handle what happens until the next start is due, or for a while."""
        now = time.monotonic()
        dues = [daemon.due for daemon in self._daemons if daemon.due is not None]
        next_ = min((*dues, now + _LONGEST_WAIT_S, *(() if until is None else (until,))))
        for key, _ in self._selector.select(max(next_ - now, 0.0)):
            # What an earlier one of these has closed is no longer registered.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        self._end_hanging()
        while self._hangups:
            self._hangups -= 1
            self._pass_on_hangup()
        self._tell_alive()

    def _end_hanging(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        held_up = self._looked_at - before > _HELD_UP_S
        for daemon in self._daemons:
            if daemon.child is None or daemon.hung:
                continue
            if held_up:
                daemon.child.excuse(self._looked_at)
            elif daemon.child.hangs(self._looked_at):
                log.warning("%s does not answer any more: it is killed", daemon.name)
                daemon.hung = True
                daemon.child.send(signal.SIGKILL)

    def _tell_alive(self) -> None:
        pause, now = service.watchdog_seconds(), time.monotonic()
        if pause is not None and now - self._alive_at >= min(pause, _LONGEST_WAIT_S) / 2:
            self._alive_at = now
            service.alive()

    def _pass_on_hangup(self) -> None:
        for daemon in self._daemons:
            if daemon.name == "runtime" and daemon.child is not None:
                daemon.child.send(signal.SIGHUP)

    def _start_due(self) -> None:
        now = time.monotonic()
        served = {daemon.name for daemon in self._daemons if daemon.has_served}
        for daemon in self._daemons:
            if daemon.child is not None or not served.issuperset(daemon.command.after):
                continue
            if daemon.due is None or daemon.due <= now:
                self._start(daemon)

    def _start(self, daemon: Daemon) -> None:
        # What a daemon writes that fails like the last time is not worth reading again.
        daemon.output.begin(hold=bool(daemon.failures.count) and daemon.told is not None)
        daemon.restarts += bool(daemon.failures.count)
        daemon.due, daemon.ready_at, daemon.hung = None, None, False
        try:
            child = Child(daemon.command, self._run, daemon.output, self._environ)
        except (PodkeepError, OSError) as error:
            hint = error.hint if isinstance(error, PodkeepError) else ""
            self._failed(daemon, Reason(str(error), hint), None)
            return
        daemon.child, daemon.since = child, time.time()
        end, messages, output = child.descriptors()
        self._selector.register(end, selectors.EVENT_READ, lambda: self._ended(daemon))
        self._selector.register(messages, selectors.EVENT_READ, lambda: self._told(daemon))
        self._selector.register(output, selectors.EVENT_READ, lambda: self._wrote(daemon, output))
        self._publish()

    def _wrote(self, daemon: Daemon, descriptor: int) -> None:
        if daemon.child is not None and not daemon.child.read_output():
            self._selector.unregister(descriptor)

    def _told(self, daemon: Daemon) -> None:
        child = daemon.child
        if child is None:
            return
        before = child.status, child.problem
        if not child.read_messages(time.monotonic()):
            if (child.status, child.problem) != before:
                self._publish()
            return
        daemon.ready_at, daemon.since, daemon.has_served = time.monotonic(), time.time(), True
        child.read_output()
        daemon.output.release()
        if daemon.told is not None:
            log.info("%s serves again", daemon.name)
        daemon.told = None
        self._publish()

    def _ended(self, daemon: Daemon) -> None:
        child = daemon.child
        if child is None or not child.ended():
            return
        reason = self._close(daemon, child)
        if self._is_stopping:
            daemon.since = time.time()
            self._publish()
            return
        served = None if daemon.ready_at is None else time.monotonic() - daemon.ready_at
        self._failed(daemon, Reason("it did not answer any more") if daemon.hung else reason, served)

    def _close(self, daemon: Daemon, child: Child) -> Reason:
        for descriptor in child.descriptors():
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        daemon.child = None
        return child.close()

    def _failed(self, daemon: Daemon, reason: Reason, served_s: float | None) -> None:
        daemon.failures = daemon.failures.after(served_s)
        daemon.due, daemon.since = time.monotonic() + daemon.failures.delay_s, time.time()
        if reason != daemon.told:
            daemon.output.release()
            what = "cannot start" if served_s is None else "has ended"
            log.warning("%s %s: %s%s", daemon.name, what, reason.text, f" ({reason.hint})" if reason.hint else "")
            log.info("%s is started again, after 1 s at first and 30 s at most, until it serves", daemon.name)
        daemon.told, daemon.had_served = reason, served_s is not None
        self._publish()

    def _tell_manager(self) -> None:
        """Tell the service manager that all daemons serve, or after a while, which do not; and then what changes."""
        missing = [daemon.name for daemon in self._daemons if daemon.child is None or not daemon.child.ready]
        took = time.monotonic() - self._started_at
        text = not_serving(missing) or "all daemons serve"
        if self._told_manager:
            if text != self._told_manager:
                service.status(text)
                self._told_manager = text
            return
        if missing and took < TELL_ANYWAY_S:
            return
        self._told_manager = text
        log.info("%s after %.1f s: %s", "not ready" if missing else "ready", took, text)
        service.ready(text)

    def _publish(self) -> None:
        daemons = tuple(daemon.report() for daemon in self._daemons)
        try:
            report.write(self._run, report.with_daemons(self._tell, daemons))
        except OSError as error:
            log.warning("the state of the daemons cannot be written to %s: %s", self._run, error.strerror)

    def _stop_all(self, when_stopped: Mapping[str, Callable[[], None]]) -> None:
        asked, self._is_stopping = self._stops, True
        # The agent first, as it works on the others; the runtime last, so that pods can still be ended when asked for.
        for daemon in reversed(self._daemons):
            daemon.due = None
            if daemon.child is not None:
                log.info("stopping %s", daemon.name)
                self._stop(daemon, asked)
            if daemon.name in when_stopped:
                when_stopped[daemon.name]()

    def _stop(self, daemon: Daemon, asked: int) -> None:
        """End a daemon; kill it if it takes too long, or who asked for it asks again."""
        assert daemon.child is not None
        daemon.child.send(signal.SIGTERM)
        deadline, is_killed = time.monotonic() + STOP_TIMEOUT_S, False
        while daemon.child is not None:
            if not is_killed and (time.monotonic() >= deadline or self._stops > asked):
                log.warning("%s is killed: it did not end", daemon.name)
                daemon.child.send(signal.SIGKILL)
                is_killed = True
            self._wait(None if is_killed else deadline)

    def _kill_all(self) -> None:
        """Leave no daemon behind, whatever went wrong here."""
        for daemon in self._daemons:
            if daemon.child is not None:
                daemon.child.send(signal.SIGKILL)
                self._close(daemon, daemon.child)


def not_serving(names: Sequence[str]) -> str:
    """Return what to say of daemons that do not serve; nothing of none."""
    if not names:
        return ""
    *others, last = names
    return f"{', '.join(others)} and {last} do not serve" if others else f"{last} does not serve"

"""Verbs that go on for long, while the runtime that they ask is killed and started again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import forked
from support.cri import Pods, pod
from support.daemon import Daemon
from support.waiting import TIMEOUT_S


@contextmanager
def background(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a verb; at the end it is not waited for but ended."""
    with forked.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_log_is_followed_on(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    script = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo last"
    with own_daemon as daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        sandbox = pods.run(pod("web", log_directory=str(tmp_path)))
        container = pods.launch(sandbox, "sh", "-c", script, log_path="0.log")
        argv = daemon.command("logs", "-n", "tests", "-f", "web")
        with background(argv) as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == "first\n"
            daemon.kill()
            told = following.stderr.readline()
            assert told.startswith("podkeep: "), told
            assert told.endswith("; the log is followed on\n"), told
            daemon.start()
            pods.exec(container, "touch", "/tmp/go")
            out, err = following.communicate(timeout=TIMEOUT_S)
        assert (out, err, following.returncode) == ("last\n", "", 0)


def test_what_to_do_when_a_command_was_lost(own_daemon: Daemon, image: str) -> None:
    with own_daemon as daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        container = pods.launch(pods.run(pod("web")), "sleep", "2000")
        argv = daemon.command("exec", "-n", "tests", "web", "--", "sh", "-c", "echo started; exec sleep 1000")
        with background(argv) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "started\n"
            daemon.kill()
            out, err = running.communicate(timeout=TIMEOUT_S)
        assert (out, running.returncode) == ("", 1)
        said, hint = err.splitlines()
        assert said == "podkeep: the runtime closed the connection without a status"
        assert hint.startswith("hint: the runtime has ended (`podkeep status`)")
        assert "may still run in the container" in hint
        daemon.start()
        assert "sleep 1000" in pods.read(container, "ps"), "as the hint says"

"""Directories of logs that somebody else writes to: a pod with a hostPath there puts links where conmon writes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, Internal
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.process import procfs
from support.cri import Pods, error_of, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import wait_for

WRITES = ("sh", "-c", "while :; do echo x; sleep 0.01; done")


def reopen(container: str) -> api.ReopenContainerLogRequest:
    return api.ReopenContainerLogRequest(container_id=container)


def test_a_link_that_is_put_there_after_the_check(mortal: Mortal, tmp_path: Path) -> None:
    """The daemon is stopped between its look at the log and conmon's opening it."""
    pods = mortal.start(failpoints="container.log=stop")
    precious, logs = tmp_path / "precious", tmp_path / "logs"
    precious.write_text("kept")
    sandbox = pods.run(pod(log_directory=str(logs)))

    def exchange() -> None:
        pid = mortal.daemon.pid
        stopped = Path(f"/proc/{pid}/stat")
        wait_for(lambda: stopped.read_text().rpartition(")")[2].split()[0] == "T", "the daemon at its failpoint")
        (logs / "0.log").symlink_to(precious)
        os.kill(pid, signal.SIGCONT)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    try:
        error_of(lambda: pods.launch(sandbox, *WRITES, log_path="0.log"), Internal)
    finally:
        attacker.join()
    assert precious.read_text() == "kept"
    assert (logs / "0.log").is_symlink()


def test_a_link_where_conmon_opens_the_log_anew(daemon: Daemon, pods: Pods, tmp_path: Path) -> None:
    """conmon is told as the daemon tells it, after the link was put there: it wins every race."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    logs = tmp_path / "logs"
    container = pods.launch(pods.run(pod(log_directory=str(logs))), *WRITES, log_path="0.log")
    wait_for((logs / "0.log").read_text, "output")
    (logs / "0.log.tmp").symlink_to(precious)
    (logs / "0.log").rename(logs / "old.log")
    bundle = daemon.layout.bundle(container)
    conmon = procfs.identify(int((bundle / "conmon.pid").read_text()))
    (bundle / "ctl").write_text("2 0 0\n")
    wait_for(lambda: not procfs.alive(conmon) or (logs / "0.log").exists(), "conmon")
    assert precious.read_text() == "kept"


def test_a_pipe_where_conmon_opens_the_log_anew_keeps_no_container_from_ending(
    daemon: Daemon, pods: Pods, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    container = pods.launch(pods.run(pod(log_directory=str(logs))), *WRITES, log_path="0.log")
    wait_for((logs / "0.log").read_text, "output")
    os.mkfifo(logs / "0.log.tmp")
    bundle = daemon.layout.bundle(container)
    conmon = Path("/proc", (bundle / "conmon.pid").read_text(), "wchan")
    (bundle / "ctl").write_text("2 0 0\n")
    wait_for(lambda: conmon.read_text() in {"wait_for_partner", "fifo_open"}, "conmon at the pipe")
    pods.stop(container)
    status = pods.status(container)
    assert (status.state, status.reason) == (api.CONTAINER_EXITED, "ContainerStatusUnknown")


@pytest.mark.parametrize("link", [".", "ctr"])
def test_a_link_on_the_way_to_a_log(pods: Pods, tmp_path: Path, link: str) -> None:
    elsewhere, logs = tmp_path / "elsewhere", tmp_path / "logs"
    elsewhere.mkdir()
    sandbox = pods.run(pod(log_directory=str(logs)))
    if link == "ctr":
        logs.mkdir()
    (logs / link).symlink_to(elsewhere)
    message = error_of(lambda: pods.create(sandbox, log_path="ctr/0.log"), FailedPrecondition)
    assert "cannot be entered" in message
    assert os.listdir(elsewhere) == []


def test_a_directory_that_is_exchanged_for_a_link_before_a_log_is_opened_anew(
    daemon: Daemon, pods: Pods, tmp_path: Path
) -> None:
    elsewhere, logs = tmp_path / "elsewhere", tmp_path / "logs"
    elsewhere.mkdir()
    (elsewhere / "0.log.tmp").write_text("kept")
    container = pods.launch(pods.run(pod(log_directory=str(logs))), *WRITES, log_path="ctr/0.log")
    (logs / "ctr").rename(logs / "moved")
    (logs / "ctr").symlink_to(elsewhere)
    assert "cannot be entered" in error_of(
        lambda: pods.call("ReopenContainerLog", reopen(container)), FailedPrecondition
    )
    assert (elsewhere / "0.log.tmp").read_text() == "kept"
    assert os.listdir(elsewhere) == ["0.log.tmp"]


def test_conmon_lives_on_where_no_new_log_can_be_made(pods: Pods, tmp_path: Path) -> None:
    """It ends when it cannot open its log, and a container without it has no exit code."""
    logs = tmp_path / "logs"
    container = pods.launch(pods.run(pod(log_directory=str(logs))), *WRITES, log_path="0.log")
    (logs / "0.log").rename(logs / "old.log")
    (logs / "0.log.tmp").mkdir()
    assert "in the way" in error_of(lambda: pods.call("ReopenContainerLog", reopen(container)), FailedPrecondition)
    pods.stop(container)
    assert pods.status(container).exit_code == 137


def test_the_container_gets_no_descriptor_of_the_logs(pods: Pods, tmp_path: Path) -> None:
    container = pods.launch(pods.run(pod(log_directory=str(tmp_path))), log_path="0.log")
    # The OCI runtime has two of its own, closed as it executes the program.
    assert sorted(pods.read(pods.executed(container), "ls /proc/1/fd").split()) == ["0", "1", "2"]


def test_a_log_that_several_ask_to_be_opened_anew(daemon: Daemon, pods: Pods, tmp_path: Path) -> None:
    """Who limits logs and who rotates them know nothing of each other; conmon ends, or writes to a file without a name,
    if what it has just opened is taken away."""
    logs = tmp_path / "logs"
    container = pods.launch(pods.run(pod(log_directory=str(logs))), *WRITES, log_path="0.log")
    conmon = int((daemon.layout.bundle(container) / "conmon.pid").read_text())
    wait_for((logs / "0.log").read_text, "output")
    (logs / "0.log").rename(logs / "old.log")
    answers: list[Any] = []

    def ask() -> None:
        with Pods(str(daemon.socket), pods.image) as other:
            answers.extend(other.call_all([("ReopenContainerLog", reopen(container))]))

    def new_file() -> tuple[int, int]:
        info = (logs / "0.log.tmp").stat()
        return info.st_ino, info.st_ctime_ns

    first, second = threading.Thread(target=ask), threading.Thread(target=ask)
    os.kill(conmon, signal.SIGSTOP)
    try:
        first.start()
        wait_for((logs / "0.log.tmp").exists, "the file that conmon is to open")
        before = new_file()
        second.start()
        for _ in range(50):
            pods.call("Version", api.VersionRequest())
            assert new_file() == before
    finally:
        os.kill(conmon, signal.SIGCONT)
        first.join()
        second.join()
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    wait_for((logs / "0.log").read_text, "output in the new log")
    pods.stop(container)
    assert pods.status(container).exit_code == 137

"""Ends of containers: several requests to stop, starts that fail, lists of events in their order; a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from podkeep.base.ids import HandlerName
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from support.cri import HOUR_S, Pods, error_of, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import TIMEOUT_S, wait_for

STUBBORN = "trap 'echo asked' TERM; touch /ready; while :; do sleep 0.01; done"


def stubborn(pods: Pods, **fields: object) -> str:
    """Return a running container that says so when it is asked to end, and goes on."""
    sandbox = pods.run(pod(log_directory=str(fields.pop("logs", ""))))
    container = pods.launch(sandbox, "sh", "-c", STUBBORN, log_path="0.log")
    wait_for(lambda: pods.exec(container, "test", "-e", "/ready").exit_code == 0, "the trap")
    return container


def test_a_later_request_with_a_shorter_timeout_decides(pods: Pods, tmp_path: Path) -> None:
    container = stubborn(pods, logs=tmp_path)
    started = time.monotonic()
    requests = [
        ("StopContainer", api.StopContainerRequest(container_id=container, timeout=timeout))
        for timeout in (2 * HOUR_S, HOUR_S, 1)
    ]
    answers = pods.call_all(requests, timeout=TIMEOUT_S)
    assert all(isinstance(answer, api.StopContainerResponse) for answer in answers), answers
    assert time.monotonic() - started >= 1
    assert pods.status(container).exit_code == 137
    assert (tmp_path / "0.log").read_text().count("asked") == 1


def test_a_request_that_comes_again_does_not_send_the_signal_again(pods: Pods, tmp_path: Path) -> None:
    container = stubborn(pods, logs=tmp_path)
    request = api.StopContainerRequest(container_id=container, timeout=60)
    error_of(lambda: pods.call("StopContainer", request, timeout=1), DeadlineExceeded)
    pods.stop(container, timeout=1)
    assert pods.status(container).exit_code == 137
    assert (tmp_path / "0.log").read_text().count("asked") == 1


def test_a_forced_deletion_does_not_wait_for_a_stop(pods: Pods) -> None:
    container = stubborn(pods)
    requests = [
        ("StopContainer", api.StopContainerRequest(container_id=container, timeout=HOUR_S)),
        ("StopContainer", api.StopContainerRequest(container_id=container, timeout=0)),
        ("RemoveContainer", api.RemoveContainerRequest(container_id=container)),
    ]
    assert not [answer for answer in pods.call_all(requests, timeout=TIMEOUT_S) if isinstance(answer, Exception)]
    error_of(lambda: pods.status(container), NotFound)


def test_what_never_started_is_stopped_at_once(pods: Pods) -> None:
    container = pods.create(pods.run())
    pods.stop(container, timeout=HOUR_S)
    assert pods.status(container).state == api.CONTAINER_EXITED


def test_a_start_that_the_oci_runtime_refuses(pods: Pods, daemon: Daemon) -> None:
    container = pods.create(pods.run())
    # Without its state the OCI runtime knows nothing of the container.
    shutil.rmtree(daemon.layout.handler_root(HandlerName("crun")) / container)
    message = error_of(lambda: pods.start(container), Internal)
    status = pods.status(container)
    assert (status.state, status.exit_code, status.reason) == (api.CONTAINER_EXITED, 128, "StartError")
    assert status.message
    assert status.message in message


def test_a_container_that_is_killed_before_it_starts_is_no_defect(pods: Pods) -> None:
    """As by the limit of its pod's memory. The start may come before the kill, and before the runtime notices it."""
    sandbox = pods.run()
    for number in range(10):
        container = pods.create(sandbox, name=f"c{number}")
        os.kill(pods.host_pid(container), signal.SIGKILL)
        with suppress(FailedPrecondition):
            pods.start(container)
        assert pods.exited(container).exit_code in {128, 137}


def test_a_container_that_cannot_be_created_leaves_no_log(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    kept = tmp_path / "kept.log"
    kept.touch()
    for log in ("0.log", kept.name):
        error_of(lambda log=log: pods.create(sandbox, "/no/such/program", log_path=log), InvalidArgument)
    assert list(tmp_path.iterdir()) == [kept]


def test_programs_that_end_at_once_have_run(pods: Pods) -> None:
    sandbox = pods.run()
    for attempt in range(10):
        status = pods.exited(pods.launch(sandbox, "true", attempt=attempt))
        assert (status.exit_code, status.reason) == (0, "Completed")
        assert status.created_at <= status.started_at <= status.finished_at
    attempts = [item.metadata.attempt for item in pods.containers(pod_sandbox_id=sandbox)]
    assert attempts == list(range(10))


def test_a_log_goes_on_while_the_daemon_is_away(mortal: Mortal, tmp_path: Path) -> None:
    pods = mortal.start()
    log = tmp_path / "0.log"
    script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"
    container = pods.launch(pods.run(pod(log_directory=str(tmp_path))), "sh", "-c", script, log_path="0.log")

    def lines() -> list[int]:
        return [int(line.split()[3]) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    wait_for(lambda: log.exists() and len(lines()) > 5, "some output")
    mortal.daemon.kill()
    before = len(lines())
    wait_for(lambda: len(lines()) > before + 5, "output without a daemon")
    pods = mortal.start()
    pods.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=container))
    before = len(lines())
    wait_for(lambda: len(lines()) > before + 5, "output with another daemon")
    numbers = lines()  # read once: the container goes on
    assert numbers == list(range(1, len(numbers) + 1))
    assert pods.status(container).log_path == str(log)


def test_a_full_disk_is_said_and_survived(mortal: Mortal) -> None:
    root = mortal.daemon.layout.root
    root.mkdir(mode=0o711)
    mounts.tmpfs(root, "mode=711,size=48m")
    try:
        pods = mortal.start()
        container = pods.launch(pods.run(pod("before")))
        filler = root / "filler"
        with filler.open("wb") as file:
            subprocess.run(["cat", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)
        message = error_of(lambda: pods.run(pod("full")), ResourceExhausted)
        assert "hint" in message
        os.kill(pods.host_pid(container), 9)
        assert pods.exited(container).exit_code == 137, "its end is shown although it cannot be stored"
        filler.unlink()
        pods.remove_container(container)
        after = pods.launch(pods.run(pod("after")))
        assert pods.status(after).state == api.CONTAINER_RUNNING
        for sandbox in pods.sandboxes():
            pods.remove(sandbox.id)
    finally:
        mortal.daemon.stop()
        mounts.unmount(root, lazy=True)

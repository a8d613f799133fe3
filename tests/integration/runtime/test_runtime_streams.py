"""Standard streams in containers: nothing of the machine's, which the OCI runtime would give to the pod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, namespaces, pod
from support.waiting import wait_for

SHOW = "for n in 0 1 2; do stat -L -c '%d:%i' /proc/self/fd/$n; done"


def machines_null() -> str:
    status = os.stat("/dev/null")
    return f"{status.st_dev}:{status.st_ino}"


@pytest.mark.parametrize("user", [None, BLOCK])
@pytest.mark.parametrize("logs", [True, False])
def test_no_stream_is_the_machines_null_device(
    pods: Pods, tmp_path: Path, user: tuple[int, int, int] | None, logs: bool
) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path) if logs else "", options=namespaces(user=user, pid=api.POD)))
    container = pods.launch(sandbox, log_path="0.log" if logs else "")
    assert machines_null() not in pods.read(container, SHOW).split()
    for number in range(3):
        stream = os.stat(f"/proc/{pods.host_pid(container)}/fd/{number}")
        assert not os.path.samestat(stream, os.stat("/dev/null"))


@pytest.mark.parametrize("stdin", [False, True])
@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("user", [None, BLOCK])
def test_terminals_leave_the_machines_null_device_alone(
    pods: Pods, tmp_path: Path, user: tuple[int, int, int] | None, logs: bool, stdin: bool
) -> None:
    before = os.stat("/dev/null")
    assert (before.st_uid, before.st_gid) == (0, 0)
    sandbox = pods.run(pod(log_directory=str(tmp_path) if logs else "", options=namespaces(user=user)))
    security = {"run_as_user": api.Int64Value(value=7)}
    container = pods.launch(sandbox, tty=True, stdin=stdin, log_path="0.log" if logs else "", security=security)
    assert machines_null() not in pods.read(container, SHOW).split()
    after = os.stat("/dev/null")
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


def test_a_container_without_stdin_reads_its_end_and_goes_on(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    script = "read line; echo $?; read line; echo $?; sleep 1000"
    pods.launch(sandbox, "sh", "-c", script, log_path="0.log")
    log = tmp_path / "0.log"
    wait_for(lambda: log.exists() and log.read_text().count(" F 1\n") == 2, "two ends of the input")

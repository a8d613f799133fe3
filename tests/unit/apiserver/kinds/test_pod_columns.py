"""What ``kubectl get pods`` shows; the rows are those of kube-apiserver's printers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from unit.apiserver.kinds.pod_steps import POD, PODS, changed

Values = dict[str, Any]
NOW = datetime(2026, 11, 23, 7, 0, 0, tzinfo=UTC)


def container(name: str = "web", *, ready: bool = True, restarts: int = 0, last: str = "", **state: Any) -> Values:
    found: Values = {"name": name, "ready": ready, "restartCount": restarts, "state": state}
    if last:
        found["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": last}}
    return found


def cells(**changes: Any) -> list[Any]:
    pod = changed(POD, {"metadata.creationTimestamp": "2026-11-23T06:00:00Z", "status.phase": "Running"})
    pod = changed(pod, {name.replace("__", "."): value for name, value in changes.items()})
    return [column.cell(pod, NOW) for column in PODS.columns]


RUNNING = {"startedAt": "2026-11-23T06:00:00Z"}
INIT = [{"name": "i", "image": "i"}, {"name": "j", "image": "i"}]
SIDECAR = [{"name": "s", "image": "i", "restartPolicy": "Always"}]
READY = [{"type": "Ready", "status": "True"}]
TWO = [{"name": "web", "image": "i"}, {"name": "b", "image": "i"}]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"status__phase": "Pending"}, ("0/1", "Pending", "0")),
        ({"status__phase": "Failed", "status__reason": "Evicted"}, ("0/1", "Evicted", "0")),
        (
            {
                "status__phase": "Pending",
                "status__conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            },
            ("0/1", "SchedulingGated", "0"),
        ),
        ({"status__containerStatuses": [container(running=RUNNING)]}, ("1/1", "Running", "0")),
        (
            {"status__containerStatuses": [container(restarts=3, last="2026-11-23T06:58:00Z", running=RUNNING)]},
            ("1/1", "Running", "3 (2m ago)"),
        ),
        ({"status__containerStatuses": [container(restarts=3, running=RUNNING)]}, ("1/1", "Running", "3")),
        (
            {"status__containerStatuses": [container(ready=False, waiting={"reason": "CrashLoopBackOff"})]},
            ("0/1", "CrashLoopBackOff", "0"),
        ),
        (
            {"status__containerStatuses": [container(ready=False, terminated={"exitCode": 3, "reason": "Error"})]},
            ("0/1", "Error", "0"),
        ),
        (
            {"status__containerStatuses": [container(ready=False, terminated={"exitCode": 3})]},
            ("0/1", "ExitCode:3", "0"),
        ),
        (
            {"status__containerStatuses": [container(ready=False, terminated={"exitCode": 3, "signal": 9})]},
            ("0/1", "Signal:9", "0"),
        ),
        (
            {
                "status__phase": "Succeeded",
                "status__containerStatuses": [
                    container(ready=False, terminated={"exitCode": 0, "reason": "Completed"})
                ],
            },
            ("0/1", "Completed", "0"),
        ),
        (
            {
                "spec__containers": TWO,
                "status__conditions": READY,
                "status__containerStatuses": [
                    container(ready=False, terminated={"exitCode": 0, "reason": "Completed"}),
                    container("b", running=RUNNING),
                ],
            },
            ("1/2", "Running", "0"),
        ),
        (
            {
                "spec__containers": TWO,
                "status__containerStatuses": [
                    container(ready=False, terminated={"exitCode": 0, "reason": "Completed"}),
                    container("b", running=RUNNING),
                ],
            },
            ("1/2", "NotReady", "0"),
        ),
        (
            {
                "spec__containers": TWO,
                "status__containerStatuses": [
                    container(ready=False, terminated={"exitCode": 0, "reason": "Completed"}),
                    container("b", ready=False, terminated={"exitCode": 1, "reason": "Error"}),
                ],
            },
            ("0/2", "Error", "0"),
        ),
        (
            {"spec__initContainers": INIT, "status__initContainerStatuses": [container("i", running=RUNNING)]},
            ("0/1", "Init:0/2", "0"),
        ),
        (
            {
                "spec__initContainers": INIT,
                "status__initContainerStatuses": [
                    container("i", terminated={"exitCode": 0}),
                    container("j", ready=False, restarts=2, waiting={"reason": "ImagePullBackOff"}),
                ],
            },
            ("0/1", "Init:ImagePullBackOff", "2"),
        ),
        (
            {
                "spec__initContainers": INIT,
                "status__initContainerStatuses": [container("i", waiting={"reason": "PodInitializing"})],
            },
            ("0/1", "Init:0/2", "0"),
        ),
        (
            {
                "spec__initContainers": INIT,
                "status__initContainerStatuses": [container("i", ready=False, terminated={"exitCode": 2})],
            },
            ("0/1", "Init:ExitCode:2", "0"),
        ),
        (
            {
                "spec__initContainers": INIT,
                "status__initContainerStatuses": [
                    container("i", ready=False, terminated={"exitCode": 2, "reason": "Error"})
                ],
            },
            ("0/1", "Init:Error", "0"),
        ),
        (
            {
                "spec__initContainers": SIDECAR,
                "status__initContainerStatuses": [
                    {**container("s", restarts=1, last="2026-11-23T06:59:00Z", running=RUNNING), "started": True}
                ],
                "status__containerStatuses": [container(restarts=1, last="2026-11-23T05:00:00Z", running=RUNNING)],
            },
            ("2/2", "Running", "2 (60s ago)"),
        ),
        (
            {"metadata__deletionTimestamp": "2026-11-23T07:00:00Z"},
            ("0/1", "Terminating", "0"),
        ),
        (
            {"metadata__deletionTimestamp": "2026-11-23T07:00:00Z", "status__reason": "NodeLost"},
            ("0/1", "Unknown", "0"),
        ),
        (
            {"metadata__deletionTimestamp": "2026-11-23T07:00:00Z", "status__phase": "Succeeded"},
            ("0/1", "Succeeded", "0"),
        ),
    ],
)
def test_rows(changes: Values, row: tuple[str, str, str]) -> None:
    assert cells(**changes)[:5] == ["web", *row, "60m"]


def test_the_columns_of_wide_output() -> None:
    assert [(column.name, column.priority, column.type, column.format) for column in PODS.columns] == [
        ("Name", 0, "string", "name"),
        ("Ready", 0, "string", ""),
        ("Status", 0, "string", ""),
        ("Restarts", 0, "string", ""),
        ("Age", 0, "string", ""),
        ("IP", 1, "string", ""),
        ("Node", 1, "string", ""),
        ("Nominated Node", 1, "string", ""),
        ("Readiness Gates", 1, "string", ""),
    ]
    assert cells()[5:] == ["<none>"] * 4
    gates = [{"conditionType": "a"}, {"conditionType": "b"}, {"conditionType": "c"}]
    conditions = [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}]
    wide = cells(
        spec__nodeName="n",
        spec__readinessGates=gates,
        status__podIP="10.0.0.1",
        status__nominatedNodeName="m",
        status__conditions=conditions,
    )
    assert wide[5:] == ["10.0.0.1", "n", "m", "1/3"]

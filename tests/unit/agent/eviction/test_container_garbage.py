"""Which containers that have ended are removed, and whose logs a directory has."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.agent.convert import names
from podkeep.agent.events import Event
from podkeep.agent.eviction.containers import ContainerGarbage, EndedContainer, Policy, excess, log_of, uid_of_logs
from podkeep.agent.poddirs import PodDirs
from podkeep.base.config import AgentConfig
from podkeep.base.errors import Internal
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

NOW = 1000.0


def dead(*specs: str) -> list[EndedContainer]:
    """Return containers from ``pod/name@seconds``."""
    found = []
    for spec in specs:
        unit, _, second = spec.partition("@")
        pod, _, name = unit.partition("/")
        found.append(EndedContainer(id=spec, pod=pod, name=name, created_at=int(float(second) * 1e9)))
    return found


@pytest.mark.parametrize(
    ("given", "policy", "expected"),
    [
        (["a/x@1", "a/x@2", "a/y@3", "b/x@4"], Policy(), ["a/x@1"]),
        (["a/x@1", "a/x@2", "a/x@3"], Policy(per_container=2), ["a/x@1"]),
        (["a/x@1", "a/x@2"], Policy(per_container=-1), []),
        (["a/x@1"], Policy(per_container=0), ["a/x@1"]),
        # What is young is neither removed nor counted.
        (["a/x@950", "a/x@990", "a/x@1"], Policy(min_age=100), []),
        (["a/x@990", "a/x@1", "a/x@2"], Policy(min_age=100), ["a/x@1"]),
        # One of each stays as long as there is room, else the oldest of all go.
        (["a/x@1", "a/x@2", "a/x@3", "b/x@4"], Policy(per_container=-1, in_all=2), ["a/x@1", "a/x@2"]),
        (["a/x@1", "b/x@2", "c/x@3"], Policy(in_all=2), ["a/x@1"]),
        (["a/x@1", "b/x@2"], Policy(in_all=0), ["a/x@1", "b/x@2"]),
        ([], Policy(in_all=0), []),
    ],
)
def test_what_is_too_much(given: list[str], policy: Policy, expected: list[str]) -> None:
    assert sorted(item.id for item in excess(dead(*given), policy, now=NOW)) == expected


def test_nothing_is_kept_of_a_pod_that_has_ended_when_disk_is_scarce() -> None:
    found = excess(dead("a/x@999", "b/x@1"), Policy(min_age=100), now=NOW, all_of=lambda uid: uid == "a")

    assert [item.id for item in found] == ["a/x@999"]


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        ("default_web_1234-5", "1234-5"),
        ("kube-system_proxy.a_b", "b"),
        ("default_web", ""),
        ("default__1", ""),
        ("_web_1", ""),
        ("default_web_..", ""),
        ("lost+found", ""),
    ],
)
def test_whose_logs_a_directory_has(name: str, uid: str) -> None:
    assert uid_of_logs(name) == uid


def test_the_last_attempt_stays_when_the_clock_was_set_back() -> None:
    """Its log, and not one of before, is what `kubectl logs --previous` shows."""
    attempts = [
        EndedContainer(id=str(number), pod="a", name="x", created_at=int(second * 1e9), attempt=number)
        for number, second in ((0, 3600.0), (1, 3700.0), (2, 100.0))
    ]
    assert {item.id for item in excess(attempts, Policy(), now=200.0)} == {"0", "1"}


def test_what_was_made_in_the_future_is_not_young() -> None:
    attempts = [
        EndedContainer(id=str(number), pod="a", name="x", created_at=int(9e12), attempt=number) for number in (0, 1)
    ]
    assert [item.id for item in excess(attempts, Policy(min_age=60), now=200.0)] == ["0"]


@pytest.mark.parametrize(
    ("namespace", "pod", "name", "log"),
    [
        ("default", "web", "main", "default_web_1/main/3.log"),
        ("default", "web", "..", ""),
        ("default", "web", "", ""),
        ("default", "web", "../../../etc", ""),
        ("..", "/../..", "main", ""),
        ("default", "we\0b", "main", ""),
    ],
)
def test_no_name_leads_out_of_the_directory_of_logs(namespace: str, pod: str, name: str, log: str) -> None:
    labels = {names.POD_NAMESPACE: namespace, names.POD_NAME: pod, names.POD_UID: "1"}
    metadata = api_pb2.ContainerMetadata(name=name, attempt=3)
    assert log_of(api_pb2.Container(labels=labels, metadata=metadata)) == log


def test_a_collection_that_fails_is_an_event_of_the_node(tmp_path: Path) -> None:
    """Each time, as with a kubelet; the recorder counts them."""
    said: list[Event] = []

    async def refuse(_: object) -> None:
        raise Internal("no list today")

    async def work() -> None:
        async with talking(tmp_path / "s", runtime={"ListContainers": refuse}) as client:
            agent = AgentConfig(root=str(tmp_path), pod_logs=str(tmp_path / "logs"))
            garbage = ContainerGarbage(
                client=client,
                agent=agent,
                dirs=PodDirs(tmp_path, "/run/socket"),
                knows=lambda _: True,
                ended=lambda _: False,
                report=said.append,
            )
            await garbage.attempt()

    run(work())
    assert [(event.type, event.reason) for event in said] == [("Warning", "ContainerGCFailed")]
    assert "no list today" in said[0].message

"""Class resources over CRI: what is offered, what is shown, which annotations count."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PermissionDenied, PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support.class_types import ClassTypes, container_classes, in_force, pod_classes
from support.cri import Pods, error_of, pod
from support.daemon import Daemon
from support.registry import Registry
from support.resctrl.fixture import Mount, sharing
from support.resctrl.mount import Resctrl
from support.waiting import wait_for

RDT = """
partitions:
  all:
    l3Allocation: "100%"
    classes:
      gold:
        l3Allocation: "100%"
      silver:
        l3Allocation: "50%"
      shy:
        l3Allocation: "20%"
        kubernetes:
          denyPodAnnotation: true
"""
OF_POD = "rdt.resources.beta.kubernetes.io/pod"
OF_ONE = "rdt.resources.beta.kubernetes.io/container.main"
OF_CONTAINER = "io.kubernetes.cri.rdt-class"


@pytest.fixture(scope=sharing)
def rdt(shared_resctrl: Mount) -> Resctrl:
    """A resctrl file system."""
    return shared_resctrl()


@pytest.fixture(scope=sharing)
def classed(open_directory: Path, registry: Registry, image: str, rdt: Resctrl) -> Iterator[Daemon]:
    """A daemon with the types of support/class_types.py and rdt."""
    base = open_directory / f"class-cri-{os.urandom(3).hex()}"
    base.mkdir()
    file = base / "rdt.yaml"
    file.write_text(RDT)
    types = ClassTypes.make(base).toml(more=f'rdt_config = "{file}"\nresctrl = "{rdt.path}"\n')
    with Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n{types}') as daemon:
        with Pods(daemon.socket, image) as client:
            client.pull()
        yield daemon


@pytest.fixture
def daemon(classed: Daemon) -> Iterator[Daemon]:
    """The daemon; fails a test that leaves something behind."""
    before = classed.resources().after_a_restart()
    yield classed
    assert classed.resources().after_a_restart() == before


@pytest.fixture
def pods(daemon: Daemon, image: str) -> Iterator[Pods]:
    """A client that removes its pods."""
    with Pods(daemon.socket, image) as client:
        yield client


Offered = dict[str, tuple[set[str], bool, str]]


def offered(pods: Pods) -> tuple[Offered, Offered]:
    """Return what is offered to containers, and to pods: types to classes, whether they are immutable, the default."""
    resources = pods.call("Status", api.StatusRequest()).status.resources

    def of(items: Any) -> Offered:
        return {item.Name: ({each.Name for each in item.classes}, item.immutable, item.default_class) for item in items}

    return of(resources.container_class_resources), of(resources.pod_class_resources)


QOS_CLASSES = {"BestEffort", "Burstable", "Guaranteed"}


@pytest.mark.requirement("Q6", "Q11", "Q13", "Q14", "Q79")
def test_what_is_offered(pods: Pods, daemon: Daemon) -> None:
    containers, of_pods = offered(pods)
    assert containers == {
        "bolted": ({"iron", "steel"}, True, ""),
        "oom": ({"low", "high"}, False, ""),
        "qos": (QOS_CLASSES, False, ""),
        "rdt": ({"gold", "silver", "shy"}, False, ""),
        "share": ({"big", "small"}, False, "small"),
        "watched": ({"good", "bad", "fine", "weak"}, False, ""),
    }
    assert of_pods == {
        "bolted": ({"iron", "steel"}, True, ""),
        "qos": (QOS_CLASSES, False, "BestEffort"),
        "share": ({"big", "small"}, False, ""),
        "watched": ({"good", "bad", "fine", "weak"}, False, ""),
    }


@pytest.mark.requirement("Q11", "Q37")
def test_a_reload_changes_what_is_offered(pods: Pods, daemon: Daemon) -> None:
    assert offered(pods)[0]["rdt"][0] == {"gold", "silver", "shy"}
    file = daemon.base / "rdt.yaml"
    assert daemon.process is not None
    for name in ("bronze", "silver"):
        file.write_text(RDT.replace("silver:", f"{name}:"))
        daemon.process.send_signal(signal.SIGHUP)
        classes = {"gold", name, "shy"}
        wait_for(functools.partial(is_offered, pods, classes), "the new classes")


def is_offered(pods: Pods, classes: set[str]) -> bool:
    return offered(pods)[0]["rdt"][0] == classes


@pytest.mark.requirement("Q15")
def test_verbose_status_shows_what_is_in_force(pods: Pods, daemon: Daemon) -> None:
    config = pod()
    config.class_resources.CopyFrom(pod_classes(qos="default", bolted="iron"))
    sandbox = pods.run(config)
    container = pods.launch(sandbox, class_resources=container_classes(rdt="gold", share="default"))
    assert in_force(pods, container=container) == {"rdt": "gold", "share": "small"}
    assert in_force(pods, sandbox=sandbox) == {"qos": "BestEffort", "bolted": "iron"}
    request = api.ContainerStatusRequest(container_id=container, verbose=True)
    record = json.loads(pods.call("ContainerStatus", request).info["info"])["record"]
    assert record["config"]["class_resources"] == {"rdt": "gold", "share": "default"}
    without = pods.launch(sandbox, name="without")
    assert in_force(pods, container=without) == {}
    status = pods.call("Status", api.StatusRequest(verbose=True))
    described = json.loads(status.info["classResources"])
    assert {"qos", "oom", "rdt", "share", "bolted", "watched"} <= set(described)
    assert "blockio is disabled" in json.dumps(described["blockio"])


@pytest.mark.requirement("Q3", "Q10")
def test_the_class_of_a_pod_is_no_default_of_its_containers(pods: Pods, daemon: Daemon) -> None:
    config = pod()
    config.class_resources.CopyFrom(pod_classes(share="big"))
    container = pods.launch(pods.run(config))
    assert in_force(pods, container=container) == {}


REFUSED: list[tuple[dict[str, str], type[PodkeepError], str]] = [
    ({"rdt": "gold"}, InvalidArgument, "class resource rdt: "),
    ({"nosuch": "x"}, InvalidArgument, "class resource nosuch: "),
    ({"share": "huge"}, InvalidArgument, "class resource share: "),
    ({"share": "default"}, InvalidArgument, "class resource share: "),
    ({"blockio": "slow"}, FailedPrecondition, "class resource blockio: blockio is disabled"),
    ({"share": "big", "watched": "bad"}, FailedPrecondition, "class resource watched: "),
]


@pytest.mark.requirement("Q5", "Q6", "Q10")
def test_a_pod_whose_class_cannot_be_had_leaves_nothing(pods: Pods, daemon: Daemon) -> None:
    before = daemon.resources()
    for classes, kind, text in REFUSED:
        config = pod()
        config.class_resources.CopyFrom(pod_classes(**classes))
        assert error_of(functools.partial(pods.run, config), kind).startswith(text)
        assert daemon.resources() == before


def in_class(rdt: Resctrl, pods: Pods, container: str) -> set[str]:
    """Return the control groups that a container's first process is in."""
    return {name for name in rdt.groups() if pods.host_pid(container) in rdt.tasks(name)}


@pytest.mark.requirement("Q7", "Q27", "Q36")
def test_annotations_count_where_the_field_is_silent(pods: Pods, daemon: Daemon, rdt: Resctrl) -> None:
    sandbox = pods.run(pod(annotations={OF_POD: "silver", "rdt.resources.alpha.kubernetes.io/default": "shy"}))
    of_pod = pods.launch(sandbox, name="other")
    own = pods.launch(sandbox, name="own", annotations={OF_CONTAINER: "gold"})
    both = pods.launch(
        sandbox, name="both", annotations={OF_CONTAINER: "gold"}, class_resources=container_classes(rdt="shy")
    )
    left_out = pods.launch(sandbox, name="out", annotations={OF_CONTAINER: ""})
    assert [in_force(pods, container=item) for item in (of_pod, own, both, left_out)] == [
        {"rdt": "silver"},
        {"rdt": "gold"},
        {"rdt": "shy"},
        {},
    ]
    assert [in_class(rdt, pods, item) for item in (of_pod, own, both, left_out)] == [
        {"silver"},
        {"gold"},
        {"shy"},
        set(),
    ]
    one = pods.run(pod("one", annotations={OF_POD: "silver", OF_ONE: "gold"}))
    assert in_force(pods, container=pods.launch(one)) == {"rdt": "gold"}


@pytest.mark.requirement("Q27")
def test_what_annotations_cannot_ask_for(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run(pod(annotations={OF_POD: "shy"}))
    message = error_of(lambda: pods.create(sandbox), PermissionDenied)
    assert message.startswith("class resource rdt: class 'shy' ")
    assert OF_POD in message
    container = pods.launch(sandbox, annotations={OF_CONTAINER: "shy"})
    assert in_force(pods, container=container) == {"rdt": "shy"}
    nosuch = pods.run(pod("nosuch", annotations={OF_POD: "nosuch"}))
    assert error_of(lambda: pods.create(nosuch), InvalidArgument).startswith("class resource rdt: no class 'nosuch'")
    off = pods.run(pod("off", annotations={"blockio.resources.beta.kubernetes.io/pod": "slow"}))
    assert error_of(lambda: pods.create(off), FailedPrecondition).startswith("class resource blockio: ")

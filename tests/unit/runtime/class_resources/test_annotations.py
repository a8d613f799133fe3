"""Today's annotations of containers and pods: which of them counts, and that CRI's field comes first."""

from __future__ import annotations

import pytest

from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.class_resources.annotations import find
from podkeep.runtime.class_resources.model import Origin
from podkeep.runtime.model.records import SandboxConfig
from podkeep.runtime.rpc.convert.container import container_config

CONTAINER = {"rdt": "io.kubernetes.cri.rdt-class", "blockio": "io.kubernetes.cri.blockio-class"}
ONE = "{}.resources.beta.kubernetes.io/container.main"
ALL = "{}.resources.beta.kubernetes.io/pod"


def asked(
    field: dict[str, str] | None = None,
    *,
    container: dict[str, str] | None = None,
    pod: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return what a request for the container ``main`` asks for."""
    request = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="main"),
        image=api.ImageSpec(image="busybox"),
        annotations=container or {},
        class_resources=None if field is None else api.ContainerClassResources(classes=field),
    )
    parsed = api.ContainerConfig.FromString(request.SerializeToString())
    sandbox = SandboxConfig(name="web", uid="uid-1", namespace="default", annotations=pod or {})
    return container_config(parsed, sandbox).class_resources


@pytest.mark.requirement("Q27")
@pytest.mark.parametrize("name", ["rdt", "blockio"])
def test_the_nearest_annotation_counts(name: str) -> None:
    pod = {ALL.format(name): "all"}
    assert asked(pod=pod) == {name: "all"}
    pod[ONE.format(name)] = "one"
    assert asked(pod=pod) == {name: "one"}
    assert asked(pod=pod, container={CONTAINER[name]: "own"}) == {name: "own"}


@pytest.mark.requirement("Q27")
def test_the_field_wins_over_every_annotation_for_its_type_alone() -> None:
    container = {CONTAINER["rdt"]: "own", CONTAINER["blockio"]: "slow"}
    pod = {ONE.format("rdt"): "one", ALL.format("rdt"): "all"}
    assert asked({"rdt": "gold"}, container=container, pod=pod) == {"rdt": "gold", "blockio": "slow"}
    assert asked({}, container=container, pod=pod) == {"rdt": "own", "blockio": "slow"}
    assert asked({"oom": "last"}, pod=pod) == {"oom": "last", "rdt": "one"}


def test_an_annotation_for_another_container_is_not_this_ones() -> None:
    assert asked(pod={"rdt.resources.beta.kubernetes.io/container.side": "gold"}) == {}


def test_an_empty_annotation_leaves_a_container_out() -> None:
    pod = {ALL.format("rdt"): "all", ALL.format("blockio"): "slow", ONE.format("rdt"): ""}
    assert asked(pod=pod) == {"blockio": "slow"}
    assert asked(pod=pod, container={CONTAINER["blockio"]: ""}) == {}


@pytest.mark.requirement("Q27")
def test_the_alpha_annotations_are_the_agents_affair() -> None:
    alpha = {
        "rdt.resources.alpha.kubernetes.io/default": "gold",
        "rdt.resources.alpha.kubernetes.io/container.main": "gold",
        "blockio.resources.alpha.kubernetes.io/default": "slow",
    }
    assert asked(pod=alpha, container=alpha) == {}


def test_what_is_found_says_where() -> None:
    found = find({}, "main", {CONTAINER["rdt"]: "gold"}, {ALL.format("blockio"): "slow"})
    assert {name: (item.key, item.class_name, item.origin) for name, item in found.items()} == {
        "rdt": ("io.kubernetes.cri.rdt-class", "gold", Origin.CONTAINER),
        "blockio": ("blockio.resources.beta.kubernetes.io/pod", "slow", Origin.POD),
    }
